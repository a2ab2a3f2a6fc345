"""What holds memory: which of it is Ollama's, and that it is unloaded through Ollama's own API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ollama_server import Ollama

from spark_cluster.config.facts import GpuProcess
from spark_cluster.engine import vram
from spark_cluster.engine.vram import NodeVram, missing_mib
from spark_cluster.errors import Failed
from spark_cluster.node.http import ask
from spark_cluster.runner.session import Answer


class Session:
    """A node's requests, made from here."""

    def http(self, url: str, **given: Any) -> Answer:
        reply = ask({"url": url, **given})
        return Answer(reply["status"], reply["body"], reply.get("reason", ""))


SESSION: Any = Session()


@pytest.fixture
def ollama(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ollama]:
    server = Ollama({"name": "gemma3:27b", "size": 17 * 2**30}, {"name": "embed", "size": "?"})
    monkeypatch.setattr(vram, "OLLAMA", server.url)
    yield server
    server.close()


def test_loaded_models_are_unloaded(ollama):
    found = vram.ollama_models(SESSION, "spark1")
    assert [str(model) for model in found] == ["gemma3:27b (17408 MiB)", "embed"]
    vram.unload_ollama(SESSION, "spark1", found)
    assert ollama.loaded == []
    assert vram.ollama_models(SESSION, "spark1") == []
    ollama.loaded = [7, {"name": 7}, {"size": 1}, {"name": "m", "size": -1}]
    assert vram.ollama_models(SESSION, "spark1") == [vram.Loaded("m")], "entries that are no models"


def test_what_ollama_refuses_is_told(ollama):
    ollama.refusal = "model is busy"
    with pytest.raises(Failed, match=r"does not unload gemma3:27b \(status 500\): model is busy"):
        vram.unload_ollama(SESSION, "spark1", vram.ollama_models(SESSION, "spark1"))


@pytest.mark.parametrize("loaded", ["no list", {"name": "x"}, None])
def test_another_program_at_its_port(ollama, loaded):
    ollama.loaded = loaded
    with pytest.raises(Failed, match="expected the list of Ollama's loaded models") as caught:
        vram.ollama_models(SESSION, "spark1")
    assert caught.value.where == "spark1"


def test_where_no_ollama_runs(ollama):
    ollama.close()
    assert vram.ollama_models(SESSION, "spark1") == []


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
