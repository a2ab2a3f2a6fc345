"""Run the repetitions of a cell of `vllm bench serve`: the program `vllm_runs FOLDER ID`.

It runs as root, because only root may be sure to start a container; all that it reads and writes
lies in folders of root, but for `FOLDER/out`, where the program leaves its result: from there one
plain file of a limited size is taken, and no link is followed. The program itself has fewer rights:
in a container those that the image's own files need, without one those of the login user.

`FOLDER/vllm.json` says what is run. A repetition without a result ends the cell; what it means is
for the reader of the results, as is the program's exit status.
"""

from __future__ import annotations

import contextlib
import glob
import grp
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PLAN = "vllm.json"
OUT = "out"
"""Below the folder: what the program may write to."""

CONTAINER = "spark-bench"
"""Name of the container: at most one run is measured on a node."""

LABEL = "spark-cluster.bench"
"""Label by which a container of that name is known as ours; another one is never removed."""

LIST = (
    "container", "ls", "--all", "--no-trunc", "--filter", f"name=^/?{CONTAINER}$",
    "--format", f'{{{{.ID}}}} {{{{.Label "{LABEL}"}}}}',
)  # fmt: skip
"""Words after `docker` that print a line for each container of that name: its id, and its label."""

LARGEST_BYTES = 256 * 1024 * 1024
"""Of a result that is read at all."""

WHOLE_BYTES = 4 * 1024 * 1024
"""A larger result is kept without what it says of every token, so that it can be copied."""

BULKY = ("itls", "generated_texts", "input_lens", "start_times", "ttfts")
"""Fields of the detailed result that no figure is taken from."""

DOCKER_S = 120.0
"""Seconds for a question to Docker, and for making or removing a container."""

END_S = 5.0
"""Seconds between SIGTERM and SIGKILL of a program without a container."""


class Ended(Exception):
    """A repetition has no result; the text says why."""


def main(folder: str, cell: str) -> int:
    """Run all repetitions of a cell; returns the exit status."""
    signal.signal(signal.SIGTERM, _stop)
    return _run_all(Path(folder), cell)


def _run_all(folder: Path, cell: str) -> int:
    plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    work = plan["cells"][cell]
    for old in (folder / "raw").glob(f"{glob.escape(cell)}.*.json"):
        old.unlink()
    for number, run in enumerate(work["runs"], 1):
        print(f"run {number} of {len(work['runs'])}", flush=True)
        try:
            with _out(folder, plan.get("user", "")) as out:
                _run(plan, run["argv"], out, run["run_s"])
                content = result(out, run["file"])
            (folder / "raw" / run["file"]).write_bytes(content)
        except Ended as error:
            print(f"run {number}: {error}", flush=True)
            return 1
    return 0


@contextlib.contextmanager
def _out(folder: Path, user: str) -> Iterator[Path]:
    """An empty folder that the program may write to; gone afterwards."""
    out = folder / OUT
    _remove(out)
    out.mkdir(mode=0o700)
    if user:
        entry = pwd.getpwnam(user)
        os.chown(out, entry.pw_uid, entry.pw_gid)
    try:
        yield out
    finally:
        _remove(out)


def _remove(out: Path) -> None:
    if out.exists():
        shutil.rmtree(out)


def _run(plan: dict[str, Any], argv: list[str], out: Path, limit_s: float) -> None:
    if plan["runtime"] == "docker":
        _in_container(plan["docker"], plan["create"], argv, limit_s)
    else:
        _as_user(plan, argv, out, limit_s)


# -- in a container --------------------------------------------------------------------------------


def _in_container(docker: str, create: list[str], argv: list[str], limit_s: float) -> None:
    """Run a container of the engine's image to its end; none is left, however this ends.

    It is found by its name and our label, so also one whose id was never read.
    """
    if foreign := _remove_ours(docker):  # ours: of a run that was killed
        raise Ended(
            f"a container {CONTAINER} that is not ours is in the way ({foreign[0][:12]}): "
            f"`docker rename {CONTAINER} NAME`, or remove it"
        )
    try:
        name = ("--name", CONTAINER, "--label", f"{LABEL}=load")
        made = _docker(docker, "create", *name, *create, *argv)
        if made.returncode != 0 or not made.stdout.strip():
            raise Ended(f"docker create: {_line(made.stderr) or 'it names no container'}")
        container = made.stdout.strip()
        done = subprocess.run(
            [docker, "start", "--attach", container],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
            check=False,
        )
        print(f"it ended with status {done.returncode}", flush=True)
    except subprocess.TimeoutExpired:
        raise Ended(f"it did not end within {limit_s:g} s") from None
    finally:
        with _unbroken():
            _remove_ours(docker)


def _remove_ours(docker: str) -> list[str]:
    """Remove the container of a run, running or not; return the ids of others with its name."""
    listed = _docker(docker, *LIST)
    if listed.returncode != 0:
        raise Ended(f"docker container ls: {_line(listed.stderr)}")
    found = [line.split() for line in listed.stdout.splitlines() if line.strip()]
    ours = [words[0] for words in found if len(words) > 1]
    if ours:
        _docker(docker, "rm", "--force", "--volumes", *ours)
    return [words[0] for words in found if len(words) == 1]


@contextlib.contextmanager
def _unbroken() -> Iterator[None]:
    """Have SIGTERM wait until this is done, for what is started in it too."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _docker(docker: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Ask Docker, in a session of its own: a signal to this program must not cut it off."""
    try:
        return subprocess.run(
            [docker, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DOCKER_S,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Ended(f"docker {words[0]} took longer than {DOCKER_S:g} s") from None
    except OSError as error:
        raise Ended(f"docker {words[0]}: {error.strerror}") from None


def _line(text: str) -> str:
    return " ".join(text.split())[:300]


# -- without one -----------------------------------------------------------------------------------


def _as_user(plan: dict[str, Any], argv: list[str], out: Path, limit_s: float) -> None:
    """Run the program of a virtual environment as the login user; none of it is left."""
    environment = {"PATH": os.defpath, "HOME": str(out), **plan["env"]}
    try:
        process = subprocess.Popen(
            argv,
            cwd=out,
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **_rights(plan["user"]),
        )
    except OSError as error:
        raise Ended(f"{argv[0]}: {error.strerror}") from None
    try:
        print(f"it ended with status {process.wait(limit_s)}", flush=True)
    except subprocess.TimeoutExpired:
        raise Ended(f"it did not end within {limit_s:g} s") from None
    finally:
        _kill(process)


def _rights(user: str) -> dict[str, Any]:
    entry = pwd.getpwnam(user)
    if entry.pw_uid == os.getuid():
        return {}
    groups = [group.gr_gid for group in grp.getgrall() if user in group.gr_mem]
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)


# -- the result ------------------------------------------------------------------------------------


def result(out: Path, name: str) -> bytes:
    """Return a result that a program left in its folder.

    Raises:
        Ended: there is none, it is no plain file, too large, or no JSON object.
    """
    try:
        handle = os.open(out / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise Ended("it wrote no result") from None
    except OSError as error:
        raise Ended(f"its result cannot be read: {error.strerror}") from None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise Ended("its result is no plain file")
        if found.st_size > LARGEST_BYTES:
            raise Ended(f"its result has more than {LARGEST_BYTES >> 20} MiB")
        with os.fdopen(os.dup(handle), "rb") as file:
            content = file.read(LARGEST_BYTES)
    finally:
        os.close(handle)
    return content if len(content) <= WHOLE_BYTES else _shortened(content)


def _shortened(content: bytes) -> bytes:
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        raise Ended("its result is no JSON") from None
    if not isinstance(data, dict):
        raise Ended("its result is no JSON object")
    for field in BULKY:
        data.pop(field, None)
    return json.dumps(data).encode()


def _stop(*_: object) -> None:
    """End at a first SIGTERM; those that follow must not cut off what is cleaned up."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)
