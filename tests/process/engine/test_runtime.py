"""Questions to a node about an engine's programs, and facts in the engine's start-up log."""

import shutil
import subprocess
import threading
from pathlib import Path
from typing import get_args

import pytest
from cases import cases
from piped_cluster import Make, PipedCluster
from serve_plans import bare_server
from waiting import HANG_S

from spark_cluster.config.recipe_schema import Readiness
from spark_cluster.engine import runtime
from spark_cluster.engine.engine import EngineProcess
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.errors import VerificationFailed
from spark_cluster.node import containers, paths
from spark_cluster.node.containers import ContainerState
from spark_cluster.resources import Unit

UNIT = Unit("spark-vllm", ("vllm", "serve", "m"), labels={"spark-cluster.tp": "2"})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a command where the three tools are stand-ins, and units are in a scratch folder."""
    shutil.copytree(Path(__file__).with_name("node_programs"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "active").write_text("active")
    monkeypatch.setattr(paths, "SYSTEMD_UNITS", str(tmp_path))

    def command(argv: list[str]) -> str:
        path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        done = subprocess.run(argv, env=path, capture_output=True, text=True, check=False)
        return done.stdout

    return command


def made(tmp_path: Path) -> None:
    (tmp_path / "spark-vllm.service").write_text(UNIT.text)


def state(run) -> ContainerState:
    """As the agent's `gather` asks: the first command counts that has an answer."""
    answers = (run(argv) for argv in runtime.question("spark-vllm"))
    return containers.parse(next((text for text in answers if text), ""))


@pytest.mark.parametrize(
    ("active", "status"),
    [("active", "running"), ("activating", "restarting"), ("failed", "exited"),
     ("inactive", "exited"), ("deactivating", "deactivating")],
)  # fmt: skip
def test_a_unit_in_the_words_of_containers(run, tmp_path, active, status):
    assert state(run) == ContainerState("running"), "a container, where there is no unit"
    made(tmp_path)
    (tmp_path / "active").write_text(active)
    found = state(run)
    assert (found.status, found.restarts, found.exit_code) == (status, 2, 3)
    assert found.started == "2026-11-20T14:02:01.200000000", "50 ms early, as a container's"
    error = "" if active == "inactive" else "exit-code"
    assert (found.runtime, found.error) == ("venv", error), "after a stop it is of the run before"
    assert found.id == UNIT.spec
    assert found.labels == {"spark-cluster.tp": "2"}
    assert found.command == ("vllm", "serve", "m")
    assert found.tp == 2
    assert found.ours


def test_the_end_and_the_beginning_of_a_log(run, tmp_path):
    assert run(runtime.beginning("spark-vllm", 12)) == "logs spark-v"
    text = run(runtime.log("spark-vllm", 7))
    assert text == "logs --timestamps --tail 7 spark-vllm\non standard error\n"
    made(tmp_path)
    text = containers.stamped(run(runtime.log("spark-vllm", 7)))
    assert text == "2026-11-20T14:03:30.123456Z ValueError: no room: 5\n"
    asked = (tmp_path / "asked").read_text()
    assert "--unit spark-vllm.service --since @" in asked
    assert "--lines 7" in asked
    assert len(run(runtime.beginning("spark-vllm", 12))) == 12


@pytest.mark.parametrize("name", get_args(runtime.Name))
def test_a_server_that_ended_with_status_0_is_started_again(name):
    """vLLM's server ends so when a worker was killed; `on-failure` would leave it."""
    server = bare_server("spark1", runtime=name, venv="/srv/venv")
    for program in (SERVER, RAY):
        made = runtime.resource(EngineProcess(program, ("vllm", "serve")), server)
        assert made.restart in ("always", "unless-stopped")


MARLIN = "(EngineCore pid=96) INFO 06-07 13:19:44 [nvfp4.py:1] Using 'MARLIN' NvFp4 MoE backend\n"
WANTED = "Using '?MARLIN'? NvFp4 MoE backend"


@pytest.fixture(scope="module")
def two_nodes(lasting_cluster: Make) -> PipedCluster:
    return lasting_cluster("spark1", "spark2")


@pytest.fixture
def look(two_nodes):
    """`look(expect, forbid, spark1={container: its log}, ...)`; the other nodes have none."""

    def look(expect=(), forbid=(), **printed):
        for name, node in two_nodes.nodes.items():
            with node.state("docker") as docker:
                docker["containers"] = {}
            for container, text in printed.get(name, {}).items():
                node.run_container(container)
                node.log(container, text)
        wanted = Readiness(log_expect=list(expect), log_forbid=list(forbid))
        runtime.must_fit(two_nodes.play, two_nodes.play.nodes, wanted)

    return look


def test_a_line_of_any_rank_counts(look):
    look([WANTED], spark1={"spark-vllm": "x\n"}, spark2={"spark-ray": f"\x1b[36mw\x1b[0m {MARLIN}"})
    look(forbid=["via NET/Socket"], spark1={"spark-vllm": "via NET/IB/0"})


@pytest.mark.parametrize(
    "case", cases(__file__, "logs.toml")["unfit"], ids=lambda case: case["said"]
)
def test_a_log_that_is_not_as_the_recipe_wants_it(look, case):
    """It is told without the colours of the log, and with what is there instead."""
    with pytest.raises(VerificationFailed, match=case["said"]) as caught:
        look(case.get("expect", ()), case.get("forbid", ()), **case["logs"])
    assert "log_expect" in caught.value.hint


def test_a_pattern_that_never_ends(look, monkeypatch):
    monkeypatch.setattr(runtime, "SEARCH_S", 0.5)
    with pytest.raises(VerificationFailed, match=r"not searched within 0\.5 s") as caught:
        look(forbid=["(a+)+!"], spark1={"spark-vllm": "a" * 60})
    assert "log_forbid" in caught.value.hint


def test_without_assertions_no_log_is_read(two_nodes, look):
    asked = [len(node.programs.calls) for node in two_nodes.nodes.values()]
    look()
    assert [len(node.programs.calls) for node in two_nodes.nodes.values()] == asked


def test_all_logs_are_asked_for_at_once(piped_cluster):
    """One after the other they were four turns of each `up`."""
    all_asked = threading.Barrier(4)
    cluster = piped_cluster("spark1", "spark2")

    def docker(_words, _stdin):
        all_asked.wait(HANG_S)
        return MARLIN

    for node in cluster.nodes.values():
        node.programs["docker"] = docker
    runtime.must_fit(cluster.play, cluster.play.nodes, Readiness(log_expect=[WANTED]))
