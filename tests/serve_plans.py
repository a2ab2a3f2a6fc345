"""What is served, for tests: resolved without a file and a connection, and as `up` starts it."""

from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

from factories import make_node, make_recipe, put

from spark_cluster.config.folders import CACHE_ROOT
from spark_cluster.config.image_build import RecipeImage
from spark_cluster.config.inventory import Inventory, InventoryNode
from spark_cluster.config.inventory_schema import ServeEntry
from spark_cluster.config.launch import of_recipe
from spark_cluster.config.ports import LOOPBACK
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import Venv
from spark_cluster.config.schema import parse
from spark_cluster.config.topology import Link, Node
from spark_cluster.engine.admission import Admitted
from spark_cluster.engine.deployment import Deployment, Endpoint, Server
from spark_cluster.engine.hub_models import hub_folder
from spark_cluster.engine.readiness import members
from spark_cluster.engine.resolve import resolve
from spark_cluster.engine.result import Served, VerifiedServer
from spark_cluster.engine.start import Starting, token
from spark_cluster.node.store.manifest import snapshot_folder
from spark_cluster.runner.play import Play

OF_RECIPE = {"engine", "runtime", "executor", "ray", "ready_timeout_s"}


PROGRAM = """\
from factories import SHIPPED
from spark_cluster.resources import Container

Settings = SHIPPED.load_role("{role}").settings_model

def role(node, settings):
    made = settings.server
    names = made.node_names[:1] if "{role}" == "vllm" and made.on_ray else made.node_names
    if node.name in names:
        name = "spark-ray" if "{role}" == "ray" else made.program
        words = tuple(made.args) if "{role}" == "vllm" else ({words})
        labels = dict(made.labels)
        yield Container(name, made.image, words, entrypoint="", labels=labels, stays_s=0)
"""


def own_programs(project: Path, *roles: str, words: str = '"ray",') -> None:
    """Have these roles, `vllm` or `ray`, start their containers without a Spark's devices and
    folders.

    Args:
        words: the command of Ray's container, in Python.
    """
    for role in roles:
        text = PROGRAM.format(role=role, words=words)
        put(project / f"roles/{role}/__init__.py", text)


def linked_nodes(*names: str) -> tuple[Node, ...]:
    """Return nodes, the head first, whose addresses on their link end in 11, 12 and so on."""
    return tuple(
        replace(
            make_node(name, head=number == 1, address=f"10.0.0.{number}"),
            links=(Link("enp1s0f1np1", IPv4Interface(f"192.168.177.{10 + number}/24")),),
        )
        for number, name in enumerate(names, 1)
    )


def recipe_of(name: str, served_name: str = "m", **more: Any) -> Recipe:
    """Return a recipe of a model that says nothing else."""
    model = {"name": name, "served_name": served_name}
    return parse(Recipe, {"name": "r", "model": model, "image": {"ref": "i:1"}, **more})


def inventory_of(*nodes: Node, **serve: Any) -> Inventory:
    """Return an inventory of these nodes; `serve` is its section of that name."""
    entries = {
        node.name: InventoryNode(
            node.name, node.address, node.index, "head" if node.is_head else "worker"
        )
        for node in nodes
    }
    return Inventory(Path("inventory.yaml"), entries, {}, ServeEntry(**serve), (), 9000)


def snapshot_of(repository: str) -> str:
    """Return the folder of a revision of this model in the hub cache of nodes."""
    return snapshot_folder(hub_folder(), repository, "c" * 40)


def located(recipe: Recipe) -> Recipe:
    """Return the recipe as it is when its models are on the nodes."""
    names = [recipe.model.name, recipe.drafter.name if recipe.drafter else None]
    return recipe.located({name: snapshot_of(name) for name in names if name})


def deployment_for(recipe: Recipe, *nodes: Node, tp: int | None = None, **serve: Any) -> Deployment:
    """Return what serves a recipe on nodes that have its models, all unless `tp` says less."""
    return resolve(located(recipe), inventory_of(*nodes, **serve), nodes, tp or len(nodes))


def server_for(recipe: Recipe, *nodes: Node, tp: int | None = None, **serve: Any) -> Server:
    """Return the one server of `deployment_for`."""
    return deployment_for(recipe, *nodes, tp=tp, **serve).first


def starting(
    play: Play, deployment: Deployment, share: float | None = None, guarded: str = "present"
) -> Starting:
    """Return a deployment as `up` starts it, with what runs on the nodes now.

    Args:
        share: the --gpu-memory-utilization that the plan gives each server.
    """
    keys = [server.key for server in deployment.servers]
    admitted = Admitted(dict.fromkeys(keys, share), new=frozenset(keys))
    known = token(play.session(play.head)) if deployment.first.on_ray else None
    deployment = deployment.guarded(guarded)
    return Starting(deployment, members(play, deployment), admitted, known)


def served_by(deployment: Deployment, answer: str = "Paris") -> Served:
    """Return what `up` returns of a deployment, each server of which gave this answer."""
    servers = tuple(VerifiedServer(server, answer) for server in deployment.servers)
    return Served(deployment, servers, [], [], [])


def bare_server(*nodes: str | Node, port: int = 8000, **changed: Any) -> Server:
    """Return a server as engines and roles read it, of a recipe that says nothing else.

    Args:
        nodes: or their names, of which the first is the head.
        port: on the loopback.
        changed: values of its fields; those that its recipe holds (`engine`, `runtime`, `executor`,
            `ray`, `image`, `venv`) change the recipe.
    """
    on = tuple(
        node if isinstance(node, Node) else Node(node, is_head=not number)
        for number, node in enumerate(nodes)
    )
    recipe = make_recipe(
        image=RecipeImage(ref=changed.pop("image", "image:1")),
        venv=Venv(path=changed.pop("venv")) if "venv" in changed else None,
        **{"executor": "ray", **{name: changed.pop(name) for name in OF_RECIPE & changed.keys()}},
    )
    fields: dict[str, Any] = {
        "flags": {}, "env": {}, "secret_env": {}, "model_path": "", "mounts": (), "labels": {},
        "cache_root": CACHE_ROOT, **changed,
    }  # fmt: skip
    endpoint = Endpoint(LOOPBACK, port, "")
    return Server(recipe, on, of_recipe(recipe, len(on)), endpoint, **fields)
