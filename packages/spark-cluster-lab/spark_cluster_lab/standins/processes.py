"""The node's compute processes: what engine and Ray really run, with the memory they use."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from .state import RUN

SOCKET = RUN / "processes.socket"
COMPUTE = re.compile(r"VLLM::|ray::RayWorker|RayWorker|sglang::")


class ComputeProcess(NamedTuple):
    """A process that holds memory of the GPU."""

    pid: int
    name: str
    used_mib: int


def title(pid: str) -> str:
    """A process's title, as it has set it: up to the first space."""
    raw = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    words = raw.decode(errors="replace").split(None, 1)
    return words[0] if words else ""


def share_kb(pid: str) -> int:
    """A process's proportional share of memory, in kB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0


def scan() -> list[ComputeProcess]:
    """Look through the process table; needs root to see what others' processes use."""
    found = []
    for pid in sorted((p.name for p in Path("/proc").iterdir() if p.name.isdigit()), key=int):
        try:
            name = title(pid)
            if COMPUTE.match(name):
                found.append(ComputeProcess(int(pid), name, share_kb(pid) // 1024))
        except OSError:
            continue  # it ended meanwhile
    return holding_gpu(found)


def holding_gpu(found: list[ComputeProcess]) -> list[ComputeProcess]:
    """Leave out an engine core whose workers hold the GPU for it."""
    workers = [process for process in found if "Worker" in process.name]
    return workers or found


def in_container() -> bool:
    """Return whether this is a container's process table (there nvidia-smi lists nothing)."""
    return Path("/proc/1/comm").read_text().strip() != "systemd"


def compute_processes(state: dict[str, Any]) -> list[ComputeProcess]:
    """Return the processes that `nvidia-smi` lists."""
    if in_container():
        return []
    if state["compute_apps"] is not None:
        return [ComputeProcess(**process) for process in state["compute_apps"]]
    if os.geteuid() == 0:
        return scan()
    import socket  # late, as for all that is slow to import: nvidia-smi is run every second

    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(SOCKET))
            with connection.makefile() as answer:
                return [ComputeProcess(**process) for process in json.load(answer)]
    except OSError:
        return []


def as_json(found: list[ComputeProcess]) -> bytes:
    return json.dumps([process._asdict() for process in found]).encode()
