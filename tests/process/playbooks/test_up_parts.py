"""`up`, in parts: who serves, where the endpoint is, what is started with what."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from factories import SHIPPED, make_inventory, make_node, make_recipe
from fake_programs import Said
from piped_cluster import Make, PipedCluster, PipedNode
from serve_plans import deployment_for, located, own_programs, server_for, snapshot_of, starting

from spark_cluster.config.extension import Allowances
from spark_cluster.config.folders import CACHES as UP_CACHES
from spark_cluster.config.recipe_schema import FromLaptop, Venv
from spark_cluster.config.recipes import load_recipe
from spark_cluster.engine.deployment import Endpoint
from spark_cluster.engine.names import PAUSE, RAY, SERVER
from spark_cluster.engine.ray import TOKEN_FILE
from spark_cluster.engine.resolve import resolve
from spark_cluster.engine.start import announce, guard, start
from spark_cluster.errors import Refused, UsageError
from spark_cluster.resources import Container, Resource, Unit
from spark_cluster.runner.events import Note, Options


def pair():
    return make_node("a"), make_node("b", head=False)


def test_secrets_come_from_the_laptop_and_are_missed_early(monkeypatch):
    asks = make_recipe(env={"PLAIN": "1", "WANDB_API_KEY": FromLaptop(env="MY_WANDB")})
    asks._allowances = Allowances(env=("MY_WANDB",))
    monkeypatch.delenv("MY_WANDB", raising=False)
    with pytest.raises(UsageError, match="asks for the variable MY_WANDB of this machine"):
        server_for(asks, make_node("a"))
    monkeypatch.setenv("MY_WANDB", "hunter2")
    made = server_for(asks, make_node("a"))
    assert made.secret_env == {"WANDB_API_KEY": "hunter2"}
    assert made.env == {"PLAIN": "1"}
    assert "hunter2" not in str(made)


def test_the_server_has_drafter_and_patches_mounted():
    def mounts(name):
        return server_for(load_recipe(name, SHIPPED), make_node("a")).mounts

    snapshot = snapshot_of("google/gemma-4-26B-A4B-it-assistant")
    drafter = snapshot.partition("/snapshots/")[0]  # what the files of a snapshot lead to, too
    assert f"{drafter}:{drafter}:ro" in mounts("gemma4-26b-a4b-fp8-mtp")
    (patch,) = mounts("gemma4-26b-a4b-nvfp4")
    assert patch == (
        f"{snapshot_of('bg-digitalservices/Gemma-4-26B-A4B-it-NVFP4')}/gemma4_patched.py:"
        "/usr/local/lib/python3.12/dist-packages/vllm/model_executor/models/gemma4.py:ro"
    )


@pytest.fixture
def pair_up(piped_cluster: Make) -> Callable[..., PipedCluster]:
    """`pair_up(more)`: nodes `a` and `b` of an inventory, where nothing is started for real."""

    def make(more: str = "", *names: str) -> PipedCluster:
        cluster = piped_cluster(*(names or ("a", "b")), more=more, options=Options(check=True))
        cluster.marked("ray", "vllm", "endpoint")
        return cluster

    return make


def resources(cluster: PipedCluster, role: str) -> list[Resource]:
    """Return what the role yields for the head with the settings that it was given."""
    return list(SHIPPED.load_role(role).function(cluster.play.head, cluster.settings(role)))


CACHES = "settings: {caches: {root: /data/caches}}\n"


def begin(cluster: PipedCluster, tp: int = 1, guarded: str = "present", **changes: Any) -> None:
    """Start a recipe with half of the memory."""
    play, recipe = cluster.play, located(make_recipe(**changes))
    deployment = resolve(recipe, play.inventory, play.nodes, tp)
    start(play, starting(play, deployment, 0.5, guarded))


def test_the_caches_root_of_the_inventory_reaches_the_containers(pair_up):
    cluster = pair_up(CACHES)
    begin(cluster, guarded="absent")
    (server,) = resources(cluster, "vllm")
    assert server.labels["spark-cluster.firewall"] == "absent"
    assert server.caches == "/data/caches"
    assert not any(mount.startswith("/data/caches:") for mount in server.mounts)
    assert {server.env[name].rpartition("/")[0] for name in UP_CACHES} == {"/data/caches"}
    cluster.play.apply(cluster.play.head, "caches")
    assert "a Directory:/data/caches" in cluster.applied()


def test_caches_that_differ_between_nodes_are_refused(tmp_path):
    text = """
    nodes:
      a: {address: 10.0.0.1, roles: [head]}
      b: {address: 10.0.0.2, settings: {caches: {root: /x}}}
    settings: {caches: {root: /data/caches}}
    """
    inventory, nodes = make_inventory(tmp_path, text), pair()
    with pytest.raises(Refused, match="/data/caches on a, /x on b"):
        resolve(located(make_recipe()), inventory, nodes, 2)
    resolve(located(make_recipe()), inventory, nodes, 1)


def test_a_network_that_is_trusted_is_warned_of_each_time(pair_up):
    for more, state in (("", "present"), ("trusted_network: true\n", "absent")):
        cluster = pair_up(more)
        play = cluster.play
        call = guard(play, resolve(located(make_recipe()), play.inventory, play.nodes, 2))
        assert call.given["state"] == state
        assert ["there is no firewall" in note for note in cluster.notes] == [True] * bool(more)


@pytest.mark.parametrize("works", [True, False])
def test_one_node_goes_on_where_nftables_does_not_work(pair_up, works):
    cluster = pair_up("", "a")
    cluster.head.programs["nft"] = lambda *_: Said(status=0 if works else 127)
    play = cluster.play
    call = guard(play, resolve(located(make_recipe()), play.inventory, play.nodes, 1))
    assert call.given["state"] == ("present" if works else "absent")
    told = ["nftables does not work here" in note for note in cluster.notes]
    assert told == [True] * (not works)


def test_folders_of_their_own_are_downloaded_as_the_recipe_says():
    name, node = "gemma4-26b-a4b-fp8-mtp", make_node("a")
    assert server_for(make_recipe(name), node).models == (), "both are in the hub cache"
    own = {part: {"path": f"/srv/models/{part}"} for part in ("model", "drafter")}
    found = server_for(make_recipe(name, **own), node).models
    assert {one["name"]: one["path"] for one in found} == {
        "RedHatAI/gemma-4-26B-A4B-it-FP8-Dynamic": "/srv/models/model",
        "google/gemma-4-26B-A4B-it-assistant": "/srv/models/drafter",
    }
    role = SHIPPED.load_role("models")
    made = [role.function(node, role.settings_model(**given)) for given in found]
    assert len({one.id for each in made for one in each}) == 4, "both folders and both downloads"
    assert {one["image"] for one in found} == {"spark-cluster/gemma4-mtp:41745-d8b3826"}


@pytest.mark.parametrize("tp", [1, 2])
def test_an_engine_in_a_virtual_environment(pair_up, tp):
    """The same environment, mounts, labels and secrets as in containers, and no Docker."""
    cluster, made = pair_up(), []
    cluster.head.put(TOKEN_FILE, "5eed" * 16)
    venv = Venv(path="/opt/vllm", requirements=["vllm==0.32.0"])
    for more in ({}, {"runtime": "venv", "venv": venv}):
        recipe = make_recipe(**more)
        recipe._allowances = Allowances(venv=True)
        play = cluster.play
        deployment = resolve(located(recipe), play.inventory, play.nodes, tp)
        start(play, starting(play, deployment, 0.5))
        made.append([r for role in ("ray", "vllm") for r in resources(cluster, role)])
    in_docker, in_venv = ([r for r in m if isinstance(r, Container | Unit)] for m in made)
    (pause,) = (r for r in in_docker if r.name == PAUSE)
    in_docker.remove(pause)
    assert pause.state == "absent", "no Ray"
    assert [(type(r), r.name) for r in in_venv] == [(Unit, RAY), (Unit, SERVER)]
    for container, unit in zip(in_docker, in_venv, strict=True):
        assert unit.command == container.command
        assert unit.env == ({"VIRTUAL_ENV": "/opt/vllm", **container.env} if unit.command else {})
        assert unit.mounts == container.mounts
        assert unit.secret_files == container.secret_files
        assert unit.stop_timeout_s == container.stop_timeout_s
        assert (unit.state, unit.search_path) in (
            ("running", ("/opt/vllm/bin",)), ("absent", ()),
        )  # fmt: skip
    server = in_venv[-1]
    assert server.labels == {**in_docker[-1].labels, "spark-cluster.runtime": "venv"}
    assert server.limits["MEMLOCK"] == "infinity"


@pytest.mark.parametrize(
    ("running", "starts"), [("", {"a": 1, "b": 1}), ("ab", {"a": 0, "b": 0}),
                            ("b", {"a": 2, "b": 1}), ("a", {"a": 1, "b": 2})]
)  # fmt: skip
def test_ranks_begin_together_or_not_at_all(piped_cluster, running, starts):
    """A new rank does not join others that have begun; no one waits for Ray here."""
    cluster = piped_cluster("a", "b")
    cluster.marked("ray", "endpoint")
    own_programs(cluster.project, "vllm")
    for node in cluster.nodes.values():
        node.have_image(make_recipe().image.ref)
    play = cluster.play
    deployment = deployment_for(make_recipe(executor="mp"), *play.nodes)
    start(play, starting(play, deployment, 0.7))
    for name, node in cluster.nodes.items():
        if name not in running:
            node.remove_container("spark-vllm")
    before = {name: len(started(node)) for name, node in cluster.nodes.items()}
    start(play, starting(play, deployment, 0.7))
    assert cluster.containers == {"a": ["spark-vllm"], "b": ["spark-vllm"]}
    after = {name: len(started(node)) for name, node in cluster.nodes.items()}
    assert {name: after[name] - before[name] for name in after} == starts


def started(node: PipedNode) -> list[list[str]]:
    return [words for words in node.calls("docker") if words[0] == "run"]


@pytest.mark.parametrize(
    ("engine_port", "order"),
    [(None, ["ray", "endpoint", "vllm"]), (18000, ["ray", "vllm", "endpoint"])],
)
def test_who_has_the_port_gives_it_up_first(pair_up, engine_port, order):
    cluster = pair_up("", "a")
    made = deployment_for(make_recipe(), cluster.play.head)
    endpoint = Endpoint("127.0.0.1", 8000, "gemma", engine_port=engine_port)
    server = replace(made.first, endpoint=endpoint)
    made = replace(made, servers=(server,), endpoint=endpoint)
    start(cluster.play, starting(cluster.play, made, 0.7))
    assert cluster.roles() == order


@pytest.mark.parametrize(
    ("serve", "warned"),
    [
        ({"bind": "management", "open": True}, True),
        ({"bind": "loopback", "open": True}, False),
        ({"bind": "loopback"}, False),
    ],
)
def test_each_up_warns_of_an_endpoint_that_is_open(piped_cluster, serve, warned):
    cluster = piped_cluster("a", more=f"serve: {json.dumps(serve)}\n")
    play = cluster.play
    announce(play, resolve(located(make_recipe()), play.inventory, play.nodes, 1), ())
    levels = [event.level for event in cluster.events if isinstance(event, Note)]
    assert levels == ["warning"] * warned
    assert all("10.0.0.1" in text and "api_key" in text for text in cluster.notes)
