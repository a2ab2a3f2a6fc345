"""Several models next to each other: which, on which nodes, and by which names they are asked for.

Each has a server of its own on one node, with a name of its own and a port of its own, and the
proxy on the head sends each request to the one that its `model` names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_cluster.config.launch import of_recipe
from spark_cluster.config.model_kind import must_be_served
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.topology import Node
from spark_cluster.engine.names import server_name
from spark_cluster.errors import Refused
from spark_cluster.plan.planner import Subject, of_a_recipe
from spark_cluster.runner.play import Play

if TYPE_CHECKING:
    from spark_cluster.plan.planner import Placed


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
    from spark_cluster.engine.survey import survey
    from spark_cluster.plan.planner import Placed

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
