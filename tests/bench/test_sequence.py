"""The servers of a run in order: one that does not start, a fault of the cluster, the end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from bench_runs import begun
from factories import make_node, make_recipe
from serve_plans import deployment_for, served_by

from spark_cluster.bench import describe, sequence, start_failures
from spark_cluster.bench import run as run_module
from spark_cluster.bench.compare import compare
from spark_cluster.bench.expansion import Step, expand
from spark_cluster.bench.reading import result
from spark_cluster.bench.run import BenchRun, StartedServer
from spark_cluster.bench.run_folder import load_record
from spark_cluster.bench.suite_schema import Suite
from spark_cluster.cli import bench_run
from spark_cluster.cli.bench_measure import BenchResult
from spark_cluster.cli.results import RunSummary
from spark_cluster.cli.terminal import Console
from spark_cluster.config.flags import words
from spark_cluster.engine.names import SERVER
from spark_cluster.errors import (
    DoesNotFit,
    Failed,
    Interrupted,
    Refused,
    SparkClusterError,
    Unreachable,
    UsageError,
    VerificationFailed,
)
from spark_cluster.runner.play import Play

OUT_OF_MEMORY = Failed("the server is exited while loading: CUDA out of memory", where="spark1")


class FakePlay(Play):
    """A play without nodes, that keeps what it says."""

    def __init__(self) -> None:
        self.seconds, self.out = {}, {}
        self.failed_stage = ""
        self.options = SimpleNamespace(check=False)  # type: ignore[assignment]
        self.bus = SimpleNamespace(emit=lambda _event: None)  # type: ignore[assignment]
        self.notes: list[str] = []

    nodes = ()  # type: ignore[assignment]
    head = make_node("spark1")  # type: ignore[assignment]

    answers: Any = None

    def session(self, _node: object) -> Any:
        return self.answers

    def note(self, text: str, **_: Any) -> None:
        self.notes.append(text)


def sweep(folder: Path) -> BenchRun:
    """A run of three variants with two cells each."""
    suite = Suite.model_validate({
        "name": "s", "recipes": ["r"], "prompt": [8, 16],
        "sweep": {"engine_args": {"max-num-seqs": [1, 2, 4]}},
    })  # fmt: skip
    return begun(suite, folder, expand(suite, {"r": make_recipe()}))


class Cluster:
    """A stand-in for the nodes that keeps what happens to each server."""

    def __init__(self, run: BenchRun) -> None:
        self.errors: dict[int, SparkClusterError] = {}
        self.stage = "load"
        self.not_free: SparkClusterError | None = None
        self.log: list[str] = []
        self._steps = [step.setup.id for step in run.expansion.steps]

    def bring_up(self, play: Play, step: Step) -> object:
        number = self._steps.index(step.setup.id)
        self.log.append(f"up {number}")
        if number in self.errors:
            with play.stage(self.stage):
                raise self.errors[number]
        return object()

    def measure(self, _play: Play, run: BenchRun, step: Step, *_: object) -> None:
        self.log.append(f"measure {self._steps.index(step.setup.id)}")
        run.add([result(cell) for cell in step.cells])

    def take_down(self, _play: Play, _run: BenchRun, step: Step) -> None:
        self.log.append(f"down {self._steps.index(step.setup.id)}")
        if self.not_free is not None:
            raise self.not_free


@pytest.fixture
def run(tmp_path: Path) -> BenchRun:
    return sweep(tmp_path)


@pytest.fixture
def cluster(run: BenchRun, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(run)
    for name in ("bring_up", "measure", "take_down"):
        monkeypatch.setattr(sequence, name, getattr(made, name))
    monkeypatch.setattr(sequence, "tool_of", lambda _play: None)
    monkeypatch.setattr(sequence, "is_done_there", lambda *_: False)
    monkeypatch.setattr(sequence.startup_logs, "keep", lambda *_: ("logs/x.log",))
    return made


def by_status(run: BenchRun) -> list[str]:
    return [cell.status for cell in run.record.cells]


def test_the_run_goes_on_after_a_server_that_does_not_start(run, cluster):
    play = FakePlay()
    cluster.errors[1] = OUT_OF_MEMORY
    sequence.go_on(play, run)
    assert cluster.log == [
        "up 0", "measure 0", "down 0", "up 1", "down 1", "up 2", "measure 2", "down 2",
    ]  # fmt: skip
    assert by_status(run) == ["ok", "ok", "failed", "failed", "ok", "ok"]
    failed = run.record.cells[2]
    assert failed.reason == (
        "the server did not start: the server is exited while loading: CUDA out of memory"
    )
    assert failed.raw == ("logs/x.log",)
    assert any("CUDA out of memory" in note for note in play.notes)
    (setup,) = run.record.setups  # the fakes record none of those that start
    assert setup.variant == "max-num-seqs=2"
    assert setup.recipe_text
    assert run.record.status == "complete"
    assert load_record(run.folder) == run.record


def test_cells_of_a_server_that_does_not_start_are_not_measured_when_the_run_goes_on(run, cluster):
    cluster.errors[1] = OUT_OF_MEMORY
    sequence.go_on(FakePlay(), run)
    cluster.log.clear()
    sequence.go_on(FakePlay(), run)
    assert cluster.log == []


def cut_off_after_the_last_cell(run: BenchRun) -> None:
    """The laptop was away while the node measured, and `bench fetch` brought all of it."""
    step = run.expansion.steps[-1]
    run.add_setup(describe.setup_not_started(FakePlay(), step.setup, step.setup.served, ()), ())
    run.add([result(cell) for cell in run.expansion.cells])


class Head:
    """A session with the head: the container of the server, and the file of the endpoint."""

    def __init__(self, running: Mapping[str, Any] | None, models: Sequence[str] = ()) -> None:
        shown = None if running is None else {"stdout": json.dumps([running])}
        listed = [
            {"node": "n", "address": "", "port": 1, "names": [name], "program": "", "kind": "chat"}
            for name in models
        ]
        endpoint = json.dumps({"models": listed}) if models else None
        self.answer = {"commands": {SERVER: shown}, "files": {"endpoint": endpoint}}

    def request(self, *_: object, **__: object) -> dict[str, Any]:
        return self.answer


def container(run: BenchRun, step: int, **changed: str) -> dict[str, Any]:
    """What Docker says of the server of a step."""
    setup = run.expansion.steps[step].setup
    own = {"spark-cluster.recipe": setup.served.name, "spark-cluster.tp": str(setup.tp)}
    labels = {**own, **changed}
    args = ["serve", "/models/m", *words(setup.served.flags(setup.tp))]
    return {"State": {"Status": "running"}, "Config": {"Labels": labels, "Cmd": args}}


def play_with(head: Head) -> FakePlay:
    play = FakePlay()
    play.answers = head
    return play


def test_a_server_whose_cells_were_fetched_while_the_laptop_was_away_is_taken_down(run, cluster):
    cut_off_after_the_last_cell(run)
    head = Head(container(run, -1))
    sequence.go_on(play_with(head), run, keep=True)
    assert cluster.log == []
    run.end("running")
    sequence.go_on(play_with(head), run)
    assert cluster.log == ["down 2"]
    sequence.go_on(play_with(head), run)  # complete now: what serves is no longer its concern
    assert cluster.log == ["down 2"]


def test_what_is_left_of_a_server_that_is_gone_is_taken_away(run, cluster):
    cut_off_after_the_last_cell(run)
    sequence.go_on(play_with(Head(None)), run)
    assert cluster.log == ["down 2"]


@pytest.mark.parametrize("which", ["recipe", "size", "arguments", "several models"])
def test_another_server_that_was_brought_up_meanwhile_stays(run, cluster, which):
    cut_off_after_the_last_cell(run)
    head = {
        "recipe": Head(container(run, -1, **{"spark-cluster.recipe": "another"})),
        "size": Head(container(run, -1, **{"spark-cluster.tp": "2"})),
        "arguments": Head(container(run, 0)),
        "several models": Head(None, ["another", "third"]),
    }[which]
    play = play_with(head)
    sequence.go_on(play, run)
    assert cluster.log == []
    (note,) = [note for note in play.notes if "serves now, which is not of this run" in note]
    served = run.expansion.steps[0].setup.served.name
    said = {"recipe": "another", "several models": "another, third"}.get(which, served)
    assert note.startswith(f"{said} serves now")


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("spark2 does not answer"),
        Interrupted("interrupted"),
        Refused("only 12.0 of 121.7 GiB are available"),
        UsageError("the recipe asks for the variable HF_TOKEN"),
    ],
)
def test_a_fault_of_the_cluster_ends_the_run(run, cluster, error):
    cluster.errors[1] = error
    with pytest.raises(type(error)):
        sequence.go_on(FakePlay(), run)
    assert by_status(run) == ["ok", "ok"], "the others are to be measured still"
    assert run.record.status == "failed"
    cluster.errors.clear()
    sequence.go_on(FakePlay(), run)
    assert by_status(run) == ["ok"] * 6
    assert run.record.status == "complete"


def test_what_fails_before_the_engine_runs_ends_the_run(run, cluster):
    cluster.errors[1], cluster.stage = Failed("docker pull: no space left on device"), "fetch"
    with pytest.raises(Failed, match="no space"):
        sequence.go_on(FakePlay(), run)
    assert by_status(run) == ["ok", "ok"]


def test_memory_that_is_not_free_again_ends_the_run(run, cluster):
    cluster.errors[0] = OUT_OF_MEMORY
    cluster.not_free = VerificationFailed("memory is still held: VLLM::Worker (pid 7)")
    with pytest.raises(VerificationFailed, match="still held"):
        sequence.go_on(FakePlay(), run)
    assert by_status(run) == [], "nothing says that the server was at fault"


def test_the_first_failure_ends_the_run_where_that_is_asked_for(run, cluster):
    cluster.errors[1] = OUT_OF_MEMORY
    with pytest.raises(Failed, match="CUDA out of memory"):
        sequence.go_on(FakePlay(), run, stop_at_first_failure=True)
    assert cluster.log[-1] == "up 1", "what failed stays to be looked at"
    assert by_status(run) == ["ok", "ok"]


def test_whose_fault_it_is():
    def ask(error: SparkClusterError, stage: str = "load", **lost: SparkClusterError) -> bool:
        play = FakePlay()
        play.failed_stage, play.out = stage, lost
        return start_failures.is_of_server(play, error)

    assert ask(OUT_OF_MEMORY)
    assert ask(VerificationFailed("the model says 'Rome'"), "verify")
    assert ask(DoesNotFit("the weights take 58.2 GiB"), "")
    assert not ask(VerificationFailed("Ray shows 1 of 2 nodes"), "start")
    assert not ask(OUT_OF_MEMORY, spark2=Unreachable("lost"))


def test_a_reason_is_one_printable_line_of_bounded_length():
    why = start_failures.reason(Failed("a\x1b[31m\nb " + "c" * 2000))
    assert why.startswith("the server did not start: a\ufffd[31m b cc")
    assert len(why) < 450


def test_the_stage_of_an_error_is_the_innermost_one():
    play = FakePlay()
    with pytest.raises(Failed), play.stage("outer"), play.stage("load"):
        raise OUT_OF_MEMORY
    assert play.failed_stage == "load"
    with play.stage("verify"):
        pass
    assert play.failed_stage == ""


def test_cells_without_a_server_can_be_compared(run):
    """A skipped cell has no server in the record; comparing such a run was a KeyError."""
    run.add([sequence.skipped(cell, "left out") for cell in run.expansion.cells])
    found = compare(run.record, run.record)
    assert found.rows == ()
    assert {one.reason for one in found.not_comparable} == {
        "skipped in A: left out", "skipped in B: left out",
    }  # fmt: skip


class Recording:
    """A recording of which only the calls are kept."""

    log: ClassVar[list[str]] = []

    def __init__(self, *_: object) -> None:
        pass

    def start(self) -> None:
        self.log.append("start")

    def fetch(self, _into: Path) -> None:
        self.log.append("fetch")

    def stop(self) -> None:
        self.log.append("stop")


class LosingPlay(FakePlay):
    """Its head leaves the play when what is applied fails, as in a real one."""

    def __init__(self) -> None:
        super().__init__()
        self.connections = SimpleNamespace(  # type: ignore[assignment]
            session=lambda name: f"session with {name}", files=nullcontext
        )

    @property
    def nodes(self) -> list[Any]:  # type: ignore[override]
        head = SimpleNamespace(name="spark1", is_head=True, user="nvidia")
        return [] if "spark1" in self.out else [head]

    def apply(self, *_: object, **__: object) -> Any:
        self.out["spark1"] = Failed(
            "measure s: status 5: less than 64 MiB are free", where="spark1"
        )
        raise self.out["spark1"]


def test_what_ended_the_cells_is_told_and_what_is_there_is_fetched(run, monkeypatch):
    """The head has left the play then; asking for it was the error that the user saw."""
    (step, *_) = run.expansion.steps
    folders = []
    monkeypatch.setattr(run_module, "_describe", lambda *_: None)
    monkeypatch.setattr(run_module, "engine_base", lambda _plan: "http://127.0.0.1:8000")
    job = SimpleNamespace(limit_s=1.0, resources=[], user="nvidia")
    monkeypatch.setattr(run_module, "job_of", lambda *_: job)
    monkeypatch.setattr(run_module, "Recording", Recording)
    monkeypatch.setattr(Recording, "log", [])
    for name, answer in (("may_go_on", None), ("is_measuring", False)):
        monkeypatch.setattr(run_module.on_node, name, lambda *_, answer=answer: answer)
    play = LosingPlay()
    monkeypatch.setattr(
        run_module.on_node, "fetch", lambda _session, folder, *_: folders.append(folder) or []
    )
    served = served_by(deployment_for(make_recipe(), make_node("spark1")))
    with pytest.raises(Failed, match="less than 64 MiB are free"):
        run_module.measure(play, run, step, StartedServer(served))
    assert folders == [run.on_node(step)]
    assert Recording.log == ["start", "fetch", "stop"]


def test_what_ended_the_cells_is_told_where_nothing_can_be_fetched(run, monkeypatch):
    (step, *_) = run.expansion.steps

    def lost(*_: object) -> None:
        raise Unreachable("not connected", where="spark1")

    job = SimpleNamespace(limit_s=1.0, resources=[], user="nvidia")
    for name, found in (("_describe", None), ("engine_base", "http://127.0.0.1:8000")):
        monkeypatch.setattr(run_module, name, lambda *_, found=found: found)
    monkeypatch.setattr(run_module, "job_of", lambda *_: job)
    monkeypatch.setattr(run_module, "Recording", Recording)
    monkeypatch.setattr(Recording, "log", [])
    monkeypatch.setattr(run_module.on_node, "may_go_on", lambda *_: None)
    monkeypatch.setattr(run_module.on_node, "is_measuring", lost)
    served = served_by(deployment_for(make_recipe(), make_node("spark1")))
    with pytest.raises(Failed, match="less than 64 MiB are free"):
        run_module.measure(LosingPlay(), run, step, StartedServer(served))


def test_the_summary_says_each_reason_once(run, cluster, capsys):
    """40 cells of one server have one reason."""
    cluster.errors[1] = OUT_OF_MEMORY
    sequence.go_on(FakePlay(), run)
    app: Any = SimpleNamespace(console=Console(width=200))
    found = BenchResult(RunSummary(run.record.id, False, 0, {}), run.record, run.folder)
    bench_run._show(app, found)
    said = capsys.readouterr().out
    assert said.count("CUDA out of memory") == 1
    assert f"failed: 2 cells of {found.failed[0].setup}: the server did not start" in said
    assert "4 cells measured" in said


def test_the_settings_of_llama_benchy_count_only_where_it_measures(run, cluster, monkeypatch):
    def refused(_play: object) -> None:
        raise Refused("llama_benchy.version is 1; only results of 2 are read")

    monkeypatch.setattr(sequence, "tool_of", refused)
    with pytest.raises(Refused):
        sequence.go_on(FakePlay(), run)
    assert cluster.log == []
    run.suite = run.suite.model_copy(update={"tool": "vllm-bench"})
    sequence.go_on(FakePlay(), run)
    assert "measure 0" in cluster.log


def test_a_server_that_did_not_start_was_to_be_on_the_head_first(run):
    """Whatever the order of the inventory is."""
    (step, *_) = run.expansion.steps
    nodes = [make_node("spark1", head=False), make_node("spark2", address="10.0.0.2")]
    play: Any = SimpleNamespace(nodes=nodes)
    found = describe.setup_not_started(play, step.setup, step.setup.served, ())
    assert found.nodes == ("spark2",)
