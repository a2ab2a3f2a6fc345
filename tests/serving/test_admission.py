"""Refusals of `up` before anything is fetched, and the share of memory that a server gets."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from factories import PREPARED, SHIPPED, make_node, make_recipe
from serve_plans import plan_for

from spark_cluster.config import overrides
from spark_cluster.config.not_carried_over import NotCarriedOver
from spark_cluster.errors import DoesNotFit, Refused
from spark_cluster.facts.model import Gpu, Memory, Process
from spark_cluster.inference.process import RAY, SERVER
from spark_cluster.models.checkpoint import Checkpoint
from spark_cluster.node.containers import ContainerState
from spark_cluster.planning.room import of_facts
from spark_cluster.runner.events import Bus
from spark_cluster.serving import admission, model_lookup, vram
from spark_cluster.serving import survey as surveying
from spark_cluster.serving.memory_phases import MemoryPhases

GIB = 2**20
FREE = ContainerState("absent")


def serving(name, tp, *command):
    labels = {"spark-cluster.recipe": name, "spark-cluster.tp": str(tp)}
    return ContainerState("running", labels=labels, command=command)


class Session:
    """A node whose containers hold these processes, and whose memory is prepared."""

    def __init__(self, pids, prepared):
        self.pids, self.prepared = pids, prepared

    def submit(self, op, *_limit, commands=None, what=""):
        if op == "load_guard":
            assert what == "prepare"
            self.prepared()
            return SimpleNamespace(wait=lambda: PREPARED)
        assert op == "gather"
        assert commands[SERVER][0] == ["docker", "top", SERVER, "-eo", "pid"]
        text = "PID\n" + "".join(f"{pid}\n" for pid in self.pids)
        found = {SERVER: {"status": 0, "stdout": text, "stderr": ""}, RAY: None}
        return SimpleNamespace(wait=lambda: {"commands": found})


class Play:
    """A play as far as admission asks it."""

    def __init__(self, *nodes, check=False):
        self.nodes, self.check, self.done, self.notes = list(nodes), check, [], []
        self.project = SHIPPED
        self.memory = MemoryPhases()
        self.bus = Bus(self.memory)
        self.ours = {}

    def refresh(self, nodes):
        self.done.append(f"refreshed {len(nodes)}")

    def apply(self, nodes, resources):
        self.done.append(f"{resources[0].id} {resources[0].state} on {len(nodes)}")

    @property
    def sessions(self):
        return {node.name: self.session(node) for node in self.nodes}

    def session(self, node):
        prepared = partial(self.done.append, f"prepared {node.name}")
        return Session(self.ours.get(node.name, ()), prepared)

    def note(self, text, *, warning=False):
        self.notes.append(text)


@pytest.fixture(autouse=True)
def nodes_answer(monkeypatch):
    """The survey takes facts as they are; nothing holds memory unless a test says so."""
    held = {}

    def survey(play, _launch, _there):
        rooms = [
            of_facts(n.name, n.facts, held.get(n.name, ()), has_model=False) for n in play.nodes
        ]
        return rooms, [n.facts for n in play.nodes]

    monkeypatch.setattr(surveying, "survey", survey)
    monkeypatch.setattr(vram, "until_free", lambda _sessions: [])
    return held


def admit(play, what, running=FREE, *, force=False):
    admission.must_work(play, plan_for(what, *play.nodes), running, {}, force=force)


def share(play, what, running=FREE):
    return admission.share(play, plan_for(what, *play.nodes), running)


# -- can it work ----------------------------------------------------------------------------------


def test_what_fits_is_let_in():
    play = Play(make_node("a"), make_node("b", head=False))
    admit(play, make_recipe())
    assert play.notes == []
    planned = [node.planned_ready for node in play.memory.nodes.values()]
    assert list(play.memory.nodes) == ["a", "b"]
    assert planned[0] == planned[1] > 20_000


def test_what_does_not_fit_is_refused_with_what_would():
    play = Play(make_node("a", 60))
    with pytest.raises(Refused, match=r"a: the weights take 58\.8 GiB while loading") as caught:
        admit(play, make_recipe("gemma4-31b-fp8"))
    assert "spark-cluster plan gemma4-31b-fp8 --tp 1" in caught.value.hint
    assert "--force launches anyway" in caught.value.hint
    admit(play, make_recipe("gemma4-31b-fp8"), force=True)
    assert "58.8 GiB" in play.notes[0]


def test_what_is_known_not_to_work_is_refused():
    wrong = make_recipe()
    wrong = wrong.model_copy(
        update={"engine_args": {**wrong.engine_args, "tool-call-parser": "pythonic"}}
    )
    with pytest.raises(Refused, match="pythonic"):
        admit(Play(make_node("a")), wrong)


def test_what_serves_already_is_not_asked_again():
    play = Play(make_node("a", 5))
    admit(play, make_recipe(), serving("gemma4-31b-nvfp4", 1))
    assert play.notes == []


def test_memory_of_what_will_be_ended_counts_as_available(nodes_answer):
    nodes_answer["a"] = (Process(1, "VLLM::EngineCore", 100 * 1024),)
    play = Play(make_node("a", 12))
    play.ours["a"] = [1]
    admit(play, make_recipe(), serving("another", 1))
    with pytest.raises(Refused):
        admit(play, make_recipe())


def test_memory_of_others_does_not_count_as_available(nodes_answer):
    """Ending what we serve gives back what our containers hold, not a stranger's memory."""
    nodes_answer["a"] = (
        Process(1, "VLLM::EngineCore", 4 * 1024),
        Process(2, "comfyui", 100 * 1024),
    )
    play = Play(make_node("a", 12))
    play.ours["a"] = [1, 7]
    with pytest.raises(Refused, match="16"):
        admit(play, make_recipe(), serving("another", 1))


def test_a_share_that_cannot_be_read_is_computed():
    odd = serving("gemma4-31b-nvfp4", 1, "x", "--gpu-memory-utilization")
    assert share(Play(make_node("a")), make_recipe(), odd) == 0.40


def test_a_model_of_unknown_shape_is_let_in_with_a_word():
    unknown = make_recipe()
    model = unknown.model.model_copy(update={"name": "nobody/knows", "base": None})
    play = Play(make_node("a"))
    admit(play, unknown.model_copy(update={"model": model}))
    assert play.notes[0].startswith("not planned: the shape of the model 'nobody/knows'")


class SlowHub:
    """A hub that answers only when it is let go."""

    def __init__(self):
        self.let_go = threading.Event()

    def checkpoint(self, _repository, _revision="main"):
        self.let_go.wait(60)

    def problem(self, _repository):
        return ""


def test_the_hub_is_asked_for_a_model_that_is_not_known(monkeypatch):
    config = {
        **dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 64),
        **{"model_type": "llama", "num_key_value_heads": 8, "vocab_size": 128256},
        **{"hidden_size": 32768, "intermediate_size": 131072},
    }
    hub = SlowHub()
    hub.checkpoint = lambda *_: Checkpoint(config, {}, None)
    monkeypatch.setattr(model_lookup, "online", lambda _known: hub)
    unknown = make_recipe()
    model = unknown.model.model_copy(update={"name": "nobody/knows", "base": None})
    with pytest.raises(DoesNotFit):
        admit(Play(make_node("a")), unknown.model_copy(update={"model": model}))


def test_a_hub_that_does_not_answer_holds_nothing_up(monkeypatch):
    hub = SlowHub()
    monkeypatch.setattr(model_lookup, "online", lambda _known: hub)
    monkeypatch.setattr(model_lookup, "LIMIT_S", 0.05)
    unknown = make_recipe()
    model = unknown.model.model_copy(update={"name": "nobody/knows", "base": None})
    play = Play(make_node("a"))
    admit(play, unknown.model_copy(update={"model": model}))
    hub.let_go.set()
    assert "the hub has not described nobody/knows" in play.notes[0]
    assert play.notes[1].startswith("not planned: ")


# -- the share ------------------------------------------------------------------------------------


def test_the_share_is_that_of_the_node_with_least_room():
    """Without --max-num-seqs all that is safe is for the cache."""
    open_end = make_recipe(engine_args={"max-model-len": 32768})
    play = Play(make_node("a", 100), make_node("b", 60, head=False))
    assert share(play, open_end) == 0.41
    assert play.done == ["prepared a", "prepared b", "refreshed 2"], "it is measured after that"


def test_a_gpu_with_memory_of_its_own_has_no_page_cache():
    node = make_node("a", 12)
    gpu = Gpu("NVIDIA H200", "9.0", "580", memory=Memory(140 * GIB, 140 * GIB, of_gpu=True))
    node = replace(node, facts=replace(node.facts, gpu=gpu))
    play = Play(node)
    assert share(play, make_recipe()) == 0.38
    assert play.done == ["refreshed 1"], "it takes nothing of the GPU's"


def test_the_share_is_no_more_than_what_is_asked_for():
    assert share(Play(make_node("a")), make_recipe()) == 0.40
    assert share(Play(make_node("a"), make_node("b", head=False)), make_recipe()) == 0.23


def test_check_mode_touches_no_cache():
    play = Play(make_node("a", 100), check=True)
    assert share(play, make_recipe(), serving("another", 1)) == 0.40
    assert play.done == []


def test_too_little_memory():
    play = Play(make_node("a", 100), make_node("b", 12, head=False))
    with pytest.raises(Refused, match=r"only 12\.0 of 121\.7 GiB are available") as caught:
        share(play, make_recipe())
    assert caught.value.where == "b"
    assert "vram" in caught.value.hint


def test_a_server_that_runs_keeps_its_share():
    """Memory that the server itself holds is no reason to restart it."""
    running = serving("gemma4-31b-nvfp4", 1, "x", "--gpu-memory-utilization", "0.61")
    play = Play(make_node("a", 5))
    assert share(play, make_recipe(), running) == 0.61
    assert play.done == []


def test_a_server_of_another_recipe_is_ended_first():
    play = Play(make_node("a"))
    running = serving("another", 1, "x", "--gpu-memory-utilization", "0.61")
    assert share(play, make_recipe(), running) == 0.40
    assert play.done == [
        *("Container:spark-vllm absent on 1", "Container:spark-ray absent on 1"),
        *("prepared a", "refreshed 1"),
    ]


@pytest.mark.parametrize(
    "given",
    [{"gpu_memory_utilization": 0.5}, {"engine_args": {"kv-cache-memory-bytes": "64M"}}],
)
def test_a_share_that_the_recipe_gives(given):
    """P07: page cache is given back before every start, and before no other one."""
    play = Play(make_node("a", 5), make_node("b", 5, head=False))
    recipe = make_recipe(**given)
    assert share(play, recipe) is None
    assert play.done == ["prepared a", "prepared b"]
    play.done.clear()
    assert share(play, recipe, serving(recipe.name, 2)) is None
    assert play.done == [], "it serves already"
    stopped = replace(serving(recipe.name, 2), status="exited")
    assert share(play, recipe, stopped) is None
    assert play.done == ["prepared a", "prepared b"]
    play.check = True
    play.done.clear()
    assert share(play, recipe) is None
    assert play.done == [], "check mode"


# -- engine arguments of the command line ------------------------------------------------------


def changed(**flags):
    return overrides.apply(make_recipe(), flags)


def running_as(plan):
    return ContainerState("running", labels=dict(plan.deployment.labels))


def test_the_same_arguments_are_the_same_server():
    plan = plan_for(changed(**{"max-num-seqs": 2}), make_node("a"))
    assert plan.deployment.labels["spark-cluster.overrides"] == "-o max-num-seqs=2"
    assert admission.serves(running_as(plan), plan)
    assert admission.overrides_changed(running_as(plan), plan) == ""


def test_without_them_it_is_another_server_and_says_so():
    plain = plan_for(make_recipe(), make_node("a"))
    plan = plan_for(changed(**{"max-num-seqs": 2}), make_node("a"))
    assert "spark-cluster.overrides" not in plain.deployment.labels
    assert not admission.serves(running_as(plan), plain)
    assert not admission.serves(running_as(plain), plan)
    told = admission.overrides_changed(running_as(plan), plain)
    assert told.startswith("the server runs with -o max-num-seqs=2, and now the recipe as it is")
    assert admission.overrides_changed(FREE, plan) == ""


def test_the_hint_names_the_arguments():
    play = Play(make_node("a", 60))
    with pytest.raises(Refused) as caught:
        admit(play, overrides.apply(make_recipe("gemma4-31b-fp8"), {"max-num-seqs": 2}))
    assert "spark-cluster plan gemma4-31b-fp8 --tp 1 -o max-num-seqs=2" in caught.value.hint


# -- stages, replicas and imports --------------------------------------------------------------


def test_stages_take_nodes():
    nodes = [make_node("a"), make_node("b", head=False), make_node("c", head=False)]
    plan = plan_for(make_recipe(pipeline_parallel=2), *nodes, tp=1)
    assert [node.name for node in plan.nodes] == ["a", "b"]
    assert (plan.tp, plan.deployment.size) == (1, 2)
    assert "--pipeline-parallel-size" in plan.deployment.args
    assert plan.deployment.labels["spark-cluster.nodes"] == "2"
    with pytest.raises(
        Refused, match="--tp 2 with pipeline stages or data-parallel ranks needs 4 nodes"
    ):
        plan_for(make_recipe(pipeline_parallel=2), *nodes, tp=2)


def test_an_import_that_lacks_a_part_is_refused_also_when_its_shape_is_not_known():
    entry = NotCarriedOver(what="--b", why="of a mod", consequence="it does not start", blocks=True)
    model = make_recipe().model.model_copy(update={"name": "example/unknown", "base": None})
    recipe = make_recipe(not_carried_over=[entry], model=model)
    play = Play(make_node("a"))
    with pytest.raises(Refused, match="cannot work as it was imported"):
        admit(play, recipe)
    admit(play, recipe, running_as(plan_for(recipe, make_node("a"))))
    admit(play, recipe, force=True)
