"""`revert` and `history` over several nodes: each on its own, and words for what each said."""

import pytest

from spark_cluster.cli.history import revert_run
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
