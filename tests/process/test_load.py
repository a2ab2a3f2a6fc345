"""The load of tests/under_load.sh presses, lets the tests live, and ends with who started it."""

from __future__ import annotations

import subprocess
import sys

import load
import pytest
from waiting import until

GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "chunks"),
    [
        (23 * GIB, 20 * 16),
        (3 * GIB + load.CHUNK, 1),
        (3 * GIB, 0),
        (2 * GIB, 0),
        (3 * GIB // 2 - 1, -1),
        (GIB, -8),
    ],
)
def test_all_but_so_much_is_held(free, chunks):
    """3 GiB are left; of them the tests may have half before any is given back."""
    assert load.change(free, 3 * GIB) == chunks


@pytest.mark.parametrize("what", ["loop", "memory 1e6"])
def test_it_ends_with_its_parent_whatever_ended_that(what):
    script = f"{sys.executable} -IS {load.__file__} {what} $$ & echo $!; kill -9 $$"
    done = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, text=True, check=False)
    pid = int(done.stdout)
    until(lambda: ended(pid), what="the end of the load")


def ended(pid):
    try:
        with open(f"/proc/{pid}/stat") as source:
            return source.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
