"""Load for tests/under_load.sh: a busy loop, or memory that is held and touched again and again.

It ends with the process that started it, whatever ended that.
"""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

MEMINFO = Path("/proc/meminfo")

CHUNK = 64 << 20
"""Bytes that are taken or given back at once."""

PAGE = 4096


def available() -> int:
    """Bytes that programs can have without anything being swapped out."""
    lines = MEMINFO.read_text().splitlines()
    return next(int(x.split()[1]) << 10 for x in lines if x.startswith("MemAvailable"))


def change(free: int, leave: int) -> int:
    """Return how many chunks to take, or (negative) to give back.

    Between the two lies room in which the tests' own use goes up and down.

    Args:
        free: bytes that are available.
        leave: bytes that shall be.
    """
    if free > leave:
        return (free - leave) // CHUNK
    return -((leave // 2 - free + CHUNK - 1) // CHUNK) if free < leave // 2 else 0


def hold(leave: int, parent: int) -> None:
    """Hold all memory but `leave` bytes for as long as `parent` lives."""
    with suppress(OSError):  # where memory gets short all the same, this goes first
        Path("/proc/self/oom_score_adj").write_text("1000")
    held: list[bytearray] = []
    turn = 0
    while os.getppid() == parent:
        turn = (turn + 1) % 256
        wanted = change(available(), leave)
        if wanted < 0:
            del held[wanted:]
        elif wanted > 0:
            held.append(bytearray(CHUNK))  # one at a time: the tests take memory meanwhile
        for chunk in held if wanted <= 0 else held[-1:]:
            chunk[::PAGE] = bytes([turn]) * (CHUNK // PAGE)
        if wanted <= 0:
            time.sleep(0.05)


def loop(parent: int) -> None:
    """Do nothing, busily, for as long as `parent` lives."""
    while os.getppid() == parent:
        for _ in range(100_000):
            pass


if __name__ == "__main__":
    if sys.argv[1] == "memory":
        hold(int(float(sys.argv[2]) * (1 << 30)), int(sys.argv[3]))
    else:
        loop(int(sys.argv[2]))
