"""A step with several replicas from its beginning to its end, with stand-ins for what `up` does."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_replicas import NODES, Play, measured, replicas_of, replicas_run
from factories import make_recipe

from spark_cluster.bench import (
    describe,
    on_node,
    replica_run,
    run_telemetry,
    sequence,
    startup_logs,
)
from spark_cluster.bench import run as alone
from spark_cluster.bench.record import Setup
from spark_cluster.bench.run import BenchRun
from spark_cluster.errors import Failed
from spark_cluster.runner.parallel import in_parallel


class Part:
    """A replica's play: applies a job as its node would, or fails and leaves the run."""

    def __init__(self, whole: Flow, node: Any) -> None:
        self.whole, self.node, self.applied = whole, node, 0

    def session(self, node: Any) -> Any:
        return self.whole.all[node.name]

    def apply(self, node: Any, what: Any) -> None:
        if what == alone.ROLE:
            self.whole.order.append(f"install {node.name}")
            return
        self.whole.order.append(f"load {node.name}")
        self.whole.loaded.wait(60)  # all replicas are loaded at the same time, or this times out
        for cell in what[0].cells:
            if cell["id"] in self.whole.fails.get(node.name, ()):
                self.whole.lose(node)
                raise Failed("the server ended", where=node.name)
            measured(self.whole.all[node.name], cell["id"])


class Flow(Play):
    """The whole run's play."""

    def __init__(self, place: Any) -> None:
        super().__init__(place)
        self.order: list[str] = []
        self.fails: dict[str, tuple[str, ...]] = {}
        self.loaded = threading.Barrier(len(NODES))
        self.lost: list[Any] = []
        self.guarded: dict[str, Any] = {}

    def apply(self, nodes: Any, deployment: Any) -> None:
        """As the firewall of a deployment, which the fixture has in its place."""
        self.guarded.update({node.name: deployment.firewall["peers"] for node in nodes})

    def stage(self, _name: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def lose(self, node: Any) -> None:
        """As `Play.apply` does it when a command fails."""
        self.nodes = [one for one in self.nodes if one.name != node.name]

    def together(self, *jobs: Any) -> list[Any]:
        outcomes = in_parallel({str(i): job for i, job in enumerate(jobs)})
        for outcome in outcomes.values():
            if isinstance(outcome, Failed):
                raise outcome
        return list(outcomes.values())


@pytest.fixture
def run(tmp_path: Path) -> BenchRun:
    return replicas_run(tmp_path / "laptop")


@pytest.fixture
def flow(tmp_path, run, monkeypatch) -> Flow:
    made = Flow(tmp_path / "nodes")
    setup = run.record.setups[0]

    def described(play: Any, *_: Any) -> Setup:
        return setup.model_copy(update={"nodes": (play.node.name,), "servers": ()})

    monkeypatch.setattr(describe, "setup_of", described)
    monkeypatch.setattr(describe, "nodes_of", lambda *_: ())
    monkeypatch.setattr(alone, "vram_until", lambda *_: [])
    monkeypatch.setattr(startup_logs, "keep", lambda *_: ())
    monkeypatch.setattr(run_telemetry, "start_recording", lambda *_, **_more: True)
    monkeypatch.setattr(replica_run, "jobs_of", lambda run, step, found: [
        on_node_job(run, step) for _ in found])  # fmt: skip
    monkeypatch.setattr(on_node.Job, "resources", property(lambda job: [job]))
    monkeypatch.setattr(replica_run, "guard", lambda _play, deployment: deployment)
    return made


def on_node_job(run: BenchRun, step: Any) -> on_node.Job:
    cells = tuple({"id": cell.id, "timeout_s": 1.0} for cell in step.cells)
    return on_node.Job(run.on_node(step), "http://x", cells, {}, "nvidia")


def replicas(flow: Flow, step: Any) -> list[replica_run.Replica]:
    planned = replace(step, setup=replace(step.setup, served=make_recipe()))
    found = replicas_of(planned)
    return [replace(one, play=Part(flow, one.node)) for one in found]  # type: ignore[arg-type]


def test_all_are_loaded_at_the_same_time_after_the_load_generator_is_everywhere(flow, run):
    (step,) = run.pending
    replica_run.measure(flow, run, step, replicas(flow, step))
    assert flow.guarded == dict.fromkeys(("spark1", "spark2"), ("spark1", "spark2"))
    assert sorted(flow.order[:2]) == ["install spark1", "install spark2"]
    assert sorted(flow.order[2:]) == ["load spark1", "load spark2"]
    assert [cell.id for cell in run.record.cells] == [cell.id for cell in step.cells]
    (setup,) = run.record.setups
    assert [server.nodes for server in setup.servers] == [("spark1",), ("spark2",)]
    assert setup.nodes == ("spark1", "spark2")
    for session in flow.all.values():
        assert any("rm" in argv and argv[-1].endswith("/complete") for argv in session.asked)


@pytest.mark.parametrize("name", ["spark1", "spark2"])
def test_what_was_measured_before_one_was_lost_is_kept(flow, run, name):
    (step,) = run.pending
    flow.fails = {name: (step.cells[1].id,)}
    with pytest.raises(Failed, match="the server ended") as caught:
        replica_run.measure(flow, run, step, replicas(flow, step))
    assert caught.value.where == name
    assert [cell.id for cell in run.record.cells] == [step.cells[0].id]
    assert [cell.id for cell in run.left(step)] == [step.cells[1].id]


def test_an_error_of_bringing_back_does_not_hide_the_first(flow, run, monkeypatch):
    (step,) = run.pending
    flow.fails = {"spark1": (step.cells[0].id,)}

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(replica_run, "_bring_back", full)
    with pytest.raises(Failed, match="the server ended"):
        replica_run.measure(flow, run, step, replicas(flow, step))


def test_the_record_says_that_a_run_ended_so(flow, run, monkeypatch):
    (step,) = run.pending
    flow.fails = {"spark1": (step.cells[0].id,)}

    monkeypatch.setattr(replica_run, "bring_up", lambda *_: replicas(flow, step))
    monkeypatch.setattr(sequence, "must_be_as_before", lambda *_: None)
    monkeypatch.setattr(sequence, "tool_of", lambda _: ("", ""))
    with pytest.raises(Failed, match="the server ended"):
        sequence.go_on(flow, run)
    assert run.record.status == "failed"


def test_a_single_server_that_ends_does_not_hide_its_error(flow, run, monkeypatch):
    """Its node has left the play by then; what it has measured is brought back all the same."""
    (step,) = run.pending
    fetched = []
    monkeypatch.setattr(alone, "_describe", lambda *_: None)
    monkeypatch.setattr(alone, "job_of", lambda *_: on_node_job(run, step))
    monkeypatch.setattr(alone, "engine_base", lambda *_: "http://x")
    monkeypatch.setattr(on_node, "fetch", lambda files, *_: fetched.append(files.session) or [])

    def apply(node: Any, *_: Any) -> None:
        flow.lose(node)
        raise Failed("the server ended", where=node.name)

    flow.apply = apply
    served = replicas(flow, step)[0].served
    with pytest.raises(Failed, match="the server ended"):
        alone.measure(flow, run, step, alone.StartedServer(served))
    assert fetched == [flow.all["spark1"]]


@pytest.mark.parametrize("replicated", [True, False])
def test_nothing_samples_on_where_the_cells_are_not_begun(flow, run, monkeypatch, replicated):
    (step,) = run.pending
    begun = []
    monkeypatch.setattr(run_telemetry, "start_recording", lambda *_, **_more: begun.append(1))
    monkeypatch.setattr(alone, "_describe", lambda *_: None)
    monkeypatch.setattr(alone, "job_of", lambda *_: on_node_job(run, step))
    monkeypatch.setattr(alone, "engine_base", lambda *_: "http://x")

    def refused(*_: Any, **_more: Any) -> None:
        raise Failed("rm: read-only file system")

    monkeypatch.setattr(on_node, "may_go_on", refused)
    found = replicas(flow, step)
    with pytest.raises(Failed, match="read-only"):
        if replicated:
            replica_run.measure(flow, run, step, found)
        else:
            alone.measure(flow, run, step, alone.StartedServer(found[0].served))
    assert begun == []
