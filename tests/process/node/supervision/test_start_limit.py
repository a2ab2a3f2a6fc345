"""The start limit: what counts, and a docker that keeps its containers in a file."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from factories import put
from local_docker import DockerNode
from unit_programs import installed
from waiting import until

from spark_cluster.engine import supervision
from spark_cluster.node import local_server
from spark_cluster.node.containers import RECIPE, RESTART_LIMIT, ContainerState
from spark_cluster.node.local_server import RESTARTS_WINDOW_S, KnownRestarts, count_restarts


def free() -> str:
    return ""


def seen(crashes: int, program: str = "one") -> ContainerState:
    return ContainerState(id=program, restarts=crashes)


def test_restarts_of_months_do_not_count():
    """P16: a server that dies now and then is started again for ever."""
    known, now = count_restarts(None, seen(40), 0.0, free), 0.0
    for crashes in range(41, 60):
        now += RESTARTS_WINDOW_S / 4
        known = count_restarts(known, seen(crashes), now, free)
        assert len(known.at) < RESTART_LIMIT


def test_a_server_that_is_made_or_started_anew_counts_anew():
    """P16: by `up`, by hand, or with Docker; all of its restarts were those of the former."""
    known = KnownRestarts("one", 4, (1.0, 2.0, 3.0, 4.0))
    assert count_restarts(known, seen(4, "two"), 5.0, free).at == ()
    assert count_restarts(known, seen(1), 5.0, free) == KnownRestarts("one", 1)
    assert count_restarts(known, seen(6), 5.0, free).at == (1.0, 2.0, 3.0, 4.0, 5.0, 5.0)


class Node(DockerNode):
    """A node's docker, and looks at it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch)
        self.seen, self.now, self.labels = {}, 0.0, {RECIPE: "r", "spark-cluster.tp": "1"}
        self.config = {**supervision.start_limit_configuration(), "unit_folder": str(folder)}

    def restarted(self, **times: int) -> None:
        """Give it running servers with these counts of restarts."""
        for name, count in times.items():
            self.has(name, self.labels, Id=name, RestartCount=count)

    def look(self) -> list[str]:
        """Return what was done."""
        self.now += 15.0
        self.seen = local_server.stop_restarted(self.config, self.seen, self.now)
        return self.acts


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["spark-vllm", "spark-vllm-chat"])
def test_a_server_that_ends_again_and_again_is_stopped(node, capsys, name):
    """P16: without `supervise` and without the laptop; one next to it serves on, and that of one of
    several models has a name that is not known before."""
    for times in range(RESTART_LIMIT + 1):
        assert node.acts == []
        node.restarted(**{name: times, "spark-vllm-other": 0})
        node.look()
    assert node.acts == [f"stop {name}"]
    assert f"{name} was started again 5 times within 3 hours and is stopped" in (
        capsys.readouterr().out
    )


def test_restarts_do_not_count_while_ray_lacks_a_node(node):
    """P16: the other node is still off after a power cut; when it is back, the server serves."""
    node.labels |= {"spark-cluster.tp": "2", "spark-cluster.dashboard": "1"}
    for times in range(4 * RESTART_LIMIT):
        node.restarted(**{"spark-vllm": times})
        assert node.look() == []


def test_a_docker_that_is_down_is_waited_for(node):
    """P16: nothing is concluded from it."""
    with node.state("docker") as docker:
        docker["unreachable"] = "no daemon"
    assert node.look() == []
    assert node.seen == {}


def test_the_program_runs_with_nothing_else_of_the_package(tmp_path):
    config: dict[str, Any] = supervision.start_limit_configuration()
    told = put(tmp_path / "config.json", json.dumps({**config, "unit_folder": str(tmp_path)}))
    looked = tmp_path / "looked"
    put(tmp_path / "bin/docker", f"#!/bin/sh\n: > {looked}\n", 0o755)
    process = subprocess.Popen(
        installed(tmp_path, supervision.START_LIMIT.program, str(told)),
        env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        until(looked.exists, what="it asks for the servers")
        assert process.poll() is None
    finally:
        process.kill()
        _, said = process.communicate()
    assert said == b""
