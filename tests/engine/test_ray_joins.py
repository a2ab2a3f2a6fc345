"""Waiting for Ray's nodes: a node of Ray that ends again and again is not waited for."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from spark_cluster.engine import logs, readiness
from spark_cluster.errors import Failed, VerificationFailed
from spark_cluster.runner.session import Answer, Output

MISMATCH = "RuntimeError: Version mismatch: The cluster was started with: Ray: 2.60.0\n"


class Node:
    """A node whose container of Ray has been started again so often, one more at each look."""

    def __init__(self, *restarts):
        self.restarts, self.stopped = list(restarts), False

    def request(self, _op, commands):
        count = self.restarts.pop(0) if len(self.restarts) > 1 else self.restarts[0]
        found = [{"State": {"Status": "running"}, "RestartCount": count, "Config": {}}]
        return {"commands": {"inspect": {"stdout": json.dumps(found)}}}

    def http(self, _url, **_options):
        return Answer(0, "", "refused")

    def run(self, argv):
        self.stopped = self.stopped or argv[:2] == ["docker", "stop"]
        return Output(0, MISMATCH if "docker logs" in argv[2] else "", "")


def join(worker, timeout, monkeypatch):
    monkeypatch.setattr(readiness, "POLL_S", 0)
    sessions = {"spark1": Node(0), "spark2": worker}
    nodes = [SimpleNamespace(name=n, is_head=n == "spark1", fabric_ip=n) for n in sessions]
    play = SimpleNamespace(
        nodes=nodes,
        head=nodes[0],
        bus=SimpleNamespace(emit=lambda _event: None),
        session=lambda node: sessions[node.name],
        connections=SimpleNamespace(session=sessions.__getitem__),
    )
    readiness.ray_cluster(play, 2, 8265, timeout)


def test_a_worker_that_ends_again_and_again(monkeypatch):
    worker = Node(1, 1, 2, 3)
    with pytest.raises(Failed, match="Ray on spark2 ended 3 times: RuntimeError: Version") as found:
        join(worker, 600, monkeypatch)
    assert found.value.where == "spark2 spark-ray"
    assert "ray-versions-differ" in found.value.hint
    assert worker.stopped, "Docker would start it again and again"


def test_a_worker_that_was_started_again_once_is_waited_for(monkeypatch):
    with pytest.raises(VerificationFailed, match="missing: spark1, spark2; spark"):
        join(Node(0, 1), 0.05, monkeypatch)


def test_what_ends_at_once_is_explained():
    """The catalogue knows a line of the log that is in the message."""
    said = "container x ended right after its start; its log ends:\n    a\n    " + MISMATCH
    with pytest.raises(Failed) as found, logs.explained():
        raise Failed(said, where="spark2", hint="docker logs x")
    assert found.value.hint.startswith("the nodes serve from different images (ray-versions-")
    assert found.value.hint.endswith("docker logs x")
    with pytest.raises(Failed) as plain, logs.explained():
        raise Failed("no idea", hint="look there")
    assert plain.value.hint == "look there"
