"""Replicas behind one endpoint: what each is started with, where it listens, who reaches it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv4Interface
from types import SimpleNamespace
from typing import Any

import pytest
from factories import make_node, make_recipe
from serve_plans import inventory_of

from spark_cluster.errors import DoesNotFit, Refused
from spark_cluster.inference.process import PAUSE, RAY, SERVER
from spark_cluster.loader.project import Project
from spark_cluster.node.containers import ContainerState
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


def test_one_server_in_place_of_several_is_said() -> None:
    """A plain `up` after `up --replicas` is no wish to end them."""
    text = endpoint_files(group().whole)[proxy.DESCRIPTION]
    session = SimpleNamespace(request=lambda _op, files: {"files": {"endpoint": text}})
    play = SimpleNamespace(head=NODES[0], session=lambda _node: session)
    said = replicas.taken_away(proxy.replicas_of(replicas.behind(play)), 2)  # type: ignore[arg-type]
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


class FakePlay:
    """A play that notes what it is given, and does nothing."""

    check = False
    changes: tuple[str, ...] = ()

    def __init__(self, *nodes: Node, log: list[Any] | None = None) -> None:
        self.nodes, self.head = list(nodes), nodes[0]
        self.log: list[Any] = [] if log is None else log

    def part(self, names: Sequence[str]) -> FakePlay:
        return FakePlay(*(n for n in self.nodes if n.name in names), log=self.log)

    def role(self, name: str, **given: Any) -> tuple[str, dict[str, Any]]:
        return name, given

    def apply(self, nodes: Any, *what: Any) -> Any:
        names = [node.name for node in (nodes if isinstance(nodes, list | tuple) else [nodes])]
        for one in what:
            said = one[0] if isinstance(one, tuple) else sorted({r.name for r in one})
            self.log.append((said, names))
        return SimpleNamespace(changes=lambda _name: self.changes)

    def together(self, *jobs: Any) -> list[Any]:
        return [job() for job in jobs]

    def session(self, node: Node) -> str:
        return f"session of {node.name}"

    def note(self, *_: Any, **__: Any) -> None:
        pass


def started(monkeypatch: pytest.MonkeyPatch, **ray: str) -> list[Any]:
    """Start replicas on nodes where Ray is in these states; return what was done, in order."""
    found, play = group(), FakePlay(*NODES)
    gone = ContainerState("absent")
    members = [
        Member(play.part(p.deployment.nodes), p, gone, ContainerState(ray.get(name, "absent")))  # type: ignore[arg-type]
        for p in found.parts
        for name in p.deployment.nodes
    ]
    monkeypatch.setattr(replicas.launches, "before_start", lambda *_: None)
    monkeypatch.setattr(replicas.admission, "share", lambda *_: 0.5)
    monkeypatch.setattr(
        replicas.vram, "until_free", lambda sessions: play.log.append(("memory", list(sessions)))
    )
    replicas.start(play, found, members, "present")  # type: ignore[arg-type]
    return play.log


def test_each_replica_is_started_on_its_node_and_the_proxy_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert started(monkeypatch) == [
        ("ray", ["a"]),
        ("vllm", ["a"]),
        ("ray", ["b"]),
        ("vllm", ["b"]),
        ("endpoint", ["a", "b"]),
    ]


def test_what_served_over_several_nodes_is_ended_before_memory_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = started(monkeypatch, b="running")
    assert done[:3] == [([SERVER], ["b"]), ([PAUSE, RAY], ["b"]), ("memory", ["b"])]
    assert done[3][0] == "ray"


def test_a_node_without_room_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replica is admitted by the memory of its own node."""
    found, play = group(), FakePlay(*NODES)
    gone = ContainerState("absent")
    members = [Member(play.part(p.deployment.nodes), p, gone, gone) for p in found.parts]  # type: ignore[arg-type]
    asked = []

    def must_work(part: Any, plan: Any, running: Any, there: Any, **_how: Any) -> None:
        asked.append(part.head.name)
        if part.head.name == "b":
            raise DoesNotFit("too large")

    monkeypatch.setattr(replicas.admission, "must_work", must_work)
    with pytest.raises(DoesNotFit) as refused:
        replicas.must_work(members, {}, force=False)
    assert (asked, refused.value.where) == (["a", "b"], "b")
