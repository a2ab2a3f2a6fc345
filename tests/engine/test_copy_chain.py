"""The copy of a model along a chain of nodes: real processes and sockets, nodes as folders."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Interface
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories import make_inventory
from stored_models import COMMIT, model

from spark_cluster.agent import operations
from spark_cluster.engine import firewall
from spark_cluster.engine.copies import copy as copying
from spark_cluster.engine.copies.folders import LaptopFolder, copy_folder, uploads
from spark_cluster.errors import Failed, Refused, UsageError
from spark_cluster.facts.model import Facts, Interface
from spark_cluster.node.host import Host
from spark_cluster.node.store import copy_work, progress
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.node.store.verify import verify
from spark_cluster.node.values import ResourceError
from spark_cluster.runner.parallel import in_parallel
from spark_cluster.runner.play import Play, RoleCall
from spark_cluster.topology import Link, Node

HUB = "/hub"
INVENTORY = "nodes:\n  spark1: {address: 127.0.1.1, roles: [head]}\n"


def spark(number: int) -> Node:
    """A node with one twin, which is an address of this machine's loopback."""
    address = IPv4Interface(f"127.0.0.{number}/8")
    facts = Facts(
        hostname=f"spark{number}", interfaces=(Interface("t", "", 9000, True, (address,)),)
    )
    return Node(f"spark{number}", f"127.0.1.{number}", facts=facts, links=(Link("t", address),))


class Laptop:
    """What `copy` uses of a play; the agents' operation runs in this process."""

    progress_of = Play.progress_of

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.check = False
        self.notes: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.bus = SimpleNamespace(emit=lambda event: None)
        self.inventory = make_inventory(folder, INVENTORY)
        self.provided: list[str] = []
        self.nft = 0
        """The exit status of nft on the nodes."""

    def root(self, node: Node) -> Path:
        return self.folder / node.name

    def session(self, node: Node) -> Any:
        def request(op: str, _on_event: Any = None, **what: Any) -> dict[str, Any]:
            self.asked.append(what)
            try:
                return operations.act(Host(root=self.root(node)), {"op": op, **what})
            except ResourceError as error:
                raise Failed(error.message, where=node.name, hint=error.hint) from error

        def run(argv: list[str]) -> SimpleNamespace:
            assert argv == list(firewall.WORKS)
            return SimpleNamespace(status=self.nft)

        return SimpleNamespace(request=request, run=run)

    def role(self, name: str, **given: Any) -> RoleCall:
        return RoleCall(name, given)

    def apply(self, nodes: list[Node], role: RoleCall) -> None:
        if role.name == "copies":  # it would install packages on this machine
            self.provided = [node.name for node in nodes]
            return
        names = [node.name for node in nodes]
        self.asked.append({"what": f"role {role.name}", "nodes": names, **role.given})

    def on_each(self, nodes: list[Node], job: Any) -> dict[str, Any]:
        outcomes = in_parallel({node.name: partial(job, node) for node in nodes})
        for outcome in outcomes.values():
            if isinstance(outcome, Exception):
                raise outcome
        return outcomes

    def note(self, text: str, **_how: Any) -> None:
        self.notes.append(text)


@pytest.fixture
def laptop(tmp_path: Path, own_ports: None) -> Laptop:
    for number in (1, 2, 3):
        (tmp_path / f"spark{number}" / "hub").mkdir(parents=True)
    return Laptop(tmp_path)


@pytest.fixture
def nodes() -> list[Node]:
    return [spark(1), spark(2), spark(3)]


@pytest.mark.parametrize("encrypt", [True, False], ids=["TLS", "plain"])
def test_a_chain_of_three_nodes_gets_all_of_it(laptop, nodes, encrypt):
    manifest = model(laptop.root(nodes[0]) / "hub")
    done = copying.copy(
        laptop, manifest, nodes[0], nodes[1:], hub=HUB, revision="main", encrypt=encrypt
    )
    for node in nodes[1:]:
        cache = HubCache(laptop.root(node) / "hub")
        assert verify(cache, manifest).sound
        assert cache.commit_of("org/model", "main") == COMMIT
    assert [(one.node, one.sender, one.moved) for one in done] == [
        ("spark2", "spark1", manifest.size),
        ("spark3", "spark2", manifest.size),
    ]
    assert all(one.fabric for one in done)
    assert not laptop.notes
    assert laptop.provided == ["spark1", "spark2", "spark3"]


@pytest.mark.parametrize("encrypt", [True, False], ids=["TLS", "plain"])
def test_the_management_network_is_there_for_a_fabric_that_fails_if_encrypted(
    laptop, nodes, encrypt
):
    manifest = model(laptop.root(nodes[0]) / "hub")
    copying.copy(laptop, manifest, nodes[0], nodes[1:2], hub=HUB, encrypt=encrypt)
    parts = [part for what in laptop.asked for part in (what.get("receive"), what.get("serve"))]
    spare = [part["spare"] for part in parts if part]
    assert spare == [["127.0.1.1"] if encrypt else []] * 2


def test_a_node_sends_two_at_the_same_time(laptop, nodes):
    """An image and a model, say: each copy has a port of its own."""
    first, second = (model(laptop.root(nodes[0]) / "hub", name) for name in ("org/a", "org/b"))

    def one(manifest: Manifest) -> list[copying.Copied]:
        return copying.copy(laptop, manifest, nodes[0], nodes[1:2], hub=HUB)

    found = in_parallel({"a": partial(one, first), "b": partial(one, second)})
    for outcome in found.values():
        assert not isinstance(outcome, Exception), outcome
    ports = {what["serve"]["secrets"]["port"] for what in laptop.asked if what.get("serve")}
    assert ports == set(copying.COPIES)
    for manifest in (first, second):
        assert verify(HubCache(laptop.root(nodes[1]) / "hub"), manifest).sound


def test_a_plain_folder_goes_to_all_also_where_an_old_file_is(laptop, nodes):
    for node in nodes:
        (laptop.root(node) / "srv").mkdir()
    here = laptop.root(nodes[0]) / "srv/model"
    (here / "sub").mkdir(parents=True)
    (here / "config.json").write_text("{}")
    (here / "sub/weights.bin").write_bytes(random.Random(1).randbytes(9_000_000))
    old = laptop.root(nodes[1]) / "srv/model/sub"
    old.mkdir(parents=True)
    (old / "weights.bin").write_bytes(bytes(9_000_000))
    done = copy_folder(laptop, "/srv/model", nodes[0], nodes[1:])
    assert [(one.node, one.moved) for one in done] == [("spark2", 9_000_002), ("spark3", 9_000_002)]
    for node in nodes[1:]:
        there = laptop.root(node) / "srv/model"
        for name in ("config.json", "sub/weights.bin"):
            assert (there / name).read_bytes() == (here / name).read_bytes()
    again = copy_folder(laptop, "/srv/model", nodes[0], nodes[1:])
    assert [one.moved for one in again] == [0, 0]
    assert [what["what"] for what in laptop.asked][-3:] == ["folder", "missing", "missing"]


def test_a_folder_of_the_laptop_goes_to_the_first_node_and_on(linked, tmp_path):
    local = tmp_path / "model"
    (local / ".cache").mkdir(parents=True)
    (local / ".cache/note").write_text("left out")
    (local / "sub").mkdir()
    (local / "sub/a.bin").write_bytes(b"a")
    for node in linked.nodes.values():
        (node.root / "srv").mkdir()
    given = {"name": "org/model", "directory": local, "path": "/srv/model"}
    LaptopFolder(linked.play, linked.play.nodes[:2], given).bring()
    names = ("Directory:/srv/model", "Directory:/srv/model/sub", "File:/srv/model/sub/a.bin")
    assert linked.applied()[: len(names)] == [f"spark1 {name}" for name in names]
    assert linked.roles("spark2") == linked.roles("spark1") == ["copies"]
    assert linked.nodes["spark2"].text("/srv/model/sub/a.bin") == "a"


def test_a_folder_that_cannot_be_sent_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(Refused, match="has 0 files"):
        uploads(tmp_path / "empty", "/srv/model")


def test_the_ports_are_closed_to_strangers_before_a_sender_listens(laptop, nodes):
    manifest = model(laptop.root(nodes[0]) / "hub")
    copying.copy(laptop, manifest, nodes[0], nodes[1:], hub=HUB)
    guarded = {
        "what": "role firewall",
        "nodes": ["spark1", "spark2"],
        "state": "copies",
        "ports": ((copying.COPIES[0], copying.COPIES[-1]),),
        "endpoint_port": None,
    }
    asked = [one for one in laptop.asked if one["what"] != "missing"]
    assert asked[0] == guarded
    assert {one["what"] for one in asked[1:]} == {"begin", "work"}


def test_where_there_is_no_firewall_the_copy_goes_on_and_says_so(laptop, nodes):
    manifest = model(laptop.root(nodes[0]) / "hub")
    laptop.nft = 127
    copying.copy(laptop, manifest, nodes[0], nodes[1:2], hub=HUB)
    assert [one["nodes"] for one in laptop.asked if one["what"] == "role firewall"] == [[]]
    assert verify(HubCache(laptop.root(nodes[1]) / "hub"), manifest).sound
    (note,) = laptop.notes
    assert "nftables does not work here" in note


def test_a_trusted_network_has_no_firewall_for_copies_either(laptop, nodes):
    manifest = model(laptop.root(nodes[0]) / "hub")
    laptop.inventory = make_inventory(laptop.folder, INVENTORY + "trusted_network: true\n")
    copying.copy(laptop, manifest, nodes[0], nodes[1:2], hub=HUB)
    assert "role firewall" not in {one["what"] for one in laptop.asked}
    assert not laptop.notes


def test_a_second_copy_starts_nothing(laptop, nodes):
    manifest = model(laptop.root(nodes[0]) / "hub")
    copying.copy(laptop, manifest, nodes[0], nodes[1:2], hub=HUB)
    laptop.asked.clear()
    (done,) = copying.copy(laptop, manifest, nodes[0], nodes[1:2], hub=HUB)
    assert (done.moved, done.kept, done.sender) == (0, manifest.size, "")
    assert [what["what"] for what in laptop.asked] == ["missing"]


def test_the_secrets_are_gone_after_the_copy_and_never_in_an_argument(laptop, nodes):
    manifest = model(laptop.root(nodes[0]) / "hub")
    copying.copy(laptop, manifest, nodes[0], nodes[1:2], hub=HUB)
    for node in nodes[:2]:
        assert not list(laptop.root(node).glob("run/spark-cluster/copies/*/*"))
    work = [what for what in laptop.asked if what["what"] == "work"]
    (secrets,) = [what["receive"]["secrets"] for what in work if what["receive"]]
    argv = " ".join(word for what in work for word in copy_work.argv(what["label"]))
    assert secrets["token"] not in argv
    assert "PRIVATE KEY" not in str(laptop.asked), "the key stays on the sender"


def test_a_sender_that_runs_is_joined_with_its_own_secrets(laptop, nodes):
    ask = partial(
        laptop.session(nodes[0]).request,
        "copy",
        what="begin",
        name="model",
        sends=True,
        ports=list(copying.COPIES),
    )
    first = ask()["secrets"]
    assert first["port"] == copying.COPIES[0]
    assert ask()["secrets"] == first
    (place,) = laptop.root(nodes[0]).glob("run/spark-cluster/copies/*/offered.json")
    assert place.stat().st_mode & 0o077 == 0
    assert place.parent.stat().st_mode & 0o077 == 0
    place.write_text('{"tok')
    assert ask()["secrets"]["token"] != first["token"]


def test_a_damaged_source_is_named(laptop, nodes):
    manifest = model(laptop.root(nodes[0]) / "hub")
    blob = HubCache(laptop.root(nodes[0]) / "hub").blob("org/model", manifest.files[-1].blob)
    with blob.open("r+b") as opened:
        opened.seek(1000)
        opened.write(b"flipped")
    with pytest.raises(Failed, match=r"model\.safetensors from spark1 is not what its hash"):
        copying.copy(laptop, manifest, nodes[0], nodes[1:2], hub=HUB)
    assert not HubCache(laptop.root(nodes[1]) / "hub").commits("org/model")


def test_check_mode_copies_nothing(laptop, nodes):
    manifest = model(laptop.root(nodes[0]) / "hub")
    laptop.check = True
    copying.copy(laptop, manifest, nodes[0], nodes[1:2], hub=HUB)
    assert [what["what"] for what in laptop.asked] == ["missing"]


def test_a_node_cannot_copy_to_itself(laptop, nodes):
    manifest = model(laptop.root(nodes[0]) / "hub")
    with pytest.raises(UsageError, match="to itself"):
        copying.copy(laptop, manifest, nodes[0], nodes, hub=HUB)


def test_without_a_link_the_management_network_is_taken_and_its_cost_said(laptop, nodes):
    bare = [replace(node, links=()) for node in nodes]
    way = copying.route(bare[0], bare[1])
    assert (way.addresses, way.fabric) == (("127.0.1.1",), False)
    manifest = model(laptop.root(nodes[0]) / "hub")
    copying.copy(laptop, manifest, bare[0], bare[1:2], hub=HUB)
    assert len(laptop.notes) == 1
    assert "go over 127.0.1.1, on 1 Gbit/s about 1 s" in laptop.notes[0]


def test_a_twin_without_its_address_is_not_taken(nodes):
    facts = replace(nodes[1].facts, interfaces=(Interface("t", "", 9000, True, ()),))
    assert not copying.route(nodes[0], replace(nodes[1], facts=facts)).fabric


def test_progress_says_bytes_speed_and_time_left():
    line = progress.line("from spark1", 6_000_000_000, 10_000_000_000, 4_000_000_000, 2.0)
    assert line == "6.0 of 10.0 GB from spark1, 2000 MB/s, 2 s left"
    assert progress.line("from spark1", 0, 10**9, 0, 0.0) == "0.0 of 1.0 GB from spark1"
