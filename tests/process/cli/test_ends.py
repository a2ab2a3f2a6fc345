"""The program's end when its machine does not cooperate: no reader, a full disk, Ctrl-C."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import HANG_S

from spark_cluster.cli import cli, main

CHECKOUT = Path(__file__).parents[3]
ENV = {"PYTHONPATH": str(CHECKOUT), "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
PROGRAM = [sys.executable, "-m", "spark_cluster"]
LONG, SHORT = ("explain", "--about", "all"), ("explain", "--about", "gpu-dead")
JSON = ("--json", *LONG)


@pytest.mark.parametrize("words", [LONG, SHORT, JSON, ("--help",)])
def test_a_reader_that_has_seen_enough(tmp_path, words):
    """As `| head` has; also when all of the output is in the buffer until the end."""
    reading, writing = os.pipe()
    with subprocess.Popen(
        [*PROGRAM, *words], stdout=writing, stderr=subprocess.PIPE, cwd=tmp_path, env=ENV
    ) as program:
        os.close(writing)
        os.close(reading)
        said = program.stderr.read()
        status = program.wait(timeout=120)
    assert said == b""
    assert status in (1, 128 + signal.SIGPIPE), "1 is click's own"


def ended(folder: Path, words: tuple[str, ...], **options) -> subprocess.CompletedProcess[str]:
    """Return the end of the program with these outputs."""
    argv = [*PROGRAM, *words]
    return subprocess.run(argv, check=False, text=True, cwd=folder, **{"env": ENV, **options})


@pytest.mark.parametrize("words", [LONG, SHORT, JSON])
def test_a_full_disk_under_the_output(tmp_path, words):
    with Path("/dev/full").open("wb") as full:
        done = ended(tmp_path, words, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.startswith("error: No space left on device\n")
    assert "free space" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-"])
def test_a_closed_stream(tmp_path, closed):
    """As a service or a script may start it."""
    argv = ["sh", "-c", f'exec "$@" {closed}', "sh", *PROGRAM, *SHORT]
    done = subprocess.run(
        argv, check=False, text=True, cwd=tmp_path, env=ENV, capture_output=True, timeout=HANG_S
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (closed != ">&-")


def test_a_terminal_that_has_ascii_only(tmp_path):
    done = ended(tmp_path, SHORT, capture_output=True, env={**ENV, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\u2718" in done.stdout


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/home/me/x"), 1,
         "error: /home/me/x: No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 1, "/x: Permission denied"),
        (KeyboardInterrupt(), 130, "aborted"),
        (BrokenPipeError(), 141, ""),
    ],
)  # fmt: skip
def test_faults_of_the_laptop_are_no_tracebacks(monkeypatch, capsys, raised, status, said):
    def fault(*_args, **_kwargs):
        raise raised

    monkeypatch.setattr(cli, "invoke", fault)
    monkeypatch.setattr("sys.argv", ["spark-cluster", "status"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == status
    assert said in capsys.readouterr().err
