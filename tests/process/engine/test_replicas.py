"""Replicas behind one endpoint: what each is started with, where it listens, who reaches it."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface
from math import inf
from typing import Any

import pytest
from factories import make_node, make_recipe
from fake_cluster import FakeCluster, Make
from serve_plans import inventory_of, located, starting

from spark_cluster.config.project import Project
from spark_cluster.config.topology import Link, Node
from spark_cluster.engine import proxy
from spark_cluster.engine import start as starts
from spark_cluster.engine.admission import admit
from spark_cluster.engine.deployment import Deployment
from spark_cluster.engine.names import PAUSE, RAY, SERVER
from spark_cluster.engine.readiness import behind, members
from spark_cluster.engine.resolve import resolve
from spark_cluster.errors import DoesNotFit, Refused
from spark_cluster.resources import File


def linked(name: str, number: int) -> Node:
    node = make_node(name, head=number == 1, address=f"10.0.0.{number}")
    link = Link("enp1s0f1np1", IPv4Interface(f"192.168.177.{10 + number}/24"))
    return replace(node, links=(link,))


NODES = (linked("a", 1), linked("b", 2))


def deployment_of(count: int = 2, nodes: tuple[Node, ...] = NODES, **serve: Any) -> Deployment:
    return resolve(make_recipe(), inventory_of(*nodes, **serve), nodes, 1, replicas=count)


def test_the_heads_replica_is_on_its_loopback_and_the_other_on_the_fabric() -> None:
    found = deployment_of()
    assert [server.node_names for server in found.servers] == [("a",), ("b",)]
    assert [(server.host, server.port) for server in found.servers] == [
        ("127.0.0.1", 18000),
        ("192.168.177.12", 18000),
    ]
    assert [server.endpoint.url for server in found.servers] == [
        "http://127.0.0.1:18000/v1",
        "http://192.168.177.12:18000/v1",
    ]
    assert {server.labels["spark-cluster.tp"] for server in found.servers} == {"1"}
    assert not any(server.on_ray for server in found.servers)


def test_the_head_is_not_loaded_again_when_a_replica_joins_a_server_behind_the_proxy() -> None:
    serve = {"bind": "management", "open": True, "port": 8000}
    nodes = (replace(NODES[0], address="10.0.0.1"), NODES[1])
    recipe, inventory = located(make_recipe()), inventory_of(*nodes, **serve)
    alone, joined = (resolve(recipe, inventory, nodes, 1, replicas=n).first for n in (1, 2))
    role = Project().load_role("vllm")
    made = [role.function(nodes[0], role.settings_model(server=one)) for one in (alone, joined)]
    assert list(made[0]) == list(made[1])


def endpoint_files(deployment: Deployment) -> dict[str, str]:
    """The proxy's files on the head, by path."""
    role = Project().load_role("endpoint")
    settings = role.settings_model(**deployment.endpoint.proxy_settings())
    resources = role.function(NODES[0], settings)
    return {one.path: str(one.content) for one in resources if isinstance(one, File)}


def test_the_proxy_is_in_front_of_all_also_on_the_loopback() -> None:
    found = deployment_of()
    assert found.endpoint.url == "http://127.0.0.1:8000/v1"
    files = endpoint_files(found)
    servers = [
        line.split()[1:]
        for line in files[proxy.CONFIG].splitlines()
        if line.startswith("    server ")
    ]
    assert servers == [["a", "127.0.0.1:18000"], ["b", "192.168.177.12:18000"]]
    assert proxy.replicas_of(files[proxy.DESCRIPTION]) == found.endpoint.replicas
    assert proxy.described(files[proxy.DESCRIPTION]) is not None


def test_one_server_has_no_replicas_in_its_description() -> None:
    assert proxy.replicas_of('{"url": "http://x/v1", "api_key": false, "tls": null}') == ()
    for odd in (None, "", "[]", '{"replicas": 3}', '{"replicas": [{"node": "a"}]}'):
        assert proxy.replicas_of(odd) == ()


def test_one_server_in_place_of_several_is_said(fake_cluster: Make) -> None:
    """A plain `up` after `up --replicas` is no wish to end them."""
    cluster = fake_cluster("a", "b")
    cluster.head.put(proxy.DESCRIPTION, endpoint_files(deployment_of())[proxy.DESCRIPTION])
    now = proxy.replicas_of(behind(cluster.play))
    one = resolve(make_recipe(), inventory_of(*NODES), NODES, 2)
    (said,) = starts.taken_away(one, now, ())
    assert "2 replicas (a, b)" in said
    assert "--tp 2" in said
    assert "`up --replicas 2` keeps them" in said
    assert starts.taken_away(one, (), ()) == starts.taken_away(deployment_of(), now, ()) == []


def test_the_engines_port_is_open_to_the_other_nodes_over_the_fabric_only() -> None:
    firewall = deployment_of().firewall
    assert firewall["peers"] == ("a", "b")
    assert (18000, 18000) in firewall["ports"]


def test_nodes_that_are_left_over_serve_nothing() -> None:
    three = (*NODES, linked("c", 3))
    found = deployment_of(nodes=three)
    assert [node.name for node in found.nodes] == ["a", "b"]
    assert [node.name for node in found.idle] == ["c"]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(Refused, match="3 replicas at TP=1 need 3 nodes; there are 2"):
        deployment_of(3)
    with pytest.raises(Refused, match="b has no link to the head"):
        deployment_of(nodes=(NODES[0], replace(NODES[1], links=())))
    with pytest.raises(Refused, match=r"serve\.engine_port and serve\.port are both 18000"):
        deployment_of(port=18000)
    with pytest.raises(Refused, match="minimax"):
        resolve(make_recipe("minimax-m2.5-awq"), inventory_of(*NODES), NODES, 1, replicas=2)


@pytest.fixture
def cluster(fake_cluster: Make) -> FakeCluster:
    """Two nodes, whose engine and proxy are only noted."""
    made = fake_cluster("a", "b")
    made.marked("ray", "vllm", "endpoint")
    return made


def replicas(cluster: FakeCluster) -> Deployment:
    return resolve(make_recipe(), cluster.play.inventory, cluster.play.nodes, 1, replicas=2)


def start(cluster: FakeCluster, share: float | None = None) -> None:
    """Start replicas as `up` does, with what runs on the nodes now and the share of the plan."""
    now = starting(cluster.play, replicas(cluster), share)
    starts.end_others(cluster.play, now.deployment, now.members, {})
    starts.start(cluster.play, now)


def test_each_replica_is_started_on_its_node_and_the_proxy_last(cluster: FakeCluster) -> None:
    start(cluster, 0.40)
    for name in ("a", "b"):
        assert cluster.roles(name) == ["ray", "vllm", "endpoint"]
        made = cluster.settings("vllm", name).server
        assert made.node_names == (name,)
        assert made.flags["gpu-memory-utilization"] == 0.40
    last = cluster.applied("File:/roles/")[-2:]
    assert sorted(last) == ["a File:/roles/endpoint", "b File:/roles/endpoint"]


def test_what_served_over_several_nodes_is_ended_before_memory_is_counted(
    cluster: FakeCluster,
) -> None:
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


def test_a_node_without_room_is_named(cluster: FakeCluster) -> None:
    """Each replica is admitted by the memory of its own node."""
    cluster.nodes["b"].available_gib = 10
    found = members(cluster.play, replicas(cluster))
    with pytest.raises(DoesNotFit) as refused:
        admit(cluster.play, found, [dict.fromkeys("ab", inf)] * 2, [], force=False)
    assert refused.value.where == "b"
