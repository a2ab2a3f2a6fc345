"""Several models next to each other: which, on which nodes, and by which names they are asked for.

Each has a server of its own on one node, with a name of its own and a port of its own, and the
proxy on the head sends each request to the one that its `model` names.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spark_cluster.config import fact_gathering
from spark_cluster.config.facts import Facts
from spark_cluster.config.launch import of_recipe
from spark_cluster.config.model_kind import must_be_served
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.topology import Node
from spark_cluster.engine.names import server_name
from spark_cluster.errors import InvalidFile, Refused, UsageError
from spark_cluster.models.find import known_models
from spark_cluster.models.hub.lookup import Hub, cached, online
from spark_cluster.plan.planner import Planner, Subject, of_a_recipe
from spark_cluster.plan.room import NodeMemory, of_facts
from spark_cluster.runner.play import Play

if TYPE_CHECKING:
    from spark_cluster.plan.together import Placed


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

        return of_a_recipe(self.recipe, of_recipe(self.recipe, 1))


def placed(
    play: Play, models: Sequence[ServedModel], downloaded: Sequence[Mapping[str, float]]
) -> list[Placed]:
    """Ask the nodes for their memory, and return each model on its own.

    Args:
        there: for each of them, GiB that nodes have in the hub cache; infinite: all of it.

    Raises:
        Refused: a node is not among the chosen ones.
    """
    # Late: formulas and rules are not read for looking that all is up.
    from spark_cluster.plan.together import Placed

    found = []
    for model, begun in zip(models, downloaded, strict=True):
        rooms, facts = survey(play, model.subject.node_path, begun)
        model.node_of({node.name: node for node in play.nodes})
        known = {room.name: (room, fact) for room, fact in zip(rooms, facts, strict=True)}
        found.append(Placed(model.subject, *known[model.node], model.on_request))
    return found


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


# Asks nodes what a plan wants to know of them.

DONE = ".complete"
"""What the role `models` leaves in a model's folder when a download is whole."""


def survey(
    play: Play, folder: str, downloaded: Mapping[str, float] | None = None
) -> tuple[list[NodeMemory], list[Facts]]:
    """The nodes' rooms and facts, the head first: one question each, all at once.

    Args:
        folder: of a model that has one of its own on the nodes.
        there: GiB of the model that nodes have in the hub cache; infinite: all of it.
    """
    question = {
        **fact_gathering.MEMORY,
        "files": {"meminfo": "/proc/meminfo", "done": f"{folder}/{DONE}"},
    }
    nodes = sorted(play.nodes, key=lambda node: not node.is_head)
    waiting = [(node, play.session(node).submit("gather", **question)) for node in nodes]
    rooms, facts = [], []
    for node, pending in waiting:
        answer = pending.wait()
        processes, _ = fact_gathering.memory(answer)
        begun = (downloaded or {}).get(node.name, 0.0)
        has_model = answer["files"]["done"] is not None or math.isinf(begun)
        room = of_facts(node.name, node.facts, processes or (), has_model=has_model)
        if room.disk_free_gib is not None and not has_model:
            room = replace(room, disk_free_gib=room.disk_free_gib + begun)
        rooms.append(room)
        facts.append(node.facts)
    return rooms, facts


LIMIT_S = 30.0
"""Seconds that `up` waits for the hub; a plan is worth no more of its time."""


def hub_for(play: Play, subject: Subject, *, offline: bool = False) -> Hub:
    """Return where a plan finds its model: what is kept of it, else the hub, asked here.

    Nothing fails for it: without an answer in time there is a note, and what is kept is used.
    HF_HUB_OFFLINE or `offline` forbids asking.
    """
    kept = cached()
    if offline:
        return kept
    with contextlib.suppress(UsageError, InvalidFile):
        Planner(play.project, kept).geometry(subject)
        return kept
    asked = online(tuple(known_models()))

    def look_up() -> None:
        with contextlib.suppress(UsageError, InvalidFile):
            Planner(play.project, asked).geometry(subject)

    asking = threading.Thread(target=look_up, daemon=True, name="hub")
    asking.start()
    asking.join(LIMIT_S)
    if asking.is_alive():
        play.note(
            f"the hub has not described {subject.launch.model} within {LIMIT_S:g} s: planned "
            "without it"
        )
        return kept
    return asked
