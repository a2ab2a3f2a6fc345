"""netplan, ip and systemd-run over interfaces that are given as data.

`links`: interface to {mtu, addresses}. `netplan apply` gives what the files under /etc/netplan say
(`# INTERFACE ADDRESS MTU` lines); `mute` names interfaces on which no address comes.
"""

from pathlib import Path
from typing import Any

from common import Refuse


def main(state: dict[str, Any], root: Path, command: str, argv: list[str]) -> None:
    if command == "systemd-run":
        unit = next(a.partition("=")[2] for a in argv if a.startswith("--unit="))
        timers = state.setdefault("timers", {})
        if unit in timers:
            raise Refuse(1, f"Unit {unit}.timer was already loaded")
        timers[unit] = argv[argv.index("--") + 1 :]
    elif command == "systemctl":
        state.setdefault("timers", {}).pop(argv[1].removesuffix(".timer"), None)
    elif command == "ip":
        show(state)
    elif argv[0] == "generate":
        base = Path(argv[2]) if len(argv) > 2 else root
        for file in base.glob("*/netplan/*.yaml"):
            if "BROKEN" in file.read_text():
                raise Refuse(78, f"{file.name}:1:1: Invalid YAML")
    else:
        apply(state, root)


def apply(state: dict[str, Any], root: Path) -> None:
    if state.pop("refuses", None):
        raise Refuse(1, "networkd is not running")
    for link in state["links"].values():
        link["addresses"], link["mtu"] = [], 1500
    for file in sorted((root / "etc/netplan").glob("*.yaml")):
        for line in file.read_text().splitlines():
            if line.startswith("# ") and len(line.split()) == 4:
                _, interface, address, mtu = line.split()
                if interface not in state.get("mute", []):
                    state["links"][interface] = {"addresses": [address], "mtu": int(mtu)}


def show(state: dict[str, Any]) -> None:
    import json

    rows = []
    for name, link in state["links"].items():
        infos = [
            {"family": "inet", "local": a.split("/")[0], "prefixlen": int(a.split("/")[1])}
            for a in link["addresses"]
        ]
        rows.append({"ifname": name, "mtu": link["mtu"], "addr_info": infos})
    print(json.dumps(rows))
