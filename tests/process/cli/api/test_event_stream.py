"""Events as an iterator: they come while the run goes on, which ends whatever its reader does."""

import gc
import json
import threading
from collections.abc import Callable

import pytest
from waiting import HANG_S, until

from spark_cluster import Cluster, Options
from spark_cluster.errors import Failed, Interrupted, Unreachable
from spark_cluster.runner.events import Note, RunFinished, RunStarted, StageStarted


@pytest.fixture(autouse=True)
def no_run_is_left() -> None:
    """Nothing of an earlier test."""
    assert threads() == []


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "spark-cluster run"]


@pytest.fixture
def sleeping(cluster: Cluster) -> Callable[[], str]:
    """A run in which a node works for ten minutes."""

    def work() -> str:
        with cluster.play("sleep", cluster.nodes, Options()) as run:
            play = run.open()
            play.note("asleep")
            play.session(play.head).run(["sleep", "600"], timeout=700)
            return "slept"

    return work


def test_they_come_while_the_run_goes_on(cluster):
    go = threading.Event()

    def work() -> str:
        with cluster.play("wait", cluster.nodes, Options()) as run:
            play = run.open()
            with play.stage("gate"):
                assert go.wait(HANG_S), "its reader has seen the stage"
            return play.head.name

    seen = []
    with cluster.events(work) as events:
        for event in events:
            seen.append(event)
            if isinstance(event, StageStarted):
                go.set()
        assert events.result() == "spark1"
    assert isinstance(seen[0], RunStarted)
    assert isinstance(seen[-1], RunFinished)
    assert seen[-1].ok
    assert list(events) == []
    assert threads() == []


def test_they_are_those_of_the_record(cluster, project):
    stream = cluster.events(cluster.playbook, "mine", options=Options(check=True))
    shown = [event.to_dict() for event in stream]
    (record,) = (project / "state/spark-cluster/runs").glob("*.jsonl")
    assert json.loads(json.dumps(shown)) == list(map(json.loads, record.read_text().splitlines()))
    assert stream.result().run.changed == 4


def until_a_note(events) -> None:
    while not isinstance(next(events), Note):
        pass


def test_leaving_the_block_ends_the_run(cluster, sleeping, project):
    with cluster.events(sleeping) as events:
        until_a_note(events)
    assert threads() == []
    with pytest.raises(Interrupted, match="no node was being changed"):
        events.result()
    (record,) = (project / "state/spark-cluster/runs").glob("*.jsonl")
    last = json.loads(record.read_text().splitlines()[-1])
    assert (last["event"], last["ok"]) == ("RunFinished", False)
    assert "interrupted" in last["error"]


def test_an_error_a_dropped_stream_and_a_closed_cluster_end_the_run(cluster, sleeping):
    with pytest.raises(ZeroDivisionError), cluster.events(sleeping):
        _ = 1 / 0
    assert threads() == []
    until_a_note(cluster.events(sleeping))
    gc.collect()
    until(lambda: threads() == [])
    events = cluster.events(sleeping)
    with cluster:
        until_a_note(events)
    assert threads() == []
    with pytest.raises(Interrupted):
        events.result()


def test_a_server_that_loads_is_said_to_go_on(cluster):
    def work() -> None:
        with cluster.play("up", cluster.nodes, Options()) as run:
            play = run.open()
            with play.stage("load"):
                play.session(play.head).run(["sleep", "600"], timeout=700)

    with cluster.events(work) as events:
        next(event for event in events if isinstance(event, StageStarted))
    with pytest.raises(Interrupted, match="and the server keeps loading") as error:
        events.result()
    assert "`spark-cluster down` ends it" in error.value.hint


def test_what_a_closed_connection_raises_is_the_interrupt(cluster):
    """Whatever the code that used it makes of it."""
    begun = threading.Event()

    def work() -> None:
        with cluster.play("sleep", cluster.nodes, Options()) as run:
            play = run.open()
            begun.set()
            try:
                play.session(play.head).run(["sleep", "600"], timeout=700)
            except (Failed, Unreachable):
                raise OSError("the channel is closed") from None

    with cluster.events(work) as events:
        assert begun.wait(HANG_S)
    with pytest.raises(Interrupted) as caught:
        events.result()
    assert isinstance(caught.value.__cause__, OSError)


def test_leaving_the_loop_only_ends_nothing(cluster):
    with cluster.events(cluster.playbook, "mine") as events:
        for _event in events:
            break
        assert events.result().run.changed == 4


def test_its_error_is_that_of_the_loop(cluster, project):
    path = project / "playbooks/mine.py"
    path.write_text(path.read_text().replace("    return", "    [][1]\n    return"))
    events = cluster.events(cluster.playbook, "mine")
    with pytest.raises(Failed, match="the playbook raised IndexError"):
        list(events)
    with pytest.raises(Failed, match="the playbook raised IndexError"):
        events.result()


def test_what_was_cancelled_before_it_began_does_nothing(cluster, project):
    events = cluster.events(cluster.playbook, "mine")
    events.cancel()
    with pytest.raises(Interrupted, match="cancelled before it began"):
        events.result()
    assert not (project / "spark1").exists()


def test_a_run_that_begins_after_the_end_is_ended_too(cluster, sleeping, project):
    """An operation of several runs does not go on with the next one."""

    def both() -> None:
        with pytest.raises(Interrupted):
            sleeping()
        cluster.playbook("mine")

    with cluster.events(both) as events:
        until_a_note(events)
    with pytest.raises(Interrupted):
        events.result()
    assert not (project / "spark1/srv").exists()


def test_two_runs_at_once_keep_their_events_apart(project):
    streams = {}
    for name in ("spark1", "spark2"):
        cluster = Cluster(project=project, limit=name)
        streams[name] = cluster.events(cluster.playbook, "mine")
        streams[name].__enter__()
    for name, stream in streams.items():
        started = next(stream)
        assert isinstance(started, RunStarted)
        assert started.nodes == (name,)
        assert {getattr(event, "node", name) for event in stream} <= {name, ""}
        assert stream.result().run.changed == 2
