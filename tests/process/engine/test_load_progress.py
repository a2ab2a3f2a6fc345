"""The time limit of a start: what its containers say and do, and a server that is not ready."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from factories import make_recipe, put
from fake_cluster import FakeCluster, Make
from fake_programs import Said
from health_server import HealthServer
from serve_plans import server_for

from spark_cluster.engine import readiness
from spark_cluster.engine.deployment import Endpoint
from spark_cluster.engine.names import SERVER
from spark_cluster.errors import VerificationFailed

LIMIT_S = 0.2
IDLE = "PID TIME COMMAND\n7 9 python3\n"


class Start:
    """A start on one node: `up` waits for it.

    Attributes:
        processes: what `docker top` prints.
    """

    def __init__(self, cluster: FakeCluster, server: HealthServer) -> None:
        self.cluster, self.node, self.processes = cluster, cluster.head, IDLE
        self.node.run_container(SERVER)
        self.tells("log", "NCCL INFO Connected all rings\n")
        self._docker = self.node.programs["docker"]
        self.node.programs["docker"] = self._asked
        made = server_for(make_recipe(), *cluster.play.nodes)
        recipe = made.recipe.model_copy(update={"ready_timeout_s": LIMIT_S})
        endpoint = Endpoint("127.0.0.1", server.server_port, "m")
        self.plan = replace(made, recipe=recipe, endpoint=endpoint)

    def _asked(self, words: list[str], stdin: str) -> Said | str:
        return self.processes if words[0] == "top" else self._docker(words, stdin)

    def tells(self, what: str, text: str) -> None:
        """Have its log, or its processes, be this."""
        if what == "log":
            self.node.log(SERVER, text)
        else:
            self.processes = text

    @property
    def cache(self) -> Path:
        return self.node.root / self.plan.cache_root.lstrip("/") / "images" / ("1" * 12)

    def wait(self) -> None:
        readiness.healthy(self.cluster.play, self.plan)

    @property
    def notes(self) -> list[str]:
        return self.cluster.notes


@pytest.fixture
def server() -> Iterator[HealthServer]:
    """An engine that loads."""
    with HealthServer(status=503) as made:
        yield made


@pytest.fixture
def start(fake_cluster: Make, server: HealthServer, no_pauses: None) -> Start:
    return Start(fake_cluster("spark1"), server)


@pytest.fixture
def for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """What works is waited for as long as this machine may need."""
    monkeypatch.setattr(readiness, "LONGEST", 10_000)


@pytest.mark.usefixtures("for_long")
def test_a_silent_server_whose_cache_grows_is_waited_for(start, server):
    """P12: no line of log for 36 minutes while kernels are compiled; it serves after that."""

    def works() -> None:
        put(start.cache / f"triton/{len(server.asked)}.cubin", "x" * 4096)
        server.status = 200 if start.notes else 503

    server.when_asked = works
    start.wait()
    (note,) = start.notes
    assert "not healthy after 0.2 s (ready_timeout_s), but at work: compiled code on spark1" in note


def test_a_silent_and_idle_server_is_not_waited_for(start):
    """P12: what says nothing and does nothing has failed, and the reason is what was looked at."""
    put(start.cache / "triton/old.cubin", "x")
    with pytest.raises(VerificationFailed) as caught:
        start.wait()
    assert "nothing has moved for" in caught.value.message
    assert caught.value.message.endswith("its log ends with: NCCL INFO Connected all rings")
    assert not start.notes


@pytest.mark.usefixtures("for_long")
@pytest.mark.parametrize(
    ("what", "text", "told"),
    [
        ("processes", IDLE + "8 {} ptxas\n", "compilers on spark1 (ptxas 8: "),
        ("log", "[AutoTuner]: Tuning fp4_gemm: {}%\n", "log on spark1 ([AutoTuner]: Tuning"),
        ("processes", IDLE + "8 {} VLLM::Worker_TP0\n", ""),
        ("log", "INFO [shm_broadcast.py:501] {} No available shared memory broadcast block found "
         "in 60 seconds. This typically happens when some processes are hanging or doing some "
         "time-consuming work (e.g. compilation, weight/kv cache quantization).\n", ""),
    ],
)  # fmt: skip
def test_what_counts_as_work(start, server, what, text, told):
    """P12: compilers and lines about work do; a busy engine may wait for a peer that is gone."""

    def works() -> None:
        start.tells(what, text.format(len(server.asked)))
        server.status = 200 if start.notes else 503

    server.when_asked = works
    if told:
        start.wait()
        assert told in start.notes[0]
    else:
        with pytest.raises(VerificationFailed, match="nothing has moved"):
            start.wait()


def test_a_container_that_pretends_to_work_for_ever(start, server):
    """P12: it is waited for three times the limit at most."""
    server.when_asked = lambda: put(start.cache / f"triton/{len(server.asked)}", "x")
    with pytest.raises(VerificationFailed, match="3 times its limit, though something still moves"):
        start.wait()
    assert len(start.notes) == 1, "it is told once"


def test_links_of_a_container_are_not_followed(start, server, tmp_path):
    """P12: a folder of the node that others write is no work of this server."""
    start.cache.parent.mkdir(parents=True)
    start.cache.symlink_to(tmp_path)
    server.when_asked = lambda: put(tmp_path / f"other/{len(server.asked)}", "x")
    with pytest.raises(VerificationFailed, match="nothing has moved"):
        start.wait()
