"""A revert that is killed at any moment can be run again, and completes: nothing stays stuck."""

import contextlib
import os
import random
import shutil
import signal
import sys
import threading

import pytest
from pipe_channel import PipeChannel
from scratch_root import Node

from spark_cluster.errors import SparkClusterError
from spark_cluster.node.durable import is_temporary
from spark_cluster.node.journal import History
from spark_cluster.resources import Directory, File, Line
from spark_cluster.runner import wire
from spark_cluster.runner.session import Session

SOAK_KILLS = 300
SAMPLE_KILLS = 5
WHOLE = pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.soak)])
"""Killed before every change of the file system, or before one of each kind (`places`)."""

CHANGING = {
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.chmod",
    "os.chown",
    "os.symlink",
    "os.truncate",
    "shutil.rmtree",
}
"""What Python reports to audit hooks just before it changes the file system; `open` is one too."""

RUN = (
    Directory("/etc/d", state="absent"),
    File("/etc/kept-link", content="no link any more\n"),
    File("/etc/replaced", content="new\n", mode=0o600),
    File("/etc/removed", state="absent"),
    Line("/etc/list", line="one more"),
    Directory("/srv/new/deep", mode=0o750),
    File("/srv/new/deep/file", content="new\n"),
    Directory("/etc/open", mode=0o700),
    Directory("/opt/now-a-file", state="absent"),
    File("/opt/now-a-file", content="it was a folder\n"),
)


def populate(node):
    for number in range(3):
        node.put(f"/etc/d/e/f{number}", f"{number}\n" * 100, mode=0o640)
    node.path("/etc/d/link").symlink_to("e/f0")
    node.path("/etc/d/empty").mkdir(mode=0o711)
    node.path("/etc/kept-link").symlink_to("replaced")
    node.put("/etc/replaced", "old\n", mode=0o4755)
    node.put("/etc/removed", "once\n")
    node.put("/etc/list", "one\n")
    node.path("/etc/open").mkdir(mode=0o755)
    node.put("/opt/now-a-file/x", "x\n")
    node.path("/srv").mkdir()


class Changed:
    """A node that a run has changed, which can be made so again and again."""

    def __init__(self, folder):
        self.node = Node(folder / "root")
        self.node.root.mkdir()
        populate(self.node)
        self.before = self.node.tree()
        assert set(self.node.run("r1", *RUN)) == {"change"}
        self.after = self.node.tree()
        self.copy = folder / "copy"
        shutil.copytree(self.node.root, self.copy, symlinks=True)

    def again(self):
        shutil.rmtree(self.node.root)
        shutil.copytree(self.copy, self.node.root, symlinks=True)

    def must_complete(self, killed):
        """Revert again, under another id, after `killed` was killed; then back and forth."""
        runs = {run["run"]: run for run in History(self.node.root).overview()["runs"]}
        half = runs["r1"]["half_reverted_by"]
        done = runs["r1"]["reverted_by"]
        assert not (half and done)
        reply, events = self.node.revert("r1", by="r3")
        assert reply["ok"], events
        assert reply.get("continued") == half
        assert self.node.tree() == self.before
        listed = {run["run"]: run for run in History(self.node.root).overview()["runs"]}
        by = killed if half or done else "r3"
        assert (listed["r1"]["reverted_by"], listed["r1"]["half_reverted_by"]) == (by, None)
        assert self.node.revert(by, by="r4")[0]["ok"]
        assert self.node.tree() == self.after
        state = self.node.path("/var/lib/spark-cluster")
        assert not [p for p in state.rglob("*") if is_temporary(p.name)]


@pytest.fixture
def changed(tmp_path):
    return Changed(tmp_path)


def changes_something(event, arguments):
    if event == "open":
        return bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
    return event in CHANGING


def in_child(action, hook):
    """The status of a child that does `action`, with this audit hook."""
    child = os.fork()
    if child == 0:
        sys.addaudithook(hook)
        with contextlib.suppress(BaseException):
            action()
        os._exit(0)
    return os.waitpid(child, 0)[1]


def killed_before_change(number, action):
    """Return whether a child that does `action` was killed before that change."""
    seen = 0

    def hook(event, arguments):
        nonlocal seen
        if changes_something(event, arguments):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    return os.WIFSIGNALED(in_child(action, hook))


def kinds(action):
    """The kind of each change that a child makes in `action`: what is done, and to what."""
    reading, writing = os.pipe()

    def hook(event, arguments):
        if changes_something(event, arguments):
            path = str(arguments[0])
            state = (
                "journal" if "/journal" in path else "state" if "/spark-cluster/" in path else ""
            )
            temporary = is_temporary(path.rpartition("/")[2])
            os.write(writing, f"{event} {state} {temporary}\n".encode())

    with os.fdopen(reading) as out:
        in_child(action, hook)  # a few KB: they fit into the pipe
        os.close(writing)
        return out.read().splitlines()


def places(found, whole):
    """The numbers of all changes; or of one of each kind, from the middle of those of its kind."""
    numbers = range(1, len(found) + 1)
    if whole:
        return list(numbers)
    alike = {kind: [n for n in numbers if found[n - 1] == kind] for kind in found}
    return sorted(of_kind[len(of_kind) // 2] for of_kind in alike.values())


@WHOLE
def test_killed_before_a_change_of_the_file_system_it_completes(changed, whole):
    changed.again()
    found = kinds(lambda: changed.node.revert("r1", by="r2"))
    assert len(found) > 60
    numbers, half = places(found, whole), 0
    for number in numbers:
        changed.again()
        assert killed_before_change(number, lambda: changed.node.revert("r1", by="r2")), number
        half += History(changed.node.root).half_revert("r1") is not None
        changed.must_complete("r2")
    assert half > (40 if whole else len(numbers) // 3)


def test_what_a_kill_leaves_of_a_journal_that_was_begun_is_removed(changed):
    """Killed before `run.json` had its name: the next run has another folder, and cleans this."""
    changed.again()
    found = kinds(lambda: changed.node.revert("r1", by="r2"))
    named = 1 + found.index(next(kind for kind in found if kind.startswith("os.rename")))
    changed.again()
    assert killed_before_change(named, lambda: changed.node.revert("r1", by="r2"))
    begun = changed.node.path("/var/lib/spark-cluster/journal/r2")
    assert [is_temporary(path.name) for path in begun.iterdir()] == [True]
    changed.must_complete("r2")


@WHOLE
def test_killed_while_it_is_continued_it_completes(changed, whole):
    changed.again()
    killed_before_change(40, lambda: changed.node.revert("r1", by="r2"))
    shutil.rmtree(changed.copy)
    shutil.copytree(changed.node.root, changed.copy, symlinks=True)
    found = kinds(lambda: changed.node.revert("r1", by="r2b"))
    assert len(found) > 20
    for number in places(found, whole):
        changed.again()
        assert killed_before_change(number, lambda: changed.node.revert("r1", by="r2b")), number
        changed.must_complete("r2")


def test_a_half_revert_is_known_as_such_and_can_be_taken_back(changed):
    killed_before_change(50, lambda: changed.node.revert("r1", by="r2"))
    about = {run["run"]: run for run in History(changed.node.root).overview()["runs"]}
    assert (about["r2"]["reverting"], about["r2"]["reverts"]) == ("r1", None)
    assert changed.node.tree() not in (changed.before, changed.after)
    assert changed.node.revert("r2", by="r3")[0]["ok"], "the other way is open, too"
    assert changed.node.tree() == changed.after
    assert History(changed.node.root).half_revert("r1") is None
    assert changed.node.revert("r1", by="r4")[0]["ok"]
    assert changed.node.tree() == changed.before


def test_what_was_changed_after_the_kill_is_not_overwritten(changed):
    killed_before_change(50, lambda: changed.node.revert("r1", by="r2"))
    changed.node.put("/etc/replaced", "mine\n")
    left = changed.node.tree()
    reply, events = changed.node.revert("r1", by="r3", check=True)
    assert reply["ok"] is False
    assert "/etc/replaced was changed since" in events["File:/etc/replaced"]["error"]
    assert changed.node.revert("r1", by="r3")[0]["ok"] is False
    assert {n: v for n, v in changed.node.tree().items() if not is_temporary(n.rpartition("/")[2])}
    assert changed.node.path("/etc/replaced").read_text() == "mine\n"
    assert changed.node.tree().keys() <= left.keys()


@WHOLE
def test_an_apply_that_is_killed_can_be_reverted(tmp_path, whole):
    """Before any of its changes: the revert gives back what there was, whatever had come."""
    node = Node(tmp_path / "root")
    node.root.mkdir()
    populate(node)
    before = node.tree()
    copy = tmp_path / "copy"
    shutil.copytree(node.root, copy, symlinks=True)
    found = kinds(lambda: node.run("r1", *RUN))
    assert len(found) > 60
    for number in places(found, whole):
        shutil.rmtree(node.root)
        shutil.copytree(copy, node.root, symlinks=True)
        assert killed_before_change(number, lambda: node.run("r1", *RUN)), number
        if "r1" in History(node.root).runs():
            reply, events = node.revert("r1", by="r2")
            assert reply["ok"], events
        else:
            node.run("r2")
        assert node.tree() == before, number


# -- a real agent --------------------------------------------------------------------------------


def revert_and_kill(root, after_s, *, begun):
    """Have an agent revert r1 and kill it after so long; whether it had ended before.

    Args:
        begun: count from the revert's first entry in the journal, not from the agent's start.
    """
    channel = PipeChannel(wire.argv("test"))
    session = Session("spark1", channel, as_root=False, root=str(root))
    ended = threading.Event()
    entries = root / "var/lib/spark-cluster/journal/r2/changes.jsonl"

    def kill():
        while begun and not entries.exists() and not ended.wait(0.0005):
            pass
        if not ended.wait(after_s):
            channel._process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        return bool(session.request("revert", of="r1", run="r2")["ok"])
    except SparkClusterError:
        return False
    finally:
        ended.set()
        killer.join()
        session.close()


def kill_at_random(changed, agents_home, monkeypatch, kills, seed):
    monkeypatch.setenv("HOME", str(agents_home))
    dice = random.Random(seed)
    changed.again()
    assert revert_and_kill(changed.node.root, 600.0, begun=False), "when nobody kills it"
    killed = half = 0
    within_s = {False: 0.4, True: 0.1}
    while killed < kills:
        changed.again()
        begun = dice.random() < 0.8
        if revert_and_kill(changed.node.root, dice.uniform(0.0, within_s[begun]), begun=begun):
            within_s[begun] = max(0.005, within_s[begun] * 0.9)
            continue
        killed += 1
        if killed % 20 == 0:
            print(f"{killed} of {kills} kills, {half} of them in the middle")
        half += History(changed.node.root).half_revert("r1") is not None
        changed.must_complete("r2")
    return half


def test_an_agent_that_is_killed_at_random(changed, agents_home, monkeypatch):
    kill_at_random(changed, agents_home, monkeypatch, SAMPLE_KILLS, seed=1)


@pytest.mark.soak
def test_an_agent_that_is_killed_at_random_many_times(changed, agents_home, monkeypatch):
    half = kill_at_random(changed, agents_home, monkeypatch, SOAK_KILLS, seed=2)
    assert half > SOAK_KILLS // 10
