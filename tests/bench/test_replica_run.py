"""Steps with several replicas: what their nodes get, and what comes back from them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_replicas import Play, measured, replicas_of, replicas_run
from factories import make_recipe

from spark_cluster.bench import generators, on_node, replica_run
from spark_cluster.bench.expansion import PlannedSetup, Step
from spark_cluster.bench.replica_run import fetch, is_measuring, jobs_of, stop, with_peers
from spark_cluster.bench.run import BenchRun
from spark_cluster.config.ports import REPLICAS
from spark_cluster.errors import Failed
from spark_cluster.node.values import Secret
from spark_cluster.resources import Command, File


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return Play(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> BenchRun:
    return replicas_run(tmp_path / "laptop")


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
    with pytest.raises(Failed, match="another benchmark is running") as caught:
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


def test_it_does_not_wait_longer_than_the_cells_can_take(play, run, monkeypatch):
    (step,) = run.pending
    play.all["spark2"].measuring = True
    monkeypatch.setattr(replica_run.generators, "limit_s", lambda *_: 0.0)
    monkeypatch.setattr(replica_run, "WAIT_S", 0.01)
    with pytest.raises(Failed, match="more than its cells can take") as caught:
        replica_run.is_done_there(play, run, step)
    assert "bench stop" in caught.value.hint


def test_what_each_node_gets(run):
    planned: PlannedSetup = replace(run.expansion.steps[0].setup, served=make_recipe())
    step = replace(run.expansion.steps[0], setup=planned)
    run = replace(run, expansion=replace(run.expansion, steps=(step,)))
    replicas = replicas_of(step)
    assert not replicas[0].served.endpoint.host.startswith("127.")
    assert replicas[1].served.endpoint.host == "127.0.0.1", "the user opened the head's only"
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
        assert all(job.folder in w[w.index("--post-run-cmd") + 1] for w in words)
        assert [cell["id"] for cell in job.cells] == [cell.id for cell in step.cells]
        assert job.limit_s == generators.limit_s(run.suite, step.cells)
    assert jobs_of(run, step, replicas)[0].replicas["token"] != first["token"]


def test_behind_the_firewall_of_each_replica_are_the_nodes_of_all(run):
    """As if it served alone, it would keep out the load generators that wait for each other."""
    planned: PlannedSetup = replace(run.expansion.steps[0].setup, served=make_recipe())
    replicas = replicas_of(replace(run.expansion.steps[0], setup=planned))
    assert [one.served.deployment.firewall["peers"] for one in replicas] == [(), ()]
    for one, deployment in zip(replicas, with_peers(replicas), strict=True):
        assert deployment.firewall["peers"] == ("spark1", "spark2")
        assert (REPLICAS, REPLICAS) in deployment.firewall["ports"]
        assert {**deployment.firewall, "peers": ()} == one.served.deployment.firewall


def test_the_token_is_in_a_file_of_the_users_own_only():
    settings = {"index": 0, "token": "s3cret"}
    job = on_node.Job(f"{on_node.FOLDER}/r/s", "http://x", (), {}, "nvidia", replicas=settings)
    files = {r.path.rpartition("/")[2]: r for r in job.resources if isinstance(r, File)}
    assert set(files) == {on_node.ARCHIVE, "plan.json"}
    plan = files["plan.json"]
    assert isinstance(plan.content, Secret)
    assert json.loads(plan.content)["replicas"] == settings
    assert (plan.mode, plan.owner) == (0o600, "nvidia")
    commands = [r for r in job.resources if isinstance(r, Command)]
    assert "s3cret" not in repr((commands, job))


def test_a_copy_that_was_cut_is_no_failed_cell(play, run):
    """Results come in parts: one can be here without what the load generator wrote for it."""
    (step,) = run.pending
    cell = step.cells[0].id
    for session in play.all.values():
        measured(session, cell)
    play.all["spark2"].is_cut = True
    fetch(play, run, step)
    assert (run.raw(step) / f"spark2/cells/{cell}.json").exists()
    assert run.record.cells == ()
    play.all["spark2"].is_cut = False
    fetch(play, run, step)
    (found,) = run.record.cells
    assert found.status == "ok", found.reason


def test_what_the_other_nodes_have_comes_without_the_head(play, run):
    (step,) = run.pending
    cell = step.cells[0].id
    measured(play.all["spark2"], cell)
    play.nodes = [node for node in play.nodes if not node.is_head]
    fetch(play, run, step)
    assert (run.raw(step) / f"spark2/cells/{cell}.json").exists()
    assert run.record.cells == ()
