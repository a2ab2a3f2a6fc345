"""Processes that do not end, for tests of what waits for them; and what the kernel says of one."""

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from waiting import FAR_S, HANG_S, until

THAW = """
read -r _
mountpoint -q "$0" || exit 0
fsfreeze --unfreeze "$0"
tries=0
until umount "$0"; do
  tries=$((tries + 1))
  if [ "$tries" -gt 1000 ]; then umount --lazy "$0"; break; fi
  sleep 0.1
done
rm -rf "$1"
"""
"""Waits for the end of its input, which comes whatever ends the tests, and frees a frozen disk."""


@dataclass(frozen=True)
class FrozenDisk:
    """A file system that holds whoever writes to it in uninterruptible sleep.

    SIGKILL does not take such a process, with cgroups of either version; of version 2 it takes one
    that the freezer holds.
    """

    folder: Path
    mounted: Path

    @property
    def command(self) -> tuple[str, ...]:
        """A command that goes to uninterruptible sleep, and ends once the disk is thawed."""
        return ("sh", "-c", f"echo $$ >> {self.folder}/pids; echo > {self.mounted}/written")

    def pids(self) -> list[int]:
        """The processes of that command, so far."""
        path = self.folder / "pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def holds(self) -> bool:
        """Return whether one of them is in uninterruptible sleep."""
        return any(state(pid) == "D" for pid in self.pids())


@contextlib.contextmanager
def frozen_disk() -> Iterator[FrozenDisk]:
    """A frozen disk; at the end it is thawed, what it held has ended, and it is unmounted."""
    with tempfile.TemporaryDirectory(
        prefix="spark-cluster-test-", ignore_cleanup_errors=True
    ) as name:
        disk = FrozenDisk(Path(name), Path(name) / "mounted")
        disk.mounted.mkdir()
        thaws = subprocess.Popen(
            ["sh", "-c", THAW, str(disk.mounted), name],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _mount(disk)
            _checked("fsfreeze", "--freeze", str(disk.mounted))
            yield disk
        finally:
            pids = disk.pids()
            thaws.stdin.close()
            thaws.wait(HANG_S)
            for pid in pids:
                ended(pid)
            assert not disk.mounted.is_mount()


def _mount(disk: FrozenDisk) -> None:
    """Mount it; where that is not possible, skip the test, or let it fail in CI."""
    image = disk.folder / "image"
    try:
        with image.open("wb") as out:
            out.truncate(8 << 20)
        _checked("mkfs.ext4", "-q", "-F", str(image))
        _checked("mount", "-t", "ext4", "-o", "loop", str(image), str(disk.mounted))
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"") or str(error).encode()
        why = f"no disk can be frozen here (root and a loop device are needed): {said.decode()}"
        if "CI" in os.environ and os.geteuid() == 0:
            pytest.fail(why)
        pytest.skip(why)


def _checked(*argv: str) -> None:
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    subprocess.run(argv, check=True, capture_output=True, env={**os.environ, "PATH": path})


def lives(pid: int) -> bool:
    """Return whether a process is there and no zombie."""
    return state(pid) not in ("", "Z", "X")


def state(pid: int) -> str:
    """The state of a process, one letter as ps prints it; empty when there is none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def limit_once(path: Path) -> str:
    """Code for an agent or a worker: the limit of its commands comes once `path` is there."""
    return (
        "import time\n"
        "from pathlib import Path\n"
        "from spark_cluster.node import processes\n"
        "came = []\n"
        "def until(_self):\n"
        f"    if not came and Path({str(path)!r}).exists(): came.append(time.monotonic())\n"
        f"    return came[0] if came else time.monotonic() + {FAR_S}\n"
        "processes.Running.until = property(until, lambda *_: None)\n"
    )


def pid_in(path: Path) -> int:
    """The number that a command wrote into a file, once it has."""
    return int(until(lambda: path.exists() and path.read_text().strip(), what=str(path)))


def ended(pid: int) -> None:
    """Wait for a process to be gone."""
    until(lambda: not lives(pid), what=f"the end of process {pid}")


def seconds(began: float) -> float:
    return time.monotonic() - began


def peak_mib(pid: int) -> float:
    """The most memory that a process has had, MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) / 1024
