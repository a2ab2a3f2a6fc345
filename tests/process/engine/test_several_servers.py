"""Several servers, models or replicas: what is ended, who is started and which share each gets."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from math import inf
from typing import Any

import pytest
from cases import each_case
from factories import make_node, make_recipe
from piped_cluster import Make, PipedCluster
from serve_plans import deployment_for, inventory_of, starting

from spark_cluster.config.facts import GpuProcess
from spark_cluster.engine import proxy, readiness, supervision
from spark_cluster.engine import start as starts
from spark_cluster.engine.admission import Admitted, admit
from spark_cluster.engine.deployment import Deployment
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


def made(status: str) -> ContainerState:
    """The container of the model that is loaded on request."""
    labels = {**DEPLOYMENT.servers[1].labels, NEEDS: "21.8"}
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
    cluster.play.options.force = force
    return admit(cluster.play, found, [{"a": inf}] * len(found), [])


@each_case(__file__, "shares.toml")
def test_the_share_of_each_of_two_models(spark, case):
    models = ON_REQUEST if case.get("on_request") else MODELS
    chat = running(0, case["runs"]) if "runs" in case else GONE
    embedding = made(case["made"]) if "made" in case else GONE
    if "refused" in case:
        with pytest.raises(DoesNotFit, match=case["refused"]) as refused:
            admitted(spark(case["gib"]), chat, embedding, models=models)
        assert "--force launches anyway" in refused.value.hint
        return
    found = admitted(spark(case["gib"]), chat, embedding, models=models)
    assert (found.shares[CHATS], found.shares.get(LOADS)) == (case["share"], None)
    assert sorted(program for _, program in found.new) == case["new"]
    needs = {LOADS: pytest.approx(21.8, abs=0.1)} if models is ON_REQUEST else {}
    assert found.needs_gib == needs


def test_what_does_not_fit_is_forced_with_a_word(spark):
    cluster = spark(40)
    admitted(cluster, GONE, GONE, force=True)
    assert cluster.notes[0].startswith("--force: a: 2 models need")


def test_a_model_that_no_one_knows_needs_a_share_of_its_own(spark):
    model = {"name": "no/such", "base": None, "weights_gib": None}
    unknown = ServedModel(make_recipe(CHAT, model=model), "a")
    with pytest.raises(Refused, match="no share of the memory can be computed") as refused:
        admitted(spark(), GONE, GONE, models=(unknown, MODELS[1]))
    assert f"give gpu_memory_utilization in the recipe: {CHAT}" in refused.value.hint


def test_what_has_no_place_next_to_them_is_ended_and_they_are_not(spark):
    """Memory is not waited for where nothing was there, nor that of those that stay."""
    cluster = spark()
    old = replace(DEPLOYMENT.endpoint.models[0], program="spark-vllm-old")
    replicas = (Replica("b", "192.168.177.12", 18000),)
    found = starts.obsolete_programs(DEPLOYMENT, (*replicas, old, *DEPLOYMENT.endpoint.models))
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
    found = members(cluster, running(0), made(status), deployment=deployment)
    supervision.unload_models(cluster.play, found)
    assert cluster.head.calls("systemctl") == [["stop", LOADER_UNIT]], "or it loads them again"
    assert cluster.head.containers == {LOADS[1]: "exited"}


# -- replicas behind one endpoint ------------------------------------------------------------------


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


def test_one_server_in_place_of_several_is_said(cluster):
    """A plain `up` after `up --replicas` is no wish to end them."""
    one, two = deployment_for(make_recipe(), *cluster.play.nodes), replicas(cluster)
    described = {"replicas": [asdict(replica) for replica in two.endpoint.replicas]}
    cluster.head.put(proxy.DESCRIPTION, json.dumps(described))
    now = behind(cluster.play)
    said = starts.taken_away(one, now)
    assert "2 replicas (a, b)" in said
    assert "--tp 2" in said
    assert "`spark-cluster up --replicas 2` keeps them" in said
    assert starts.taken_away(one, ()) == starts.taken_away(two, now) == ""


def test_each_replica_is_started_on_its_node_and_the_proxy_last(cluster):
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


def test_a_node_without_room_is_named(cluster):
    """Each replica is admitted by the memory of its own node."""
    cluster.nodes["b"].available_gib = 10
    found = readiness.members(cluster.play, replicas(cluster))
    with pytest.raises(DoesNotFit) as refused:
        admit(cluster.play, found, [dict.fromkeys("ab", inf)] * 2, [])
    assert refused.value.where == "b"
