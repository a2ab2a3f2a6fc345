"""Several models of the inventory: what `plan` shows, and what is refused early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import json_schema

NODES = "nodes:\n  a: {address: 10.0.0.1, roles: [head]}\n  b: {address: 10.0.0.2}\n"
CHAT, EMBEDDING = "gemma4-26b-a4b-nvfp4", "qwen3-embedding-0.6b"
BOTH = f"[{CHAT}, {EMBEDDING}]"


def serving(project: Path, serve: str = BOTH) -> None:
    (project / "inventory.yaml").write_text(f"{NODES}serve: {serve}\n")


def test_a_plan_has_each_model_and_the_sum(project: Path, run: Any) -> None:
    serving(project)
    status, out, err = run("plan", "--offline", "--json")
    assert status == 0, err
    found = json_schema.document("plan-several", out)
    assert [one["recipe"] for one in found["models"]] == [CHAT, EMBEDDING]
    shares = [one["gpu_memory_utilization"] for one in found["models"]]
    assert shares == [0.74, 0.10]
    (node,) = found["nodes"]
    assert (node["name"], node["left_gib"]) == ("a", 4.58)
    out = run("plan", "--offline")[1]
    assert "2 models next to each other" in out
    assert out.index("left (the system keeps 4)") < out.index("--gpu-memory-utilization 0.74")
    assert "--gpu-memory-utilization 0.10" in out


def test_what_does_not_fit_has_its_own_status(project: Path, run: Any) -> None:
    serving(project)
    status, out, _ = run("plan", "--offline", "--available", "30")
    assert status == 4
    assert "a: 2 models need 51.7 GiB together" in out


def test_models_on_two_nodes_each_have_one_to_themselves(project: Path, run: Any) -> None:
    serving(project, f"[{CHAT}, {{recipe: {EMBEDDING}, node: b}}]")
    _, out, _ = run("plan", "--offline", "--json")
    found = json_schema.document("plan-several", out)
    assert [node["name"] for node in found["nodes"]] == ["a", "b"]


def test_a_named_recipe_is_planned_alone(project: Path, run: Any) -> None:
    serving(project)
    _, out, _ = run("plan", CHAT, "--offline", "--json")
    assert json_schema.document("plan", out)["recipe"] == CHAT
