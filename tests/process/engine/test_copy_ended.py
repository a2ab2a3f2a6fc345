"""A copy of which one node's part fails: the other parts end with it. Real agents and processes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest
from factories import make_inventory, put
from waiting import until

from spark_cluster.config.facts import Facts, Interface
from spark_cluster.config.project import Project
from spark_cluster.config.topology import Link, Node
from spark_cluster.engine import node_copies
from spark_cluster.errors import Failed
from spark_cluster.node import paths
from spark_cluster.node.store import copy_work
from spark_cluster.node.store.copy_channel import CopyChannel
from spark_cluster.node.store.hub_cache import HubCache, alone
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.runner.events import Bus
from spark_cluster.runner.parallel import start
from spark_cluster.runner.play import Play

HUB = "/hub"
# Without a firewall: the agents would put it on this machine.
INVENTORY = """\
trusted_network: true
nodes:
  spark1: {address: 127.0.1.1, roles: [head]}
  spark2: {address: 127.0.1.2}
  spark3: {address: 127.0.1.3}
"""


def spark(number: int) -> Node:
    """A node whose twin is an address of this machine's loopback."""
    address = IPv4Interface(f"127.0.0.{number}/8")
    facts = Facts(interfaces=(Interface("t", "", 9000, True, (address,)),))
    return Node(f"spark{number}", f"127.0.1.{number}", facts=facts, links=(Link("t", address),))


NODES = [spark(1), spark(2), spark(3)]
PART = re.compile(r"(?P<repository>\S+)@\w+ from (?P<before>\w*) to ")
"""In the argument list of a node's part in a copy."""
NEXT = {"": "spark1", "spark1": "spark2", "spark2": "spark3"}


NOTHING = """\
from pydantic import BaseModel


class Settings(BaseModel):
    pass


def role(node, settings):
    yield from ()
"""
"""The role `copies` would install packages on this machine."""


class Copy:
    """A copy that waits for a file which the source is still downloading."""

    def __init__(self, play: Play, folder: Path) -> None:
        self.play, self.folder = play, folder
        content = b"config"
        files = [
            {"path": "config", "size": len(content), "blob": hashlib.sha256(content).hexdigest()},
            {"path": "model", "size": 10**6, "blob": "f" * 64},
        ]
        files = [{**file, "algorithm": "sha256"} for file in files]
        repository = f"org/{folder.name}"  # no other test's processes are taken for its own
        document = {"repository": repository, "commit": "c" * 40, "files": files}
        self.manifest = Manifest.from_document(document)
        self.source = HubCache(folder / "spark1/hub", folder / "spark1" / paths.MODELS.lstrip("/"))
        blob = self.source.blob(repository, files[0]["blob"])
        blob.parent.mkdir(parents=True)
        blob.write_bytes(content)
        self.done: Future[Any]

    def start(self, targets: list[Node]) -> None:
        """Start it, and wait until every target has the file that is there."""
        self.done = start(
            lambda: node_copies.copy(self.play, self.manifest, NODES[0], targets, hub=HUB)
        )
        name = self.manifest.files[0].blob
        for node in targets:
            there = HubCache(self.folder / node.name / "hub")
            blob = there.blob(self.manifest.repository, name)
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
def copy(tmp_path: Path, pipes: Any, own_ports: None) -> Iterator[Callable[..., Copy]]:
    """A copy that has begun, with its real agents and processes."""
    inventory = make_inventory(tmp_path, INVENTORY)
    bus = Bus()
    connections = pipes(inventory.nodes, bus, "run1", command="test", change=True)
    put(tmp_path / "roles/copies/__init__.py", NOTHING)
    play = Play(inventory, Project(tmp_path), connections, bus)
    assert not connections.open()
    made = Copy(play, tmp_path)
    with alone(made.source, made.manifest.repository):  # as who downloads holds it
        yield made
    until(lambda: not made.processes(), what="no process of the copy is left")


@contextlib.contextmanager
def kept_busy(copy: Copy) -> Iterator[None]:
    """A receiver that knows the secret and stays: by itself the sender would not end."""
    (place,) = (copy.folder / "spark1").glob("run/spark-cluster/copies/*/offered.json")
    channel = CopyChannel.of(json.loads(place.read_text()), sender=False, encrypted=True)
    with channel.connected("127.0.0.1", "spark1") as stream:
        stream.request(0, 0)
        assert b"".join(map(bytes, stream.answered(memoryview(bytearray(99))))) == b"config"
        yield


def test_a_sender_ends_when_its_receiver_has_failed(copy):
    copy.start(NODES[1:2])
    with kept_busy(copy):
        copy.kill("spark2")
        error = copy.error()
    assert isinstance(error, Failed)
    assert error.where == "spark2"
    assert not copy.processes()
    assert not list(copy.folder.glob("*/run/spark-cluster/copies/*/*")), "nor are its secrets left"


def test_a_receiver_ends_when_its_sender_has_failed(copy):
    copy.start(NODES[1:2])
    copy.kill("spark1")
    error = copy.error()
    assert isinstance(error, Failed)
    assert error.where == "spark1"
    assert not copy.processes()


def test_all_parts_of_a_chain_end_with_one(copy):
    copy.start(NODES[1:])
    with kept_busy(copy):
        copy.kill("spark3")
        error = copy.error()
    assert error.where == "spark3", "the one that failed first is named"
    assert not copy.processes()


def test_the_next_copy_is_not_ended_by_the_last_one(copy):
    copy.start(NODES[1:2])
    copy.kill("spark2")
    assert copy.error().where == "spark2"
    copy.start(NODES[1:2])
    copy.kill("spark2")
    assert copy.error().where == "spark2"
