"""`revert` and `history` over several nodes: each on its own, and words for what each said."""

import json

import pytest

from spark_cluster.cli import history as history_command
from spark_cluster.cli.history import LeftAsIs, revert_run
from spark_cluster.errors import Failed
from spark_cluster.resources import Command, File
from spark_cluster.runner.events import Options
from spark_cluster.runner.session import Session

CONFIG = File("/config", content="new\n")


@pytest.fixture
def changed(start, nodes):
    """A run `r1` that changed both nodes; then `again()` begins another one."""
    nodes["spark1"].put("config", "old\n")
    play, _ = start(run="r1")
    play.apply(play.nodes, [CONFIG, Command("flash it", ("true",))])
    play.connections.close()
    return lambda run="r2", **options: start(run=run, **options)


def taken_back(play, of="r1", **options):
    play.options = Options(**options)
    return revert_run(play, of)[0]


def test_on_all_nodes(changed, nodes):
    play, events = changed()
    checked = taken_back(play, check=True, diff=True)
    assert checked["spark1"].reverted[0].diff.endswith("-new\n+old\n")
    assert nodes["spark1"].text("config") == "new\n"
    done = taken_back(play)
    assert nodes["spark1"].text("config") == "old\n"
    assert not (nodes["spark2"].root / "config").exists()
    for found in done.values():
        assert found.of == "r1"
        assert found.error is None
        assert found.left == [LeftAsIs("Command:flash it", "what it did stays")]
    told = [e.verdict for e in events.of("Result")]
    assert told == ["change"] * 4


def test_what_a_node_notes_is_reported(changed, monkeypatch):
    request = Session.request

    def notes(session, op, *takes, **wanted):
        for take in takes if op == "revert" else ():
            take({"event": "note", "id": "", "text": "/etc/.x: operation not permitted"})
        return request(session, op, *takes, **wanted)

    monkeypatch.setattr(Session, "request", notes)
    play, events = changed()
    taken_back(play)
    told = [(note.text, note.level, note.node) for note in events.of("Note")]
    assert ("/etc/.x: operation not permitted", "warning", "spark1") in told


def test_one_refuses_and_the_other_is_restored(changed, nodes):
    nodes["spark1"].put("config", "mine\n")
    play, events = changed()
    done, errors = revert_run(play, "r1")
    assert "nothing was reverted: /config was changed since" in errors["spark1"].message
    assert (errors["spark1"].where, list(errors)) == ("spark1", ["spark1"])
    assert done["spark1"].error == errors["spark1"].message
    assert nodes["spark1"].text("config") == "mine\n"
    assert done["spark2"].error is None
    assert not (nodes["spark2"].root / "config").exists()
    assert [e.node for e in events.of("NodeFailed")] == ["spark1"]


def test_a_run_that_one_node_or_none_knows(changed, nodes, start):
    play, _ = changed("r2")
    play.apply(play.nodes[0], [File("/more", content="x")])
    play.connections.close()
    play, events = changed("r3")
    done = taken_back(play, "r2")
    assert (done["spark1"].of, done["spark2"].of) == ("r2", None)
    assert "no run r2 has changed anything on this node" in events.of("Note")[0].text
    with pytest.raises(Failed, match="no run r17"):
        taken_back(play, "r17")


def test_history_of_all_nodes(changed, nodes, capsys):
    play, _ = changed("r2")
    taken_back(play)
    answers = {name: play.connections.session(name).request("history", of=None) for name in nodes}
    second, first = history_command.runs(answers)
    assert first.run == "r1"
    assert first.command == "test"
    assert first.user
    assert first.nodes == {n: history_command.RunOnNode(2, 1, []) for n in nodes}
    assert (first.reverted_by, second.reverts) == ("r2", "r1")
    entries = play.connections.session("spark1").request("history", of="r1")["entries"]
    told = [history_command.described(entry) for entry in entries]
    assert told[0] == "  /config: content"
    assert told[1].startswith("File:/config  new content")
    json.dumps(answers)
