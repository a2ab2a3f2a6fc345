"""`revert` of runs: byte for byte, all of it or nothing; and a revert can be reverted too."""

import json
import tempfile
from pathlib import Path

import pytest
from factories import apply
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scratch_root import Node

from spark_cluster.node import journal as journal_module
from spark_cluster.node.host import Host
from spark_cluster.node.journal import History, Journal
from spark_cluster.node.values import Secret
from spark_cluster.resources import Command, Directory, File, Line, ResourceError
from spark_cluster.resources.file import DIFF_INPUT_LIMIT

MIXED = (
    Directory("/srv/deep/models", mode=0o750),
    File("/srv/deep/models/a", content="new\n"),
    File("/etc/hosts", content="127.0.0.1 localhost\n", mode=0o600),
    Line("/etc/fstab", line="tmpfs /tmp tmpfs"),
    File("/etc/gone", state="absent"),
    Directory("/opt/old", state="absent"),
    Directory("/etc", mode=0o700),
)


@pytest.fixture
def before(node):
    node.put("/etc/hosts", "old\n", mode=0o640)
    node.put("/etc/fstab", "proc /proc proc")
    node.put("/etc/gone", "once\n", mode=0o600)
    node.put("/opt/old/x/y", "deep\n", mode=0o400)
    node.path("/opt/old/link").symlink_to("x/y")
    node.path("/opt/old/empty").mkdir(mode=0o711)
    return node.tree()


def test_all_kinds_of_changes_there_and_back_and_there_again(node, before):
    assert set(node.run("r1", *MIXED)) == {"change"}
    after = node.tree()
    checked, events = node.revert("r1", check=True, diff=True)
    assert node.tree() == after
    assert checked["ok"] is True
    assert events["File:/etc/hosts"]["diff"].endswith("-127.0.0.1 localhost\n+old\n")
    assert events["File:/etc/hosts"]["changes"]["mode"] == ["0600", "0640"]
    assert events["Directory:/srv"]["changes"] == {"kind": ["directory", "absent"]}
    reply, told = node.revert("r1")
    assert reply == {"of": "r1", "left": [], "ok": True}
    assert node.tree() == before
    assert set(told) == set(events)
    assert node.revert("r1", by="r10")[1] == {}, "there is nothing left to revert"
    assert node.revert("r9", by="r11")[0]["ok"]
    assert node.tree() == after
    assert node.revert("r11", by="r12")[0]["ok"]
    assert node.tree() == before


def test_changed_since_by_someone_means_that_nothing_is_touched(node, before):
    node.run("r1", *MIXED)
    node.put("/etc/hosts", "127.0.0.1 localhost\nmy line\n", mode=0o600)
    node.path("/etc/fstab").chmod(0o600)
    left = node.tree()
    reply, events = node.revert("r1")
    assert reply["ok"] is False
    assert node.tree() == left
    assert set(events) == {"File:/etc/hosts", "File:/etc/fstab"}
    error = events["File:/etc/hosts"]["error"]
    assert "was changed since, by something other than spark-cluster (at 20" in error
    assert "r9" not in History(node.root).runs()


def test_changed_since_by_a_later_run_names_it(node, before):
    node.run("r1", *MIXED)
    node.run("r2", File("/etc/hosts", content="third\n"))
    _, events = node.revert("r1")
    error = events["File:/etc/hosts"]["error"]
    assert "by run r2 (me@laptop, `provision`, 20" in error
    assert "revert that one first" in error
    content = node.path("/etc/fstab").read_text()
    node.path("/etc/fstab").unlink()
    assert "was removed since" in node.revert("r1")[1]["Path:/etc/fstab"]["error"]
    node.put("/etc/fstab", content)
    node.revert("r2", by="r3")
    assert node.revert("r1", by="r4")[0]["ok"]
    assert node.tree() == before


def test_a_folder_that_has_something_in_it_stays(node, before):
    node.run("r1", *MIXED)
    node.put("/srv/deep/models/mine", "precious\n")
    reply, _ = node.revert("r1")
    assert reply["ok"] is True
    assert reply["left"] == [
        {"what": folder, "why": "something is in it"}
        for folder in ("/srv/deep/models", "/srv/deep", "/srv")
    ]
    assert [p.name for p in node.path("/srv/deep/models").iterdir()] == ["mine"]


@pytest.mark.parametrize("is_large", ["before", "after"])
def test_a_large_file_is_not_read_for_its_diff(node, is_large, monkeypatch):
    large, small = "x" * (DIFF_INPUT_LIMIT + 1), "small\n"
    before, after = (large, small) if is_large == "before" else (small, large)
    node.put("/etc/f", before)
    node.run("r1", File("/etc/f", content=after))
    read_bytes = Path.read_bytes

    def reads_little(path):
        assert path.stat().st_size <= DIFF_INPUT_LIMIT, f"{path} is read whole"
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", reads_little)
    _, events = node.revert("r1", diff=True, check=True)
    sizes = f"{len(after)} bytes become {len(before)} bytes"
    assert events["File:/etc/f"]["diff"] == f"/etc/f: {sizes}\n"


def test_where_it_was_is_gone(node):
    node.put("/a/b/c", "x")
    node.run("r1", File("/a/b/c", state="absent"))
    node.path("/a/b").rmdir()
    _, events = node.revert("r1")
    assert "/a/b, where it was, no longer exists" in events["Path:/a/b/c"]["error"]


def test_what_cannot_be_restored_is_listed(node, before):
    node.run("r1", *MIXED, Command("flash it", ("true",)), Command("look", ("true",), reads=True))
    reply, _ = node.revert("r1", check=True)
    assert reply["left"] == [{"what": "Command:flash it", "why": "what it did stays"}]


def test_a_secret_is_not_kept_and_not_shown(node):
    node.put("/new-folder/.keep", "")
    node.run("r1", File("/token", content=Secret("hunter1")))
    node.run("r2", File("/token", content=Secret("hunter2")), File("/other", content="x"))
    journal = node.path("/var/lib/spark-cluster/journal")
    held = [p for p in journal.rglob("*") if p.is_file() and b"hunter" in p.read_bytes()]
    assert held == []
    assert all(p.stat().st_mode & 0o077 == 0 for p in [journal, *journal.rglob("*")])
    reply, events = node.revert("r2", diff=True)
    assert reply["left"] == [{"what": "/token", "why": "its content is secret, and not kept"}]
    assert set(events) == {"File:/other"}
    assert node.path("/token").read_text() == "hunter2"
    node.run("r3", File("/token", content=Secret("hunter1")))
    node.path("/token").unlink()
    node.run("r4", File("/token", content=Secret("hunter3")))
    _, events = node.revert("r4", diff=True)
    assert events["File:/token"]["diff"] == "/token: secret content, not shown\n"
    assert not node.path("/token").exists()


def test_a_file_that_gets_a_secret_by_the_way_is_treated_as_one(node):
    node.put("/config", "key = hunter2-of-old\n")
    node.put("/env", "KEY=hunter2-of-old\n")
    host = node.host("r1")
    host.secrets = frozenset({"hunter2-of-now", "x"})
    config = File("/config", content="key = hunter2-of-now\n")
    line = Line("/env", line=Secret("KEY=hunter2-of-now"), match="^KEY=")
    apply([config, line, File("/x", content="x")], host, lambda _: None)
    journal = node.path("/var/lib/spark-cluster/journal")
    assert not any(b"hunter2" in p.read_bytes() for p in journal.rglob("*") if p.is_file())
    left = {item["what"] for item in node.revert("r1")[0]["left"]}
    assert left == {"/config", "/env"}


def test_a_journal_of_before_that_did_not_say_what_became(node):
    node.put("/a", "x")
    journal = Journal(node.path("/var/lib/spark-cluster/journal"), "r1")
    journal.record("File:/a", "file", path="/a", before=None)
    _, events = node.revert("r1")
    assert "an older version did not record" in events["File:/a"]["error"]


def test_a_kept_content_that_was_damaged_or_lost(node):
    node.put("/a", "old")
    node.run("r1", File("/a", content="new"))
    (kept,) = node.path("/var/lib/spark-cluster/journal/r1/before").iterdir()
    kept.write_text("damaged")
    reply, _ = node.revert("r1")
    assert reply["left"][0]["what"] == "/a"
    assert node.path("/a").read_text() == "new"


def test_what_fails_in_the_middle_is_taken_back(node, before, monkeypatch):
    node.run("r1", *MIXED)
    after = node.tree()
    write, calls = Host.write, []

    def failing(host, name, data, **options):
        calls.append(name)
        if len(calls) == 2:
            raise OSError(28, "No space left on device", str(host.path(name)))
        write(host, name, data, **options)

    monkeypatch.setattr(Host, "write", failing)
    with pytest.raises(ResourceError, match="cannot be reverted: no space left") as caught:
        node.revert("r1")
    assert caught.value.hint == "everything is as it was before"
    assert node.tree() == after


def fails(monkeypatch, method, path):
    """Have `method` of the reverting run's host fail at `path`, once; the list of its calls."""
    real, calls = getattr(Host, method), []

    def failing(host, name, *args, **options):
        if name == path and host.run_id == "r9" and name not in calls:
            calls.append(name)
            raise OSError(28, "No space left on device", str(host.path(name)))
        real(host, name, *args, **options)

    monkeypatch.setattr(Host, method, failing)


def undone(node):
    text = node.path("/var/lib/spark-cluster/journal/r9/changes.jsonl").read_text()
    return [e["of"] for e in map(json.loads, text.splitlines()) if e["action"] == "undone"]


def test_a_secret_file_is_removed_last_since_it_cannot_be_made_again(node, monkeypatch):
    node.put("/etc/b", "old\n")
    node.put("/etc/c", "old\n")
    token = File("/srv/s/token", content=Secret("hunter2-very-secret"))
    others = (File("/etc/b", content="new\n"), File("/etc/c", state="absent"))
    before = node.tree()
    node.run("r1", Directory("/srv/s"), token, *others)
    after = node.tree()
    fails(monkeypatch, "write", "/etc/c")
    with pytest.raises(ResourceError, match="cannot be reverted: no space left") as caught:
        node.revert("r1")
    assert caught.value.hint == "everything is as it was before"
    assert node.tree() == after
    assert undone(node) == ["r1"]
    assert node.revert("r1", by="r10")[0]["ok"]
    assert node.tree() == before


def test_what_was_lost_by_a_revert_that_failed_is_named(node, monkeypatch):
    node.put("/etc/c", "old\n")
    before = node.tree()
    tokens = [File(f"/etc/token{n}", content=Secret(f"hunter{n}-very-secret")) for n in (1, 2)]
    node.run("r1", *tokens, File("/etc/c", content="new\n"))
    fails(monkeypatch, "remove", "/etc/token1")
    with pytest.raises(ResourceError, match="/etc/token1 cannot be reverted") as caught:
        node.revert("r1")
    assert caught.value.hint == (
        "everything is as it was before except /etc/token2 (its content is secret, and not kept); "
        "`spark-cluster revert r1` again reverts the remainder"
    )
    assert node.path("/etc/c").read_text() == "new\n"
    assert undone(node) == []
    assert History(node.root).half_revert("r1") == "r9"
    assert node.revert("r1", by="r10")[0] == {"of": "r1", "left": [], "ok": True, "continued": "r9"}
    assert node.tree() == before


def test_a_secret_file_that_must_make_room_is_named_when_it_was_in_vain(node, monkeypatch):
    node.put("/etc/c", "old\n")
    before = node.tree()
    token = File("/etc/c/token", content=Secret("hunter2-very-secret"))
    node.run("r1", File("/etc/c", state="absent"))
    node.run("r1", Directory("/etc/c"), token)
    fails(monkeypatch, "write", "/etc/c")
    with pytest.raises(ResourceError, match="cannot be reverted: no space left") as caught:
        node.revert("r1")
    assert "as it was before except /etc/c/token (its content is secret" in caught.value.hint
    assert node.revert("r1", by="r10")[0]["ok"]
    assert node.tree() == before


def test_history(node, before):
    assert History(node.root).overview() == {"runs": []}
    node.run("20261120-1", *MIXED)
    node.run("20261120-1", *MIXED)
    node.run("20261121-2", File("/etc/hosts", content="third\n"), Command("x", ("true",)))
    node.revert("20261121-2", by="20261122-3")
    history = History(node.root)
    last, second, first = history.overview()["runs"]
    assert (first["changes"], first["paths"], first["reverted_by"]) == (7, 9, None)
    assert (second["user"], second["command"]) == ("me@laptop", "provision")
    assert (second["changes"], second["paths"]) == (2, 1)
    assert (second["reverted_by"], last["reverts"]) == ("20261122-3", "20261121-2")
    shown = history.to_dict("20261121-2")
    assert [e["action"] for e in shown["entries"]] == ["file", "converged", "converged"]
    assert "tree" not in json.dumps(history.to_dict("20261120-1"))
    assert history.find("20261121") == "20261121-2"
    with pytest.raises(ResourceError, match="202611 can be 20261120-1, 20261121-2, 20261122-3"):
        history.find("202611")
    with pytest.raises(ResourceError, match="no run 20261120-2") as caught:
        history.find("20261120-2")
    assert "did you mean 20261121-2 or 20261120-1?" in caught.value.hint


def test_what_something_else_changed_between_two_changes_of_the_run(node):
    node.put("/etc/f", "one\n")
    node.run("r1", File("/etc/f", content="two\n"))
    node.put("/etc/f", "mine\n")
    node.run("r1", File("/etc/f", content="three\n"))
    after = node.tree()
    reply, events = node.revert("r1")
    assert not reply["ok"]
    error = events["File:/etc/f"]["error"]
    assert error == "/etc/f was changed during the run, by something else than spark-cluster"
    assert node.tree() == after


def test_a_folder_that_something_else_made_again_is_not_filled(node):
    node.put("/d/e/a", "deep\n")
    node.run("r1", Directory("/d/e", state="absent"))
    node.put("/d/e/mine", "precious\n")
    after = node.tree()
    reply, events = node.revert("r1")
    assert not reply["ok"]
    assert "/d/e was changed since, by something other" in events["Directory:/d/e"]["error"]
    assert node.tree() == after


def test_a_large_folder_that_a_run_made_again_is_named(node, monkeypatch):
    """The folder's content is gone, however alike the new folder looks."""
    monkeypatch.setattr(journal_module, "TREE_LIMIT", 10)
    node.put("/opt/big/file", "more than ten bytes")
    node.run("r1", Directory("/opt/big", state="absent"))
    node.run("r1", Directory("/opt/big"), File("/opt/big/new", content="y"))
    reply, _ = node.revert("r1")
    assert reply["left"] == [
        {"what": "/opt/big", "why": "what it held before is not kept in the journal"}
    ]
    assert list(node.path("/opt/big").iterdir()) == []


def test_a_folder_that_a_run_filled_and_removed_unkept_was_never_there(node, monkeypatch):
    monkeypatch.setattr(journal_module, "TREE_LIMIT", 10)
    node.put("/opt/other", "")
    before = node.tree()
    node.run("r1", Directory("/opt/big"), File("/opt/big/new", content="more than ten bytes"))
    assert node.path("/opt/big/new").exists()
    node.run("r1", Directory("/opt/big", state="absent"))
    assert node.revert("r1")[0] == {"of": "r1", "left": [], "ok": True}
    assert node.tree() == before


# -- any sequence of changes -----------------------------------------------------------------------

PATHS = ("/a", "/b", "/d/a", "/d/b", "/d/e/a", "/d/e/f/a")
FOLDERS = ("/d", "/d/e", "/d/e/f", "/n/m")
texts = st.sampled_from(["", "one\n", "two\nlines\n", "no end"])
modes = st.sampled_from([0o600, 0o644, 0o755, 0o4755])
folder_modes = st.sampled_from([None, 0o700, 0o755, 0o1777])

changes = st.one_of(
    st.builds(File, path=st.sampled_from(PATHS), content=texts, mode=modes),
    st.builds(File, path=st.sampled_from(PATHS), state=st.just("absent")),
    st.builds(Directory, path=st.sampled_from(FOLDERS), mode=folder_modes),
    st.builds(Directory, path=st.sampled_from(["/d/e", "/d/e/f", "/n/m"]), state=st.just("absent")),
    st.builds(
        Line,
        path=st.sampled_from(PATHS),
        line=st.sampled_from(["one", "x"]),
        state=st.sampled_from(["present", "absent"]),
        create=st.booleans(),
    ),
)
starts = st.dictionaries(
    st.sampled_from(PATHS), st.tuples(st.one_of(texts, st.none()), modes), max_size=5
)


def populate(node, start):
    for name, (text, mode) in start.items():
        path = node.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            path.symlink_to("somewhere")
        else:
            node.put(name, text, mode)


GONE, MADE, CLOSED = (
    Directory("/d/e", **what) for what in ({"state": "absent"}, {}, {"mode": 0o700})
)
FOUND = (
    [File("/d/e/b", content="", mode=0o600), GONE],
    [GONE, Directory("/d/e/f", mode=0o700), CLOSED, GONE, Directory("/d/e/f")],
    [CLOSED, GONE, MADE],
    [CLOSED, GONE, File("/d/e/b", content="x")],
    [File("/d/e/f/a", content="", mode=0o600), CLOSED, GONE, MADE],
)
"""Changes of one run that change a folder more than once."""
DEEP = {"/d/e/a": ("deep\n", 0o600), "/d/e/f/a": ("deeper\n", 0o644)}


@example(DEEP, [FOUND[0]], True)
@example(DEEP, [FOUND[1]], True)
@example(DEEP, [FOUND[2]], True)
@example(DEEP, [FOUND[3]], True)
@example(DEEP, [FOUND[4]], True)
@given(starts, st.lists(st.lists(changes, max_size=6), max_size=3), st.booleans())
@settings(max_examples=settings.default.max_examples // 2)
def test_any_runs_reverted_in_reverse_order_give_back_the_same_tree(start, runs, at_once):
    """Of documents that end at a failure, or of one resource after the other, whatever fails."""
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder))
        populate(node, start)
        trees = [node.tree()]
        for number, resources in enumerate(runs):
            for document in [resources] if at_once else [[one] for one in resources]:
                node.run(f"r{number}", *document)
            trees.append(node.tree())
        changed = History(node.root).runs()
        for number in reversed(range(len(runs))):
            if f"r{number}" in changed:
                checked, events = node.revert(f"r{number}", by=f"s{number}", check=True)
                reply, told = node.revert(f"r{number}", by=f"s{number}")
                assert reply == checked == {"of": f"r{number}", "left": [], "ok": True}, events
                assert told == events
            assert node.tree() == trees[number]
        for number in range(len(runs)):  # and forth again
            if f"s{number}" in History(node.root).runs():
                assert node.revert(f"s{number}", by=f"t{number}")[0]["ok"]
            assert node.tree() == trees[number + 1]
