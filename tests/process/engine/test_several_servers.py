"""Several servers, models or replicas: what is ended, who is started and which share each gets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from math import inf
from typing import Any

import pytest
from factories import make_node, make_recipe
from piped_cluster import Make, PipedCluster
from serve_plans import inventory_of, linked_nodes, starting

from spark_cluster.config.facts import GpuProcess
from spark_cluster.engine import proxy, readiness, supervision
from spark_cluster.engine import start as starts
from spark_cluster.engine.admission import Admitted, admit
from spark_cluster.engine.deployment import Deployment, Key
from spark_cluster.engine.names import PAUSE, RAY, SERVER
from spark_cluster.engine.proxy import LOADER_UNIT, Replica
from spark_cluster.engine.readiness import Member, behind
from spark_cluster.engine.resolve import ServedModel, resolve, resolve_models
from spark_cluster.errors import DoesNotFit, Refused
from spark_cluster.node.containers import NEEDS, ContainerState

CHAT, EMBEDDING = "gemma4-26b-a4b-nvfp4", "qwen3-embedding-0.6b"
NODE = make_node("a")
MODELS = tuple(ServedModel(make_recipe(name), "a") for name in (CHAT, EMBEDDING))
ON_REQUEST = (MODELS[0], replace(MODELS[1], on_request=True))
ENTRIES = [{"recipe": name} for name in (CHAT, EMBEDDING)]
CHATS, LOADS = ("a", f"spark-vllm-{CHAT}"), ("a", f"spark-vllm-{EMBEDDING}")
GONE = ContainerState("absent")


def deployment_of(models: tuple[ServedModel, ...] = MODELS, **serve: Any) -> Deployment:
    return resolve_models(models, inventory_of(NODE, recipes=ENTRIES, **serve), [NODE])


DEPLOYMENT = deployment_of()


@pytest.fixture
def spark(piped_cluster: Make) -> Callable[..., PipedCluster]:
    """`spark(25)`: a node `a` with so many GiB available."""

    def make(gib: float = 118) -> PipedCluster:
        cluster = piped_cluster("a")
        cluster.head.available_gib = gib
        return cluster

    return make


def running(index: int, share: float | None = None) -> ContainerState:
    """The server of a model as it was started."""
    flags = ("--gpu-memory-utilization", str(share)) if share is not None else ()
    labels = DEPLOYMENT.servers[index].labels
    return ContainerState("running", labels=dict(labels), command=("vllm", *flags))


def made(needs: str, status: str = "exited") -> ContainerState:
    """The container of the model that is loaded on request."""
    labels = {**DEPLOYMENT.servers[1].labels, NEEDS: needs}
    return ContainerState(status, labels=labels)


def members(
    cluster: PipedCluster, *states: ContainerState, deployment: Deployment = DEPLOYMENT
) -> list[Member]:
    pairs = zip(deployment.servers, states, strict=True)
    return [Member(cluster.play, server, state, GONE) for server, state in pairs]


def admitted(
    cluster: PipedCluster,
    *states: ContainerState,
    models: tuple[ServedModel, ...] = MODELS,
    force: bool = False,
) -> Admitted:
    """What each is given there; the node has the models."""
    found = members(cluster, *states, deployment=deployment_of(models))
    return admit(cluster.play, found, [{"a": inf}] * len(found), [], force=force)


def shares(cluster: PipedCluster, *states: ContainerState) -> Mapping[Key, float | None]:
    return admitted(cluster, *states).shares


def test_a_server_that_runs_keeps_its_share_and_the_other_takes_what_it_leaves(spark):
    assert shares(spark(25), running(0, 0.74), GONE)[CHATS] == 0.74
    with pytest.raises(DoesNotFit, match=r"a: qwen3-embedding-0\.6b needs 21\.8 GiB"):
        shares(spark(20), running(0, 0.74), GONE)


def test_each_gets_the_share_of_the_plan_of_all_also_one_that_is_loaded_on_request(spark):
    found = admitted(spark(), GONE, GONE, models=ON_REQUEST)
    assert shares(spark(), GONE, GONE) == found.shares == {CHATS: 0.74, LOADS: None}, (
        "the embedding model's recipe says 0.10 itself"
    )
    assert found.needs_gib == {LOADS: pytest.approx(21.8, abs=0.1)}
    assert found.new == {CHATS, LOADS}


@pytest.mark.parametrize("status", ["created", "exited", "running"])
def test_one_that_is_made_already_is_left_as_it_is(spark, status):
    found = admitted(spark(1), running(0, 0.5), made("21.8", status), models=ON_REQUEST)
    assert (found.new, found.needs_gib) == (frozenset(), {LOADS: 21.8})


def test_what_is_started_leaves_room_for_one_that_is_loaded_later(spark):
    found = admitted(spark(), GONE, made("21.8", "running"), models=ON_REQUEST)
    assert found.shares[CHATS] == 0.74
    assert (found.new, found.needs_gib) == ({CHATS}, {LOADS: 21.8})
    with pytest.raises(DoesNotFit, match=r"a: 2 models need 51.7 GiB together"):
        admitted(spark(40), GONE, made("21.8"), models=ON_REQUEST)


def test_what_does_not_fit_is_refused_with_the_sum_or_forced(spark):
    cluster = spark(40)
    with pytest.raises(DoesNotFit, match=r"a: 2 models need 51.7 GiB together") as refused:
        admitted(cluster, GONE, GONE)
    assert "--force launches anyway" in refused.value.hint
    admitted(cluster, GONE, GONE, force=True)
    assert cluster.notes[0].startswith("--force: a: 2 models need")


def test_a_model_that_no_one_knows_needs_a_share_of_its_own(spark):
    recipe = make_recipe(CHAT)
    model = recipe.model.model_copy(update={"name": "no/such", "base": None, "weights_gib": None})
    unknown = ServedModel(recipe.model_copy(update={"model": model}), "a")
    with pytest.raises(Refused, match="no share of the memory can be computed") as refused:
        admitted(spark(), GONE, GONE, models=(unknown, MODELS[1]))
    assert f"give gpu_memory_utilization in the recipe: {CHAT}" in refused.value.hint


def test_what_has_no_place_next_to_them_is_ended_and_they_are_not(spark):
    """Memory is not waited for where nothing was there, nor that of those that stay."""
    cluster = spark()
    old = replace(DEPLOYMENT.endpoint.models[0], program="spark-vllm-old")
    replicas = (Replica("b", "192.168.177.12", 18000),)
    found = starts.obsolete_programs(DEPLOYMENT, replicas, (old, *DEPLOYMENT.endpoint.models))
    assert found == {"a": ["spark-vllm-old"], "b": [SERVER]}
    starts.end_others(cluster.play, DEPLOYMENT, [], found)
    assert cluster.head.calls("nvidia-smi") == []
    cluster.head.run_container(CHATS[1], pids=[7])
    cluster.head.held = [GpuProcess(7, "VLLM::EngineCore", 900)]
    for name in ("spark-vllm-old", SERVER):
        cluster.head.run_container(name)
    starts.end_others(cluster.play, DEPLOYMENT, [], found)
    assert cluster.containers == {"a": [CHATS[1]]}
    assert len(cluster.head.calls("nvidia-smi")) == 1


@pytest.mark.parametrize("status", ["created", "exited", "running"])
def test_what_may_have_been_loaded_meanwhile_is_unloaded_too(spark, status):
    """The loader goes on while images and models are fetched."""
    cluster = spark()
    cluster.head.run_container(LOADS[1], status="running")
    deployment = deployment_of(ON_REQUEST)
    found = members(cluster, running(0), made("21.8", status), deployment=deployment)
    supervision.unload_models(cluster.play, found)
    assert cluster.head.calls("systemctl") == [["stop", LOADER_UNIT]], "or it loads them again"
    assert cluster.head.containers == {LOADS[1]: "exited"}


# -- replicas behind one endpoint ------------------------------------------------------------------

NODES = linked_nodes("a", "b")


def test_one_server_in_place_of_several_is_said(piped_cluster: Make) -> None:
    """A plain `up` after `up --replicas` is no wish to end them."""
    cluster = piped_cluster("a", "b")
    one, two = (
        resolve(make_recipe(), inventory_of(*NODES), NODES, tp, replicas=count)
        for tp, count in ((2, 1), (1, 2))
    )
    described = {"replicas": [asdict(replica) for replica in two.endpoint.replicas]}
    cluster.head.put(proxy.DESCRIPTION, json.dumps(described))
    now = proxy.replicas_of(behind(cluster.play))
    (said,) = starts.taken_away(one, now, ())
    assert "2 replicas (a, b)" in said
    assert "--tp 2" in said
    assert "`up --replicas 2` keeps them" in said
    assert starts.taken_away(one, (), ()) == starts.taken_away(two, now, ()) == []


@pytest.fixture
def cluster(piped_cluster: Make) -> PipedCluster:
    """Two nodes, whose engine and proxy are only noted."""
    made = piped_cluster("a", "b")
    made.marked("ray", "vllm", "endpoint")
    return made


def replicas(cluster: PipedCluster) -> Deployment:
    return resolve(make_recipe(), cluster.play.inventory, cluster.play.nodes, 1, replicas=2)


def start(cluster: PipedCluster, share: float | None = None) -> None:
    """Start replicas as `up` does, with what runs on the nodes now and the share of the plan."""
    now = starting(cluster.play, replicas(cluster), share)
    starts.end_others(cluster.play, now.deployment, now.members, {})
    starts.start(cluster.play, now)


def test_each_replica_is_started_on_its_node_and_the_proxy_last(cluster: PipedCluster) -> None:
    start(cluster, 0.40)
    for name in ("a", "b"):
        assert cluster.roles(name) == ["ray", "vllm", "endpoint"]
        made = cluster.settings("vllm", name).server
        assert made.node_names == (name,)
        assert made.flags["gpu-memory-utilization"] == 0.40
    last = cluster.applied("File:/roles/")[-2:]
    assert sorted(last) == ["a File:/roles/endpoint", "b File:/roles/endpoint"]


def test_what_served_over_several_nodes_is_ended_before_memory_is_counted(cluster):
    worker = cluster.nodes["b"]
    for name in (SERVER, RAY, PAUSE):
        worker.run_container(name, holds_gib=38)
    start(cluster)
    assert cluster.containers == {"a": [], "b": []}
    made = cluster.settings("vllm", "b").server
    assert made.flags["gpu-memory-utilization"] == 0.80, "of all of its memory"
    ended = [one for one in cluster.applied() if one.startswith("b ")]
    assert ended.index(f"b Container:{SERVER}") < ended.index(f"b Container:{RAY}")
    assert ended.index(f"b Container:{RAY}") < ended.index("b File:/roles/ray")


def test_a_node_without_room_is_named(cluster: PipedCluster) -> None:
    """Each replica is admitted by the memory of its own node."""
    cluster.nodes["b"].available_gib = 10
    found = readiness.members(cluster.play, replicas(cluster))
    with pytest.raises(DoesNotFit) as refused:
        admit(cluster.play, found, [dict.fromkeys("ab", inf)] * 2, [], force=False)
    assert refused.value.where == "b"
