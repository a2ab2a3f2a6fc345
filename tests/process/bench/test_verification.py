"""The checks of a server's answers in a benchmark's record and report."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_runs import begun, cell, record, setup, suite_of
from chat_server import ChatServer, Reply
from factories import make_recipe
from piped_cluster import PipedCluster
from serve_plans import deployment_for, served_by

from spark_cluster.bench import sequence
from spark_cluster.bench.expansion import Duration, ServerSpeed, estimate, expand
from spark_cluster.bench.record import RecordedCheck, load_record
from spark_cluster.bench.report.results import Results
from spark_cluster.bench.report.tables import tables_of
from spark_cluster.bench.steps import BenchRun
from spark_cluster.engine.result import Served


def bench_run(folder: Path, **changed: Any) -> BenchRun:
    suite = suite_of(prompt=[512], depth=[0, 4096], **changed)
    return begun(suite, folder, expand(suite, {"r": make_recipe()}))


@pytest.fixture
def server() -> Iterator[ChatServer]:
    made = ChatServer()
    made.context = 8192
    yield made
    made.close()


def served(cluster: PipedCluster, server: ChatServer) -> Served:
    """What `up` says of a server of the head."""
    recipe = make_recipe(engine_args={"max-model-len": 8192})
    made = deployment_for(recipe, cluster.play.head)
    return served_by(replace(made, endpoint=server.endpoint))


def test_a_server_is_checked_once_and_the_verdicts_are_kept(tmp_path, piped_cluster, server):
    cluster = piped_cluster("spark1")
    server.change = lambda _request, reply: Reply("a | b") if reply.content == "Paris." else None
    run = bench_run(tmp_path, verify=True)
    (step,) = run.expansion.steps
    found = sequence.checks_of(cluster.play, run, step, served(cluster, server))
    by_id = {one.id: one for one in found}
    failed = [one for one in found if one.status == "failed"]
    assert (by_id["short-answers"].status, by_id["structured-output"].status) == ("failed", "ok")
    assert "a | b" in by_id["short-answers"].found
    told = [f"{step.setup.id}: {one.title}: {one.found}" for one in failed]
    assert cluster.notes == told
    longest = max(len(str(request["messages"])) for request, _ in server.asked)
    assert 12_000 < longest < 24_000, "the context check goes as far as the longest load"
    run.add_setup(setup(step.setup.id, checks=found), ())
    run.record = load_record(tmp_path)  # continued by another process
    server.asked.clear()
    assert sequence.checks_of(cluster.play, run, step, served(cluster, server)) == found
    unwanted = bench_run(tmp_path / "unwanted")
    assert sequence.checks_of(cluster.play, unwanted, step, served(cluster, server)) == ()
    assert server.asked == []


def test_the_report_has_a_table_of_them():
    found = {"ok": "Paris", "failed": "a | b", "not run": "the server is gone"}
    checks = tuple(
        RecordedCheck(id="x", title=status, streamed=True, status=status, found=said, seconds=1)
        for status, said in found.items()
    )
    both = (setup("a", checks=checks), setup("b", tp=2))
    table, _empty = tables_of(Results(record(cell("a"), cell("b"), setups=both)), "checks")
    assert table.title == "Answers of TP=1: 1 ok, 1 failed, 1 not run"
    assert table.rows[2] == ("not run", "yes", "not run", "the server is gone", "")
    assert table.marked == {1: "bad", 2: "attention"}
    assert "a \\| b" in table.markdown()


def test_the_estimate_counts_them(tmp_path):
    def told(verify: bool, **changed: Any) -> Duration:
        run = bench_run(tmp_path, verify=verify, **changed)
        return estimate(
            run.expansion, lambda *_: ServerSpeed(500, 10), run.suite.settings, verify=verify
        )

    assert told(True).seconds - told(False).seconds == pytest.approx(400)
    assert "the checks of a server's answers are 4,000 tokens" in told(True).assumptions
    assert told(True, replicas=2).seconds == told(False, replicas=2).seconds
