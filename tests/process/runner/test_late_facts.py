"""Facts that are asked for when a playbook first reads one: not at all, once, of all nodes."""

from dataclasses import replace

import pytest
from piped_cluster import PipedNode

from spark_cluster.errors import Unreachable
from spark_cluster.resources import File

FILE = File("/one", content="1")


@pytest.fixture
def asked(nodes):
    """How often each node's docker was asked."""
    for node in nodes.values():
        node.programs["docker"] = lambda *_: "29.1\n"
    return lambda: {name: len(node.calls("docker")) for name, node in nodes.items()}


def test_nobody_is_asked_for_what_nobody_reads(start, asked, nodes):
    """The locks are held all the same."""
    play, _ = start(gather_facts=False)
    assert all((n.root / "run/spark-cluster/locks/run").read_text() for n in nodes.values())
    assert [(n.name, n.is_head, n.user, n.mtu) for n in play.nodes] == [
        ("spark1", True, "nvidia", 9000),
        ("spark2", False, "nvidia", 9000),
    ]
    assert play.head.head.name == "spark1"
    assert play.apply(play.nodes, [FILE]).changed
    assert asked() == {"spark1": 0, "spark2": 0}
    assert play.connections.facts == {}


def test_the_first_that_is_read_asks_all_nodes_once(start, asked):
    play, _ = start(gather_facts=False)
    head, worker = play.nodes
    assert worker.facts.docker == "29.1"
    assert asked() == {"spark1": 1, "spark2": 1}
    assert head.facts.docker == "29.1"
    assert (len(head.links), head.cluster[1].facts.docker) == (1, "29.1")
    assert [n.facts.docker for n in play.nodes] == ["29.1", "29.1"]
    assert asked() == {"spark1": 1, "spark2": 1}
    play.refresh(play.nodes)
    assert asked() == {"spark1": 2, "spark2": 2}


def test_a_copy_of_a_node_is_a_whole_node(start):
    play, _ = start(gather_facts=False)
    copy = replace(play.head, mtu=1500)
    assert (copy.name, copy.mtu, copy.facts) == ("spark1", 1500, play.head.facts)
    assert copy != play.head
    assert replace(play.head) == play.head


def test_a_run_that_changes_nothing_still_finds_who_does_not_answer(start, nodes, monkeypatch):
    def no_agent(self, really=PipedNode.session):
        session = really(self)
        if self is nodes["spark2"]:
            session.close()
        return session

    monkeypatch.setattr(PipedNode, "session", no_agent)
    play, _ = start(gather_facts=False, change=False)
    assert list(play.out) == ["spark2"]


def test_one_that_does_not_answer_leaves_and_the_others_go_on(start, monkeypatch):
    play, events = start(gather_facts=False)
    lost = play.connections.session("spark2")
    monkeypatch.setattr(lost, "request", lambda *_a, **_o: _raise(Unreachable("gone")))
    head, worker = play.nodes
    assert head.facts.boot_id == "first"
    with pytest.raises(Unreachable, match="gone"):
        _ = worker.facts
    with pytest.raises(Unreachable, match="gone"):
        _ = worker.links
    assert not events.of("NodeFailed")


def _raise(error):
    raise error
