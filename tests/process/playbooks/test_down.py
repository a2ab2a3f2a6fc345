"""`down`: it ends well only when the GPUs' memory is back."""

from collections.abc import Iterator

import pytest
from ollama_server import Ollama
from piped_cluster import Make, PipedCluster, PipedNode

from spark_cluster.config.facts import GpuProcess
from spark_cluster.engine import vram
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.errors import Refused, VerificationFailed
from spark_cluster.node.containers import RECIPE
from spark_cluster.runner.events import MemoryHeld, Options

GIB = 1024
ENGINE = GpuProcess(7, "VLLM::Worker", 90 * GIB)
OLLAMA = GpuProcess(9, "/usr/local/bin/ollama", 50)


def serve(node: PipedNode, *others: GpuProcess, returns: float | None = 90, after: int = 1) -> None:
    """Have a server, whose memory comes back when its container is gone.

    Args:
        others: processes that are not ours.
        returns: GiB that the node has available again then; None: the process stays.
        after: readings of the GPU from then on until the process is gone, too.
    """
    node.run_container(SERVER, pids=[ENGINE.pid], holds_gib=returns or 0)
    node.held, node.available_gib = [*others, ENGINE], 20 + (returns or 0)
    readings = iter(range(after))

    def read() -> None:
        gone = returns is not None and SERVER not in node.containers
        if gone and next(readings, after) >= after - 1:
            node.held = list(others)

    node.when_read = read


@pytest.fixture
def cluster(piped_cluster: Make) -> PipedCluster:
    return piped_cluster("spark1", "spark2")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that does not come back is not waited for long."""
    monkeypatch.setattr(vram, "FREE_WITHIN_S", 0.05)


def test_it_waits_until_the_memory_is_back(cluster):
    serve(cluster.head, after=2)
    cluster.head.run_container(RAY)
    stopped = cluster.run("down")
    assert [one.used_mib for one in (*stopped.before, *stopped.now)] == [90 * GIB, 0, 0, 0]
    held = [event for event in cluster.events if isinstance(event, MemoryHeld)]
    assert [(one.node, one.phase, one.used_mib) for one in held] == [
        ("spark1", "before", 90 * GIB), ("spark2", "before", 0),
        ("spark1", "stopped", 0), ("spark2", "stopped", 0),
    ]  # fmt: skip
    assert cluster.head.containers == {}
    for name in cluster.nodes:
        order = [one.split()[1] for one in cluster.applied() if one.startswith(name)]
        programs = ("spark-bench", "spark-tune", SERVER, RAY)
        places = [order.index(f"Container:{program}") for program in programs]
        endpoint = order.index("Service:spark-cluster-endpoint")
        assert order[0] == "Service:spark-cluster-model-loader", "or it starts what is stopped"
        assert places[0] < places[1] < places[2] < endpoint < places[3]
        assert order[-1].startswith("NftTable:"), "the firewall last"


def test_running_jobs_are_ended_only_on_request(cluster, ray):
    ray.job("job-1", "RUNNING")
    cluster.head.run_container(RAY, {"spark-cluster.dashboard": str(ray.port)})
    for given, hint in (({"end_jobs": False}, True), ({}, False)):
        with pytest.raises(Refused, match="job job-1 is running on Ray") as caught:
            cluster.run("down", **given)
        assert ("--end-jobs" in caught.value.hint) is hint, "where the command has it"
    assert RAY in cluster.head.containers
    cluster.run("down", end_jobs=True)
    assert cluster.head.containers == {}


@pytest.mark.usefixtures("impatient")
def test_memory_that_does_not_come_back(cluster):
    serve(cluster.head, returns=None)
    with pytest.raises(
        VerificationFailed, match=r"VLLM::Worker \(pid 7, 92160 MiB\) on spark1"
    ) as e:
        cluster.run("down")
    assert e.value.exit_code == 5


@pytest.mark.usefixtures("impatient")
def test_memory_that_is_not_available_again(cluster):
    """No process is listed any more; on a Spark what counts is the memory of the machine."""
    serve(cluster.head, returns=50)
    cluster.run("down")
    (note,) = cluster.notes
    missing = "spark1: no process holds GPU memory, but MemAvailable is 31744 MiB lower"
    assert note.startswith(missing)


def test_a_gpu_with_memory_of_its_own_gives_none_to_the_machine(cluster):
    """On an H100 `down` waited 30 s for memory of the machine that the engine had not taken."""
    cluster.head.gpu = "NVIDIA H100 80GB HBM3, 9.0, 580.95.05, 40, 10.0, 2400, 1000, 80000"
    serve(cluster.head, returns=0)
    cluster.run("down")
    assert cluster.notes == []
    apps = [words for words in cluster.head.calls("nvidia-smi") if "apps" in words[0]]
    assert len(apps) == 2, "before and after: there is nothing to wait for"


def test_other_programs_may_keep_theirs_in_a_swap(cluster):
    serve(cluster.head, OLLAMA)
    (now, _) = cluster.run("down", keep_others=True).now
    assert now.processes == (OLLAMA,)


@pytest.mark.usefixtures("impatient")
def test_other_programs_are_named_by_down(cluster):
    serve(cluster.head, OLLAMA)
    with pytest.raises(VerificationFailed, match=r"ollama \(pid 9, 50 MiB\) on spark1") as caught:
        cluster.run("down")
    assert "--unload ollama" in caught.value.hint


@pytest.fixture
def ollama(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ollama]:
    server = Ollama({"name": "gemma3", "size": 50 * 2**20})
    monkeypatch.setattr(vram, "OLLAMA", server.url)
    yield server
    server.close()


@pytest.mark.parametrize("check", [False, True])
def test_models_of_ollama_are_unloaded_on_request(piped_cluster, ollama, check):
    cluster = piped_cluster("spark1", options=Options(check=check))
    serve(cluster.head, OLLAMA)
    ended = cluster.head.when_read

    def read() -> None:
        ended()
        cluster.head.held = [p for p in cluster.head.held if ollama.loaded or p != OLLAMA]

    cluster.head.when_read = read
    cluster.run("down", unload=("ollama",), keep_others=True)
    assert bool(ollama.loaded) == check
    verb = "would unload" if check else "unloaded"
    assert f"spark1: Ollama: {verb} gemma3 (50 MiB)" in cluster.notes
    if not check:
        cluster.run("down", unload=("ollama",))
        assert cluster.notes[-1] == "spark1: Ollama has no model loaded, or is not running"


def test_the_servers_of_several_models_are_ended_wherever_they_are(cluster):
    """Also those that the endpoint's description does not name any more."""
    for name in (SERVER, "spark-vllm-chat", "spark-vllm-words"):
        cluster.nodes["spark2"].run_container(name, {RECIPE: "r"})
    cluster.nodes["spark2"].run_container("spark-vllm-of-the-user")
    cluster.run("down")
    assert cluster.nodes["spark2"].containers == {"spark-vllm-of-the-user": "running"}
