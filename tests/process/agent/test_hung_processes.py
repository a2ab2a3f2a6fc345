"""A frozen disk of a test is thawed and unmounted, whatever ends the test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import hung_processes
import pytest
from hung_processes import ended, frozen_disk
from waiting import until

TESTS = Path(__file__).parents[2]

PROGRAM = """
import os, signal, subprocess, sys
sys.path[:0] = sys.argv[1:3]
from hung_processes import frozen_disk
from waiting import until
with frozen_disk() as disk:
    writes = subprocess.Popen(disk.command)
    until(disk.holds)
    print(writes.pid, disk.folder, flush=True)
    {end}
"""


@pytest.mark.parametrize(
    "end",
    [
        "raise KeyboardInterrupt",
        "assert False",
        "os._exit(1)",
        "os.kill(os.getpid(), signal.SIGTERM)",
        "os.kill(os.getpid(), signal.SIGKILL)",
    ],
)
def test_whatever_ends_it(end):
    with frozen_disk():
        pass  # where there is none, this says so
    argv = [sys.executable, "-c", PROGRAM.format(end=end), str(TESTS), str(TESTS / "agent")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    pid, folder = done.stdout.split()
    assert done.returncode != 0
    ended(int(pid))
    until(lambda: folder not in Path("/proc/self/mountinfo").read_text(), what="its unmounting")
    until(lambda: not Path(folder).exists(), what="its removal")


@pytest.mark.parametrize(
    ("ci", "outcome"), [("1", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
def test_where_none_can_be_frozen(monkeypatch, ci, outcome):
    monkeypatch.delenv("CI", raising=False)
    if ci:
        monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(hung_processes, "_checked", refused)
    with pytest.raises(outcome, match="no disk can be frozen here"), frozen_disk():
        pass


def refused(*argv):
    raise subprocess.CalledProcessError(32, argv, stderr=b"mount: permission denied")
