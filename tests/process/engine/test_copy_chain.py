"""The copy of a model along a chain of nodes, and its end when a part fails: real processes and
sockets, nodes as folders."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fake_programs import missing
from piped_cluster import PipedCluster
from stored_models import COMMIT, model
from waiting import until

from spark_cluster.config.topology import Node
from spark_cluster.engine import node_copies
from spark_cluster.engine.node_copies import bring_folder
from spark_cluster.errors import Failed, UsageError
from spark_cluster.node import paths
from spark_cluster.node.store import copy_work
from spark_cluster.node.store.copy_channel import CopyChannel
from spark_cluster.node.store.hub_cache import HubCache, alone
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.node.store.verify import progress_line, verify
from spark_cluster.runner.events import Options
from spark_cluster.runner.parallel import in_parallel, start
from spark_cluster.runner.session import Session

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


def test_a_sender_that_gives_no_key_is_named(chain, monkeypatch):
    """A node may answer what it likes: it has no part of its own in the copy."""
    request = Session.request

    def lying(session: Session, op: str, *words: Any, **asked: Any) -> Any:
        asked |= {"sends": False} if asked.get("what") == "begin" else {}
        return request(session, op, *words, **asked)

    monkeypatch.setattr(Session, "request", lying)
    with pytest.raises(Failed, match="gives no key") as error:
        chain.copy()
    assert error.value.where == "spark1"


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


# -- a part that fails ends the others ------------------------------------------------------------


PART = re.compile(r"(?P<repository>\S+)@\w+ from (?P<before>\w*) to ")
"""In the argument list of a node's part in a copy."""
NEXT = {"": "spark1", "spark1": "spark2", "spark2": "spark3"}


class Copy:
    """A copy that waits for a file which the source is still downloading."""

    def __init__(self, cluster: PipedCluster) -> None:
        self.play, (self.head, *self.others) = cluster.play, cluster.play.nodes
        self.roots = {name: node.root for name, node in cluster.nodes.items()}
        # Of this test alone: no other test's processes are taken for its own.
        repository, root = f"org/{cluster.project.parents[1].name}", self.roots["spark1"]
        ours = root / paths.MODELS.lstrip("/")
        self.manifest, self.source = (
            model(root / "hub", repository, ours),
            HubCache(root / "hub", ours),
        )
        self.small, _, large = self.manifest.files
        self.source.blob(repository, large.blob).unlink()
        self.done: Future[Any]

    def start(self, targets: Sequence[Node]) -> None:
        """Start it, and wait until every target has the file that is there."""
        self.done = start(
            lambda: node_copies.copy(self.play, self.manifest, self.head, targets, hub=HUB)
        )
        for node in targets:
            there = HubCache(self.roots[node.name] / "hub")
            blob = there.blob(self.manifest.repository, self.small.blob)
            until(lambda blob=blob: blob.exists() or self.done.done(), what="the first file")
        parts = 1 + len(targets)
        until(lambda: len(self.processes()) == parts or self.done.done(), what="all parts")
        assert not self.done.done(), self.done.result()

    def processes(self, node: str = "") -> list[int]:
        """Return the processes of a node's part, or of all parts."""
        found = []
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = place.read_bytes().decode(errors="replace").split("\0")
                if f"{copy_work.__name__}:main" in words and (part := PART.search(" ".join(words))):
                    own = part["repository"] == self.manifest.repository
                    if own and node in ("", NEXT[part["before"]]):
                        found.append(int(place.parent.name))
        return found

    def kill(self, node: str) -> None:
        """Kill a node's part, so that it tells nobody."""
        (process,) = self.processes(node)
        os.kill(process, signal.SIGKILL)

    def error(self) -> Exception:
        outcome = self.done.result(30)
        assert isinstance(outcome, Exception)
        return outcome


@pytest.fixture
def copy(linked: PipedCluster) -> Iterator[Copy]:
    """A copy that has not begun, over real agents and processes; no firewall is wanted."""
    made = Copy(linked)
    with alone(made.source, made.manifest.repository):  # as who downloads holds it
        yield made
    until(lambda: not made.processes(), what="no process of the copy is left")


@contextlib.contextmanager
def kept_busy(copy: Copy) -> Iterator[None]:
    """A receiver that knows the secret and stays: by itself the sender would not end."""
    (place,) = copy.roots["spark1"].glob("run/spark-cluster/copies/*/offered.json")
    channel = CopyChannel.of(json.loads(place.read_text()), sender=False, encrypted=True)
    with channel.connected("127.0.0.11", "spark1") as stream:
        stream.request(0, 0)
        told = b"".join(map(bytes, stream.answered(memoryview(bytearray(99)))))
        blob = copy.source.blob(copy.manifest.repository, copy.small.blob)
        assert told == blob.read_bytes() != b""
        yield


def test_a_sender_ends_when_its_receiver_has_failed(copy):
    copy.start(copy.others[:1])
    with kept_busy(copy):
        copy.kill("spark2")
        error = copy.error()
    assert (type(error), error.where) == (Failed, "spark2")
    assert not copy.processes()
    left = [root.glob("run/spark-cluster/copies/*/*") for root in copy.roots.values()]
    assert not any(map(list, left)), "nor are its secrets left"


def test_a_receiver_ends_when_its_sender_has_failed(copy):
    copy.start(copy.others[:1])
    copy.kill("spark1")
    error = copy.error()
    assert (type(error), error.where) == (Failed, "spark1")
    assert not copy.processes()


def test_all_parts_of_a_chain_end_with_one(copy):
    copy.start(copy.others)
    with kept_busy(copy):
        copy.kill("spark3")
        error = copy.error()
    assert error.where == "spark3", "the one that failed first is named"
    assert not copy.processes()


def test_the_next_copy_is_not_ended_by_the_last_one(copy):
    for _ in range(2):
        copy.start(copy.others[:1])
        copy.kill("spark2")
        assert copy.error().where == "spark2"
