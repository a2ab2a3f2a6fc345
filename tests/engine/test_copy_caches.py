"""Which engine caches are copied, and to which nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories import make_inventory, make_node

from spark_cluster.engine.copies import caches as module
from spark_cluster.engine.copies.copy import Copied
from spark_cluster.errors import Refused, UsageError

HOSTS = "nodes:\n  spark1: {address: 10.0.0.1, roles: [head]}\n  spark2: {address: 10.0.0.2}\n"


def play(tmp_path: Path, entries: list[dict[str, Any]], gpus: tuple[str, str]) -> Any:
    nodes = [make_node(name) for name in ("spark1", "spark2")]
    nodes = [
        replace(node, facts=replace(node.facts, gpu=SimpleNamespace(name=gpu)))
        for node, gpu in zip(nodes, gpus, strict=True)
    ]
    session = SimpleNamespace(request=lambda *_op, **_what: {"entries": entries})
    return SimpleNamespace(
        nodes=nodes, inventory=make_inventory(tmp_path, HOSTS), session=lambda _node: session
    )


def entry(kind: str, files: int = 3, above: str = "images/0123456789ab/") -> dict[str, Any]:
    return {"kind": kind, "files": files, "path": f"{above}{kind}/x"}


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, list[str]]]:
    calls: list[tuple[str, str, list[str]]] = []

    def copy_folder(_play: Any, path: str, source: Any, targets: Any, **how: Any) -> list[Copied]:
        _, _, name = path.partition("/images/0123456789ab/")
        name += " with times" if how["exact"] else ""
        calls.append((name, source.name, [node.name for node in targets]))
        return [Copied(node.name, source.name, 5) for node in targets]

    monkeypatch.setattr(module, "copy_folder", copy_folder)
    return calls


def test_caches_that_are_there_are_copied(tmp_path, copied):
    entries = [entry("triton"), entry("compile"), entry("flashinfer"), entry("inductor", 0)]
    entries.append(entry("inductor", above=""))  # of before images had their own: nobody reads it
    done = module.copy_caches(play(tmp_path, entries, ("GB10", "GB10")), "spark1")
    names = ["triton", "vllm/torch_compile_cache", "flashinfer with times"]
    assert copied == [(name, "spark1", ["spark2"]) for name in names]
    assert [one.to_dict()["kind"] for one in done] == ["triton", "compile", "flashinfer"]


def test_another_gpu_is_refused(tmp_path, copied):
    with pytest.raises(Refused, match="spark2 has H100, and spark1 has GB10"):
        module.copy_caches(play(tmp_path, [entry("triton")], ("GB10", "H100")), "spark1")
    assert not copied


def test_nothing_to_copy_is_refused(tmp_path, copied):
    with pytest.raises(Refused, match="has no triton or inductor or compile"):
        module.copy_caches(play(tmp_path, [entry("huggingface")], ("GB10", "GB10")), "spark1")
    with pytest.raises(Refused, match="no other node"):
        module.copy_caches(play(tmp_path, [], ("GB10", "GB10")), "spark1", ("spark1",))
    with pytest.raises(UsageError, match="spark9"):
        module.copy_caches(play(tmp_path, [], ("GB10", "GB10")), "spark9")
