"""Waiting for Ray's nodes: a node of Ray that ends again and again is not waited for."""

from __future__ import annotations

import pytest
from fake_cluster import FakeCluster, FakeNode, Make
from fake_programs import Said
from free_ports import free_port

from spark_cluster.engine import readiness, runtime
from spark_cluster.engine.names import RAY
from spark_cluster.errors import Failed, VerificationFailed

MISMATCH = "RuntimeError: Version mismatch: The cluster was started with: Ray: 2.60.0\n"
STOP = ["stop", "-t", "5", RAY]


@pytest.fixture
def cluster(fake_cluster: Make, no_pauses: None) -> FakeCluster:
    """Two nodes whose Ray does not answer."""
    made = fake_cluster()
    for node in made.nodes.values():
        node.run_container(RAY)
        node.log(RAY, MISMATCH)
    return made


def restarting(node: FakeNode, *restarts: int) -> None:
    """Have Ray's container started again so often at each look, and then no more."""
    docker, left = node.programs["docker"], list(restarts)

    def looking(words: list[str], stdin: str) -> Said | str:
        if words[:2] == ["container", "inspect"]:
            node.run_container(RAY, restarts=left.pop(0) if left[1:] else left[0])
        return docker(words, stdin)

    node.programs["docker"] = looking


def test_a_worker_that_ends_again_and_again(cluster: FakeCluster) -> None:
    worker = cluster.nodes["spark2"]
    restarting(worker, 1, 1, 2, 3)
    with pytest.raises(Failed, match="Ray on spark2 ended 3 times: RuntimeError: Version") as found:
        readiness.ray_cluster(cluster.play, 2, free_port(), 600)
    assert found.value.where == "spark2 spark-ray"
    assert "ray-versions-differ" in found.value.hint
    assert STOP in worker.calls("docker"), "Docker would start it again and again"


def test_a_worker_that_was_started_again_once_is_waited_for(cluster: FakeCluster) -> None:
    worker = cluster.nodes["spark2"]
    restarting(worker, 0, 1)
    with pytest.raises(VerificationFailed, match="missing: spark1, spark2; spark"):
        readiness.ray_cluster(cluster.play, 2, free_port(), 0.5)
    assert STOP not in worker.calls("docker")


def test_what_ends_at_once_is_explained():
    """The catalogue knows a line of the log that is in the message."""
    said = "container x ended right after its start; its log ends:\n    a\n    " + MISMATCH
    with pytest.raises(Failed) as found, runtime.explained():
        raise Failed(said, where="spark2", hint="docker logs x")
    assert found.value.hint.startswith("the nodes serve from different images (ray-versions-")
    assert found.value.hint.endswith("docker logs x")
    with pytest.raises(Failed) as plain, runtime.explained():
        raise Failed("no idea", hint="look there")
    assert plain.value.hint == "look there"
