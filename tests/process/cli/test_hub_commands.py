"""The commands that look models up on the hub, with the real client library."""

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import checkpoints
import pytest
from cases import each_row
from checkpoints import LLAMA_70B, NEMOTRON_SUPER
from factories import put

from spark_cluster.models import lookup
from spark_cluster.models.checkpoint import count
from spark_cluster.models.config import from_config
from spark_cluster.models.hub import HubLibrary
from spark_cluster.models.memory_share import GIB
from spark_cluster_lab.hub import Conduct, LabHub, serve

Run = Callable[..., tuple[int, str, str]]
LINE = "vllm serve org/{} --max-model-len 8192 --max-num-seqs 4"
RUN = "docker run --gpus all {} " + LINE.format("autoround")


@pytest.fixture
def hub(tmp_path: Path, use_hub: Callable[[str], None]) -> Iterator[LabHub]:
    """A hub with a Llama 70B in INT4 (AutoRound)."""
    root = tmp_path / "hub" / "org"
    declared = {"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_gptq"}
    tensors = checkpoints.dense(LLAMA_70B, "gptq")
    checkpoints.write(root / "autoround", {**LLAMA_70B, "quantization_config": declared}, tensors)
    with serve(tmp_path / "hub") as served:
        use_hub(served.url)
        yield served


def planned(run: Run, *options: str, model: str = "autoround") -> dict[str, object]:
    line = LINE.format(model)
    _, out, err = run("--json", "plan", *options, "--command", line, "--available", "118")
    assert not err, err
    return json.loads(out)


def speed(run: Run, *options: str) -> tuple[int, str, str]:
    return run("--json", "predict", "speed", "--model", "org/autoround", *options)


def test_a_command_asks_and_the_next_ones_need_not(hub, run):
    status, out, err = speed(run)
    assert status == 0, err
    assert json.loads(out)["quantization"] == "gptq-int4"
    asked = len(hub.requests)
    assert asked
    assert speed(run, "--offline")[0] == 0
    assert planned(run, "--offline")["weights_gib"] == pytest.approx(39.8 / 1.0737, rel=0.01)
    assert run("lint", "--command", LINE.format("autoround"))[0] in (0, 1)
    assert run("predict", "kv", "--model", "org/autoround", "--kv-gib", "8")[0] == 0
    assert len(hub.requests) == asked


@each_row(__file__, "hub_commands.toml", "offline_never_asks")
def test_offline_never_asks(words, hub, run):
    run(*shlex.split(words))
    assert hub.requests == []


def test_a_laptop_without_the_hub_asks_through_a_node(hub, run, project, monkeypatch):
    put(project / "inventory.yaml", "nodes: {spark1: {address: 10.0.0.1, roles: [head]}}\n")
    put(project / "spark1/proc/meminfo", "MemTotal: 127600748 kB\nMemAvailable: 123731900 kB\n")
    monkeypatch.setattr(lookup, "HubLibrary", lambda known: HubLibrary("http://127.0.0.1:1", known))
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    status, out, err = run("--json", "plan", "--command", LINE.format("autoround"))
    assert status in (0, 4), err
    assert json.loads(out)["weights_gib"] == pytest.approx(37.1, abs=0.1)
    asked = len(hub.requests)
    assert asked
    assert planned(run, "--offline")["weights_gib"] == pytest.approx(37.1, abs=0.1)
    assert len(hub.requests) == asked


@each_row(__file__, "hub_commands.toml", "an_import_says_how_large_the_model_is")
def test_an_import_says_how_large_the_model_is(model, note, hub, run):
    line = RUN.format("vllm/vllm-openai:v0.26.0").replace("autoround", model)
    status, out, err = run("--json", "recipes", "import", "--command", line)
    assert status == 0, err
    assert note in json.loads(out)["notes"][-1]


def test_an_import_does_not_take_the_name_of_another_recipe(run, project):
    line = "vllm serve example/gemma4-31b-fp8"
    status, out, err = run("recipes", "import", "--offline", "--command", line)
    assert status == 0, err
    assert "there is a recipe gemma4-31b-fp8 already" in out
    assert (project / "recipes/gemma4-31b-fp8-imported.yaml").is_file()
    assert "exists" in run("recipes", "import", "--offline", "--command", line)[2]
    assert (
        run("recipes", "import", "--offline", "--command", line, "--name", "gemma4-31b-fp8")[0] == 0
    )


def test_an_unknown_key_is_decided_by_the_tensors(hub, run):
    unknown = {**NEMOTRON_SUPER, "n_routed_experts": 32, "moe_new_size": 77}
    tensors = checkpoints.nemotron_super(unknown)
    expected = count(tensors, from_config(unknown, "x"), unknown).memory_bytes() / GIB
    checkpoints.write(hub.root / "org/super", unknown, tensors)
    line = LINE.format("super")
    assert run("plan", "--offline", "--command", line)[0] == 2
    assert run("predict", "speed", "--model", "org/super")[0] == 0
    found = planned(run, "--offline", model="super")
    assert found["fits"] is True
    assert found["weights_gib"] == pytest.approx(expected, abs=0.01)


def test_without_the_tensors_it_is_unknown_and_no_refusal(tmp_path, run, monkeypatch):
    folder = tmp_path / "super"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**NEMOTRON_SUPER, "moe_new_size": 77}))
    line = "vllm serve ./super --max-model-len 8192"
    status, _, err = run("plan", "--offline", "--command", line)
    assert status == 2
    assert "its config has 'moe_new_size', which nothing here" in " ".join(err.split())


def test_what_the_hub_refuses_is_explained_without_the_token(hub, run, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_never_printed")
    hub.conduct["org/autoround"] = Conduct(gated=True)
    status, out, err = run("predict", "speed", "--model", "org/autoround")
    assert (status, "is gated" in " ".join(err.split())) == (2, True)
    assert "hf_never_printed" not in out + err
