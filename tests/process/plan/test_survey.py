"""Questions of a plan to nodes, and how the answers are used."""

from dataclasses import replace

import pytest
from piped_cluster import PipedCluster

from spark_cluster.config.facts import GpuProcess
from spark_cluster.config.launch import Launch
from spark_cluster.engine.survey import survey
from spark_cluster.issues.rules import lint
from spark_cluster.models.lookup import find


def asked(cluster: PipedCluster) -> list[int]:
    """Return how often each node was asked who holds memory."""
    return [len(node.calls("nvidia-smi")) for node in cluster.nodes.values()]


def test_each_node_is_asked_once_for_who_holds_memory_and_whether_the_model_is_there(piped_cluster):
    cluster = piped_cluster("b", "a")
    head = cluster.nodes["a"]
    head.put("/data/m/.complete", "org/m@main by image\n")
    cluster.nodes["b"].put("/data/m/.complete", "partial org/m by image\n")
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


@pytest.mark.parametrize(("version", "warned"), [("5.14.1", False), ("5.17.0", True), (None, True)])
def test_transformers_of_the_environment_decide_on_a_warning(piped_cluster, version, warned):
    """A plan of two nodes warned of 5.15 with 5.14.1 in the recipe's environment."""
    cluster = piped_cluster("a")
    if version:
        folder = f"/srv/engine/lib/python3.12/site-packages/transformers-{version}.dist-info"
        cluster.nodes["a"].put(f"{folder}/INSTALLER", "uv")
    _, facts = survey(cluster.play, "/data/m", venv="/srv/engine")
    launch = Launch("google/gemma-4-31B-it", vllm="0.26.0", venv="/srv/engine")
    found = {issue.id for issue in lint(launch, find("google/gemma-4-31B-it"), facts)}
    assert ("gemma4-transformers-5.15" in found) is warned
    in_image = {issue.id for issue in lint(replace(launch, venv=""), None, facts)}
    assert "gemma4-transformers-5.15" in in_image
