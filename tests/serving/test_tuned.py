"""What is tuned reaches the engine where it fits, and tuning is refused where it cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from factories import make_node, make_recipe
from serve_plans import plan_for

from spark_cluster.config.caches import CACHE_ROOT
from spark_cluster.errors import Failed, Refused
from spark_cluster.facts.model import Gpu, Process
from spark_cluster.node.tuned_kernels import VARIABLE
from spark_cluster.serving import readiness, tuned, tuning, vram
from spark_cluster.serving.vram import NodeVram

IMAGE = "sha256:" + "cd" * 32
FILE = "E=128,N=384,device_name=NVIDIA_GB10.json"


def entry(**changed: Any) -> dict[str, Any]:
    usual = {"model": make_recipe().model.name, "tp": 2, "gpu": "NVIDIA GB10", "file": FILE}
    return {**usual, "image": "cd" * 6, "sizes": [1], **changed}


def spark(name: str, *, head: bool = True) -> Any:
    """A node with its GPU."""
    node = make_node(name, head=head)
    return replace(node, facts=replace(node.facts, gpu=Gpu("NVIDIA GB10", "12.1", "580.95.05")))


class Play:
    """A play whose nodes answer with what is tuned there, and with the id of the image."""

    def __init__(self, **there: list[dict[str, Any]]) -> None:
        self.nodes = [spark("a"), spark("b", head=False)]
        self.there, self.notes, self.asked = there, list[str](), list[str]()
        self.files: dict[str, str] = {}

    def session(self, node: Any) -> Any:
        def submit(op: str, **what: str) -> Any:
            self.asked.append(op)
            assert what == {"what": "tuned", "folder": CACHE_ROOT}
            return SimpleNamespace(wait=lambda: {"tuned": self.there.get(node.name, [])})

        def request(_op: str, **what: Any) -> Any:
            self.asked.append("image")
            done = {"status": 0, "stdout": json.dumps([{"Id": IMAGE}])}
            return {"commands": {"image": done}, "files": self.files}

        return SimpleNamespace(submit=submit, request=request)

    def note(self, text: str, **_options: Any) -> None:
        self.notes.append(text)


def started(play: Play, tp: int = 2) -> Any:
    recipe, given = make_recipe(), cast("Any", play)
    plan = plan_for(recipe, *play.nodes, tp=tp)
    found = tuned.look(given, plan, plan.nodes)
    return tuned.applied(given, plan, found).deployment


def test_a_result_for_model_size_gpu_and_image_is_handed_to_the_engine() -> None:
    play = Play(a=[entry(), entry(tp=1)], b=[entry()])
    made = started(play)
    assert made.env[VARIABLE] == f"{made.cache_root}/tuned/{'cd' * 6}"
    assert made.labels[tuned.LABEL] == FILE
    assert play.notes == []


@pytest.mark.parametrize(
    "there",
    [
        {},
        {"a": [entry()]},
        {"a": [entry(tp=1)], "b": [entry(tp=1)]},
        {"a": [entry(model="o/other")], "b": [entry(model="o/other")]},
        {"a": [entry(gpu="NVIDIA H100")], "b": [entry(gpu="NVIDIA H100")]},
    ],
)
def test_without_one_on_each_node_nothing_is_changed_nor_asked(there: Any) -> None:
    play = Play(**there)
    made = started(play)
    assert VARIABLE not in made.env
    assert (tuned.LABEL in made.labels, play.asked) == (False, ["caches", "caches"])


def test_another_image_is_another_version() -> None:
    play = Play(a=[entry(image="1" * 12)], b=[entry(image="1" * 12)])
    assert VARIABLE not in started(play).env
    (said,) = play.notes
    assert "tuned for this model with another image" in said


def test_a_recipe_with_a_folder_of_its_own_keeps_it() -> None:
    play: Any = Play(a=[entry()])
    recipe = make_recipe(env={VARIABLE: "/nothing"})
    assert tuned.look(play, plan_for(recipe, *play.nodes), play.nodes) == {}
    assert play.asked == []


def test_a_server_or_a_process_in_the_gpu_refuses_the_tuner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play: Any = Play()
    plan = plan_for(make_recipe(), play.nodes[0])
    status = {"spark-vllm": "running"}
    monkeypatch.setattr(
        readiness, "container_state",
        lambda _play, name: SimpleNamespace(status=status.get(name, "absent")),
    )  # fmt: skip
    with pytest.raises(Refused, match="the engine runs") as caught:
        tuning.must_be_free(play, plan)
    assert "spark-cluster down" in caught.value.hint
    status.clear()
    held = NodeVram("a", (Process(7, "ollama", 900),), 1000, 100)
    monkeypatch.setattr(vram, "sample", lambda _sessions: [held])
    with pytest.raises(Refused, match=r"held by ollama \(PID 7, 900 MiB\)"):
        tuning.must_be_free(play, plan)
    status["spark-tune"] = "running"
    tuning.must_be_free(play, plan)
    assert play.notes == ["the tuner runs there already; its end is waited for"]


def test_the_shape_is_read_from_the_models_own_config() -> None:
    play: Any = Play()
    plan = plan_for(make_recipe(engine_args={}), play.nodes[0])
    with pytest.raises(Failed, match="config cannot be read"):
        play.files = {"config": None}
        tuning.shape_of(play, plan)
    dense = {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2,
        "hidden_size": 64, "vocab_size": 100, "num_attention_heads": 2, "num_key_value_heads": 2,
        "head_dim": 32, "intermediate_size": 128, "max_position_embeddings": 512,
    }  # fmt: skip
    play.files = {"config": json.dumps(dense)}
    with pytest.raises(Refused, match=r"nothing to tune for .*: it has no experts"):
        tuning.shape_of(play, plan)
    moe = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    play.files = {"config": json.dumps({**dense, "model_type": "qwen3_moe", **moe})}
    shape = tuning.shape_of(play, plan)
    wanted = tuning.resource(plan, shape, (1, 2), tuner="", limit_s=60.0, renew=False)
    assert wanted.file == "E=8,N=64,device_name=NVIDIA_GB10.json"
    assert wanted.words == ("--model", plan.deployment.model_path, "--tp-size", "1")
    assert tuning.estimate(shape, (1, 2)) == (1920 * 2 * tuning.QUICK_S, 1920 * 2 * tuning.SLOW_S)


def test_other_engines_have_no_tuner() -> None:
    plan = plan_for(make_recipe(), make_node("a"))
    sglang = replace(plan, deployment=replace(plan.deployment, engine="sglang"))
    with pytest.raises(Refused, match="this is sglang in docker"):
        tuning.must_be_tunable(sglang)
