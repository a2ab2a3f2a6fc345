"""A user of the node without rights: programs that run as uid 65534, beside what root does."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

NOBODY = 65534
"""The uid and gid that the programs run with; they have no other groups."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

_BECOME = """
import ctypes, fcntl, hashlib, json, os, shutil, socket, stat, subprocess, sys, time
from pathlib import Path
os.setgroups([]); os.setresgid(*[65534] * 3); os.setresuid(*[65534] * 3)
exec(sys.argv[1])
"""
"""The interpreter may be where only root can read: the modules are imported before the change."""


def run(program: str, *, limit_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a Python program as that user to its end; its output is captured.

    What `_BECOME` imports is there for it.
    """
    return subprocess.run(
        _command(program), cwd="/", capture_output=True, text=True, timeout=limit_s, check=False
    )


@contextlib.contextmanager
def running(program: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program as that user meanwhile; it is killed in the end.

    The program prints a line when it has begun; this waits for it.
    """
    with subprocess.Popen(_command(program), cwd="/", stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


def reachable(folder: Path) -> Path:
    """Let that user go through all folders above one (pytest's are root's only); return it."""
    for above in (folder, *folder.parents):
        if above.stat().st_uid == os.geteuid() and above != Path("/"):
            above.chmod(above.stat().st_mode | 0o011)
    return folder


def owned(path: Path) -> Path:
    """Give that user a file or folder; return it."""
    os.chown(path, NOBODY, NOBODY)
    return path


def _command(program: str) -> list[str]:
    return [sys.executable, "-I", "-c", _BECOME, program]
