"""Resolves what is served: recipe, inventory, nodes and sizes in, a frozen `Deployment` out.

One server over its nodes; replicas, a server on each of several nodes, alone; or several models,
each with a server of its own on one node. Of several the head's listen on its loopback, the others
on their address on the fabric, which the firewall opens to the other serving nodes only. What comes
after asks neither the recipe nor the inventory again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

from spark_cluster.config import recipe_settings
from spark_cluster.config.inventory import Inventory, InventoryNode
from spark_cluster.config.launch import Launch, of_recipe, options_text
from spark_cluster.config.ports import LOOPBACK
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import must_be_served
from spark_cluster.config.topology import Node
from spark_cluster.engine import deployment, firewall
from spark_cluster.engine.deployment import Deployment, Endpoint, Server, endpoint_of
from spark_cluster.engine.engine import engine
from spark_cluster.engine.names import server_name
from spark_cluster.engine.proxy import ModelServer, Replica
from spark_cluster.errors import Refused
from spark_cluster.node import containers

if TYPE_CHECKING:
    from spark_cluster.plan.planner import Subject


M = TypeVar("M", Node, InventoryNode)


def serving(nodes: Iterable[M], tp: int, count: int | None = None) -> tuple[list[M], list[M]]:
    """Return the nodes that serve, the head first, and those that do not.

    Args:
        count: nodes that serve, where that is not the tensor-parallel size.

    Raises:
        Refused: there are fewer than those, or the head is not among them.
    """
    chosen = sorted(nodes, key=lambda node: not node.is_head)
    if not chosen or not chosen[0].is_head:
        raise Refused("the head is not among the chosen nodes", hint="widen --limit")
    wanted = tp if count is None else count
    if len(chosen) < wanted:
        names = ", ".join(node.name for node in chosen)
        what = (
            f"--tp {tp}"
            if wanted == tp
            else f"--tp {tp} with pipeline stages or data-parallel ranks"
        )
        halved = 1 << (len(chosen).bit_length() - 1)  # of three nodes two: heads divide by it
        smaller = f", or use --tp {halved}" if wanted == tp else ""
        raise Refused(
            f"{what} needs {wanted} nodes; there {'is' if len(chosen) == 1 else 'are'} "
            f"{len(chosen)} ({names})",
            hint=f"add another Spark to the inventory, widen --limit{smaller}",
        )
    return chosen[:wanted], chosen[wanted:]


def must_have_nodes(names: Sequence[str], replicas: int) -> None:
    """Look whether there is a node for each replica.

    Raises:
        Refused: there are too few.
    """
    if len(names) < replicas:
        raise Refused(
            f"{replicas} replicas at TP=1 need {replicas} nodes; there "
            f"{'is' if len(names) == 1 else 'are'} {len(names)} ({', '.join(names)})",
            hint="add another Spark to the inventory, or widen --limit",
        )


NO_LINK = "add the cable, then `spark-cluster provision`; `spark-cluster doctor --only link` checks"


def resolve(
    recipe: Recipe, inventory: Inventory, nodes: Sequence[Node], tp: int, *, replicas: int = 1
) -> Deployment:
    """Resolve what serves a recipe: one server over `tp` nodes, or replicas on one node each.

    Args:
        replicas: of the whole model; 1: one server.

    Raises:
        Refused: the recipe or the nodes cannot do this, or the user's leave is missing; of
            replicas a server needs several nodes, or there is no link between them.
        UsageError: a variable, the key or the certificate cannot be read.
        Failed: the address of the endpoint is not one of the head's own.
    """
    if replicas > 1:
        return _replicas(recipe, inventory, nodes, replicas)
    recipe_settings.must_be_servable(recipe, tp, engine(recipe.engine).rungs)
    chosen, idle = serving(nodes, tp, recipe.nodes_for(tp))
    endpoint = endpoint_of(inventory, chosen[0], recipe.model.served_name)
    server = _server(recipe, inventory, chosen, tp, endpoint)
    guarded = firewall.settings(inventory, server, chosen)
    return Deployment((server,), tuple(chosen), tuple(idle), endpoint, guarded)


def _server(
    recipe: Recipe, inventory: Inventory, nodes: Sequence[Node], tp: int, endpoint: Endpoint
) -> Server:
    patches = recipe_settings.mounted_patches(recipe)
    launch = of_recipe(recipe, tp)
    return Server(
        recipe=recipe,
        nodes=tuple(nodes),
        launch=launch,
        endpoint=endpoint,
        flags=recipe.flags(tp),
        env=launch.env,
        secret_env=recipe_settings.secrets_of_laptop(recipe),
        model_path=recipe.model.node_path,
        mounts=recipe_settings.mounts_of(recipe, patches),
        cache_root=deployment.root_of_all(inventory.nodes[node.name] for node in nodes),
        labels=_labels(recipe, launch, endpoint),
        patches=patches,
        image_settings=recipe_settings.image_settings(recipe),
        models=recipe_settings.model_settings(recipe),
        names=(recipe.model.served_name,),
    )


def _labels(recipe: Recipe, launch: Launch, endpoint: Endpoint) -> dict[str, str]:
    """Labels of the containers, by which `status` and a later `up` know what runs."""
    tp, count, ranks = launch.tp, launch.nodes, recipe.data_parallel
    return {
        **({containers.NODES: str(count)} if count != tp else {}),
        **({containers.DATA_PARALLEL: str(ranks)} if ranks > 1 else {}),
        **({containers.OVERRIDES: options_text(recipe.overrides)} if recipe.overrides else {}),
        containers.RECIPE: recipe.name,
        containers.MODEL: endpoint.model,
        containers.TP: str(tp),
        containers.EXECUTOR: recipe.executor,
        containers.ENGINE: recipe.engine,
        "spark-cluster.runtime": recipe.runtime,
        containers.ENDPOINT: endpoint.engine_url,
        containers.DASHBOARD: str(recipe.ray.dashboard_port),
        # Of chat models none: a server that was started without the label keeps running.
        **({containers.KIND: recipe.kind} if recipe.kind != "chat" else {}),
    }


# -- several servers -------------------------------------------------------------------------------


def _replicas(
    recipe: Recipe, inventory: Inventory, nodes: Sequence[Node], count: int
) -> Deployment:
    """Resolve replicas; each has its own share of the memory, and knows nothing of the others."""
    if recipe.nodes_for(1) != 1:
        raise Refused(
            f"recipe {recipe.name} takes {recipe.nodes_for(1)} nodes for one server, and a replica "
            "has one",
            hint="pipeline_parallel or data_parallel is the reason; serve it without --replicas",
        )
    head_first = _head_first(nodes)
    alone = resolve(recipe, inventory, head_first, 1)
    must_have_nodes([node.name for node in head_first], count)
    chosen, idle = head_first[:count], head_first[count:]
    port = inventory.serve.engine_port
    if port == inventory.serve.port:
        raise Refused(
            f"serve.engine_port and serve.port are both {port}, and the proxy in front of the "
            "replicas needs one of its own",
            where=str(inventory.path),
            hint="give serve.engine_port another number",
        )
    behind = tuple(Replica(node.name, address_of(node), port) for node in chosen)
    return _several(inventory, [alone] * count, behind, chosen, idle)


def resolve_models(
    models: Sequence[ServedModel], inventory: Inventory, nodes: Sequence[Node]
) -> Deployment:
    """Resolve what serves several models; the proxy sends each request to the one that it names.

    Raises:
        Refused: a node is not among the chosen ones or has no link to the head, or as
            `must_go_together`.
        UsageError: a variable, the key or the certificate cannot be read.
        Failed: the address of the endpoint is not one of the head's own.
    """
    must_go_together(models)
    head_first = _head_first(nodes)
    known = {node.name: node for node in head_first}
    on = [model.node_of(known) for model in models]
    alone = [resolve(model.recipe, inventory, head_first, 1) for model in models]
    ports = inventory.serve.engine_ports
    behind = tuple(
        ModelServer(
            node.name,
            address_of(node),
            port,
            names=model.names,
            program=model.program,
            kind=model.recipe.kind,
            on_request=model.on_request,
        )
        for model, node, port in zip(models, on, ports, strict=True)
    )
    chosen = [node for node in head_first if node.is_head or node in on]
    idle = [node for node in head_first if node not in chosen]
    return _several(inventory, alone, behind, chosen, idle)


def _several(
    inventory: Inventory,
    alone: Sequence[Deployment],
    behind: Sequence[Replica],
    nodes: Sequence[Node],
    idle: Sequence[Node],
) -> Deployment:
    """Return the deployment of servers behind one proxy.

    Args:
        alone: each as it would be served by itself.
        behind: where each is reached.
    """
    models = tuple(at for at in behind if isinstance(at, ModelServer))
    replicas = () if models else tuple(behind)
    endpoint = replace(
        alone[0].endpoint, engine_port=behind[0].port, replicas=replicas, models=models
    )
    known = {node.name: node for node in nodes}
    servers = tuple(
        _behind(one.first, inventory, known[at.node], at)
        for one, at in zip(alone, behind, strict=True)
    )
    guarded = _guarded([one.firewall for one in alone], nodes, behind)
    return Deployment(servers, tuple(nodes), tuple(idle), endpoint, guarded)


def _head_first(nodes: Iterable[Node]) -> list[Node]:
    return sorted(nodes, key=lambda node: not node.is_head)


def address_of(node: Node) -> str:
    """Return where a server behind the proxy listens.

    Raises:
        Refused: the node has no address on the fabric.
    """
    if node.is_head:
        return LOOPBACK
    if node.fabric_ip is None:
        raise Refused(
            f"{node.name} has no link to the head: the proxy reaches servers over it only, where "
            "no one else is",
            hint=NO_LINK,
        )
    return node.fabric_ip


def _behind(alone: Server, inventory: Inventory, node: Node, at: Replica) -> Server:
    """Return one server behind the proxy, which knows nothing of the others.

    One of several models has its names, and its recipe's in that of its program.
    """
    own = Endpoint(at.address, at.port, alone.endpoint.model)
    made = replace(
        alone,
        nodes=(node,),
        endpoint=own,
        cache_root=deployment.root_on(inventory.nodes[node.name]),
        labels={**alone.labels, containers.ENDPOINT: own.engine_url},
    )
    if not isinstance(at, ModelServer):
        return made
    aliases = {made.recipe.dialect.own("served-model-name"): list(at.names)}
    return replace(
        made,
        endpoint=replace(own, model=at.model),
        flags={**made.flags, **(aliases if at.names[1:] else {})},
        labels={**made.labels, containers.MODEL: at.model},
        names=at.names,
        instance=made.recipe.name,
        on_request=at.on_request,
    )


def _guarded(
    each: Sequence[Mapping[str, Any]], nodes: Sequence[Node], behind: Sequence[Replica]
) -> Mapping[str, Any]:
    """Settings of the role `firewall`: the ports of all servers, open to the serving nodes only."""
    if each[0]["state"] != "present":
        return each[0]
    closed = reduce(lambda found, one: found | set(one["ports"]), each, set[Any]())
    served = (*each[0]["served"], *((at.node, at.port) for at in behind))
    peers = tuple(node.name for node in nodes) if len(nodes) > 1 else ()
    closed |= {(at.port, at.port) for at in behind if peers}
    return {**each[0], "peers": peers, "ports": tuple(sorted(closed)), "served": served}


# Several models next to each other: which, on which nodes, and by which names they are asked for.
#
# Each has a server of its own on one node, with a name of its own and a port of its own, and the
# proxy on the head sends each request to the one that its `model` names.


@dataclass(frozen=True)
class ServedModel:
    """One of several models.

    Attributes:
        node: name of the node that it is served on.
        aliases: further names by which clients may ask for it.
        on_request: it is loaded when it is asked for.
    """

    recipe: Recipe
    node: str
    aliases: tuple[str, ...] = ()
    on_request: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All names by which it is asked for, its own first."""
        return (self.recipe.model.served_name, *self.aliases)

    @property
    def program(self) -> str:
        """The name of its server: of a container, or of a unit."""
        return server_name(self.recipe.name)

    def node_of(self, known: Mapping[str, Node]) -> Node:
        """Return its node, of those that were chosen.

        Raises:
            Refused: it is not among them.
        """
        if self.node not in known:
            raise Refused(
                f"recipe {self.recipe.name} is to be served on {self.node}, which is not among the "
                f"chosen nodes ({', '.join(known)})",
                hint="widen --limit",
            )
        return known[self.node]

    @property
    def subject(self) -> Subject:
        """The subject for the planner."""
        # Late: formulas and rules are not read for looking that all is up.
        from spark_cluster.plan.planner import of_a_recipe

        return of_a_recipe(self.recipe, of_recipe(self.recipe, 1))


def must_go_together(models: Sequence[ServedModel]) -> None:
    """Refuse models that one endpoint cannot tell apart, or that one node alone does not serve.

    Raises:
        Refused: with the first problem.
    """
    owners: dict[str, str] = {}
    for model in models:
        recipe = model.recipe
        must_be_served(recipe.kind, f"recipe {recipe.name}")
        _must_take_one_node(recipe)
        if model.aliases and not recipe.dialect.several_names:
            raise Refused(
                f"recipe {recipe.name}: {recipe.dialect.title} serves a model by one name only",
                hint="take its aliases out of the inventory",
            )
        for name in model.names:
            if name in owners:
                raise Refused(
                    f"'{name}' is a name of {owners[name]} and of {recipe.name}: the endpoint "
                    "could not tell which is asked for",
                    hint="give one of them another model.served_name (`spark-cluster recipes "
                    "save` makes a recipe of it), or take the alias out",
                )
            if not name.isprintable() or not name.isascii() or set(name) & set("\"'\\"):
                raise Refused(
                    f"recipe {recipe.name}: the proxy cannot look for the name {name!r}",
                    hint="printable ASCII without quotes and backslashes is fine",
                )
            owners[name] = recipe.name


def must_be_on_head(models: Sequence[ServedModel], head: str) -> None:
    """Raise Refused for a model on request elsewhere: what loads it runs beside the proxy."""
    for model in models:
        if model.on_request and model.node != head:
            raise Refused(
                f"recipe {model.recipe.name} is to be loaded on request on {model.node}, and the "
                f"head, {head}, loads models of its own only",
                hint="take `node` or `on_request` out of its entry",
            )


def _must_take_one_node(recipe: Recipe) -> None:
    if recipe.runtime != "docker":
        raise Refused(
            f"recipe {recipe.name} has runtime: {recipe.runtime}, and models that are served next "
            "to each other run in containers",
            hint=f"serve it alone: `spark-cluster up --recipe {recipe.name}`",
        )
    if recipe.tensor_parallel.min > 1 or recipe.nodes_for(1) > 1:
        least = recipe.nodes_for(recipe.tensor_parallel.min)
        raise Refused(
            f"recipe {recipe.name} takes {least} nodes, and models that are served next to each "
            "other have one node each (--tp 1)",
            hint="serve it alone: `spark-cluster up --recipe "
            f"{recipe.name}`, or take a smaller one",
        )
