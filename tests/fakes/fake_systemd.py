"""systemctl and journalctl over units that are given as data.

A unit: load, active, sub, file (UnitFileState), stale (NeedDaemonReload), type, log; `fails` is the
text with which a start fails, `dies` makes it end right after its start. Files in the node's
/etc/systemd/system are units too; what a start takes is what the last daemon-reload read, kept as
`text`, and `behaviour` says what such a unit does (`dies`, `fails`, `log`).
"""

from pathlib import Path
from typing import Any

from common import Refuse


def main(state: dict[str, Any], root: Path, command: str, argv: list[str]) -> None:
    units = state.setdefault("units", {})
    look(state, root)
    if command == "journalctl":
        assert argv[0] == "-u" and argv[2:] == ["-n", "15", "--no-pager", "-o", "cat"], argv
        print(units.get(argv[1], {}).get("log", ""))
        return
    action, *rest = argv
    if action == "daemon-reload":
        for unit in units.values():
            unit["stale"] = False
            if "new" in unit:
                unit["text"] = unit["new"]
            if unit.get("load") == "error":
                unit["load"] = unit.get("then", "loaded")
        return
    name = rest[-1] if "--now" in rest else rest[0]
    unit = units.get(name, {})
    if action == "show":
        if rest[0] == "--property=Listen":
            return
        assert rest[1] == "-p", argv
        show(unit, rest[2].split(","))
        return
    if unit.get("load", "loaded") != "loaded" or name not in units:
        raise Refuse(5, f"Failed to {action} {name}: Unit {name} not found.")
    act(unit, action)
    if "--now" in rest:
        act(unit, "stop" if action == "disable" else "start")


def look(state: dict[str, Any], root: Path) -> None:
    """Units of the node's own folder, as they are now."""
    units = state["units"]
    folder = root / "etc/systemd/system"
    here = {p.name: p.read_text() for p in folder.glob("*.service")} if folder.is_dir() else {}
    for name, text in here.items():
        given = state.get("behaviour", {}).get(name, {})
        known = {"type": "exec", "file": "disabled", "text": text, "own": True, **given}
        unit = units.setdefault(name, known)
        if unit.get("own"):
            unit["new"] = text
            unit["stale"] = text != unit["text"]
    for name in [n for n, unit in units.items() if unit.get("own") and n not in here]:
        if units[name].get("active") not in ("active", "activating"):
            del units[name]


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
        unit["runs"] = unit.get("text", "")
        unit["left"] = 1 if unit.get("dies") else None
    else:
        raise Refuse(1, f"Unknown command verb '{action}'.")


def show(unit: dict[str, Any], wanted: list[str]) -> None:
    if unit.get("left") == 0:
        unit["active"], unit["sub"] = "activating", "auto-restart"
        unit["restarts"] = 1
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
        "NRestarts": unit.get("restarts", 0),
        "ExecMainStatus": unit.get("status", 0),
    }
    if "error" in unit:
        known["LoadError"] = unit["error"]
    for key in wanted:
        if key in known:
            print(f"{key}={known[key]}")
