"""Facts in the engine's start-up log, on real logs and on lines of them."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from waiting import HANG_S

from spark_cluster.config.recipe_schema import Readiness
from spark_cluster.engine import logs
from spark_cluster.errors import Failed, VerificationFailed
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Output

DATA = Path(__file__).parents[1] / "data"
MARLIN = "(EngineCore pid=96) INFO 06-07 13:19:44 [nvfp4.py:1] Using 'MARLIN' NvFp4 MoE backend\n"
CUTLASS = MARLIN.replace("MARLIN", "VLLM_CUTLASS")
WANTED = "Using '?MARLIN'? NvFp4 MoE backend"
SOCKET = "\x1b[36m(w pid=7)\x1b[0m spark2:7 [0] NCCL INFO Channel 00/0 : 0 -> 1 via NET/Socket/0\n"


def play_of(**logs):
    """Nodes whose containers' logs are given, by node."""

    def session(node):
        def run(argv, timeout):
            assert timeout > 10
            return Output(0, logs[node.name].get(argv[-2], "Error: No such container"), "")

        return SimpleNamespace(run=run)

    nodes = [SimpleNamespace(name=name) for name in logs]
    together = partial(Play.together, None)
    return SimpleNamespace(head=nodes[0], session=session, together=together), nodes


def look(expect=(), forbid=(), **printed):
    play, nodes = play_of(**printed)
    logs.must_fit(play, nodes, Readiness(log_expect=list(expect), log_forbid=list(forbid)))


def test_a_line_of_any_rank_counts():
    look([WANTED], spark1={"spark-vllm": MARLIN})
    look(
        [WANTED], spark1={"spark-vllm": "x\n"}, spark2={"spark-ray": f"\x1b[36m(w)\x1b[0m {MARLIN}"}
    )


def test_a_line_that_is_missing_and_what_is_there_instead():
    with pytest.raises(VerificationFailed, match="does not contain") as caught:
        look([WANTED], spark1={"spark-vllm": CUTLASS})
    assert "it says: (EngineCore pid=96)" in caught.value.message
    assert "'VLLM_CUTLASS' NvFp4 MoE backend" in caught.value.message
    assert "log_expect" in caught.value.hint
    with pytest.raises(VerificationFailed) as caught:
        look([WANTED], spark1={"spark-vllm": "nothing of the kind"})
    assert "it says" not in caught.value.message


def test_a_line_that_must_not_be():
    """Over TCP instead of RoCE: found in the worker's log, without its colours."""
    with pytest.raises(
        VerificationFailed, match=r"forbidden line: \(w pid=7\) spark2:7 .*NET/Socket/0"
    ):
        look(forbid=["via NET/Socket"], spark1={}, spark2={"spark-ray": f"ok\n{SOCKET}ok\n"})
    look(forbid=["via NET/Socket"], spark1={"spark-vllm": "via NET/IB/0"})


def test_all_are_counted():
    with pytest.raises(VerificationFailed, match=r"does not contain 'a\{3\}' \(and 2 more\)"):
        look(["a{3}", "b"], ["c"], spark1={"spark-vllm": "c"})


def test_without_assertions_no_log_is_read():
    play = SimpleNamespace(session=lambda _node: pytest.fail("no need to ask"))
    logs.must_fit(play, [SimpleNamespace(name="x")], Readiness())


def test_all_logs_are_asked_for_at_once():
    """One after the other they were four turns of each `up`."""
    all_asked = threading.Barrier(4)

    def run(argv, *, timeout=60):
        all_asked.wait(HANG_S)
        return Output(0, MARLIN, "")

    play, nodes = play_of(spark1={}, spark2={})
    play.session = lambda _node: SimpleNamespace(run=run)
    logs.must_fit(play, nodes, Readiness(log_expect=[WANTED]))


def test_a_real_log():
    text = (DATA / "vllm_healthy.log").read_text()
    assert logs.unmet(text, ["Initializing a V1 LLM engine"], ["NET/Socket"]) == []
    (missing,) = logs.unmet(text, ["version 0\\.99\\.0"], [])
    assert not missing.forbidden
    assert "version" in missing.line


def test_a_node_without_docker():
    def run(_argv, timeout):
        raise Failed("no such command")

    assert logs.read_beginning(SimpleNamespace(run=run), "spark-vllm") == ""
