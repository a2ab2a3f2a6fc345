"""The copy of a model along a chain of nodes: real processes and sockets, nodes as folders."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_programs import missing
from piped_cluster import PipedCluster
from stored_models import COMMIT, model

from spark_cluster.engine import node_copies
from spark_cluster.engine.node_copies import bring_folder, copy_folder
from spark_cluster.errors import UsageError
from spark_cluster.node.store import copy_work
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.node.store.verify import progress_line, verify
from spark_cluster.runner.events import Options
from spark_cluster.runner.parallel import in_parallel

HUB = "/hub"


class Chain:
    """Three nodes, of which the first has a model."""

    def __init__(self, cluster: PipedCluster) -> None:
        self.cluster, self.play, self.nodes = cluster, cluster.play, cluster.play.nodes
        self.manifest = model(self.hub(0))

    def root(self, number: int) -> Path:
        return self.cluster.nodes[f"spark{number + 1}"].root

    def hub(self, number: int) -> Path:
        return self.root(number) / "hub"

    def sound(self, number: int, manifest: Manifest | None = None) -> bool:
        return verify(HubCache(self.hub(number)), manifest or self.manifest).sound

    def copy(self, most: int = 1, **how: Any) -> list[node_copies.Copied]:
        """Copy the model from the first node to the next ones."""
        first, *others = self.nodes
        return node_copies.copy(self.play, self.manifest, first, others[:most], hub=HUB, **how)

    @property
    def asked(self) -> list[dict[str, Any]]:
        """What the nodes were asked of copies, node by node."""
        return [what for node in self.cluster.nodes.values() for what in node.requests("copy")]

    @property
    def kinds(self) -> list[str]:
        return [what["what"] for what in self.asked]


@pytest.fixture
def chain(linked_with: Callable[..., PipedCluster]) -> Chain:
    return Chain(linked_with())


@pytest.mark.parametrize("encrypt", [True, False], ids=["TLS", "plain"])
def test_a_chain_of_three_nodes_gets_all_of_it(chain, encrypt):
    done = chain.copy(2, revision="main", encrypt=encrypt)
    for number in (1, 2):
        assert chain.sound(number)
        assert HubCache(chain.hub(number)).commit_of("org/model", "main") == COMMIT
    assert [(one.node, one.sender, one.moved) for one in done] == [
        ("spark2", "spark1", chain.manifest.size),
        ("spark3", "spark2", chain.manifest.size),
    ]
    assert all(one.fabric for one in done)
    assert not chain.cluster.notes
    assert all("copies" in chain.cluster.roles(name) for name in chain.cluster.nodes)


@pytest.mark.parametrize("encrypt", [True, False], ids=["TLS", "plain"])
def test_the_management_network_is_there_for_a_fabric_that_fails_if_encrypted(chain, encrypt):
    chain.copy(encrypt=encrypt)
    parts = [part for what in chain.asked for part in (what.get("receive"), what.get("serve"))]
    spare = [part["spare"] for part in parts if part]
    assert spare == [["127.0.1.1"] if encrypt else []] * 2


def test_a_node_sends_two_at_the_same_time(chain):
    """An image and a model, say: each copy has a port of its own."""
    manifests = [model(chain.hub(0), name) for name in ("org/a", "org/b")]
    first, second, _ = chain.nodes

    def send(manifest: Manifest) -> list[node_copies.Copied]:
        return node_copies.copy(chain.play, manifest, first, [second], hub=HUB)

    found = in_parallel({one.repository: partial(send, one) for one in manifests})
    for outcome in found.values():
        assert not isinstance(outcome, Exception), outcome
    ports = {what["serve"]["secrets"]["port"] for what in chain.asked if what.get("serve")}
    assert ports == set(node_copies.COPIES)
    for manifest in manifests:
        assert chain.sound(1, manifest)


def test_a_plain_folder_goes_to_all_also_where_an_old_file_is(chain):
    weights, head = random.Random(1).randbytes(9_000_000), chain.cluster.head
    for node in chain.cluster.nodes.values():
        (node.root / "srv").mkdir()
    head.put("/srv/model/config.json", "{}")
    head.put("/srv/model/sub/weights.bin", weights)
    chain.cluster.nodes["spark2"].put("/srv/model/sub/weights.bin", bytes(9_000_000))
    first, *others = chain.nodes
    done = copy_folder(chain.play, "/srv/model", first, others)
    assert [(one.node, one.moved) for one in done] == [("spark2", 9_000_002), ("spark3", 9_000_002)]
    for number in (1, 2):
        there = chain.root(number) / "srv/model"
        assert (there / "config.json").read_text() == "{}"
        assert (there / "sub/weights.bin").read_bytes() == weights
    before = len(chain.kinds)
    again = copy_folder(chain.play, "/srv/model", first, others)
    assert [one.moved for one in again] == [0, 0]
    assert len(chain.kinds) == before + 3, "what is there is compared, and nothing sent"


def test_a_folder_of_the_laptop_goes_to_the_first_node_and_on(linked, tmp_path):
    local = tmp_path / "model"
    (local / ".cache").mkdir(parents=True)
    (local / ".cache/note").write_text("left out")
    (local / "sub").mkdir()
    (local / "sub/a.bin").write_bytes(b"a")
    for node in linked.nodes.values():
        (node.root / "srv").mkdir()
    given = {"name": "org/model", "directory": local, "path": "/srv/model"}
    bring_folder(linked.play, linked.play.nodes[:2], given)
    names = ("Directory:/srv/model", "Directory:/srv/model/sub", "File:/srv/model/sub/a.bin")
    assert linked.applied()[: len(names)] == [f"spark1 {name}" for name in names]
    assert linked.roles("spark2") == linked.roles("spark1") == ["copies"]
    assert linked.nodes["spark2"].text("/srv/model/sub/a.bin") == "a"


def test_the_ports_are_closed_to_strangers_before_a_sender_listens(chain):
    begun: list[list[str]] = []
    chain.cluster.on_event = lambda event: (
        begun.append(chain.kinds) if "firewall" in str(getattr(event, "resource", "")) else None
    )
    chain.copy(2)
    assert {kind for kinds in begun for kind in kinds} == {"missing"}
    for name in ("spark1", "spark2"):
        given = chain.cluster.settings("firewall", name)
        assert (given.state, given.endpoint_port) == ("copies", None)
        assert given.ports == ((node_copies.COPIES[0], node_copies.COPIES[-1]),)
    assert "firewall" not in chain.cluster.roles("spark3"), "it sends nothing"
    assert set(chain.kinds) == {"missing", "begin", "work"}


def test_where_there_is_no_firewall_the_copy_goes_on_and_says_so(chain):
    chain.cluster.head.programs["nft"] = missing
    chain.copy()
    assert "firewall" not in chain.cluster.roles()
    assert chain.sound(1)
    (note,) = chain.cluster.notes
    assert "nftables does not work here" in note


def test_a_second_copy_starts_nothing(chain):
    chain.copy()
    before = len(chain.kinds)
    (done,) = chain.copy()
    assert (done.moved, done.kept, done.sender) == (0, chain.manifest.size, "")
    assert len(chain.kinds) == before + 1
    assert chain.cluster.nodes["spark2"].requests("copy")[-1]["what"] == "missing"


def test_the_secrets_are_gone_after_the_copy_and_never_in_an_argument(chain):
    chain.copy()
    for number in (0, 1):
        assert not list(chain.root(number).glob("run/spark-cluster/copies/*/*"))
    work = [what for what in chain.asked if what["what"] == "work"]
    (secrets,) = [what["receive"]["secrets"] for what in work if what["receive"]]
    argv = " ".join(word for what in work for word in copy_work.argv(what["label"]))
    assert "PRIVATE KEY" in secrets["key"]
    assert secrets["key"].splitlines()[1] not in argv


def test_a_sender_that_runs_is_joined_with_its_own_secrets(chain):
    session, ports = chain.play.session(chain.nodes[0]), list(node_copies.COPIES)
    how = {"what": "begin", "name": "model", "sends": True, "ports": ports}
    ask = partial(session.request, "copy", **how)
    first = ask()["secrets"]
    assert first["port"] == node_copies.COPIES[0]
    assert ask()["secrets"] == first
    (place,) = chain.root(0).glob("run/spark-cluster/copies/*/offered.json")
    assert (place.stat().st_mode | place.parent.stat().st_mode) & 0o077 == 0
    place.write_text('{"ke')
    assert ask()["secrets"]["key"] != first["key"]


def test_check_mode_copies_nothing(chain):
    chain.play.options = Options(check=True)
    chain.copy()
    assert chain.kinds == ["missing"]


def test_a_node_cannot_copy_to_itself(chain):
    with pytest.raises(UsageError, match="to itself"):
        node_copies.copy(chain.play, chain.manifest, chain.nodes[0], chain.nodes, hub=HUB)


def test_without_a_link_the_management_network_is_taken_and_its_cost_said(linked_with):
    chain = Chain(linked_with(fabric=False))
    way = node_copies.route(*chain.nodes[:2])
    assert (way.addresses, way.fabric) == (("127.0.1.1",), False)
    chain.copy()
    (note,) = chain.cluster.notes
    assert "go over 127.0.1.1, on 1 Gbit/s about 1 s" in note


def test_progress_says_bytes_speed_and_time_left():
    line = progress_line("from spark1", 6_000_000_000, 10_000_000_000, 4_000_000_000, 2.0)
    assert line == "6.0 of 10.0 GB from spark1, 2000 MB/s, 2 s left"
    assert progress_line("from spark1", 0, 10**9, 0, 0.0) == "0.0 of 1.0 GB from spark1"
