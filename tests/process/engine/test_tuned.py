"""What is tuned reaches the engine where it fits, and tuning is refused where it cannot be."""

import json
from pathlib import Path
from typing import Any

import pytest
from cases import each_case
from checkpoints import SMALL
from factories import make_node, make_recipe, put
from piped_cluster import Make, PipedCluster
from serve_plans import server_for

from spark_cluster.config.facts import GpuProcess
from spark_cluster.config.folders import CACHE_ROOT
from spark_cluster.engine import tuning
from spark_cluster.engine.names import SERVER
from spark_cluster.errors import Failed, InvalidFile, Refused
from spark_cluster.node.beneath import Folder
from spark_cluster.node.engine_caches import TUNED_VARIABLE, keep_tuned, tuned_folder
from spark_cluster.node.kernel_tuner import CONTAINER

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
EXPERTS |= {"model_type": "qwen3_moe"}
OTHERS = ({"tp": 1}, {"model": "o/other"})
FILE = "E=128,N=384,device_name=NVIDIA_GB10.json"


@pytest.fixture
def cluster(piped_cluster: Make) -> PipedCluster:
    """Two nodes with the image of the recipe."""
    made = piped_cluster("a", "b")
    for node in made.nodes.values():
        node.have_image(make_recipe().image.ref)
    return made


def started(cluster: PipedCluster, **tuned_on: list[dict[str, Any]]) -> Any:
    """Return what is started on nodes where this is tuned.

    Args:
        tuned_on: node to how each result differs from one for the model at two nodes.
    """
    for name, entries in tuned_on.items():
        caches = cluster.nodes[name].root / CACHE_ROOT.lstrip("/")
        caches.mkdir(parents=True)
        for one in entries:
            put(caches / "output" / FILE, json.dumps({"1": {"BLOCK_SIZE_M": 16}}))
            of = {"image": "1" * 12, "model": make_recipe().model.name, "tp": 2, **one}
            folder = tuned_folder(str(caches), **of)
            keep_tuned(Folder(caches), Path(folder), caches / "output")
    play = cluster.play
    server = server_for(make_recipe(), *play.nodes)
    return tuning.with_tuned_kernels(play, server, tuning.tuned_on(play, server, server.nodes))


def test_a_result_for_model_size_gpu_and_image_is_handed_to_the_engine(cluster):
    made = started(cluster, a=[{}, OTHERS[0]], b=[{}])
    folder = tuned_folder(made.cache_root, "1" * 12, make_recipe().model.name, 2)
    assert made.env[TUNED_VARIABLE] == folder
    assert f"{folder}:{folder}:ro" in made.mounts
    assert made.labels[tuning.TUNED_LABEL] == FILE
    assert cluster.notes == []


@pytest.mark.parametrize(
    "there", [{}, {"a": [{}]}, *({"a": [other], "b": [other]} for other in OTHERS)], ids=str
)
def test_without_one_on_each_node_nothing_is_changed_nor_asked(cluster, there):
    made = started(cluster, **there)
    assert (TUNED_VARIABLE in made.env, tuning.TUNED_LABEL in made.labels) == (False, False)
    assert not [words for words in cluster.head.calls("docker") if words[0] == "image"]


def test_another_image_is_another_version(cluster):
    other = {"image": "c" * 12}
    made = started(cluster, a=[other], b=[other])
    assert TUNED_VARIABLE not in made.env
    (said,) = cluster.notes
    assert "tuned for this model with another image" in said


def test_a_recipe_with_a_folder_of_its_own_keeps_it(cluster):
    started(cluster, a=[{}], b=[{}])
    server = server_for(make_recipe(env={TUNED_VARIABLE: "/nothing"}), *cluster.play.nodes)
    assert tuning.tuned_on(cluster.play, server, server.nodes) == {}
    with pytest.raises(Refused, match=f"its {TUNED_VARIABLE} names a folder of its own"):
        tuning.must_be_tunable(server)


def test_a_server_or_a_process_in_the_gpu_refuses_the_tuner(cluster):
    play, head = cluster.play, cluster.head
    server = server_for(make_recipe(), play.head)
    tuning.must_be_free(play, server)
    head.run_container(SERVER)
    with pytest.raises(Refused, match="the engine runs") as caught:
        tuning.must_be_free(play, server)
    assert "spark-cluster down" in caught.value.hint
    head.run_container(SERVER, status="exited")
    head.held = [GpuProcess(7, "ollama", 900)]
    with pytest.raises(Refused, match=r"held by ollama \(PID 7, 900 MiB\)"):
        tuning.must_be_free(play, server)
    head.run_container(CONTAINER)
    tuning.must_be_free(play, server)
    assert cluster.notes == ["the tuner is already running there; waiting for it"]


def arguments(cluster: PipedCluster, config: str, **flags: Any) -> tuple[str, ...]:
    server = server_for(make_recipe(engine_args=flags), cluster.play.head)
    if config:
        cluster.head.put(f"{server.model_path}/config.json", config)
    return tuning.arguments(cluster.play, server)


@each_case(__file__, "tunable.json")
def test_the_tuner_gets_the_model_its_size_and_its_type_or_has_nothing_to_tune(cluster, case):
    flags, config = case.get("flags", {}), {**SMALL, **(EXPERTS if case["experts"] else {})}
    if "quantized" in case:
        config = {**config, "quantization_config": case["quantized"]}
    if "reason" in case:
        with pytest.raises(Refused, match=f"nothing to tune for .*: {case['reason']}"):
            arguments(cluster, json.dumps(config), **flags)
        return
    server = server_for(make_recipe(engine_args=flags), cluster.play.head)
    found = arguments(cluster, json.dumps(config), **flags)
    assert sorted(found) == sorted(("--model", server.model_path, "--tp-size", "1", *case["more"]))
    wanted = tuning.resource(server, found, (1, 2), tuner="", limit_s=60.0, renew=False)
    assert (wanted.words, wanted.model) == (found, server.recipe.model.name)


@pytest.mark.parametrize(
    ("name", "reason"), [("gemma4-31b-nvfp4", "no experts"), ("gpt-oss-20b", "weights are mxfp4")]
)
def test_a_model_that_is_known_is_refused_before_it_is_fetched(name, reason):
    server = server_for(make_recipe(name), make_node("a"))
    with pytest.raises(Refused, match=reason):
        tuning.must_be_tunable(server)


def test_check_mode_has_no_config_of_a_model_that_is_not_there(cluster):
    cluster.play.options.check = True
    assert arguments(cluster, "") == ()


@pytest.mark.parametrize("config", ["", "{", "[]"])
def test_a_model_whose_config_cannot_be_read(cluster, config):
    with pytest.raises(Failed, match="config cannot be read"):
        arguments(cluster, config)


def test_the_result_goes_to_the_other_node_that_serves(cluster):
    play, other = cluster.play, cluster.nodes["b"]
    server = server_for(make_recipe(), *play.nodes)
    with pytest.raises(Failed, match="left nothing"):
        tuning.hand_on(play, server)
    folder = tuned_folder(server.cache_root, "1" * 12, server.recipe.model.name, 2)
    other.put(f"{server.cache_root}/images/.keep", "")
    cluster.head.put(f"{folder}/{FILE}", "[]")
    with pytest.raises(InvalidFile):
        tuning.hand_on(play, server)
    assert other.text(f"{folder}/{FILE}") is None, "what is no parameters goes to no other node"
    text = json.dumps({"triton_version": "3.5", "4": {}, "16": {}})
    cluster.head.put(f"{folder}/{FILE}", text)
    assert tuning.hand_on(play, server) == (FILE, (4, 16))
    assert other.text(f"{folder}/{FILE}") == text
    tuned = tuning.tuned_on(play, server, server.nodes)
    assert tuning.with_tuned_kernels(play, server, tuned).env[TUNED_VARIABLE]


def test_other_engines_have_no_tuner():
    sglang = server_for(make_recipe(engine="sglang", executor="mp"), make_node("a"))
    with pytest.raises(Refused, match="this is sglang in docker"):
        tuning.must_be_tunable(sglang)
