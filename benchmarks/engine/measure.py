"""Runs one command and writes what it cost: `python measure.py RESULT.json OUTPUT -- COMMAND...`.

The CPU time is that of all local descendants, also of those that outlive the command (such as the
master that Ansible leaves behind for its connections): they are adopted, ended and counted.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def main(result: str, output: str, command: list[str]) -> None:
    """Run the command, its output to a file, and write wall, cpu and status."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    try:
        with Path(output).open("wb") as sink:
            start = time.monotonic()
            status = subprocess.run(
                command, stdin=sys.stdin, stdout=sink, stderr=subprocess.STDOUT, check=False
            ).returncode
            wall = time.monotonic() - start
    finally:
        end_adopted()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cost = {"wall": wall, "cpu": usage.ru_utime + usage.ru_stime, "status": status}
    Path(result).write_text(json.dumps(cost), encoding="utf-8")


def end_adopted() -> None:
    """End what the command left behind, and wait for it so that its CPU time counts."""
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split():
        for child in map(int, children):
            os.kill(child, signal.SIGTERM)
        for child in map(int, children):
            os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[4:])
