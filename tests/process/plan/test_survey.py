"""Questions of a plan to nodes, and how the answers are used."""

from __future__ import annotations

from fake_cluster import FakeCluster, Make

from spark_cluster.config.facts import GpuProcess
from spark_cluster.engine.survey import survey


def asked(cluster: FakeCluster) -> list[int]:
    """Return how often each node was asked who holds memory."""
    return [len(node.calls("nvidia-smi")) for node in cluster.nodes.values()]


def test_each_node_is_asked_once_for_who_holds_memory_and_whether_the_model_is_there(
    fake_cluster: Make,
) -> None:
    cluster = fake_cluster("b", "a")
    head = cluster.nodes["a"]
    head.put("/data/m/.complete", "org/m@main\n")
    head.held = [GpuProcess(4711, "VLLM::EngineCore", 2048)]
    play = cluster.play.part(["a", "b"])
    facts = {node.name: node.facts for node in play.nodes}
    before = asked(cluster)
    rooms, found = survey(play, "/data/m")
    assert asked(cluster) == [count + 1 for count in before]
    assert [room.name for room in rooms] == ["a", "b"], "the head first"
    assert [room.has_model for room in rooms] == [True, False]
    assert rooms[0].held_gib == 2.0
    assert found == [facts["a"], facts["b"]]
