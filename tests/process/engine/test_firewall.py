"""Which ports are closed, which must be free, and what is said where there is no firewall."""

from dataclasses import replace
from pathlib import Path

import factories
import pytest
from cases import cases
from factories import make_recipe
from piped_cluster import Make, PipedCluster
from serve_plans import bare_server, deployment_for, inventory_of

from spark_cluster.config.fact_gathering import Listener, listeners
from spark_cluster.config.inventory import Inventory
from spark_cluster.config.ports import EPHEMERAL, EnginePorts, recipe_ports, vllm_ports
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import Vllm
from spark_cluster.config.topology import Node
from spark_cluster.engine import firewall
from spark_cluster.engine.deployment import Server
from spark_cluster.engine.firewall import wrong_with
from spark_cluster.engine.resolve import ServedModel, resolve_models
from spark_cluster.errors import Refused, UsageError
from spark_cluster.node.containers import ENDPOINT

NODES = "nodes:\n  a: {address: 10.0.0.1, roles: [head]}\n  b: {address: 10.0.0.2}\n"


NODES_A_B = (Node("a", "10.0.0.1", is_head=True), Node("b", "10.0.0.2"))


def started(recipe: Recipe | None = None) -> Server:
    """Return what the engine is started with, as far as it opens ports."""
    asked = recipe or make_recipe()
    flags, env = asked.flags(2), asked.plain_env
    return bare_server("a", "b", flags=flags, env=env, ray=asked.ray, engine=asked.engine)


def inventory(folder: Path, more: str = "") -> Inventory:
    return factories.make_inventory(folder, NODES + more)


CASES = cases(__file__, "engine_ports.toml")


def test_every_port_has_one_home_and_none_is_taken_by_the_kernel():
    ports = EnginePorts()
    assert ports.clash() == ""
    single = set(ports.services.values())
    assert len(single) == 9
    for port in (*single, ports.gcs, ports.dashboard, ports.master):
        assert any(first <= port <= last for first, last in ports.spans)
        assert not EPHEMERAL[0] <= port <= EPHEMERAL[1]


@pytest.mark.parametrize("case", CASES["clash"], ids=lambda case: case["words"])
def test_ports_that_cannot_be(case):
    assert case["words"] in EnginePorts(**case["ports"]).clash()


@pytest.mark.parametrize("case", CASES["vllm"], ids=lambda case: case.get("port", "none"))
def test_a_port_of_vllm_has_a_hundred_behind_it(case):
    env = {"VLLM_PORT": case["port"]} if "port" in case else {}
    assert vllm_ports(env) == tuple(map(tuple, case["ports"]))


@pytest.mark.parametrize("text", CASES["not_a_port"])
def test_a_port_of_vllm_that_is_none(text):
    """vLLM takes some of them all the same, and its ports would not be closed."""
    with pytest.raises(UsageError, match=r"VLLM_PORT: found .*, expected a port from 1 to 65535"):
        vllm_ports({"VLLM_PORT": text})


@pytest.mark.parametrize("case", CASES["opened"], ids=lambda case: str([*case["flags"]]))
def test_ports_that_the_arguments_of_the_engine_open(case):
    assert recipe_ports(case["flags"], {}, {"10.0.0.1", "10.0.0.2"}) == set(case["ports"])


def test_a_port_of_thousands_of_digits_is_none():
    """Python refuses to read as a number what has more than 4,300 of them."""
    assert recipe_ports({"a-port": "5" * 5000}, {}, set()) == set()


@pytest.mark.parametrize("case", CASES["closed"], ids=lambda case: case["what"])
def test_ports_of_a_recipe_are_closed_for_each_rank(tmp_path, case):
    on, chosen = inventory(tmp_path, case.get("inventory", "")), make_recipe(**case["recipe"])
    found = firewall.closed(on, started(chosen), NODES_A_B[: case.get("nodes", 2)])
    assert {*map(tuple, case["ports"])} <= set(found)


def test_the_endpoint_stays_reachable_where_the_inventory_wants_it(tmp_path):
    reached = inventory(tmp_path, "serve: {bind: management, open: true, port: 40000}\n")
    told = firewall.settings(reached, started(), NODES_A_B)
    assert told == {
        "state": "present",
        "peers": ("a", "b"),
        "ports": firewall.closed(reached, started(), NODES_A_B),
        "served": (("a", 40000), ("a", started().port)),
        "endpoint_port": 40000,
    }
    assert (6379, 6379) in told["ports"]
    local = inventory(tmp_path, "serve: {port: 40000}\n")
    assert firewall.settings(local, started(), NODES_A_B) == {**told, "endpoint_port": None}


def test_one_node_alone_is_guarded_too(tmp_path):
    told = firewall.settings(inventory(tmp_path), started(), NODES_A_B[:1])
    assert (told["state"], told["peers"]) == ("present", ())
    assert (6379, 6379) in told["ports"]


def test_an_endpoint_on_a_port_of_rays(tmp_path):
    taken = inventory(tmp_path, "serve: {port: 6379}\n")
    with pytest.raises(Refused, match=r"serve\.port: 6379 is a port of Ray's"):
        firewall.settings(taken, started(), ())


def test_a_trusted_network_is_said_to_be_open(tmp_path):
    trusted = inventory(tmp_path, "trusted_network: true\n")
    assert firewall.settings(trusted, started(), NODES_A_B) == {"state": "absent"}
    (remark,) = firewall.remarks(trusted, make_recipe(), 2)
    assert "there is no firewall" in remark
    assert firewall.remarks(trusted, make_recipe(), 1) == ()


def test_a_ray_too_old_for_tokens_is_reported_before_the_download(tmp_path):
    old = make_recipe(vllm=Vllm(version="0.11.2"), executor="ray")
    (remark,) = firewall.remarks(inventory(tmp_path), old, 2)
    assert "Ray older than 2.52" in remark
    for version in ("0.19.0", None, "nightly"):
        newer = make_recipe(vllm=Vllm(version=version), executor="ray")
        assert firewall.remarks(None, newer, 2) == ()
    assert firewall.remarks(None, old.model_copy(update={"executor": "mp"}), 2) == ()


# --- ports that another program has are refused before anything is fetched; our own are none -----


CHAT, EMBEDDING = "gemma4-26b-a4b-nvfp4", "qwen3-embedding-0.6b"
LISTENS = 'LISTEN 0 5 {}:{} 0.0.0.0:* users:(("{}",pid=77,fd=3))'
TAKEN = cases(__file__, "taken_ports.toml")["case"]


@pytest.fixture(scope="module")
def cluster(lasting_cluster: Make) -> PipedCluster:
    return lasting_cluster("a", "b")


def wanted(cluster, case):
    """Return what is to be started."""
    nodes = cluster.play.nodes
    if not case.get("models"):
        serve, tp = {"bind": "management", "open": True}, case.get("tp", 2)
        return deployment_for(make_recipe(executor="ray"), *nodes[:tp], tp=tp, **serve)
    models = [ServedModel(make_recipe(name), "a") for name in (CHAT, EMBEDDING)]
    models[1] = replace(models[1], on_request=case.get("on_request", False))
    entries = [{"recipe": model.recipe.name} for model in models]
    return resolve_models(models, inventory_of(nodes[0], recipes=entries), [nodes[0]])


def listens(port, program="nginx", address="0.0.0.0"):
    return LISTENS.format(address, port, program)


@pytest.mark.parametrize("case", TAKEN, ids=lambda case: case.get("taken", "free"))
def test_ports_that_are_taken_or_free(cluster, case):
    for name, node in cluster.nodes.items():
        rows = case["listens"].get(name, ())
        said = "".join(f"{row if isinstance(row, str) else listens(*row)}\n" for row in rows)
        node.programs["ss"] = lambda _words, _stdin, said=said: said
        node.programs["systemctl"] = lambda *_: f"{case.get('proxy', 'inactive')}\n"
        with node.state("docker") as docker:
            docker["containers"] = {}
        for program, url in case.get("runs", {}).items():
            node.run_container(program, {ENDPOINT: url})
    deployment = wanted(cluster, case)
    if "taken" not in case:
        firewall.must_be_free(cluster.play, deployment)
        return
    with pytest.raises(Refused) as caught:
        firewall.must_be_free(cluster.play, deployment)
    assert case["taken"] in caught.value.message
    assert caught.value.where == case["where"]
    assert "choose another port with" in caught.value.hint


def test_listeners():
    text = (
        'LISTEN 0 128 127.0.0.53%lo:53 0.0.0.0:* users:(("systemd-resolve",pid=9,fd=14))\n'
        "LISTEN 0 128 [::]:22 [::]:*\nState Recv-Q\n"
    )
    one, two = listeners(text)
    assert one == Listener("127.0.0.53", 53, "systemd-resolve", 9)
    assert (two.address, str(two)) == ("::", "another program")
    assert (one.blocks("127.0.0.1"), two.blocks("127.0.0.1"), one.blocks("*")) == (
        False, True, True,
    )  # fmt: skip


# -- what is wrong with a table -------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES["verdict"], ids=lambda case: case["said"])
def test_what_is_wrong_with_a_table_is_told_apart(case):
    assert case["said"] in wrong_with(case.get("listed"), '[{"table": {}}]')
