"""Replicas behind one endpoint: what each is started with, where it listens, who reaches it."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface
from math import inf
from typing import Any

import pytest
from factories import make_node, make_recipe
from fake_cluster import FakeCluster, Make
from serve_plans import inventory_of

from spark_cluster.errors import DoesNotFit, Refused
from spark_cluster.inference.process import PAUSE, RAY, SERVER
from spark_cluster.loader.project import Project
from spark_cluster.resources import File
from spark_cluster.serving import proxy, replicas
from spark_cluster.serving.plan import ServePlan, resolve
from spark_cluster.serving.replicas import Group, Member, resolve_group
from spark_cluster.topology import Link, Node


def linked(name: str, number: int) -> Node:
    node = make_node(name, head=number == 1, address=f"10.0.0.{number}")
    link = Link("enp1s0f1np1", IPv4Interface(f"192.168.177.{10 + number}/24"))
    return replace(node, links=(link,))


NODES = (linked("a", 1), linked("b", 2))


def group(count: int = 2, nodes: tuple[Node, ...] = NODES, **serve: Any) -> Group:
    return resolve_group(make_recipe(), inventory_of(*nodes, **serve), nodes, count)


def test_the_heads_replica_is_on_its_loopback_and_the_other_on_the_fabric() -> None:
    found = group()
    deployments = [part.deployment for part in found.parts]
    assert [d.nodes for d in deployments] == [("a",), ("b",)]
    assert [(d.host, d.port) for d in deployments] == [
        ("127.0.0.1", 18000),
        ("192.168.177.12", 18000),
    ]
    assert [part.endpoint.url for part in found.parts] == [
        "http://127.0.0.1:18000/v1",
        "http://192.168.177.12:18000/v1",
    ]
    assert {d.labels["spark-cluster.tp"] for d in deployments} == {"1"}
    assert not any(d.on_ray for d in deployments)


def test_the_head_is_not_loaded_again_when_a_replica_joins_a_server_behind_the_proxy() -> None:
    serve = {"bind": "management", "open": True, "port": 8000}
    nodes = (replace(NODES[0], address="10.0.0.1"), NODES[1])
    alone = resolve(make_recipe(), inventory_of(*nodes, **serve), nodes, 1)
    assert group(nodes=nodes, **serve).parts[0].deployment == alone.deployment


def endpoint_files(plan: ServePlan) -> dict[str, str]:
    """The proxy's files on the head, by path."""
    role = Project().load_role("endpoint")
    settings = role.settings_model(**plan.endpoint.proxy_settings())
    resources = role.function(NODES[0], settings)
    return {one.path: str(one.content) for one in resources if isinstance(one, File)}


def test_the_proxy_is_in_front_of_all_also_on_the_loopback() -> None:
    found = group().whole
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
    cluster.head.put(proxy.DESCRIPTION, endpoint_files(group().whole)[proxy.DESCRIPTION])
    said = replicas.taken_away(proxy.replicas_of(replicas.behind(cluster.play)), 2)
    assert "2 replicas (a, b)" in said
    assert "--tp 2" in said
    assert "`up --replicas 2` keeps them" in said
    assert replicas.taken_away((), 1) == ""


def test_the_engines_port_is_open_to_the_other_nodes_over_the_fabric_only() -> None:
    firewall = group().whole.firewall
    assert firewall["peers"] == ("a", "b")
    assert (18000, 18000) in firewall["ports"]


def test_nodes_that_are_left_over_serve_nothing() -> None:
    three = (*NODES, linked("c", 3))
    found = group(nodes=three)
    assert [node.name for node in found.whole.nodes] == ["a", "b"]
    assert [node.name for node in found.whole.idle] == ["c"]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(Refused, match="3 replicas at TP=1 need 3 nodes; there are 2"):
        group(3)
    with pytest.raises(Refused, match="b has no link to the head"):
        group(nodes=(NODES[0], replace(NODES[1], links=())))
    with pytest.raises(Refused, match=r"serve\.engine_port and serve\.port are both 18000"):
        group(port=18000)
    with pytest.raises(Refused, match="minimax"):
        resolve_group(make_recipe("minimax-m2.5-awq"), inventory_of(*NODES), NODES, 2)


@pytest.fixture
def cluster(fake_cluster: Make) -> FakeCluster:
    """Two nodes, whose engine and proxy are only noted."""
    made = fake_cluster("a", "b")
    made.marked("ray", "vllm", "endpoint")
    return made


def members(cluster: FakeCluster) -> list[Member]:
    """Look at what runs on the nodes."""
    found = resolve_group(make_recipe(), cluster.play.inventory, cluster.play.nodes, 2)
    return replicas.members(cluster.play, found)


def start(cluster: FakeCluster) -> None:
    found = resolve_group(make_recipe(), cluster.play.inventory, cluster.play.nodes, 2)
    replicas.start(cluster.play, found, members(cluster), "present")


def test_each_replica_is_started_on_its_node_and_the_proxy_last(cluster: FakeCluster) -> None:
    start(cluster)
    for name, share in (("a", 0.40), ("b", 0.40)):
        assert cluster.roles(name) == ["ray", "vllm", "endpoint"]
        made = cluster.settings("vllm", name).deployment
        assert made.nodes == (name,)
        assert made.flags["gpu-memory-utilization"] == share
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
    made = cluster.settings("vllm", "b").deployment
    assert made.flags["gpu-memory-utilization"] == 0.40, "of all of its memory"
    ended = [one for one in cluster.applied() if one.startswith("b ")]
    assert ended.index(f"b Container:{SERVER}") < ended.index(f"b Container:{RAY}")
    assert ended.index(f"b Container:{RAY}") < ended.index("b File:/roles/ray")


def test_a_node_without_room_is_named(cluster: FakeCluster) -> None:
    """Each replica is admitted by the memory of its own node."""
    cluster.nodes["b"].available_gib = 10
    with pytest.raises(DoesNotFit) as refused:
        replicas.must_work(members(cluster), dict.fromkeys("ab", inf), force=False)
    assert refused.value.where == "b"
