"""What serves where: over several nodes, as replicas, as several models, and what cannot be."""

from dataclasses import replace
from typing import Any

import pytest
from cases import cases
from factories import SHIPPED, make_recipe
from serve_plans import deployment_for, inventory_of, linked_nodes, located, server_for, snapshot_of

from spark_cluster.cli.serving import changed
from spark_cluster.config.inventory_schema import Tls
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import Drafter, TensorParallel
from spark_cluster.config.secret import SecretReference
from spark_cluster.config.topology import Node
from spark_cluster.engine import proxy
from spark_cluster.engine.deployment import Deployment, Server
from spark_cluster.engine.resolve import ServedModel, must_go_together, resolve, resolve_models
from spark_cluster.engine.vllm import VllmEngine
from spark_cluster.errors import Refused
from spark_cluster.resources import File

NODES = linked_nodes("a", "b", "c", "d")
UNLINKED = (NODES[0], replace(NODES[1], links=()))
CHAT, EMBEDDING = "gemma4-26b-a4b-nvfp4", "qwen3-embedding-0.6b"
BOTH = (CHAT, EMBEDDING)
RANKS: dict[str, Any] = {"executor": "ray", "data_parallel": 2}


def served(name: str, node: str = "a", *aliases: str, served_name: str = "") -> ServedModel:
    model = {"served_name": served_name} if served_name else {}
    return ServedModel(make_recipe(name, model=model), node, aliases)


def models(*chosen: ServedModel, nodes: tuple[Node, ...] = NODES) -> Deployment:
    """Return what serves these models; without any, a chat and an embedding model on the head."""
    both = chosen or (served(CHAT), served(EMBEDDING, "a", "text-embedding-3-small"))
    entries = [{"recipe": model.recipe.name} for model in both]
    return resolve_models(both, inventory_of(*nodes, recipes=entries), nodes)


CASES = cases(__file__, "plans.toml")


def resolved(case: dict[str, Any]) -> Deployment:
    """Return what the recipe, nodes and size of a case become."""
    nodes = UNLINKED if case.get("unlinked") else NODES[: case.get("nodes", 4)]
    if "second" in case:
        return models(served(CHAT), served(EMBEDDING, case["second"]), nodes=nodes)
    recipe = make_recipe(case.get("recipe", "gemma4-31b-nvfp4"), **case.get("changes", {}))
    inventory, tp = inventory_of(*nodes, **case.get("serve", {})), case.get("tp", 1)
    return resolve(recipe, inventory, nodes, tp, replicas=case.get("replicas", 1))


def replicas(count: int) -> Deployment:
    return resolved({"replicas": count})


def test_each_server_has_a_key_and_each_recipe_is_fetched_once():
    usual, apart = make_recipe().name, models(served(CHAT), served(EMBEDDING, "b"))
    chat, embedding = (f"spark-vllm-{name}" for name in BOTH)
    for found, keys, recipes in (
        (resolved({"tp": 2}), [("a", "spark-vllm")], {usual: ("a", "b")}),
        (replicas(3), [(name, "spark-vllm") for name in "abc"], {usual: ("a", "b", "c")}),
        (apart, [("a", chat), ("b", embedding)], {CHAT: ("a",), EMBEDDING: ("b",)}),
    ):
        assert [server.key for server in found.servers] == keys
        assert {one.recipe.name: one.node_names for one in found.recipes} == recipes
        assert found.is_one == (len(keys) == 1)


# -- one server over several nodes ---------------------------------------------------------------


def flag(server: Server, name: str) -> str:
    """Return the value of an argument of the engine."""
    words = list(server.args)
    return words[words.index(name) + 1]


@pytest.mark.parametrize("case", CASES["over_nodes"].values(), ids=CASES["over_nodes"])
def test_one_model_over_several_nodes(case):
    found = resolved(case)
    server, names = found.first, tuple(case["names"])
    assert (server.node_names, server.tp) == (names, case.get("tp", 1))
    assert [node.name for node in found.idle] == [n for n in "abcd" if n not in names]
    name, value = case["argument"]
    assert flag(server, name) == value
    told = [server.labels.get(f"spark-cluster.{label}") for label in ("tp", "nodes")]
    assert [label for label in told if label] == case["labels"]
    assert found.firewall["peers"] == names


def test_data_parallel_ranks_are_on_one_node_each():
    found = deployment_for(make_recipe(**RANKS), *NODES, tp=1)
    server = found.first
    assert server.on_ray
    assert server.labels["spark-cluster.data-parallel"] == "2"
    assert (29550, 29551) in found.firewall["ports"], "where the ranks find the server"
    head = VllmEngine().server(NODES[0], server, 29501)
    assert {
        "--data-parallel-backend=ray",
        "--data-parallel-size-local=1",
        "--data-parallel-address=192.168.177.11",
        "--distributed-executor-backend=ray",
    } <= set(head.command)
    assert VllmEngine().server(NODES[1], server, 29501) is None
    without = server_for(make_recipe(executor="ray"), *NODES[:2])
    other = VllmEngine().server(NODES[0], without, 29501)
    assert not any("data-parallel" in word for word in other.command)
    assert make_recipe(**RANKS).size_for(4) == 1, "a rank has one node unless it needs more"


def of_model(name: str) -> Recipe:
    return make_recipe(executor="ray", model={"name": name, "base": None})


def test_the_option_for_ranks_is_an_override():
    recipe = changed(of_model("Qwen/Qwen3-8B"), ("data-parallel-size=2",))
    assert recipe.data_parallel == 2
    assert dict(recipe.overrides) == {"data-parallel-size": 2}, "a dense model has no experts"
    assert changed(recipe, ("data-parallel-size=2",)) is recipe
    found = server_for(recipe, *NODES, tp=1)
    assert found.labels["spark-cluster.overrides"] == "-o data-parallel-size=2"
    assert "--data-parallel-size" in found.args


def test_ranks_of_a_mixture_of_experts_get_expert_parallelism():
    mixture, two = of_model("openai/gpt-oss-20b"), "data-parallel-size=2"
    wanted = {"data-parallel-size": 2, "enable-expert-parallel": True}
    for options in ((two,), (two, "enable-expert-parallel=true")):  # `swap` reads it from the label
        assert dict(changed(mixture, options).overrides) == wanted
    for recipe, options in (
        (mixture, (two, "enable-expert-parallel=false")),
        (of_model("example/nowhere"), (two,)),
    ):
        assert changed(recipe, options).engine_args.get("enable-expert-parallel") is None
    assert not changed(mixture, ("data-parallel-size=1",)).overrides


@pytest.mark.parametrize("case", CASES["sizes"].values(), ids=CASES["sizes"])
def test_the_size_that_is_taken(case):
    sizes = TensorParallel(**case["sizes"])
    assert sizes.usual == tuple(case["usual"])
    assert [[nodes, sizes.size_for(nodes)] for nodes, _ in case["by_nodes"]] == case["by_nodes"]


# -- replicas ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_heads_replica_is_on_its_loopback_and_the_others_on_the_fabric(count):
    found, names = replicas(count), tuple("abcd"[:count])
    hosts = ["127.0.0.1", *(f"192.168.177.{10 + n}" for n in range(2, count + 1))]
    for server, name, host in zip(found.servers, names, hosts, strict=True):
        assert (server.node_names, server.host, server.port) == ((name,), host, 18000)
        assert server.endpoint.url == f"http://{host}:18000/v1"
        assert (server.labels["spark-cluster.tp"], server.on_ray) == ("1", False)
    assert [replica.node for replica in found.endpoint.replicas] == list(names)
    assert [node.name for node in found.idle] == list("abcd"[count:])
    assert found.firewall["peers"] == names
    assert (18000, 18000) in found.firewall["ports"]


def endpoint_files(deployment: Deployment) -> dict[str, str]:
    """The proxy's files on the head, by path."""
    role = SHIPPED.load_role("endpoint")
    settings = role.settings_model(endpoint=deployment.endpoint)
    resources = role.function(NODES[0], settings)
    return {one.path: str(one.content) for one in resources if isinstance(one, File)}


def test_the_proxy_is_in_front_of_all_also_on_the_loopback():
    found = replicas(2)
    assert found.endpoint.url == "http://127.0.0.1:8000/v1"
    files = endpoint_files(found)
    lines = [line.split() for line in files[proxy.CONFIG].splitlines()]
    assert [words[1:] for words in lines if words[:1] == ["server"]] == [
        ["a", "127.0.0.1:18000"],
        ["b", "192.168.177.12:18000"],
    ]
    assert proxy.replicas_of(files[proxy.DESCRIPTION]) == found.endpoint.replicas
    several = models()
    description = endpoint_files(several)[proxy.DESCRIPTION]
    assert proxy.models_of(description) == several.endpoint.models
    assert proxy.described(description) is not None


def test_a_url_of_a_node_that_is_none_is_shown():
    found = proxy.described('{"url": "http://[::1", "api_key": true, "tls": null}')
    assert str(found) == "reached from the network, with the API key; plain HTTP"


@pytest.mark.parametrize(
    "text",
    [None, "", "[]", '{"replicas": 3, "models": 3}',
     '{"replicas": [{"node": "a"}], "models": [{"node": "a"}]}',
     '{"url": "http://x/v1", "api_key": false, "tls": null}'],
)  # fmt: skip
def test_a_description_without_replicas_and_models(text):
    assert (proxy.replicas_of(text), proxy.models_of(text)) == ((), ())


# -- several models ------------------------------------------------------------------------------


def test_each_model_has_a_name_and_a_port_of_its_own_on_the_head():
    found, names = models(), ["gemma-4-26b", "qwen3-embedding"]
    for number, server in enumerate(found.servers):
        assert server.program == f"spark-vllm-{BOTH[number]}"
        assert server.endpoint.url == f"http://127.0.0.1:{18000 + number}/v1"
        assert server.endpoint.model == server.labels["spark-cluster.model"] == names[number]
        assert (server.node_names, server.on_ray) == (("a",), False)
    assert found.servers[0].flags["served-model-name"] == names[0]
    words = list(found.servers[1].args)
    at = words.index("--served-model-name")
    assert words[at + 1 : at + 3] == [names[1], "text-embedding-3-small"], "as the proxy sends it"
    assert [node.name for node in found.nodes] == ["a"]
    assert found.firewall["peers"] == ()


def test_a_model_on_another_node_is_reached_over_the_fabric_only():
    found = models(served(CHAT), served(EMBEDDING, "b"))
    assert found.servers[1].host == "192.168.177.12"
    assert [node.name for node in found.nodes] == ["a", "b"]
    assert found.firewall["peers"] == ("a", "b")
    assert {(18000, 18000), (18001, 18001)} <= set(found.firewall["ports"])
    answering = {("a", 8000), ("a", 18000), ("b", 18001)}
    assert answering <= set(found.firewall["served"]), "and only there nobody else answers"


# -- what cannot be ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES["together"], ids=lambda case: case["why"])
def test_what_cannot_go_together_is_refused(case):
    recipe, name = case.get("recipe", EMBEDDING), case.get("served_name", "")
    second = served(recipe, "a", *case.get("aliases", ()), served_name=name)
    with pytest.raises(Refused, match=case["why"]):
        must_go_together((served(CHAT), second))


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: case["why"])
def test_what_cannot_be_is_refused(case):
    with pytest.raises(Refused) as caught:
        resolved(case)
    assert case["why"] in caught.value.message
    assert case.get("hint", "") in (caught.value.hint or "")


# -- what changes a server, and what does not ----------------------------------------------------


def given_later(deployment: Deployment) -> Deployment:
    """Put in the folders of the recipes' models, as when they have been fetched."""
    known = [(one.recipe.model, one.recipe.drafter) for one in deployment.recipes]
    names = [each.name for pair in known for each in pair if each and each.name]
    return deployment.located({name: snapshot_of(name) for name in names})


@pytest.mark.parametrize("name", SHIPPED.list("recipes"))
def test_folders_that_are_known_later_change_what_they_would_have_changed(name):
    recipe, inventory = make_recipe(name), inventory_of(*NODES)
    tp = recipe.tensor_parallel.min
    made = given_later(resolve(recipe, inventory, NODES, tp))
    assert made == resolve(located(recipe), inventory, NODES, tp)
    assert given_later(made) == made


def test_folders_of_several_models_are_known_later():
    chosen = (served("gemma4-26b-a4b-fp8-mtp"), served(EMBEDDING, "b", "text-embedding-3-small"))
    known = [replace(model, recipe=located(model.recipe)) for model in chosen]
    assert given_later(models(*chosen)) == models(*known)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_drafters_folder_is_in_flags_launch_and_mounts(engine):
    eagle = Drafter(method="eagle3", name="org/drafter", tokens=3)
    recipe = make_recipe(drafter=eagle, engine=engine, executor="mp")
    inventory = inventory_of(*NODES)
    made = given_later(resolve(recipe, inventory, NODES, 2))
    assert made == resolve(located(recipe), inventory, NODES, 2)
    folder, server = snapshot_of("org/drafter"), made.first
    assert server.launch.speculative["model"] == folder
    assert folder in str(server.flags)
    assert any(folder.rpartition("/snapshots/")[0] in mount for mount in server.mounts)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (({"api_key": SecretReference(env="A_KEY")}, 1),
         ({"port": 9000, "tls": Tls(self_signed=True)}, 1)),
        (({"bind": "management", "open": True, "port": 8000}, 1),
         ({"bind": "management", "open": True, "port": 8000}, 2)),
    ],
    ids=["a key and a certificate", "a replica joins"],
)  # fmt: skip
def test_what_does_not_load_the_model_again(monkeypatch, before, after):
    """What the head's server is started with stays the same behind the proxy."""
    monkeypatch.setenv("A_KEY", "a")
    role, recipe = SHIPPED.load_role("vllm"), located(make_recipe())
    made = [
        resolve(recipe, inventory_of(*NODES, **serve), NODES, 1, replicas=count).first
        for serve, count in (before, after)
    ]
    one, two = (list(role.function(NODES[0], role.settings_model(server=s))) for s in made)
    assert one == two
