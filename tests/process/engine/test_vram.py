"""What holds the GPU's memory, and Ollama's part of it, which is unloaded through its own API."""

from collections.abc import Iterator

import pytest
from cases import holds
from fake_programs import Said, missing
from ollama_server import Ollama
from piped_cluster import PipedCluster

from spark_cluster.config.facts import GpuProcess
from spark_cluster.engine import vram
from spark_cluster.engine.vram import NodeVram, missing_mib
from spark_cluster.errors import Failed
from spark_cluster.runner.session import Session


@pytest.fixture
def session(one_node: PipedCluster) -> Session:
    return one_node.play.session(one_node.play.head)


@pytest.fixture
def ollama(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ollama]:
    server = Ollama({"name": "gemma3:27b", "size": 17 * 2**30}, {"name": "embed", "size": "?"})
    monkeypatch.setattr(vram, "OLLAMA", server.url)
    yield server
    server.close()


def test_loaded_models_are_unloaded(ollama, session):
    found = vram.ollama_models(session, "spark1")
    assert [str(model) for model in found] == ["gemma3:27b (17408 MiB)", "embed"]
    vram.unload_ollama(session, "spark1", found)
    assert ollama.loaded == []
    assert vram.ollama_models(session, "spark1") == []
    ollama.loaded = [7, {"name": 7}, {"size": 1}, {"name": "m", "size": -1}]
    assert vram.ollama_models(session, "spark1") == [vram.Loaded("m")], "entries that are no models"


def test_what_ollama_refuses_is_told(ollama, session):
    ollama.refusal = "model is busy"
    with pytest.raises(Failed, match=r"does not unload gemma3:27b \(status 500\): model is busy"):
        vram.unload_ollama(session, "spark1", vram.ollama_models(session, "spark1"))


@pytest.mark.parametrize("loaded", ["no list", {"name": "x"}, None])
def test_another_program_at_its_port(ollama, session, loaded):
    ollama.loaded = loaded
    with pytest.raises(Failed, match="expected the list of Ollama's loaded models") as caught:
        vram.ollama_models(session, "spark1")
    assert caught.value.where == "spark1"


def test_where_no_ollama_runs(ollama, session):
    ollama.close()
    assert vram.ollama_models(session, "spark1") == []


def test_each_holder_has_its_advice():
    held = [
        ("spark1", GpuProcess(7, "/usr/local/bin/ollama", 900)),
        ("spark2", GpuProcess(8, "VLLM::Worker_TP1", None)),
        ("spark2", GpuProcess(9, "python3", 5)),
    ]
    text = vram.described(held)
    assert "/usr/local/bin/ollama (pid 7, 900 MiB) on spark1" in text
    assert "VLLM::Worker_TP1 (pid 8, ? MiB) on spark2" in text
    advice = vram.advice(held)
    assert "--unload ollama unloads Ollama's models" in advice
    assert "`sudo kill 8` on spark2 ends an orphaned engine process" in advice
    assert "is ended on its node" in advice
    assert "its node" not in vram.advice(held[:2])


@pytest.mark.parametrize(
    ("available", "left", "missing"),
    [(990, (), 0), (910, (), 0), (500, (), 410), (100, (GpuProcess(7, "x", 900),), 0)],
)
def test_memory_is_back_when_most_of_it_is_available(available, left, missing):
    """Of 900 MiB that ended processes held, 90 % must be available in addition."""
    before = NodeVram("spark1", (GpuProcess(7, "x", 900),), 1000, 100)
    assert missing_mib(before, NodeVram("spark1", left, 1000, available)) == missing


# -- readings -------------------------------------------------------------------------------------


def test_vram_sample(piped_cluster):
    cluster = piped_cluster("spark1", "spark2")
    cluster.head.held = [GpuProcess(7, "VLLM::Worker_TP0", 102843), GpuProcess(8, "x", None)]
    for node in cluster.nodes.values():
        node.put("/proc/meminfo", "MemTotal:       127600748 kB\nMemAvailable:   20480000 kB\n")
    one, two = vram.sample(cluster.play.sessions)
    memory = {"mem_total_mib": 124610, "mem_available_mib": 20000}
    assert two.to_dict() == {"name": "spark2", "processes": [], "used_mib": 0, **memory}
    assert holds(one.to_dict(), {"used_mib": 102843, **memory})
    assert one.to_dict()["processes"][1] == {"pid": 8, "name": "x", "used_mib": None}


def test_vram_that_cannot_be_asked_is_not_taken_for_none(piped_cluster):
    cluster = piped_cluster("spark1")
    refused = "Failed to initialize NVML: Driver/library version mismatch\n"
    cluster.head.programs["nvidia-smi"] = lambda *_: Said(refused, status=18)
    with pytest.raises(Failed, match="Driver/library version mismatch") as caught:
        vram.sample(cluster.play.sessions)
    assert "reboot" in caught.value.hint
    cluster.head.programs["nvidia-smi"] = missing
    with pytest.raises(Failed, match="nvidia-smi"):
        vram.sample(cluster.play.sessions)


def test_the_peak_is_node_by_node():
    def reading(name, used):
        return NodeVram(name, (GpuProcess(1, "x", used),), 100, 50)

    peak = vram.peak([reading("a", 5), reading("b", 9)], [reading("a", 7), reading("b", 1)])
    assert [(r.name, r.used_mib) for r in peak] == [("a", 7), ("b", 9)]
    assert vram.peak([], [reading("a", 1)])[0].used_mib == 1
