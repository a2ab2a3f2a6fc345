"""Facts in the engine's start-up log, on real logs and on lines of them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from fake_cluster import FakeCluster, Make
from waiting import HANG_S

from spark_cluster.config.recipe_schema import Readiness
from spark_cluster.engine import runtime
from spark_cluster.errors import VerificationFailed

DATA = Path(__file__).parents[2] / "data"
MARLIN = "(EngineCore pid=96) INFO 06-07 13:19:44 [nvfp4.py:1] Using 'MARLIN' NvFp4 MoE backend\n"
CUTLASS = MARLIN.replace("MARLIN", "VLLM_CUTLASS")
WANTED = "Using '?MARLIN'? NvFp4 MoE backend"
SOCKET = "\x1b[36m(w pid=7)\x1b[0m spark2:7 [0] NCCL INFO Channel 00/0 : 0 -> 1 via NET/Socket/0\n"


@pytest.fixture(scope="module")
def cluster(lasting_cluster: Make) -> FakeCluster:
    return lasting_cluster("spark1", "spark2")


@pytest.fixture
def look(cluster):
    """`look(expect, forbid, spark1={container: its log}, ...)`; the other nodes have none."""

    def look(expect=(), forbid=(), **printed):
        for name, node in cluster.nodes.items():
            with node.state("docker") as docker:
                docker["containers"] = {}
            for container, text in printed.get(name, {}).items():
                node.run_container(container)
                node.log(container, text)
        wanted = Readiness(log_expect=list(expect), log_forbid=list(forbid))
        runtime.must_fit(cluster.play, cluster.play.nodes, wanted)

    return look


def test_a_line_of_any_rank_counts(look):
    look([WANTED], spark1={"spark-vllm": MARLIN})
    look(
        [WANTED], spark1={"spark-vllm": "x\n"}, spark2={"spark-ray": f"\x1b[36m(w)\x1b[0m {MARLIN}"}
    )


def test_a_line_that_is_missing_and_what_is_there_instead(look):
    with pytest.raises(VerificationFailed, match="does not contain") as caught:
        look([WANTED], spark1={"spark-vllm": CUTLASS})
    assert "it says: (EngineCore pid=96)" in caught.value.message
    assert "'VLLM_CUTLASS' NvFp4 MoE backend" in caught.value.message
    assert "log_expect" in caught.value.hint
    with pytest.raises(VerificationFailed) as caught:
        look([WANTED], spark1={"spark-vllm": "nothing of the kind"})
    assert "it says" not in caught.value.message


def test_a_line_that_must_not_be(look):
    """Over TCP instead of RoCE: found in the worker's log, without its colours."""
    with pytest.raises(
        VerificationFailed, match=r"forbidden line: \(w pid=7\) spark2:7 .*NET/Socket/0"
    ):
        look(forbid=["via NET/Socket"], spark2={"spark-ray": f"ok\n{SOCKET}ok\n"})
    look(forbid=["via NET/Socket"], spark1={"spark-vllm": "via NET/IB/0"})


def test_all_are_counted(look):
    with pytest.raises(VerificationFailed, match=r"does not contain 'a\{3\}' \(and 2 more\)"):
        look(["a{3}", "b"], ["c"], spark1={"spark-vllm": "c"})


def test_without_assertions_no_log_is_read(cluster, look):
    asked = [len(node.programs.calls) for node in cluster.nodes.values()]
    look()
    assert [len(node.programs.calls) for node in cluster.nodes.values()] == asked


def test_all_logs_are_asked_for_at_once(fake_cluster):
    """One after the other they were four turns of each `up`."""
    all_asked = threading.Barrier(4)
    cluster = fake_cluster("spark1", "spark2")

    def docker(_words, _stdin):
        all_asked.wait(HANG_S)
        return MARLIN

    for node in cluster.nodes.values():
        node.programs["docker"] = docker
    runtime.must_fit(cluster.play, cluster.play.nodes, Readiness(log_expect=[WANTED]))


def test_a_real_log():
    text = (DATA / "vllm_healthy.log").read_text()
    assert runtime.unmet(text, ["Initializing a V1 LLM engine"], ["NET/Socket"]) == []
    (missing,) = runtime.unmet(text, ["version 0\\.99\\.0"], [])
    assert "does not contain" in missing
    assert "; it says: " in missing
    assert "version" in missing.partition("; it says: ")[2]
