"""Two replicas of real vLLM behind one endpoint; one is killed while users ask, and repaired."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest
from commandline import until
from exposure import only_the_endpoint
from on_nodes import started

from spark_cluster.engine.names import SERVER
from spark_cluster_lab import LabNode

pytestmark = pytest.mark.lab

URL = "http://10.89.0.11:8000/v1/chat/completions"
UP = ("up", "--replicas", "2")
USERS = 4
PAUSE_S = 0.3


class Load:
    """Users who each ask again soon after they have an answer, until it is left.

    The pause leaves a replica that loads next to them a share of the machine's cores.
    """

    def __init__(self) -> None:
        self.answered = 0
        self.failures: list[tuple[int, str]] = []
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._users = [threading.Thread(target=self._ask, daemon=True) for _ in range(USERS)]

    def __enter__(self) -> Load:
        for one in self._users:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for one in self._users:
            one.join(120)

    def go_on(self, requests: int = 3 * USERS) -> None:
        """Wait for so many more answers."""
        wanted = self.answered + requests
        until(lambda: self.answered >= wanted, what="answers")

    def _ask(self) -> None:
        question = {"role": "user", "content": "What is the capital of France?"}
        body = {"model": "paris", "messages": [question], "max_tokens": 32, "ignore_eos": True}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(URL, json.dumps(body).encode(), headers)
        while not self._ended.wait(PAUSE_S):
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    json.loads(answer.read())
            except urllib.error.HTTPError as error:
                with self._lock:
                    self.failures.append((error.code, error.headers.get("Retry-After", "")))
            else:
                with self._lock:
                    self.answered += 1


def server(node: LabNode) -> str:
    return started(node, SERVER)


def test_two_replicas_and_one_endpoint(user, spark1, spark2):
    document = user.json(*UP)
    assert (document["tp"], document["replicas"]) == (1, ["spark1", "spark2"])
    assert "Paris" in document["answer"]
    assert user.json(*UP)["changed"] == 0
    found = user.json("status")
    assert (found["state"], found["problems"]) == ("serving", [])
    assert [one["state"] for one in found["replicas"]] == ["serving", "serving"]
    only_the_endpoint(spark1, spark2)


@pytest.mark.soak
def test_a_replica_is_killed_under_load_and_repaired(user, spark1, spark2, detected):
    user(*UP)  # alone, as `make soak` runs it, it finds no replicas
    first = server(spark1)
    with Load() as load:
        load.go_on()
        assert load.failures == []
        with detected("replica-killed") as fault:
            spark2.run(["docker", "kill", SERVER])
            fault.said_in(user("status", status=5).printed)
        load.go_on()
        lost: list[Any] = list(load.failures)
        assert len(lost) <= USERS, "no more than were in flight"
        assert all(status in (502, 503) and retry for status, retry in lost), lost
        found = user.json("status", status=5)
        assert found["state"] == "degraded"
        assert [one["state"] for one in found["replicas"]] == ["serving", "failed"]
        assert any("the replica on spark2 is exited" in p for p in found["problems"])
        assert user.json(*UP)["changed"] > 0
        load.go_on()
        assert load.failures == lost, "nothing is lost by the repair"
    assert server(spark1) == first, "the other one was not started again"
    assert user.json("status")["state"] == "serving"


def test_up_without_replicas_leaves_the_heads_server(user, spark1, spark2):
    first = server(spark1)
    assert "the endpoint has 2 replicas (spark1, spark2)" in user("up", "--tp", "1").printed
    assert user.json("status")["replicas"] == []
    assert (server(spark1), server(spark2)) == (first, "")
