"""The checks of a server's answers in a benchmark's record and report."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench_runs import begun, setup
from factories import make_node, make_recipe
from serve_plans import deployment_for, served_by

from spark_cluster.bench import verification
from spark_cluster.bench.duration import Speed, estimate
from spark_cluster.bench.expansion import expand
from spark_cluster.bench.record import CheckResult
from spark_cluster.bench.report.setup_tables import check_tables
from spark_cluster.bench.run import BenchRun
from spark_cluster.bench.run_folder import load_record
from spark_cluster.bench.suite_schema import Suite
from spark_cluster.engine.result import Served
from spark_cluster.engine.verify import CheckVerdict, Verification

VERDICTS = tuple(
    CheckVerdict(id, "tools", id.title(), True, status, "asked", "expected", found, "fix", 1.5)
    for id, status, found in (("one", "ok", "Paris"), ("two", "failed", "a | b"))
)


class FakePlay:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.stages: list[str] = []

    def stage(self, name: str) -> AbstractContextManager[None]:
        self.stages.append(name)
        return nullcontext()

    def note(self, text: str, **_: Any) -> None:
        self.notes.append(text)


def bench_run(folder: Path, **changed: Any) -> BenchRun:
    shape = {"name": "s", "recipes": ["r"], "prompt": [512], "depth": [0, 4096], **changed}
    suite = Suite.model_validate(shape)
    return begun(suite, folder, expand(suite, {"r": make_recipe()}))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def verify(_play: Any, server: Any, _recipe: Any, _selection: Any, *, context: int) -> Any:
        calls.append((server.recipe, server.tp, context, server.flags["max-model-len"]))
        return Verification("m", "http://x", "r", 1, "chat", VERDICTS)

    monkeypatch.setattr(verification.verify, "verify", verify)
    return calls


def served() -> Served:
    recipe = make_recipe(engine_args={"max-model-len": 8192})
    return served_by(deployment_for(recipe, make_node("spark1")))


def test_a_server_is_checked_once_and_the_verdicts_are_kept(tmp_path, asked):
    run, play = bench_run(tmp_path, verify=True), FakePlay()
    (step,) = run.expansion.steps
    found = verification.checks_of(play, run, step, served())  # type: ignore[arg-type]
    assert asked == [(make_recipe().name, 1, 4096 + 512, "8192")]
    assert [(c.id, c.status, c.found, c.seconds) for c in found] == [
        ("one", "ok", "Paris", 1.5),
        ("two", "failed", "a | b", 1.5),
    ]
    assert play.notes == [f"{step.setup.id}: Two: a | b"]
    run.add_setup(setup(step.setup.id, checks=found), ())
    run.record = load_record(tmp_path)  # continued by another process
    assert verification.checks_of(play, run, step, served()) == found  # type: ignore[arg-type]
    assert len(asked) == 1


def test_no_checks_where_the_suite_wants_none(tmp_path, asked):
    run = bench_run(tmp_path)
    (step,) = run.expansion.steps
    assert verification.checks_of(FakePlay(), run, step, served()) == ()  # type: ignore[arg-type]
    assert asked == []


def test_the_report_has_a_table_of_them(tmp_path):
    results = SimpleNamespace(
        setups=(setup("a", checks=_records()), setup("b")), labels={"a": "TP=1", "b": "TP=2"}
    )
    (table,) = check_tables(results)  # type: ignore[arg-type]
    assert table.title == "Answers of TP=1: 1 ok, 1 failed, 1 not run"
    assert table.rows[2] == ("three", "no", "not run", "the server is gone", "")
    assert table.marked == {1: "bad", 2: "attention"}
    assert "a \\| b" in table.markdown()


def _records() -> tuple[Any, ...]:
    one, two = (
        CheckResult(
            id=v.id, title=v.title, streamed=True, status=v.status, found=v.found, seconds=1
        )
        for v in VERDICTS
    )
    lost = {"status": "not run", "found": "the server is gone", "seconds": 0, "streamed": False}
    return (one, two, CheckResult(id="three", title="three", **lost))


def test_the_estimate_counts_them(tmp_path):
    def seconds(verify: bool, **changed: Any) -> float:
        run = bench_run(tmp_path, verify=verify, **changed)
        speeds = lambda *_: Speed(500, 10)  # noqa: E731
        return estimate(run.expansion, speeds, run.suite.settings, verify=verify).seconds

    assert seconds(True) - seconds(False) == pytest.approx(400)
    told = estimate(
        bench_run(tmp_path).expansion, lambda *_: None, Suite(name="s").settings, verify=True
    )
    assert "the checks of a server's answers are 4,000 tokens" in told.assumptions
    assert seconds(True, replicas=2) == seconds(False, replicas=2)
