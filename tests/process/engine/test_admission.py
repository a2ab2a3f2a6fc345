"""Refusals of `up` before anything is fetched, and the share of memory that a server gets."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from cases import each_case
from checkpoints import LLAMA_70B
from factories import make_node, make_recipe, put
from piped_cluster import Make, PipedCluster
from serve_plans import server_for

from spark_cluster.config.facts import GpuProcess
from spark_cluster.config.launch import override
from spark_cluster.config.recipe_schema import NotCarriedOver
from spark_cluster.engine import admission, survey
from spark_cluster.engine.names import SERVER
from spark_cluster.errors import DoesNotFit, Refused
from spark_cluster.node.containers import ContainerState
from spark_cluster.runner.events import MemoryPlanned, Options
from spark_cluster_lab.hub import Conduct, LabHub, serve

FREE = ContainerState("absent")
DROPPED = "/proc/sys/vm/drop_caches"


def serving(name, tp, *command):
    labels = {"spark-cluster.recipe": name, "spark-cluster.tp": str(tp)}
    return ContainerState("running", labels=labels, command=command)


@pytest.fixture
def spark(piped_cluster: Make) -> Callable[..., PipedCluster]:
    """`spark(100, 60)`: a cluster of nodes `a`, `b` with these GiB available."""

    def make(*available: float, check: bool = False) -> PipedCluster:
        names = ("a", "b")[: len(available) or 1]
        cluster = piped_cluster(*names, options=Options(check=check))
        for node, gib in zip(cluster.nodes.values(), available, strict=False):
            node.available_gib = gib
            put(node.root / DROPPED.lstrip("/"))
        return cluster

    return make


def admit(cluster, what, running=FREE, *, force=False):
    play = cluster.play
    there = dict.fromkeys(cluster.nodes, inf)
    server = server_for(what, *play.nodes)
    play.options.force = force
    return admission.must_work(play, server, running, there)


def share(cluster, what, running=FREE, planned=None):
    return admission.share(cluster.play, server_for(what, *cluster.play.nodes), running, planned)


def prepared(cluster: PipedCluster) -> list[str]:
    """Return the nodes whose page cache was given back since the last call."""
    found = [name for name, node in cluster.nodes.items() if node.text(DROPPED)]
    for node in cluster.nodes.values():
        node.put(DROPPED)
    return found


# -- can it work ----------------------------------------------------------------------------------


def test_what_fits_is_let_in(spark):
    cluster = spark(118, 118)
    admit(cluster, make_recipe())
    assert cluster.notes == []
    planned = [event for event in cluster.events if isinstance(event, MemoryPlanned)]
    assert [event.node for event in planned] == ["a", "b"]
    assert planned[0].ready_mib == planned[1].ready_mib > 20_000


def test_what_does_not_fit_is_refused_with_what_would(spark):
    cluster, large = spark(60), override(make_recipe("gemma4-31b-fp8"), {"max-num-seqs": 2})
    with pytest.raises(Refused, match=r"a: the weights take 58\.8 GiB while loading") as caught:
        admit(cluster, large)
    assert "spark-cluster plan gemma4-31b-fp8 --tp 1 -o max-num-seqs=2" in caught.value.hint
    assert "--force launches anyway" in caught.value.hint
    admit(cluster, large, force=True)
    assert "58.8 GiB" in cluster.notes[0]


def test_what_is_known_not_to_work_is_refused(spark):
    with pytest.raises(Refused, match="pythonic"):
        admit(spark(118), override(make_recipe(), {"tool-call-parser": "pythonic"}))


def test_what_serves_already_is_not_asked_again(spark):
    cluster, settled = spark(5), make_recipe(gpu_memory_utilization=0.5)
    running = serving("gemma4-31b-nvfp4", 1, "x", "--gpu-memory-utilization", "0.4")
    assert admit(cluster, make_recipe(), running) is None
    assert admit(cluster, settled, serving(settled.name, 1)) is None
    assert cluster.notes == []


@pytest.mark.parametrize(("ours", "fits"), [(100, True), (4, False)])
def test_only_memory_of_what_will_be_ended_counts_as_available(spark, ours, fits):
    """Ending what we serve gives back what our containers hold, not a stranger's memory."""
    cluster = spark(12)
    cluster.head.run_container(SERVER, pids=(1, 7))
    held = {1: ("VLLM::EngineCore", ours), 2: ("comfyui", 104 - ours)}
    cluster.head.held = [GpuProcess(pid, name, gib * 1024) for pid, (name, gib) in held.items()]
    if fits:
        admit(cluster, make_recipe(), serving("another", 1))
    with pytest.raises(Refused):
        admit(cluster, make_recipe(), FREE if fits else serving("another", 1))


def unknown():
    """A recipe of a model that no one knows here."""
    return make_recipe(model={"name": "nobody/knows", "base": None})


def test_a_model_of_unknown_shape_is_let_in_with_a_word(spark):
    cluster = spark(118)
    admit(cluster, unknown())
    assert cluster.notes[0].startswith("not planned: the shape of the model 'nobody/knows'")


@pytest.fixture
def hub(tmp_path: Path, use_hub: Callable[[str], None]) -> Iterator[LabHub]:
    """A hub that knows the model: a large one."""
    config = json.dumps(LLAMA_70B | {"num_hidden_layers": 800})
    put(tmp_path / "hub/nobody/knows/config.json", config)
    with serve(tmp_path / "hub") as served:
        use_hub(served.url)
        yield served


def test_the_hub_is_asked_for_a_model_that_is_not_known(spark, hub):
    with pytest.raises(DoesNotFit):
        admit(spark(118), unknown())


def test_heads_that_do_not_divide_are_refused_before_what_serves_is_stopped(spark, hub, tmp_path):
    odd = LLAMA_70B | {"num_attention_heads": 63, "num_key_value_heads": 9}
    put(tmp_path / "hub/nobody/knows/config.json", json.dumps(odd))
    with pytest.raises(DoesNotFit, match=r"63 attention heads .* 2 nodes"):
        admit(spark(118, 118), unknown())
    cluster = spark(118, 118)
    admit(cluster, unknown(), force=True)
    assert "attention heads" in cluster.notes[-1]


def test_a_hub_that_does_not_answer_holds_nothing_up(spark, hub, monkeypatch):
    hub.conduct["nobody/knows"] = Conduct(silent=True)
    monkeypatch.setattr(survey, "LIMIT_S", 0.05)
    cluster = spark(118)
    admit(cluster, unknown())
    assert "the hub has not described nobody/knows" in cluster.notes[0]
    assert cluster.notes[1].startswith("not planned: ")


# -- the share ------------------------------------------------------------------------------------


@each_case(__file__, "memory_shares.toml")
def test_the_share_that_a_server_gets(spark, case):
    """Of the node with least room, after its caches were dropped; all that is safe is for the cache
    where there is no --max-num-seqs."""
    cluster = spark(*case["available"], check=case.get("check", False))
    if "gpu" in case:
        cluster.head.gpu = case["gpu"]
    for name in case.get("containers", ()):
        cluster.head.run_container(name)
    recipe, runs = make_recipe(**case.get("recipe", {})), FREE
    if "runs" in case:
        runs = replace(serving(*case["runs"]), status=case.get("status", "running"))
    planned = admit(cluster, recipe) if case.get("admitted") else case.get("planned")
    assert [node.facts.memory.available_kib >> 20 for node in cluster.play.nodes]
    for name, gib in case.get("meanwhile", {}).items():
        cluster.nodes[name].available_gib = gib
    if "refused" in case:
        with pytest.raises(Refused, match=case["refused"]) as caught:
            share(cluster, recipe, runs, planned)
        assert (caught.value.where, "vram" in caught.value.hint) == (case["where"], True)
        return
    assert planned == case.get("plans", planned)
    assert share(cluster, recipe, runs, planned) == case.get("share")
    assert prepared(cluster) == case.get("prepared", [])
    assert cluster.containers.get("a") == case.get("left", [])


@pytest.mark.parametrize(
    "given", [{"gpu_memory_utilization": 0.5}, {"engine_args": {"kv-cache-memory-bytes": "64M"}}]
)
def test_a_share_that_the_recipe_gives(spark, given):
    """P07: page cache is given back before every start, and before no other one."""
    cluster, recipe = spark(5, 5), make_recipe(**given)
    for running, nodes in (
        (FREE, ["a", "b"]),
        (serving(recipe.name, 2), []),  # it serves already
        (replace(serving(recipe.name, 2), status="exited"), ["a", "b"]),
    ):
        assert share(cluster, recipe, running) is None
        assert prepared(cluster) == nodes


# -- engine arguments of the command line ------------------------------------------------------


def running_as(server):
    made = server.starting(share=0.4)
    command = ("vllm", "serve", *made.args)
    return ContainerState("running", labels=dict(made.labels), command=command)


def test_other_arguments_are_another_server_and_it_says_so():
    plain = server_for(make_recipe(), make_node("a"))
    plan = server_for(override(make_recipe(), {"max-num-seqs": 2}), make_node("a"))
    assert plan.labels["spark-cluster.overrides"] == "-o max-num-seqs=2"
    assert "spark-cluster.overrides" not in plain.labels
    for runs, now in ((plan, plan), (plan, plain), (plain, plan)):
        assert admission.serves(running_as(runs), now) is (runs is now)
    assert admission.overrides_changed(running_as(plan), plan) == ""
    assert admission.overrides_changed(FREE, plan) == ""
    told = admission.overrides_changed(running_as(plan), plain)
    assert told.startswith("the server runs with -o max-num-seqs=2, and now the recipe as it is")


# -- stages, replicas and imports --------------------------------------------------------------


def test_an_import_that_lacks_a_part_is_refused_also_when_its_shape_is_not_known(spark):
    entry = NotCarriedOver(what="--b", why="of a mod", consequence="it does not start", blocks=True)
    recipe = unknown().model_copy(update={"not_carried_over": [entry]})
    cluster = spark(118)
    with pytest.raises(Refused, match="cannot work as it was imported"):
        admit(cluster, recipe)
    admit(cluster, recipe, running_as(server_for(recipe, make_node("a"))))
    admit(cluster, recipe, force=True)
