"""Nodes with facts, for tests of roles and playbooks."""

from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Interface
from typing import Any

import pytest
from factories import SHIPPED

from spark_cluster.config.facts import Facts, Gpu, Hca
from spark_cluster.config.topology import Link, Node
from spark_cluster.engine.deployment import Endpoint
from spark_cluster.resources import Resource

TWINS = (("rocep1s0f1", "enp1s0f1np1"), ("roceP2p1s0f1", "enP2p1s0f1np1"))
UNCABLED = (("rocep1s0f0", "enp1s0f0np0"), ("roceP2p1s0f0", "enP2p1s0f0np0"))
HCAS = (*(Hca(h, i, True, 3) for h, i in TWINS), *(Hca(h, i, False) for h, i in UNCABLED))


def a_spark(index: int = 0, *, linked: bool = True, **facts: Any) -> Node:
    """A healthy node; `facts` change what is true of it."""
    known: dict[str, Any] = {
        "hostname": f"spark-{index + 1}a60",
        "os": "ubuntu 24.04",
        "kernel": "6.17.0-1014-nvidia",
        "machine_id": f"{index + 1:032x}",
        "gpu": Gpu("NVIDIA GB10", "12.1", "580.142"),
        "dgx_version": "7.4.0",
        "hcas": HCAS,
        "packages": {"docker-ce": "5:29.2.1-1", "systemd-timesyncd": "255.4"},
        "host_keys": (f"ssh-ed25519 HOST{index + 1}",),
        "mesh_key": f"ssh-ed25519 {'AAAAC3NzaC1lZDI1NTE5AAAAI' + 'ABC'[index] * 43}",
    }
    links = tuple(
        Link(interface, IPv4Interface(f"192.168.{177 + n}.{11 + index}/24"), hca)
        for n, (hca, interface) in enumerate(TWINS)
    )
    return Node(
        name=f"spark{index + 1}",
        address=f"10.89.0.{11 + index}",
        index=index,
        is_head=index == 0,
        user="nvidia",
        facts=Facts(**{**known, **facts}),
        links=links if linked else (),
    )


def together(*nodes: Node) -> list[Node]:
    """The same nodes, each knowing all of them."""
    return [replace(node, cluster=nodes) for node in nodes]


def yielded(name: str, node: Node, /, **settings: Any) -> list[Resource]:
    """What a role that ships yields: `yielded("power", node, clock_cap=False)`."""
    loaded = SHIPPED.load_role(name)
    return list(loaded.function(node, loaded.settings_model(**settings)))


def an_endpoint(host: str, port: int = 8000, **fields: Any) -> Endpoint:
    """An endpoint behind the proxy."""
    return Endpoint(host, port, "m", **{"engine_port": 18000, **fields})


@pytest.fixture
def role() -> Callable[..., list[Resource]]:
    """`role("power", node, clock_cap=False)`: what the shipped role yields."""
    return yielded


def ids(resources: list[Resource]) -> list[str]:
    return [resource.id for resource in resources]


def one(resources: list[Resource], kind: str, name: str = "") -> Any:
    """The only resource of a kind (and a beginning of its name)."""
    found = [r for r in resources if r.id.startswith(f"{kind}:{name}")]
    assert len(found) == 1, ids(resources)
    return found[0]
