"""The laptop's side of the memory of nodes that load: warnings before, and the guard meanwhile."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest
from cases import cases
from fake_programs import Said
from health_server import HealthServer
from piped_cluster import Make, PipedCluster, PipedNode
from serve_plans import bare_server

from spark_cluster.engine import readiness
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.readiness import LONGEST
from spark_cluster.errors import Failed, Interrupted
from spark_cluster.node.load_watch import Reason, reason_file, unit
from spark_cluster.runner.events import Event, Progress

LARGE_BLOCKS = f"Node 0, zone   Normal {'9 ' * 12}1417 782\n"
FRAGMENTED = "Node 0, zone   Normal  81231  40211  20102  9021  3021  811  120  27  5  0  0\n"
REASON = json.dumps(asdict(Reason(3_400_000, 900_000, 16_000_000, 42.17, 1_790_000_000.0)))
OWN_MEMORY = "NVIDIA H200, 9.0, 580.95.05, 40, 100.0, 1500, 0, 143360"
DROPPED = "/proc/sys/vm/drop_caches"
STOP = ["stop", "-t", "5", SERVER]

pytestmark = pytest.mark.usefixtures("no_pauses")


class Guarded:
    """A node that loads, and whose systemd starts and ends the guard of its memory.

    Attributes:
        when_begun: is called when the guard is started.
        told: what the guards were told.
    """

    def __init__(self, node: PipedNode) -> None:
        self.node = node
        self.when_begun: Callable[[], object] = lambda: None
        self.told: list[dict[str, Any]] = []
        node.run_container(SERVER)
        (node.root / "run/systemd/system").mkdir(parents=True)
        node.put("/proc/buddyinfo", LARGE_BLOCKS)
        node.put(DROPPED)
        node.programs["systemd-run"] = self._begin

    def _begin(self, words: list[str], _stdin: str) -> Said:
        self.told.append(json.loads(words[-1]))
        failed = self.when_begun()
        return failed if isinstance(failed, Said) else Said()

    @property
    def actions(self) -> list[str]:
        """What was done for its memory, in order; the end of a guard before each begin left out."""
        found = ["prepare"] if self.node.text(DROPPED) else []
        ends = self.node.calls("systemctl").count(["stop", unit(SERVER)])
        return found + ["begin"] * len(self.told) + ["end"] * (ends - len(self.told))


class Loading:
    """A server over two nodes that loads."""

    def __init__(self, cluster: PipedCluster, health: HealthServer) -> None:
        self.cluster, self.health = cluster, health
        self.head, self.worker = (Guarded(node) for node in cluster.nodes.values())

    def wait(self, *ranks: str, **more: Any) -> None:
        play = self.cluster.play
        nodes = [node for node in play.nodes if node.name in ("spark1", *ranks)]
        server = bare_server(
            *nodes, port=self.health.server_port, executor="mp", labels={}, ready_timeout_s=60
        )
        readiness.healthy(play, server, **more)

    def is_ready(self) -> None:
        self.health.status = 200


@pytest.fixture
def loading(piped_cluster: Make) -> Iterator[Loading]:
    with HealthServer(status=503) as health:
        yield Loading(piped_cluster(), health)


# -- before the load -------------------------------------------------------------------------------


def test_a_healthy_node_is_prepared_without_a_word(loading):
    readiness.prepare_memory(loading.cluster.play, loading.cluster.play.nodes)
    assert (loading.cluster.notes, loading.worker.actions) == ([], ["prepare"])


def test_what_is_wrong_with_the_memory_is_said_before_the_load(loading):
    """P06: fragmented after compaction, short of memory before it, or caches that stay."""
    sick = loading.worker.node
    sick.put("/proc/buddyinfo", FRAGMENTED)
    sick.put("/proc/pressure/memory", "some avg10=20.00 x\nfull avg10=12.50 avg60=1.00\n")
    (sick.root / DROPPED.lstrip("/")).unlink()
    (sick.root / DROPPED.lstrip("/")).parent.rmdir()
    play = loading.cluster.play
    readiness.prepare_memory(play, play.nodes)
    dropped, pressure, blocks = loading.cluster.notes
    assert dropped.startswith("spark2: the page cache was not dropped: ")
    assert dropped.endswith("drop_caches: No such file or directory")
    assert "spark2: programs of the node have waited for memory for 12.5 % of the last" in pressure
    free = "spark2: 0.0 of 1.5 GiB free memory in blocks of 4 MiB or more, after"
    assert blocks.startswith(free)
    assert "reboot the node" in blocks


def test_a_gpu_with_memory_of_its_own_is_not_asked(loading):
    """P07: its memory has no page cache."""
    loading.head.node.gpu = OWN_MEMORY
    loading.head.node.run_container(SERVER, status="exited")
    readiness.prepare_memory(loading.cluster.play, [loading.cluster.play.head])
    with pytest.raises(Failed, match="the server is exited"):
        loading.wait()
    assert loading.head.actions == []


# -- while it loads --------------------------------------------------------------------------------


def test_a_server_that_is_ready_already_is_not_guarded(loading):
    """P06: no turn of the network where all is up."""
    loading.is_ready()
    loading.wait()
    assert loading.head.actions == []


def test_a_load_is_guarded_on_all_nodes_until_it_is_ready(loading):
    """P06: the head's guard asks the engine itself, so that it ends without the laptop, too."""
    loading.worker.when_begun = loading.is_ready
    loading.wait("spark2")
    told = {"server": SERVER, "programs": [SERVER, "spark-ray"], "limit_s": 60 * LONGEST}
    url = f"http://127.0.0.1:{loading.health.server_port}/health"
    for one, asks in ((loading.head, url), (loading.worker, "")):
        assert one.told == [{**told, "health": asks, "root": str(one.node.root)}]
        assert one.actions == ["begin", "end"]


@pytest.mark.parametrize("status", ["running", "exited"])
def test_a_load_that_was_ended_for_memory_says_so(loading, status):
    """P06: the cause is the memory of a worker, not that "the rank is exited"."""
    worker = loading.worker.node
    worker.run_container(SERVER, status=status)
    loading.worker.when_begun = lambda: worker.put(reason_file(SERVER), REASON)
    with pytest.raises(Failed) as caught:
        loading.wait("spark2")
    assert caught.value.where == "spark2 spark-vllm"
    assert caught.value.message.startswith(
        "the load was ended before the node ran out of memory: 3.2 GiB were available at "
    )
    assert "spark-cluster vram" in caught.value.hint
    for one in (loading.head, loading.worker):
        assert STOP in one.node.calls("docker"), "Docker would start it again and again"
        assert one.actions == ["begin", "end"]
    assert worker.text(reason_file(SERVER)) is None, "nothing of it stays"


def test_a_node_that_starts_no_guard_loads_all_the_same(loading):
    """P06: the load is what is wanted."""

    def refuse() -> Said:
        loading.is_ready()
        return Said(stderr="Failed to connect to bus\n", status=1)

    loading.head.when_begun = refuse
    loading.wait()
    (note,) = loading.cluster.notes
    assert note.startswith("spark1: memory is not guarded while weights load: starting the load")
    assert "Failed to connect to bus" in note


def test_a_laptop_that_is_interrupted_leaves_the_guard_to_the_load(loading):
    """P06: the engine goes on loading."""

    def interrupt(event: Event) -> None:
        if isinstance(event, Progress):
            raise Interrupted("interrupted")

    loading.cluster.on_event = interrupt
    with pytest.raises(Interrupted):
        loading.wait()
    assert loading.head.actions == ["begin"]


def test_a_server_that_ran_and_was_ended_for_memory_is_not_started_again(loading):
    """P06: it would end in the same way."""
    node = loading.head.node
    node.run_container(SERVER, status="exited")
    loading.head.when_begun = lambda: node.put(reason_file(SERVER), REASON)
    with pytest.raises(Failed, match="before the node ran out of memory"):
        loading.wait(again=readiness.Again(lambda: pytest.fail("it is started")))


def test_one_that_ended_is_started_again_after_its_memory_was_prepared(loading):
    """P07: a server whose engine had died before this run is a start like any other."""
    loading.head.node.run_container(SERVER, status="exited")

    def begin() -> None:
        assert sorted(loading.head.actions) == ["begin", "end", "prepare"]
        loading.is_ready()

    loading.wait(again=readiness.Again(begin))
    assert sorted(loading.head.actions) == ["begin", "end", "prepare"]


# -- a program that ends while it loads ----------------------------------------------------------


@pytest.mark.parametrize(("after", "text"), cases(__file__, "logs.toml")["ended"])
def test_a_rank_that_ends_while_loading(loading, after, text):
    """The server would wait ten minutes for it (DistStoreError)."""
    worker, asked = loading.worker.node, iter(range(9))
    worker.log(SERVER, "ValueError: no room\n")
    loading.health.when_asked = lambda: next(asked) and worker.run_container(SERVER, **after)
    with pytest.raises(Failed, match=f"{text}: ValueError: no room"):
        loading.wait("spark2")
    assert STOP in worker.calls("docker"), "or it starts again and again"


def test_a_server_that_ran_already_and_ends_now_is_started_again_once(loading):
    """Its engine had died a moment before the run, and its API ended while it was waited for."""
    head = loading.head.node
    head.log(SERVER, "ValueError: no room\n")
    head.run_container(SERVER, status="restarting")

    def begin() -> None:
        assert head.containers[SERVER] == "exited", "nothing else may start it meanwhile"
        loading.is_ready()

    again = readiness.Again(begin)
    loading.wait(again=again)
    assert not again, "there is no second time"
    note = next(one for one in loading.cluster.notes if "starting it again" in one)
    assert "has ended: the server is restarting while loading: ValueError: no room" in note
    loading.health.status = 503
    head.run_container(SERVER, status="restarting")
    with pytest.raises(Failed, match="is restarting while loading"):
        loading.wait(again=again)
