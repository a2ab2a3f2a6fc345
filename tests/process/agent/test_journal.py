"""The journal after crashes, with clocks that are behind, and its limits; secrets are not in it."""

import contextlib
import errno
import json
import os

import pytest
from factories import apply
from hostile.container import nest

from spark_cluster.node import durable
from spark_cluster.node import journal as journal_module
from spark_cluster.node.durable import TemporaryFiles, is_temporary, temporary_name
from spark_cluster.node.journal import History, why_not_kept
from spark_cluster.node.values import Secret
from spark_cluster.resources import Directory, File, JsonKeys, Line


def changes(node, run="r1"):
    return node.path(f"/var/lib/spark-cluster/journal/{run}/changes.jsonl")


def tear(node, run="r1"):
    """Leave what a power cut in the middle of an entry leaves."""
    with changes(node, run).open("a") as out:
        out.write('{"action": "file", "path": "/torn')


# -- torn lines ----------------------------------------------------------------------------------


def test_a_torn_entry_costs_that_entry_only_and_is_reported(node):
    node.put("/a", "old a\n")
    node.put("/b", "old b\n")
    node.run("r1", File("/a", content="new a\n"))
    tear(node)
    node.run("r1", File("/b", content="new b\n"))
    history = History(node.root)
    assert [e["path"] for e in history.entries("r1") if e["action"] == "file"] == ["/a", "/b"]
    said = "one entry was torn by a crash before its change began; the others are whole"
    assert history.overview()["runs"][0]["notes"] == [said]
    assert history.to_dict("r1")["notes"] == [said]
    reply, _ = node.revert("r1")
    assert reply["notes"] == [said]
    assert (node.path("/a").read_text(), node.path("/b").read_text()) == ("old a\n", "old b\n")


@pytest.mark.parametrize("torn", [b"\0\0\0\0", b'{"a": 1', b'{"a": 1}', b'"', b"\xff"])
def test_a_line_that_follows_a_torn_one_is_whole(tmp_path, torn):
    path = tmp_path / "list"
    durable.append_line(path, 1)
    with path.open("ab") as out:
        out.write(torn)
    durable.append_line(path, 2)
    found, number = durable.read_lines(path)
    whole = torn == b'{"a": 1}'
    assert found == ([1, {"a": 1}, 2] if whole else [1, 2])
    assert number == (0 if whole else 1)


# -- order, number and size ----------------------------------------------------------------------


def test_a_clock_that_is_behind_does_not_cost_the_run_its_journal(node, monkeypatch):
    monkeypatch.setattr(journal_module, "KEPT", 3)
    for number in range(3):
        node.run(f"20301111-{number}", File("/a", content=str(number)))
    for number in range(2):
        node.run(f"20200101-{number}", File("/a", content=f"later {number}"))
    assert History(node.root).runs() == ["20301111-2", "20200101-0", "20200101-1"]
    _, events = node.revert("20301111-2")
    assert "by run 20200101-1" in events["File:/a"]["error"], "not by its name, by its order"


def test_what_is_kept_is_limited_and_the_oldest_go_first(node, monkeypatch):
    monkeypatch.setattr(journal_module, "CONTENTS_LIMIT", 2500)
    for number in range(4):
        node.put(f"/f{number}", str(number) * 1000)
        node.run(f"r{number}", File(f"/f{number}", content="new"))
    history = History(node.root)
    notes = {run["run"]: " ".join(run["notes"]) for run in history.overview()["runs"]}
    gone = {run for run, text in notes.items() if "cannot be reverted any more" in text}
    assert gone == {"r0", "r1"}
    reply, _ = node.revert("r0")
    assert reply["left"] == [
        {"what": "/f0", "why": "what it held before is not kept in the journal"}
    ]
    assert node.revert("r3")[0]["left"] == []
    assert node.path("/f3").read_text() == "3" * 1000


def test_one_run_alone_keeps_no_more_than_the_limit(node, monkeypatch):
    monkeypatch.setattr(journal_module, "CONTENTS_LIMIT", 2500)
    for number in range(4):
        node.put(f"/f{number}", str(number) * 1000)
    node.run("r1", *(File(f"/f{number}", content="new") for number in range(4)))
    assert [item["what"] for item in node.revert("r1")[0]["left"]] == ["/f3", "/f2"]
    assert node.path("/f1").read_text() == "1" * 1000


# -- temporary files -----------------------------------------------------------------------------


def test_temporary_names():
    for name in ("hosts", "x" * 255, "ä" * 127, "\udc80\udcff", ".spark-cluster-0123456789abcdef"):
        made = temporary_name(name)
        assert is_temporary(made)
        assert len(os.fsencode(made)) <= 255
    begun = ".hosts.spark-cluster-"
    assert not any(map(is_temporary, (begun, f"{begun}0123456789abcdef", ".a.x81js2", "a")))
    assert is_temporary(temporary_name(temporary_name("twice")))


def test_what_a_crash_left_is_removed_by_the_next_run_and_nothing_else(node):
    state = node.path("/var/lib/spark-cluster")
    node.put("/etc/mine", "x")
    node.put("/etc/.mine.spark-cluster-0123456789abcdef", "looks like one, and is the user's")
    node.put(f"/srv/{temporary_name('other')}", "in a folder that was never listed")
    left = TemporaryFiles(state).path_for(node.path("/etc/mine"))
    left.write_text("hunter2")
    folder = TemporaryFiles(state).path_for(node.path("/etc/d"))
    (folder / "deep").mkdir(parents=True)
    before = {name for name in node.tree() if not any(map(is_temporary, name.split("/")))}
    durable._in_use.clear()  # as in another process
    node.run("r1", File("/etc/mine", content="x"), Directory("/etc"))
    assert not left.exists()
    assert not folder.exists()
    assert before <= set(node.tree())
    assert not (state / "temporary-folders").exists()
    assert len(list(node.path("/srv").iterdir())) == 1


def test_a_temporary_file_of_this_process_is_left_alone(node):
    files = TemporaryFiles(node.path("/var/lib/spark-cluster"))
    path = files.path_for(node.path("/a"))
    path.write_text("")
    node.host("r2").temporary.clean(str)
    assert path.exists()
    files.done(path)
    assert not path.exists()


@pytest.fixture
def stuck(monkeypatch):
    """Files called `stuck` cannot be removed, as immutable ones; the error names no folder."""
    unlink = os.unlink

    def fails(path, *, dir_fd=None):
        if os.path.basename(path) == "stuck":
            raise PermissionError(errno.EPERM, "Operation not permitted", "stuck")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", fails)


def test_what_cannot_be_removed_is_reported_and_stops_no_run(node, stuck, monkeypatch):
    state = node.path("/var/lib/spark-cluster")
    files = TemporaryFiles(state)
    node.path("/etc").mkdir()
    left = [files.path_for(node.path(name)) for name in ("/etc/a", "/etc/b", "/etc/c")]
    (left[1] / "deep").mkdir(parents=True)
    for path in (left[0], left[1] / "deep/stuck", left[2]):
        path.write_text("x")
    durable._in_use.clear()  # as in another process
    for run in ("r1", "r2"):
        host, notes = node.host(run), []
        host.note = notes.append
        assert apply([File("/etc/x", content=run)], host, lambda _: None) == {"ok": True}
        (note,) = notes
        assert f"{left[1]}/deep/stuck: operation not permitted" in note
    assert [path.exists() for path in left] == [False, True, False]
    assert (state / "temporary-folders").exists(), "to be tried again"
    monkeypatch.undo()
    files.clean(str)
    assert not left[1].exists()
    assert not (state / "temporary-folders").exists()


@pytest.mark.parametrize("keep", [False, True])
def test_a_folder_of_any_depth_is_removed_and_holds_up_no_later_run(node, keep):
    """A program in a container makes one in a folder that it sees, such as that of Ray's logs."""
    nest(node.path("/srv/ray"))
    gone = Directory("/srv/ray", state="absent", keep=keep)
    if not keep:
        assert apply([gone], node.host("r0", check=True), lambda _: None) == {"ok": True}
    node.run("r1", gone)
    assert not list(node.path("/srv").iterdir())
    left = TemporaryFiles(node.path("/var/lib/spark-cluster")).path_for(node.path("/srv/ray"))
    nest(left)
    durable._in_use.clear()  # as in another process
    node.run("r2", File("/srv/x", content=""))
    assert not left.exists()


def test_a_folder_that_cannot_be_removed_whole_is_where_it_was(node, stuck, monkeypatch):
    node.put("/srv/d/deep/stuck", "x")
    node.put("/srv/d/other", "y")
    before, events = node.tree(), []
    gone = Directory("/srv/d", state="absent")
    apply([gone], node.host("r1"), events.append)
    assert events[-1]["verdict"] == "failed"
    assert events[-1]["error"] == f"{node.root}/srv/d/deep/stuck: operation not permitted"
    assert node.path("/srv/d/deep/stuck").read_text() == "x"
    assert node.run("r2", File("/a", content="a")) == ["change"]
    assert node.revert("r1", by="r3")[0]["ok"]
    node.path("/a").unlink()
    assert node.tree() == before
    monkeypatch.undo()
    assert node.run("r4", gone) == ["change"]


# -- secrets -------------------------------------------------------------------------------------

OLD = "hunter2-very-secret-value"


def held(node, text=OLD):
    """Our own files that hold a text."""
    own = node.path("/var/lib/spark-cluster").rglob("*")
    return [str(p) for p in own if p.is_file() and text.encode() in p.read_bytes()]


def told(node, run, *resources, check=False):
    """All that is told of a run with --diff."""
    events = []
    apply(resources, node.host(run, check=check), events.append, diff=True)
    return json.dumps(events)


@pytest.mark.parametrize(
    "later",
    [
        File("/etc/s/token", state="absent"),
        File("/etc/s/token", content="plain"),
        File("/etc/s/token", content=b"plain"),
        Directory("/etc/s", state="absent"),
        Directory("/etc", state="present", mode=0o700),
        Line("/etc/s/token", line="plain"),
        Line("/etc/s/token", line="plain", match="^(hunter2|plain)"),
    ],
    ids=lambda r: f"{type(r).__name__}-{getattr(r, 'state', '')}-{getattr(r, 'content', '')}",
)
@pytest.mark.parametrize("forgotten", [False, True])
def test_a_secret_file_that_is_replaced_or_removed_later(node, later, forgotten, monkeypatch):
    node.path("/etc/s").mkdir(parents=True)
    node.put("/etc/s/other", "not secret\n")
    node.run("r1", File("/etc/s/token", content=Secret(OLD + "\n")))
    if forgotten:  # the journal of that run is gone
        monkeypatch.setattr(journal_module, "KEPT", 1)
        node.run("r2", File("/x", content="x"))
        assert History(node.root).runs() == ["r2"]
    assert OLD not in told(node, "r3", later, check=True)
    assert OLD not in told(node, "r3", later)
    assert held(node) == []
    events = []
    with contextlib.suppress(KeyError):
        _, events = node.revert("r3", by="r4", diff=True)
    assert OLD not in json.dumps(events)
    if isinstance(later, Directory) and later.state == "absent":
        assert node.path("/etc/s/other").read_text() == "not secret\n", "the rest comes back"
        assert not node.path("/etc/s/token").exists()


def test_a_secret_in_keys_of_a_file_that_is_known_to_hold_secrets(node):
    node.run("r1", JsonKeys("/c.json", keys={"a": "x"}))
    host = node.host("r2")
    host.secrets = frozenset({OLD})
    apply([JsonKeys("/c.json", keys={"key": OLD})], host, lambda _: None)
    assert OLD not in told(node, "r3", JsonKeys("/c.json", keys={"key": "plain"}))
    assert held(node) == []


def test_a_secret_of_this_request_in_a_file_that_is_removed(node):
    node.put("/etc/s/env", f"KEY={OLD}\n")
    host = node.host("r1")
    host.secrets = frozenset({OLD})
    apply([Directory("/etc/s", state="absent")], host, lambda _: None)
    assert held(node) == []


def test_a_secret_that_is_reached_through_a_link(node):
    node.path("/etc/s").mkdir(parents=True)
    node.path("/link").symlink_to(node.path("/etc/s"))
    node.run("r1", File("/link/token", content=Secret(OLD)))
    assert OLD not in told(node, "r2", File("/etc/s/token", content="plain"))
    assert held(node) == []


def test_a_folder_whose_names_make_a_path_too_long_is_removed_and_not_kept(node):
    folder = node.path("/srv/long")
    folder.mkdir(parents=True)
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(18):
        os.mkdir("n" * 250, dir_fd=handle)
        inner = os.open("n" * 250, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    assert why_not_kept(folder) == "it cannot be read: File name too long"
    node.run("r1", Directory("/srv/long", state="absent"))
    assert not folder.exists()
