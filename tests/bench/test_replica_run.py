"""Steps with several replicas: what their nodes get, and what comes back from them."""

from __future__ import annotations

import base64
import gzip
import io
import json
import shutil
import tarfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories import SHIPPED, make_node, make_recipe
from serve_plans import inventory_of

from spark_cluster.bench import benchy, on_node, replica_run
from spark_cluster.bench.expansion import PlannedSetup, Step, canonical, expand, measurable
from spark_cluster.bench.record import Record, ReplicaServer, Setup
from spark_cluster.bench.replica_run import Replica, fetch, is_measuring, jobs_of, stop
from spark_cluster.bench.run import BenchRun
from spark_cluster.bench.suite_schema import Suite
from spark_cluster.config.inventory_part import part_of
from spark_cluster.errors import Failed, Unreachable
from spark_cluster.node.values import Secret
from spark_cluster.resources import Command, File
from spark_cluster.runner.session import Output
from spark_cluster.serving.plan import resolve

DATA = Path(__file__).parents[1] / "data" / "benchy"
NODES = (
    replace(make_node("spark1", own=("10.0.0.1/24",)), user="nvidia"),
    replace(make_node("spark2", own=("10.0.0.2/24",), address="10.0.0.2", head=False), user="me"),
)


class Session:
    """A node with a folder of a step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.measuring = self.gone = False
        self.asked: list[list[str]] = []

    def run(self, argv: list[str], *, stdin: str = "", **_: Any) -> Output:
        self.asked.append(argv)
        if self.gone:
            raise Unreachable("the connection was lost", where=self.folder.name)
        if argv[0] == "find":
            files = (p for p in self.folder.rglob("*") if p.is_file())
            lines = [f"{p.stat().st_size} {p.relative_to(self.folder)}" for p in files]
            return Output(0, "\n".join(lines), "")
        if "flock" in argv[-2]:
            return Output(1 if self.measuring else 0, "", "")
        if "tar" in argv[-2]:
            out = io.BytesIO()
            with tarfile.open(fileobj=out, mode="w:gz") as made:
                for name in stdin.split("\0"):
                    made.add(self.folder / name, name)
            return Output(0, base64.b64encode(out.getvalue()).decode(), "")
        return Output(0, base64.b64encode(gzip.compress(b"")).decode(), "")


class Play:
    """What is asked of a play by those who look at a run."""

    check = False

    def __init__(self, place: Path) -> None:
        self.nodes = list(NODES)
        self.head = NODES[0]
        self.inventory = inventory_of(*NODES)
        self.all = {node.name: Session(place / node.name) for node in NODES}
        self.notes: list[str] = []

    def session(self, node: Any) -> Session:
        return self.all[node.name]

    def note(self, text: str, **_: Any) -> None:
        self.notes.append(text)


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return Play(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> BenchRun:
    suite = Suite.model_validate(
        {"name": "s", "recipes": ["r"], "prompt": [64], "output": [8], "concurrency": [2, 4],
         "replicas": 2, "runs": 3}
    )  # fmt: skip
    servers = tuple(ReplicaServer(nodes=(node.name,)) for node in NODES)
    found = measurable(suite, expand(suite))
    setup = Setup(id=found.setups[0].id, recipe="r", model="m", tp=1, replicas=2,
                  nodes=("spark1", "spark2"), servers=servers)  # fmt: skip
    record = Record(
        id="20261122-1", suite="s", suite_text=canonical(suite), spark_cluster="0",
        started=datetime(2026, 11, 22, tzinfo=UTC), status="running",
        tool=benchy.tool(suite.settings), setups=(setup,), cells=(), recipes=("r",),
    )  # fmt: skip
    return BenchRun(record, suite, found, tmp_path / "laptop")


def measured(session: Session, cell: str, attempt: str = "1") -> None:
    """Leave on a node what its load generator and its worker write."""
    for name in ("raw", "cells"):
        (session.folder / name).mkdir(parents=True, exist_ok=True)
    for kind in ("json", "jsonl"):
        shutil.copy(DATA / f"ok.{kind}", session.folder / f"raw/{cell}.{kind}")
    worker = {"status": 0, "error": "", "started": 100.0, "finished": 110.0, "attempt": attempt}
    (session.folder / f"cells/{cell}.json").write_text(json.dumps(worker))


def test_a_cell_is_added_when_all_of_its_parts_are_there(play, run):
    (step,) = run.pending
    cell = step.cells[0].id
    measured(play.all["spark1"], cell)
    fetch(play, run, step)
    assert run.record.cells == (), "the other replica has no result of it"
    measured(play.all["spark2"], cell)
    fetch(play, run, step)
    (found,) = run.record.cells
    assert found.status == "ok", found.reason
    assert [share.node for share in found.replicas] == ["spark1", "spark2"]
    for share in found.replicas:
        assert share.raw
        assert all((run.folder / name).is_file() and share.node in name for name in share.raw)
    fetch(play, run, step)
    assert run.record.cells == (found,), "it is not added twice"
    assert [cell.id for cell in run.left(step)] == [step.cells[1].id]


def test_results_of_two_attempts_are_no_result(play, run):
    (step,) = run.pending
    measured(play.all["spark1"], step.cells[0].id, "1")
    measured(play.all["spark2"], step.cells[0].id, "2")
    fetch(play, run, step)
    assert run.record.cells == ()


def test_a_node_that_is_not_reached_keeps_its_results(play, run):
    (step,) = run.pending
    for session in play.all.values():
        measured(session, step.cells[0].id)
    play.all["spark2"].gone = True
    fetch(play, run, step)
    assert run.record.cells == ()
    assert any("spark2: its results stay there" in note for note in play.notes)
    play.all["spark2"].gone = False
    fetch(play, run, step)
    assert len(run.record.cells) == 1


def test_one_that_still_measures_is_seen_and_stopped(play, run):
    (step,) = run.pending
    assert not is_measuring(play, run, step)
    play.all["spark2"].measuring = True
    assert is_measuring(play, run, step)
    stop(play, run, step)
    stopped = {n for n, s in play.all.items() if any("touch" in argv for argv in s.asked)}
    assert stopped == {"spark2"}
    with pytest.raises(Failed, match="another run is being measured") as caught:
        wait_for_another_run(play, run, step)
    assert caught.value.where == "spark2"


def wait_for_another_run(play: Play, run: BenchRun, step: Step) -> None:
    """The lock of all runs is held, that of this one is not."""
    original = on_node.is_measuring
    on_node.is_measuring = lambda *_: False
    try:
        replica_run.is_done_there(play, run, step)
    finally:
        on_node.is_measuring = original


def replicas_of(step: Step) -> list[Replica]:
    found = []
    recipe = step.setup.served
    for node in NODES:
        alone = replace(node, is_head=True)
        inventory = part_of(inventory_of(*NODES, bind="management", open=True), [node.name])
        plan = resolve(recipe, inventory, [alone], 1)
        part = SimpleNamespace(project=SHIPPED, inventory=inventory, head=alone)
        found.append(Replica(part, alone, SimpleNamespace(plan=plan), 1.0))  # type: ignore[arg-type]
    return found


def test_what_each_node_gets(run):
    planned: PlannedSetup = replace(run.expansion.steps[0].setup, served=make_recipe())
    step = replace(run.expansion.steps[0], setup=planned)
    run = replace(run, expansion=replace(run.expansion, steps=(step,)))
    replicas = replicas_of(step)
    assert not replicas[0].served.plan.endpoint.host.startswith("127.")
    assert replicas[1].served.plan.endpoint.host == "127.0.0.1", "the user opened the head's only"
    jobs = jobs_of(run, step, replicas)
    assert [job.user for job in jobs] == ["nvidia", "me"]
    assert len({job.folder for job in jobs}) == 1
    first, second = (job.replicas for job in jobs)
    assert (first["index"], second["index"]) == (0, 1)
    assert first["address"] == second["address"] == "10.0.0.1"
    assert first["names"] == ["spark1", "spark2"]
    for job in jobs:
        assert job.health.startswith("http://127.0.0.1:")
        words = [cell["argv"] for cell in job.cells]
        assert [w[w.index("--concurrency") + 1] for w in words] == ["1", "2"]
        assert [cell["id"] for cell in job.cells] == [cell.id for cell in step.cells]
    assert jobs_of(run, step, replicas)[0].replicas["token"] != first["token"]


def test_the_token_is_in_a_file_of_the_users_own_only():
    settings = {"index": 0, "token": "s3cret"}
    job = on_node.Job(f"{on_node.FOLDER}/r/s", "http://x", (), {}, "nvidia", settings)
    files = {r.path.rpartition("/")[2]: r for r in job.resources if isinstance(r, File)}
    assert set(files) == {"worker.py", "replica_worker.py", "plan.json"}
    plan = files["plan.json"]
    assert isinstance(plan.content, Secret)
    assert json.loads(plan.content)["replicas"] == settings
    assert (plan.mode, plan.owner) == (0o600, "nvidia")
    commands = [r for r in job.resources if isinstance(r, Command)]
    assert "s3cret" not in repr((commands, job))
