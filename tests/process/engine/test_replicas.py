"""Replicas behind one endpoint: how they are started, and what they take the place of."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import inf

import pytest
from factories import make_recipe
from piped_cluster import Make, PipedCluster
from serve_plans import inventory_of, linked_nodes, starting

from spark_cluster.engine import proxy
from spark_cluster.engine import start as starts
from spark_cluster.engine.admission import admit
from spark_cluster.engine.deployment import Deployment
from spark_cluster.engine.names import PAUSE, RAY, SERVER
from spark_cluster.engine.readiness import behind, members
from spark_cluster.engine.resolve import resolve
from spark_cluster.errors import DoesNotFit

NODES = linked_nodes("a", "b")


def test_one_server_in_place_of_several_is_said(piped_cluster: Make) -> None:
    """A plain `up` after `up --replicas` is no wish to end them."""
    cluster = piped_cluster("a", "b")
    one, two = (
        resolve(make_recipe(), inventory_of(*NODES), NODES, tp, replicas=count)
        for tp, count in ((2, 1), (1, 2))
    )
    described = {"replicas": [asdict(replica) for replica in two.endpoint.replicas]}
    cluster.head.put(proxy.DESCRIPTION, json.dumps(described))
    now = proxy.replicas_of(behind(cluster.play))
    (said,) = starts.taken_away(one, now, ())
    assert "2 replicas (a, b)" in said
    assert "--tp 2" in said
    assert "`up --replicas 2` keeps them" in said
    assert starts.taken_away(one, (), ()) == starts.taken_away(two, now, ()) == []


@pytest.fixture
def cluster(piped_cluster: Make) -> PipedCluster:
    """Two nodes, whose engine and proxy are only noted."""
    made = piped_cluster("a", "b")
    made.marked("ray", "vllm", "endpoint")
    return made


def replicas(cluster: PipedCluster) -> Deployment:
    return resolve(make_recipe(), cluster.play.inventory, cluster.play.nodes, 1, replicas=2)


def start(cluster: PipedCluster, share: float | None = None) -> None:
    """Start replicas as `up` does, with what runs on the nodes now and the share of the plan."""
    now = starting(cluster.play, replicas(cluster), share)
    starts.end_others(cluster.play, now.deployment, now.members, {})
    starts.start(cluster.play, now)


def test_each_replica_is_started_on_its_node_and_the_proxy_last(cluster: PipedCluster) -> None:
    start(cluster, 0.40)
    for name in ("a", "b"):
        assert cluster.roles(name) == ["ray", "vllm", "endpoint"]
        made = cluster.settings("vllm", name).server
        assert made.node_names == (name,)
        assert made.flags["gpu-memory-utilization"] == 0.40
    last = cluster.applied("File:/roles/")[-2:]
    assert sorted(last) == ["a File:/roles/endpoint", "b File:/roles/endpoint"]


def test_what_served_over_several_nodes_is_ended_before_memory_is_counted(cluster):
    worker = cluster.nodes["b"]
    for name in (SERVER, RAY, PAUSE):
        worker.run_container(name, holds_gib=38)
    start(cluster)
    assert cluster.containers == {"a": [], "b": []}
    made = cluster.settings("vllm", "b").server
    assert made.flags["gpu-memory-utilization"] == 0.80, "of all of its memory"
    ended = [one for one in cluster.applied() if one.startswith("b ")]
    assert ended.index(f"b Container:{SERVER}") < ended.index(f"b Container:{RAY}")
    assert ended.index(f"b Container:{RAY}") < ended.index("b File:/roles/ray")


def test_a_node_without_room_is_named(cluster: PipedCluster) -> None:
    """Each replica is admitted by the memory of its own node."""
    cluster.nodes["b"].available_gib = 10
    found = members(cluster.play, replicas(cluster))
    with pytest.raises(DoesNotFit) as refused:
        admit(cluster.play, found, [dict.fromkeys("ab", inf)] * 2, [], force=False)
    assert refused.value.where == "b"
