"""What is tuned reaches the engine where it fits, and tuning is refused where it cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from factories import make_node, make_recipe
from fake_cluster import FakeCluster, Make
from serve_plans import plan_for

from spark_cluster.config.caches import CACHE_ROOT
from spark_cluster.errors import Failed, Refused
from spark_cluster.facts.model import Process
from spark_cluster.inference.process import SERVER
from spark_cluster.node.beneath import Folder
from spark_cluster.node.kernel_tuner import CONTAINER
from spark_cluster.node.tuned_kernels import FOLDER, VARIABLE, keep
from spark_cluster.serving import tuned, tuning

FILE = "E=128,N=384,device_name=NVIDIA_GB10.json"
BLOCKS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M")


def entry(**changed: Any) -> dict[str, Any]:
    usual = {"model": make_recipe().model.name, "tp": 2, "gpu": "NVIDIA GB10", "file": FILE}
    return {**usual, "image": "1" * 12, "engine": "0.32.0", "at": 1.0, **changed}


@pytest.fixture
def cluster(fake_cluster: Make) -> FakeCluster:
    """Two nodes with the image of the recipe."""
    made = fake_cluster("a", "b")
    for node in made.nodes.values():
        node.have_image(make_recipe().image.ref)
    return made


def started(cluster: FakeCluster, **tuned_on: list[dict[str, Any]]) -> Any:
    """Return what is started on nodes where this is tuned."""
    for name, entries in tuned_on.items():
        caches = cluster.nodes[name].root / CACHE_ROOT.lstrip("/")
        caches.mkdir(parents=True)
        for one in entries:
            image = caches / FOLDER / one["image"]
            keep(Folder(caches), image, {**one}, {"1": dict.fromkeys(BLOCKS, 16)})
    play = cluster.play
    plan = plan_for(make_recipe(), *play.nodes)
    return tuned.applied(play, plan, tuned.look(play, plan, plan.nodes)).deployment


def test_a_result_for_model_size_gpu_and_image_is_handed_to_the_engine(
    cluster: FakeCluster,
) -> None:
    made = started(cluster, a=[entry(), entry(tp=1)], b=[entry()])
    assert made.env[VARIABLE] == f"{made.cache_root}/tuned/{'1' * 12}"
    assert made.labels[tuned.LABEL] == FILE
    assert cluster.notes == []


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
def test_without_one_on_each_node_nothing_is_changed_nor_asked(
    cluster: FakeCluster, there: Any
) -> None:
    made = started(cluster, **there)
    assert (VARIABLE in made.env, tuned.LABEL in made.labels) == (False, False)
    assert not [words for words in cluster.head.calls("docker") if words[0] == "image"]


def test_another_image_is_another_version(cluster: FakeCluster) -> None:
    made = started(cluster, a=[entry(image="c" * 12)], b=[entry(image="c" * 12)])
    assert VARIABLE not in made.env
    (said,) = cluster.notes
    assert "tuned for this model with another image" in said


def test_a_recipe_with_a_folder_of_its_own_keeps_it(cluster: FakeCluster) -> None:
    started(cluster, a=[entry()], b=[entry()])
    recipe = make_recipe(env={VARIABLE: "/nothing"})
    nodes = cluster.play.nodes
    assert tuned.look(cluster.play, plan_for(recipe, *nodes), nodes) == {}


def test_a_server_or_a_process_in_the_gpu_refuses_the_tuner(cluster: FakeCluster) -> None:
    play, head = cluster.play, cluster.head
    plan = plan_for(make_recipe(), play.head)
    tuning.must_be_free(play, plan)
    head.run_container(SERVER)
    with pytest.raises(Refused, match="the engine runs") as caught:
        tuning.must_be_free(play, plan)
    assert "spark-cluster down" in caught.value.hint
    head.run_container(SERVER, status="exited")
    head.held = [Process(7, "ollama", 900)]
    with pytest.raises(Refused, match=r"held by ollama \(PID 7, 900 MiB\)"):
        tuning.must_be_free(play, plan)
    head.run_container(CONTAINER)
    tuning.must_be_free(play, plan)
    assert cluster.notes == ["the tuner runs there already; its end is waited for"]


def test_the_shape_is_read_from_the_models_own_config(cluster: FakeCluster) -> None:
    play, head = cluster.play, cluster.head
    plan = plan_for(make_recipe(engine_args={}), play.head)
    with pytest.raises(Failed, match="config cannot be read"):
        tuning.shape_of(play, plan)
    place = f"{plan.deployment.model_path}/config.json"
    dense = {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2,
        "hidden_size": 64, "vocab_size": 100, "num_attention_heads": 2, "num_key_value_heads": 2,
        "head_dim": 32, "intermediate_size": 128, "max_position_embeddings": 512,
    }  # fmt: skip
    head.put(place, json.dumps(dense))
    with pytest.raises(Refused, match=r"nothing to tune for .*: it has no experts"):
        tuning.shape_of(play, plan)
    moe = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    head.put(place, json.dumps({**dense, "model_type": "qwen3_moe", **moe}))
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
