"""A program of an engine, in a unit or a container: root, that looks for a way to the node.

It needs Python 3.10 and nothing else, and prints one JSON document.
"""

import json
import os
import socket
import stat
import sys
from pathlib import Path
from typing import Any

KINDS = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)


def connects(path: str) -> bool:
    """Return whether the socket at a path takes a connection of any kind."""
    for kind in KINDS:
        with socket.socket(socket.AF_UNIX, kind) as one:
            one.settimeout(10)
            try:
                one.connect(path)
            except OSError:
                continue
            return True
    return False


def roots_of_others(path: str) -> list[str]:
    """Return the processes in whose root folder a path is seen."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        if process.name != str(os.getpid()) and os.path.lexists(f"{process}/root{path}"):
            found.append((process / "comm").read_text().strip())
    return found


def processes() -> list[str]:
    """Return the names of the processes that are seen."""
    return sorted({file.read_text().strip() for file in Path("/proc").glob("[0-9]*/comm")})


def opens(path: str) -> bool:
    """Return whether a device can be opened to be read or written."""
    for flags in (os.O_RDWR, os.O_RDONLY):
        try:
            os.close(os.open(path, flags | os.O_NONBLOCK))
        except OSError:
            continue
        return True
    return False


def devices() -> list[str]:
    """Return the device nodes below /dev."""
    found = [f"{folder}/{name}" for folder, _, names in os.walk("/dev") for name in names]
    kinds = (stat.S_ISCHR, stat.S_ISBLK)
    return [p for p in found if any(of(os.lstat(p).st_mode) for of in kinds)]


def namespaces() -> bool:
    """Return whether a user namespace, which has all capabilities, can be made."""
    child = os.fork()
    if child == 0:
        import ctypes

        made = ctypes.CDLL(None, use_errno=True).unshare(0x10000000)  # CLONE_NEWUSER
        os._exit(0 if made == 0 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def status(*names: str) -> dict[str, str]:
    """Return lines of this process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    known = dict(line.split(":", 1) for line in lines)
    return {name: known[name].strip() for name in names}


def main(sockets: list[str]) -> dict[str, Any]:
    """Return what could be done.

    Args:
        sockets: of the node, as `ss` lists them.
    """
    return {
        "uid": os.getuid(),
        "status": status("CapEff", "CapBnd", "NoNewPrivs"),
        "connected": [path for path in sockets if connects(path)],
        "processes": processes(),
        "roots": roots_of_others("/run/docker.sock"),
        "devices": [path for path in devices() if opens(path)],
        "namespaces": namespaces(),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
