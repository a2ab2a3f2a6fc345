"""A user of the node without rights can neither hold nor read the locks of its programs."""

import errno
import os
import threading
from itertools import product
from pathlib import Path
from unittest import mock

import pytest
from factories import make_node
from hostile import user
from waiting import HANG_S

from spark_cluster.engine import supervision
from spark_cluster.node import durable, kernel_tuner, measure
from spark_cluster.node.durable import Locked, NodeLock
from spark_cluster.node.supervisor import Supervisor
from spark_cluster_lab.lock import LabLock

pytestmark = user.needs_root

HOLD = """
held = []
for path in {paths}:
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
        try:
            held.append(os.open(path, flags))
            fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass
print(len(held))
"""


@pytest.fixture
def root(open_path: Path) -> Path:
    """The root of a node, which that user can enter."""
    (open_path / "var/lib/spark-cluster").mkdir(parents=True)
    return user.reachable(open_path)


def below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def run_lock(root: Path) -> Path:
    lock = NodeLock(below(root, durable.RUN_LOCK))
    lock.take({"run": "r1", "command": "up --set secret"})
    lock.release()
    return lock.path


def supervisors_lock(root: Path) -> Path:
    path = below(root, durable.RUN_LOCK)
    config = {
        **supervision.configuration({"misses": 2, "pause_s": 10, "answer_s": 5}, make_node("h")),
        "lock": str(path),
    }
    with Supervisor(config, root / "state")._alone() as free:
        assert free
    return path


def tuners_lock(root: Path) -> Path:
    path = below(root, durable.TUNING_LOCK)
    with kernel_tuner._alone(path):
        return path


def bench_lock(root: Path) -> Path:
    path = below(root, measure.LOCK)
    with measure.only_one(path, "/run/server"):
        return path


def lab_lock(root: Path) -> Path:
    path = root / "lab/lock"
    with LabLock(path).held(lambda _: None):
        return path


@pytest.mark.parametrize(
    ("made", "opened"),
    [
        *product((run_lock, supervisors_lock, tuners_lock, bench_lock), ("", "file", "folder")),
        (lab_lock, ""),
    ],
)
def test_a_user_cannot_hold_a_lock(root, made, opened):
    """Whatever an administrator, a backup or an older version has left of file and folder."""
    path = made(root)
    if opened:
        (path if opened == "file" else path.parent).chmod(0o777)
    tried = user.run(HOLD.format(paths=[str(path)]))
    assert (tried.stdout.strip(), tried.stderr) == ("0", "")
    made(root)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700 or made is lab_lock


def test_a_lock_that_a_user_has_put_a_link_for_is_not_followed(root):
    """No user can, in the folder of locks; a lock makes nothing elsewhere either way."""
    path = below(root, durable.RUN_LOCK)
    path.parent.mkdir(parents=True)
    path.symlink_to(root / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        run_lock(root)
    assert not (root / "elsewhere").exists()


def test_the_owner_of_the_run_lock_is_named_to_root_alone(root):
    lock, other = NodeLock(below(root, durable.RUN_LOCK)), NodeLock(below(root, durable.RUN_LOCK))
    lock.take({"run": "r1", "command": "up --set secret"})
    looked = user.run(f"print(Path({str(lock.path)!r}).read_text())")
    assert (looked.stdout, "PermissionError" in looked.stderr) == ("", True)
    with pytest.raises(Locked) as held:
        other.take({"run": "r2"})
    assert held.value.owner["command"] == "up --set secret"
    lock.release()


def test_who_cannot_say_that_he_holds_a_lock_does_not_hold_it(tmp_path, monkeypatch):
    """/run may be full when the supervisor writes its name; it goes on after that."""
    lock = NodeLock(tmp_path / "lock")
    with monkeypatch.context() as full:
        full.setattr(durable.os, "write", mock.Mock(side_effect=OSError(errno.ENOSPC, "full")))
        with pytest.raises(OSError, match="full"):
            lock.take({"run": "r"})
    NodeLock(tmp_path / "lock").take({"run": "s"})


def test_a_lock_is_taken_once_and_waited_for(tmp_path):
    first, second = (durable.open_lock(tmp_path / "locks/one") for _ in range(2))
    assert durable.take_lock(first)
    assert not durable.take_lock(second)
    assert not durable.take_lock(second, within_s=0.1)
    freed = threading.Timer(0.1, os.close, [first])
    freed.start()
    assert durable.take_lock(second, within_s=HANG_S)
    freed.join()
    os.close(second)
