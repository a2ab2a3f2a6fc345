"""modprobe and hostname over the scratch root's own /sys/module and /proc.

`modules` are those that the running kernel could load, `used` those that cannot be taken out.
"""

from pathlib import Path
from typing import Any

from common import Refuse


def main(state: dict[str, Any], root: Path, command: str, argv: list[str]) -> None:
    if command == "hostname":
        if state.get("nameless"):
            raise Refuse(1, "hostname: you must be root to change the host name")
        (root / "proc/sys/kernel/hostname").write_text(argv[0] + "\n")
        return
    name = argv[-1]
    folder = root / "sys/module" / name.replace("-", "_")
    if argv[0] == "-r":
        if name in state.get("used", []):
            raise Refuse(1, f"modprobe: FATAL: Module {name} is in use.")
        folder.rmdir()
        return
    if name not in state.get("modules", []):
        raise Refuse(1, f"modprobe: FATAL: Module {name} not found in directory /lib/modules/7.0.0")
    folder.mkdir(parents=True)
