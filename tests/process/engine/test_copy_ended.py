"""A copy of which one node's part fails: the other parts end with it. Real agents and processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from piped_cluster import PipedCluster
from stored_models import model
from waiting import until

from spark_cluster.config.topology import Node
from spark_cluster.engine import node_copies
from spark_cluster.errors import Failed
from spark_cluster.node import paths
from spark_cluster.node.store import copy_work
from spark_cluster.node.store.copy_channel import CopyChannel
from spark_cluster.node.store.hub_cache import HubCache, alone
from spark_cluster.runner.parallel import start

HUB = "/hub"
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
        _, self.small, large = self.manifest.files
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
        stream.request(1, 0)
        told = b"".join(map(bytes, stream.answered(memoryview(bytearray(99)))))
        assert len(told) == copy.small.size
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
