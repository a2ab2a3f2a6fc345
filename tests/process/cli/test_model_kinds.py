"""Kinds of models at the command line: what is refused with its reason, and what is shown."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from program import invoke

from spark_cluster.bench.expansion import expand
from spark_cluster.bench.suite import load_suite
from spark_cluster.cli import served as status_command
from spark_cluster.cli.terminal import Console
from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.engine.result import NodeState, Status
from spark_cluster.errors import Refused
from spark_cluster.node.containers import ContainerState

TEXT = """\
name: r
model: {name: google/gemma-4-31B-it, served_name: m}
image: {ref: "repo/image:1"}
engine_args: {max-model-len: 8192}
"""
INVENTORY = "nodes: {a: {address: 127.0.0.1, port: 1}}\n"
SHIPPED = Project(Path(__file__).parents[3], Path(__file__).parents[3])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(folder: Path, kind: str) -> None:
    (folder / "recipes/r.yaml").write_text(f"{TEXT}kind: {kind}\n")


def test_the_plan_of_an_embedding_model_says_that_no_speed_of_generation_applies(folder) -> None:
    written(folder, "embedding")
    found = json.loads(invoke("plan", "r", "--offline", "--json").stdout)
    assert (
        "a model of kind embedding generates nothing: no tokens/s apply to it" in found["remarks"]
    )
    decode = ("decode_tok_s", "decode_total_tok_s", "decode_without_drafter_tok_s", "measured")
    assert [found[key] for key in decode] == [None] * 4
    assert found["prefill_tok_s"]["expected"] > 0
    text = invoke("plan", "r", "--offline").stdout
    assert "read for a token" not in text
    assert "prefill" in text
    error = invoke("plan", "r", "--offline", "--for", "latency").exception
    assert isinstance(error, Refused)
    assert "leave --for out" in error.hint


def test_a_pasted_line_has_the_kind_that_the_config_in_its_folder_shows(tmp_path: Path) -> None:
    config = {
        **{"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 64},
        **{"intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2},
        **{"vocab_size": 99, "max_position_embeddings": 512},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    line = f"vllm serve {tmp_path} --gpu-memory-utilization 0.5 --host 127.0.0.1"
    found = json.loads(invoke("plan", "--offline", "--json", "--command", line).stdout)
    assert found["feasible"]
    assert found["decode_tok_s"] is None


def test_suites_measure_chat_models_only(folder: Path) -> None:
    written(folder, "reranking")
    recipe = load_recipe("r", Project(folder))
    with pytest.raises(Refused, match="recipe r is of kind reranking: suites measure generated"):
        expand(load_suite("single-user", SHIPPED), {"r": recipe}, ["r"])


def test_recipes_show_names_the_kind_and_its_rung(folder: Path) -> None:
    written(folder, "embedding")
    shown = " ".join(invoke("recipes", "show", "r").output.split())
    assert "kind embedding" in shown
    assert "ready when embedding" in shown
    written(folder, "video")
    shown = " ".join(invoke("recipes", "show", "r").output.split())
    assert "kind video (known, and not served)" in shown
    assert "ready when" not in shown


def test_status_names_the_kind(capsys: pytest.CaptureFixture[str]) -> None:
    found = Status("serving", [], [], "http://h/v1", None, "m", 1, (), "embedding")
    assert found.to_dict()["kind"] == "embedding"
    status_command._show_status(SimpleNamespace(console=Console()), found)  # type: ignore[arg-type]
    assert "embedding, tp 1" in capsys.readouterr().out


@pytest.mark.parametrize(("runtime", "heading"), [("venv", "unit"), ("docker", "container")])
def test_status_heads_units_as_units(runtime, heading, capsys) -> None:
    nodes = [NodeState("gpu1", True, {"spark-vllm": ContainerState(runtime=runtime)})]
    found = Status("serving", nodes, [], "http://h/v1", None, "m", 1)
    status_command._show_status(SimpleNamespace(console=Console()), found)  # type: ignore[arg-type]
    assert heading in capsys.readouterr().out.split()
