"""The parts of the caches on all nodes: whose they are, what is kept, what is pruned first."""

import json
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from spark_cluster.engine import cache_parts
from spark_cluster.engine.cache_parts import CachePart
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.node.engine_caches import LaunchRecord

DAY = 86_400.0
NOW = 1_000 * DAY
OLD, NEW, LOST = "0" * 10, "torch_aot_compile/" + "1" * 64, "2" * 10


IMAGE = "sha256:" + "ab" * 32
OWN = f"images/{'ab' * 6}/"


def entry(kind: str, path: str, days: float, size: int = 1000) -> dict[str, Any]:
    """A part that was last written so many days ago."""
    known = {"kind": kind, "path": path, "modified": NOW - days * DAY}
    return {**known, "bytes": size, "files": 3, "whole": True}


ENTRIES = [
    entry("compile", f"{OWN}{cache_parts.COMPILED}{OLD}", 90),
    entry("compile", f"{OWN}{cache_parts.COMPILED}{NEW}", 80),
    entry("compile", f"{OWN}{cache_parts.COMPILED}{LOST}", 70),
    entry("flashinfer", f"{OWN}flashinfer/.cache/flashinfer/0.6.1", 60),
    entry("triton", f"{OWN}triton", 50),
    entry("huggingface", "huggingface", 100, 10**9),
]
RECORDS = [
    LaunchRecord("old", "vllm", image=IMAGE, keys=(OLD,), last=NOW - 40 * DAY),
    LaunchRecord("new", "vllm", image=IMAGE, keys=(NEW,), last=NOW - 2 * DAY),
]


def container(recipe: str = "new") -> str:
    labels = {"spark-cluster.recipe": recipe} if recipe else {}
    one = {"State": {"Status": "running"}, "Config": {"Labels": labels}}
    return json.dumps([one])


class Node:
    """A node with these caches, and programs by name (what `docker inspect` prints)."""

    def __init__(self, programs: dict[str, str] | None = None, records: Any = RECORDS) -> None:
        self.programs, self.records = programs or {}, records
        self.removed: list[str] = []

    def submit(self, op: str, **what: Any) -> SimpleNamespace:
        return SimpleNamespace(wait=lambda: self.answer(op, what))

    def answer(self, op: str, what: dict[str, Any]) -> dict[str, Any]:
        if op == "gather":
            printed = {"servers": "", **self.programs}
            found = {name: {"stdout": printed.get(name, "[]")} for name in what["commands"]}
            return {"commands": found}
        if what["what"] == "remove":
            self.removed += what["paths"]
            return {"removed": what["paths"][:1]}
        launches = [json.loads(json.dumps(asdict(record))) for record in self.records]
        return {"entries": ENTRIES, "launches": launches, "now": NOW}


def look(recipe: str | None = None, **nodes: Node) -> list[CachePart]:
    folders = dict.fromkeys(nodes, "/var/cache/x")
    return cache_parts.parts(nodes, folders, (recipe,) if recipe else ())  # type: ignore[arg-type]


def prunable(found: list[CachePart], **options: Any) -> list[str]:
    chosen = {"days": 30.0, "kinds": cache_parts.USUAL, "recipe": None, **options}
    return [part.path.rpartition("/")[2][:10] for part in cache_parts.prunable(found, **chosen)]


def test_a_part_has_its_recipes_and_its_last_use():
    found = {part.path: part for part in look(spark1=Node())}
    old = found[f"{OWN}{cache_parts.COMPILED}{OLD}"]
    assert (old.recipes, old.idle_days, old.kept) == (("old",), 40.0, "")
    lost = found[f"{OWN}{cache_parts.COMPILED}{LOST}"]
    assert (lost.recipes, lost.idle_days) == ((), 70.0)
    assert found[f"{OWN}triton"].idle_days == 2.0, "every launch may have used it"
    assert found["huggingface"].kept


def test_the_longest_unused_is_pruned_first():
    found = look(spark1=Node())
    assert prunable(found) == [LOST, OLD]
    assert prunable(found, days=0) == [LOST, OLD, "0.6.1", "1" * 10]
    assert prunable(found, days=0, kinds=("triton", "huggingface")) == ["triton"]
    assert prunable(found, days=0, recipe="new") == ["1" * 10]
    assert prunable(found, days=41) == [LOST]


def test_what_serves_is_kept_on_every_node():
    """With Ray the other node has no server, and its rank reads the caches all the same."""
    found = look(spark1=Node({SERVER: container(), RAY: container()}), spark2=Node())
    kept = {(part.node, part.path.rpartition("/")[2][:10]) for part in found if part.kept}
    for node in ("spark1", "spark2"):
        assert {(node, "1" * 10), (node, "triton"), (node, "0.6.1")} <= kept
        assert (node, OLD) not in kept
    assert prunable(found, days=0) == [LOST, LOST, OLD, OLD]


def test_all_compiled_code_is_kept_while_an_unknown_server_runs():
    for node in (Node({SERVER: container("")}), Node({SERVER: container("unrecorded")})):
        assert prunable(look(spark1=node), days=0) == []
    silent = [LaunchRecord("new", "vllm", last=NOW)]
    assert prunable(look(spark1=Node({SERVER: container()}, silent)), days=0) == []


def test_the_inventorys_recipe_is_kept():
    assert prunable(look("old", spark1=Node()), days=0) == [LOST, "0.6.1", "1" * 10]


def test_each_node_removes_its_own():
    nodes = {"spark1": Node(), "spark2": Node({RAY: container("old")})}
    chosen = [one for one in look(**nodes) if (one.kind, one.node) == ("compile", "spark1")]
    removed = cache_parts.remove(nodes, dict.fromkeys(nodes, "/var/cache/x"), chosen)
    assert removed == {"spark1": [chosen[0].path]}
    assert (len(nodes["spark1"].removed), nodes["spark2"].removed) == (3, [])


def test_what_one_of_several_models_uses_is_kept():
    found = look(a=Node({"servers": "spark-vllm-old\nspark-vllm-new\n"}))
    kept = {part.path: part.kept for part in found if part.kind == "compile"}
    for key in (OLD, NEW):
        assert kept[f"{OWN}{cache_parts.COMPILED}{key}"] == "a server uses it, or may"
