"""The servers of a run in order: one that does not start, a fault of the cluster, the end."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench_cluster import BenchCluster
from bench_runs import begun, suite_of
from cases import each_row
from factories import SHIPPED, make_node, make_recipe
from fake_programs import Said
from piped_cluster import Make

from spark_cluster import errors
from spark_cluster.bench import describe, sequence
from spark_cluster.bench.compare import compare
from spark_cluster.bench.expansion import expand, result
from spark_cluster.bench.record import load_record
from spark_cluster.bench.steps import BenchRun, stop
from spark_cluster.cli import bench
from spark_cluster.cli.bench_measure import BenchResult
from spark_cluster.cli.results import RunSummary
from spark_cluster.cli.terminal import Console
from spark_cluster.config.engines import words
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.proxy import DESCRIPTION
from spark_cluster.errors import (
    DoesNotFit,
    Failed,
    Refused,
    SparkClusterError,
    Unreachable,
    VerificationFailed,
)

OUT_OF_MEMORY = Failed("the server is exited while loading: CUDA out of memory", where="spark1")


def sweep(folder: Path, **more: Any) -> BenchRun:
    """A run of three variants with two cells each."""
    suite = suite_of(prompt=[8, 16], sweep={"engine_args": {"max-num-seqs": [1, 2, 4]}}, **more)
    return begun(suite, folder, expand(suite, {"r": make_recipe()}))


@pytest.fixture
def run(tmp_path: Path) -> BenchRun:
    return sweep(tmp_path / "run")


@pytest.fixture
def cluster(piped_cluster: Make) -> BenchCluster:
    return BenchCluster(piped_cluster, "spark1")


def by_status(run: BenchRun) -> list[str]:
    """Which cells were measured, and which have failed as their server did not start."""
    not_started = "the server did not start"
    return ["failed" if not_started in cell.reason else "ok" for cell in run.record.cells]


def test_the_run_goes_on_after_a_server_that_does_not_start(run, cluster):
    cluster.errors[1] = OUT_OF_MEMORY
    sequence.go_on(cluster.play, run)
    assert cluster.log == [
        "up 0", "measure 0", "down 0", "up 1", "down 1", "up 2", "measure 2", "down 2",
    ]  # fmt: skip
    assert by_status(run) == ["ok", "ok", "failed", "failed", "ok", "ok"]
    failed = run.record.cells[2]
    assert failed.reason == (
        "the server did not start: the server is exited while loading: CUDA out of memory"
    )
    assert any("CUDA out of memory" in note for note in cluster.fake.notes)
    setups = run.record.setups
    assert [one.variant for one in setups] == [f"max-num-seqs={n}" for n in (1, 2, 4)]
    assert all(one.recipe_text for one in setups)
    assert "--max-num-seqs" in setups[0].flags
    assert run.record.status == "complete"
    assert load_record(run.folder) == run.record
    cluster.log.clear()
    sequence.go_on(cluster.play, run)
    assert cluster.log == [], "its cells are not measured when the run goes on"


def test_what_is_measured_is_fetched_with_its_times(run, cluster):
    sequence.go_on(cluster.play, run)
    (step, *_) = run.expansion.steps
    assert all(cell.started is not None for cell in run.record.cells)
    assert {path.name for path in (run.raw(step) / "cells").iterdir()} == {
        f"{cell.id}.json" for cell in step.cells
    }
    plan = json.loads(cluster.fake.head.text(f"{run.on_node(step)}/plan.json"))
    assert [cell["id"] for cell in plan["cells"]] == [cell.id for cell in step.cells]
    assert plan["health"] == ["http://127.0.0.1:8000/health"]
    argv = plan["cells"][0]["runs"][0]["argv"]
    assert argv[argv.index("--base-url") + 1] == "http://127.0.0.1:8000/v1"


def cut_off_after_the_last_cell(
    run: BenchRun, cluster: BenchCluster, *, fetched: bool = True
) -> None:
    """The laptop was away while the node measured; `bench fetch` brought all of it, or did not."""
    step = run.expansion.steps[-1]
    setup = describe.setup_not_started(cluster.play, step.setup, step.setup.served, ())
    run.add_setup(setup, ())
    run.add([result(cell) for cell in run.expansion.cells if fetched or cell not in step.cells])
    for cell in step.cells:
        place = f"{run.on_node(step).lstrip('/')}/cells/{cell.id}.json"
        cluster.fake.head.put(place, json.dumps({"error": "", "started": 1.8e9, "finished": 1.9e9}))


def serve(cluster: BenchCluster, run: BenchRun, step: int, **changed: str) -> None:
    """Have the server of a step run."""
    setup = run.expansion.steps[step].setup
    own = {"spark-cluster.recipe": setup.served.name, "spark-cluster.tp": str(setup.tp)}
    args = ["serve", "/models/m", *words(setup.served.flags(setup.tp))]
    cluster.fake.head.run_container(SERVER, {**own, **changed}, args)


def test_a_server_whose_cells_were_fetched_while_the_laptop_was_away_is_taken_down(run, cluster):
    cut_off_after_the_last_cell(run, cluster)
    serve(cluster, run, -1)
    sequence.go_on(cluster.play, run, keep=True)
    assert cluster.log == []
    run.end("running")
    sequence.go_on(cluster.play, run)
    assert cluster.log == ["down -1"]
    serve(cluster, run, -1)
    ended = run.record.finished
    sequence.go_on(cluster.play, run)  # complete now: what serves is no longer its concern
    assert (cluster.log, run.record.finished) == (["down -1"], ended)


@pytest.mark.parametrize(("fetched", "serving"), [(True, False), (False, True)])
def test_what_is_left_of_a_server_is_taken_away(run, cluster, fetched, serving):
    """It is gone and its cells were fetched; or it serves and they are fetched now."""
    cut_off_after_the_last_cell(run, cluster, fetched=fetched)
    if serving:
        serve(cluster, run, -1)
    sequence.go_on(cluster.play, run)
    assert (cluster.log, len(run.record.cells)) == (["down -1"], 6)


@pytest.mark.parametrize("fetched", [True, False])
@pytest.mark.parametrize("which", ["recipe", "size", "arguments", "several models"])
def test_another_server_that_was_brought_up_meanwhile_stays(run, cluster, which, fetched):
    cut_off_after_the_last_cell(run, cluster, fetched=fetched)
    if which == "several models":
        listed = [
            {"node": "n", "address": "", "port": 1, "names": [name], "program": "", "kind": "chat"}
            for name in ("another", "third")
        ]
        cluster.fake.head.put(DESCRIPTION, json.dumps({"models": listed}))
    else:
        labels = {"recipe": {"spark-cluster.recipe": "another"}, "size": {"spark-cluster.tp": "2"}}
        serve(cluster, run, 0 if which == "arguments" else -1, **labels.get(which, {}))
    sequence.go_on(cluster.play, run)
    assert cluster.log == []
    (note,) = [one for one in cluster.fake.notes if "serves now, which is not of this run" in one]
    served = run.expansion.steps[0].setup.served.name
    said = {"recipe": "another", "several models": "another, third"}.get(which, served)
    assert note.startswith(f"{said} serves now")


@each_row(__file__, "faults.json", "faults")
def test_a_fault_of_the_cluster_ends_the_run(run, cluster, kind, message, stage):
    cluster.errors[1], cluster.stage = getattr(errors, kind)(message), stage
    with pytest.raises(getattr(errors, kind)):
        sequence.go_on(cluster.play, run)
    assert by_status(run) == ["ok", "ok"], "the others are to be measured still"
    assert run.record.status == "failed"
    cluster.errors.clear()
    sequence.go_on(cluster.play, run)
    assert by_status(run) == ["ok"] * 6
    assert run.record.status == "complete"


@pytest.mark.parametrize(("stage", "measures"), [("measure", True), ("load", False)])
def test_ctrl_c_says_whether_the_node_goes_on_measuring(run, cluster, stage, measures):
    cluster.errors[1], cluster.stage = KeyboardInterrupt(), stage
    with pytest.raises(KeyboardInterrupt):
        sequence.go_on(cluster.play, run)
    hint = cluster.play.after_interrupt
    assert f"`spark-cluster bench attach {run.folder}` continues" in hint
    assert ("goes on measuring" in hint, "bench stop" in hint) == (measures, measures)


def test_memory_that_is_not_free_again_ends_the_run(run, cluster):
    cluster.errors[0] = OUT_OF_MEMORY
    cluster.not_free = VerificationFailed("memory is still held: VLLM::Worker (pid 7)")
    with pytest.raises(VerificationFailed, match="still held"):
        sequence.go_on(cluster.play, run)
    assert run.record.cells == (), "nothing says that the server was at fault"


def test_the_first_failure_ends_the_run_where_that_is_asked_for(run, cluster):
    cluster.errors[1] = OUT_OF_MEMORY
    with pytest.raises(Failed, match="CUDA out of memory"):
        sequence.go_on(cluster.play, run, stop_at_first_failure=True)
    assert cluster.log[-1] == "up 1", "what failed stays to be looked at"
    assert by_status(run) == ["ok", "ok"]


def test_whose_fault_it_is():
    def ask(error: SparkClusterError, stage: str = "load", **lost: SparkClusterError) -> bool:
        play: Any = SimpleNamespace(failed_stage=stage, out=lost)
        return sequence.is_at_fault(play, error)

    assert ask(OUT_OF_MEMORY)
    assert ask(VerificationFailed("the model says 'Rome'"), "verify")
    assert ask(DoesNotFit("the weights take 58.2 GiB"), "")
    assert not ask(OUT_OF_MEMORY, spark2=Unreachable("lost"))


def test_the_stage_of_an_error_is_the_innermost_one(cluster):
    play = cluster.play
    with pytest.raises(Failed), play.stage("outer"), play.stage("load"):
        raise OUT_OF_MEMORY
    assert play.failed_stage == "load"
    with play.stage("verify"):
        pass
    assert play.failed_stage == ""


def test_cells_without_a_server_can_be_compared(run):
    """A skipped cell has no server in the record; comparing such a run was a KeyError."""
    left_out = [result(cell, reasons=["left out"]) for cell in run.expansion.cells]
    run.add([cell.model_copy(update={"status": "skipped"}) for cell in left_out])
    found = compare(run.record, run.record)
    assert found.rows == ()
    assert {one.reason for one in found.not_comparable} == {
        "skipped in A: left out", "skipped in B: left out",
    }  # fmt: skip


def test_what_ended_the_cells_is_told_and_what_is_there_is_fetched(run, cluster):
    """The head has left the play then; asking for it was the error that the user saw."""
    cluster.ended = Said(stderr="less than 64 MiB are free below /x\n", status=5)
    with pytest.raises(Failed, match="less than 64 MiB are free"):
        sequence.go_on(cluster.play, run)
    assert len(run.record.cells) == 1
    assert run.record.status == "failed"


def test_the_summary_says_each_reason_once(run, cluster, capsys):
    """40 cells of one server have one reason."""
    cluster.errors[1] = OUT_OF_MEMORY
    sequence.go_on(cluster.play, run)
    app: Any = SimpleNamespace(console=Console(width=200), show_recap=lambda: None)
    found = BenchResult(RunSummary(run.record.id, False, 0, {}), run.record, run.folder)
    capsys.readouterr()
    bench._show(app, found)
    said = capsys.readouterr().out
    assert said.count("CUDA out of memory") == 1
    server = run.record.cells[2].setup
    assert f"failed: 2 cells of {server}: the server did not start" in said


def test_what_served_before_is_named_with_the_way_back(run, cluster):
    labels = {"spark-cluster.recipe": "other", "spark-cluster.tp": "1"}
    cluster.fake.head.run_container(SERVER, labels)
    SHIPPED.load_playbook("bench").function(cluster.play, run=run)
    assert cluster.fake.notes[-1] == (
        "other (tp 1) served before and is stopped; to serve it again: "
        "spark-cluster up --recipe other --tp 1"
    )


def test_the_settings_of_a_load_generator_count_only_where_it_measures(piped_cluster, tmp_path):
    more = "settings: {llama_benchy: {version: 0.1.0}}\n"
    cluster = BenchCluster(piped_cluster, "spark1", more=more)
    with pytest.raises(Refused, match=r"llama_benchy.version is 0.1.0; only results of 0.4.0"):
        sequence.go_on(cluster.play, sweep(tmp_path / "benchy"))
    assert cluster.log == []
    sequence.go_on(cluster.play, sweep(tmp_path / "vllm", tool="vllm-bench"))
    assert "measure 0" in cluster.log


def test_a_server_that_did_not_start_was_to_be_on_the_head_first(run):
    """Whatever the order of the inventory is."""
    (step, *_) = run.expansion.steps
    nodes = [make_node("spark1", head=False), make_node("spark2", address="10.0.0.2")]
    play: Any = SimpleNamespace(nodes=nodes)
    found = describe.setup_not_started(play, step.setup, step.setup.served, ())
    assert found.nodes == ("spark2",)


@pytest.mark.parametrize("folder", ["of the run", "of another run", ""])
def test_a_run_is_stopped_where_the_head_measures_it(run, piped_cluster, folder):
    """One question tells whether and what: each is a turn."""
    cluster, step = piped_cluster(), run.expansion.steps[1]
    busy = run.on_node(step) if folder == "of the run" else folder
    asked: list[list[str]] = []
    touched: list[list[str]] = []

    def shell(words: list[str], _stdin: str) -> Said:
        asked.append(words)
        return Said(busy if "flock" in words[1] else "")

    programs = cluster.nodes["spark1"].programs
    programs["sh"] = shell
    programs["touch"] = lambda words, _stdin: touched.append(words) or Said("")
    assert stop(cluster.play, run) is (step if folder == "of the run" else None)
    assert touched == ([[f"{busy}/stop"]] if folder == "of the run" else [])
    removed = [words for words in asked if "docker container rm" in words[1]]
    assert (len(asked), len(removed)) == ((1, 0) if busy else (2, 1))
