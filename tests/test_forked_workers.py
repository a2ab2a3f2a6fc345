"""Tests in forks: each runs once, and what goes wrong in a fork is shown as pytest itself does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from forked_workers import NONE, WHOLE, Shares
from waiting import HANG_S

TESTS = Path(__file__).parent
FINE = """\
import os, pathlib, pytest

@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    with open({log!r}, "a") as log:
        log.write(f"{{folder.parent.name}} {{os.getpid()}}\\n")

@pytest.mark.parametrize("number", range(6))
def test_fine(made, number, tmp_path):
    assert tmp_path.is_dir()
"""
WRONG = """\
import os, signal, sys, warnings

def test_wrong():
    print("said before")
    assert [1, 2] == [1, 3]

def test_killed():
    os.kill(os.getpid(), signal.SIGKILL)

def test_after_the_killed():
    warnings.warn("take care", stacklevel=1)

def test_left():
    sys.exit("done")
"""


def pytest_of(folder: Path, *words: str) -> tuple[int, str]:
    """Run the tests of a folder in three forks; return the exit status and what is shown."""
    argv = ["-m", "pytest", "-p", "forked_workers", "-p", "no:cacheprovider", "--forks", "3"]
    done = subprocess.run(
        [sys.executable, *argv, f"--rootdir={folder}", *words, str(folder)],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(TESTS)}, timeout=HANG_S,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_all_run_and_what_goes_wrong_is_shown(tmp_path):
    log = tmp_path / "log"
    for name in "abcd":
        (tmp_path / f"test_{name}.py").write_text(FINE.format(log=str(log)))
    (tmp_path / "test_wrong.py").write_text(WRONG)
    status, shown = pytest_of(tmp_path, "-v")
    assert status == 1
    assert "3 failed, 25 passed, 1 warning" in shown
    assert len(re.findall(r"^test_[a-d]\.py::test_fine\[\d\] PASSED", shown, re.M)) == 24
    assert "test_after_the_killed PASSED" in shown
    assert "assert [1, 2] == [1, 3]" in shown
    assert "said before" in shown
    assert "the process that ran it ended with -9" in shown
    assert "SystemExit: done" in shown
    assert "UserWarning: take care" in shown
    made = log.read_text().splitlines()
    assert len(made) == 4, "the fixture of a module is made once"


def test_after_the_first_failure_no_more_begin(tmp_path):
    (tmp_path / "test_a.py").write_text("def test_wrong():\n    assert False\n")
    more = "import time\n" + "".join(f"def test_{n}():\n    time.sleep(0.05)\n" for n in range(400))
    (tmp_path / "test_b.py").write_text(more)
    status, shown = pytest_of(tmp_path, "-x")
    assert status == 1
    assert "stopping after 1 failures" in shown
    passed = re.search(r"(\d+) passed", shown)
    assert passed is None or int(passed[1]) < 400


@pytest.mark.parametrize(
    "sizes", [(1,), (3, 1, 4), (WHOLE, WHOLE, 2 * WHOLE), (1,) * 30, (5 * WHOLE,)]
)
def test_shares_have_every_test_once_in_whole_files(sizes):
    files = [file for file, size in enumerate(sizes) for _ in range(size)]
    shares = Shares(files, 3)
    begun: dict[int, set[int]] = {}
    seen = []
    waiting = [0, 1, 2]
    while waiting:
        for fork in list(waiting):
            index = shares.take(fork)
            if index == NONE:
                waiting.remove(fork)
                continue
            seen.append(index)
            begun.setdefault(files[index], set()).add(fork)
    assert sorted(seen) == list(range(len(files)))
    small = [file for file, size in enumerate(sizes) if size <= WHOLE]
    assert all(len(begun[file]) == 1 for file in small)


def test_a_stopped_run_has_no_tests_left():
    shares = Shares(list("aabbcc"), 2)
    assert shares.take(0) == 0
    shares.stop()
    assert [shares.take(0), shares.take(1)] == [NONE, NONE]
