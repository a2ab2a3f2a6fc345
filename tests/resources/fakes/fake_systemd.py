"""systemctl and journalctl over units that are given as data.

A unit: load, active, sub, file (UnitFileState), stale (NeedDaemonReload), type, log; `fails` is the
text with which a start fails, `dies` makes it end right after its start.
"""

from pathlib import Path
from typing import Any

from common import Refuse


def main(state: dict[str, Any], root: Path, command: str, argv: list[str]) -> None:
    units = state.setdefault("units", {})
    if command == "journalctl":
        assert argv[0] == "-u" and argv[2:] == ["-n", "15", "--no-pager", "-o", "cat"], argv
        print(units.get(argv[1], {}).get("log", ""))
        return
    action, *rest = argv
    if action == "daemon-reload":
        for unit in units.values():
            unit["stale"] = False
            if unit.get("load") == "error":
                unit["load"] = unit.get("then", "loaded")
        return
    name = rest[0]
    unit = units.get(name, {})
    if action == "show":
        assert rest[1] == "-p", argv
        show(unit, rest[2].split(","))
        return
    if unit.get("load", "loaded") != "loaded" or name not in units:
        raise Refuse(5, f"Failed to {action} {name}: Unit {name} not found.")
    act(unit, action)


def act(unit: dict[str, Any], action: str) -> None:
    if action in ("enable", "disable"):
        unit["file"] = "enabled" if action == "enable" else "disabled"
    elif action == "reset-failed":
        unit["active"], unit["limit"] = "inactive", False
    elif action == "stop":
        unit["active"] = "inactive"
    elif action in ("start", "restart", "reload-or-restart", "try-restart"):
        if action == "try-restart" and unit.get("active") != "active":
            return
        unit["starts"] = unit.get("starts", 0) + 1
        if unit.get("fails") or unit.get("limit"):
            unit["active"], unit["sub"] = "failed", "failed"
            raise Refuse(1, "Job for the unit failed because the control process exited.")
        unit["active"], unit["sub"] = "active", "running"
        unit["left"] = 1 if unit.get("dies") else None
    else:
        raise Refuse(1, f"Unknown command verb '{action}'.")


def show(unit: dict[str, Any], wanted: list[str]) -> None:
    if unit.get("left") == 0:
        unit["active"], unit["sub"] = "activating", "auto-restart"
    if unit.get("left"):
        unit["left"] -= 1
    known = {
        "LoadState": unit.get("load", "loaded") if unit else "not-found",
        "ActiveState": unit.get("active", "inactive"),
        "SubState": unit.get("sub", "dead"),
        "UnitFileState": unit.get("file", "disabled") if unit else "",
        "NeedDaemonReload": "yes" if unit.get("stale") else "no",
        "Type": unit.get("type", "notify"),
        "Result": unit.get("result", "success"),
    }
    if "error" in unit:
        known["LoadError"] = unit["error"]
    for key in wanted:
        if key in known:
            print(f"{key}={known[key]}")
