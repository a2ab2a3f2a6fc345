"""What is planned: the launch of a recipe or of a command line, and what else is known of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from spark_cluster.config.launch import Launch
from spark_cluster.config.model_kind import must_be_served
from spark_cluster.config.overrides import Overrides
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import MOST_NODES, NotCarriedOver
from spark_cluster.config.recipe_settings import why_not_data_parallel
from spark_cluster.config.yamlfile import described
from spark_cluster.errors import Refused, UsageError


@dataclass(frozen=True)
class Subject:
    """The subject of a plan.

    Attributes:
        sizes: fewest and most nodes that it is known to run on.
        acceptance: of drafted tokens by position, where it was measured.
        folders: where the model's own files may be on this machine.
        node_path: the model's folder on the nodes, if it has one of its own.
        remarks: what to know about it besides, for the plan to say.
        not_carried_over: what an import could not take over; some of it may be needed.
        overrides: engine arguments that are not those of the recipe's file.
    """

    title: str
    launch: Launch
    sizes: tuple[int, int] = (1, 2)
    acceptance: tuple[float, ...] = ()
    folders: tuple[Path, ...] = ()
    node_path: str = ""
    remarks: tuple[str, ...] = ()
    not_carried_over: tuple[NotCarriedOver, ...] = ()
    overrides: Overrides = field(default_factory=dict)

    @property
    def obstacles(self) -> tuple[str, ...]:
        """The reasons, besides memory, why it cannot be started as it is."""
        found = [str(entry) for entry in self.not_carried_over if entry.blocks]
        launch = self.launch
        why = why_not_data_parallel(
            launch.dp,
            engine=launch.engine,
            executor=launch.executor,
            tp=launch.tp,
            stages=launch.pp,
        )
        if launch.origin == "recipe" and why:
            found.append(why)
        return tuple(found)

    @property
    def all_remarks(self) -> tuple[str, ...]:
        """The remarks, with what was not carried over and may be missed."""
        left = (str(entry) for entry in self.not_carried_over if not entry.blocks)
        return (*self.remarks, *left)


def of_a_recipe(recipe: Recipe, launch: Launch) -> Subject:
    """A recipe's launch at a size, also one that it is not known to run at (the plan says so)."""
    directory = recipe.model.directory
    return Subject(
        recipe.name,
        launch,
        (recipe.tensor_parallel.min, recipe.tensor_parallel.max),
        tuple(recipe.drafter.acceptance) if recipe.drafter else (),
        (directory,) if directory else (),
        "" if recipe.model.in_hub_cache else recipe.model.node_path,
        not_carried_over=tuple(recipe.not_carried_over),
        overrides=recipe.overrides,
    )


def of_a_command(launch: Launch, tp: int | None) -> Subject:
    """A command line at its own size, or at another one.

    Raises:
        UsageError: the size is beyond what can be planned.
    """
    chosen = launch if tp in (None, launch.tp) else launch.at_size(tp or 1)
    if chosen.tp > MOST_NODES:
        found = described(chosen.tp)
        raise UsageError(f"--tensor-parallel-size {found}: expected {MOST_NODES} at most")
    return Subject(launch.model, chosen, (1, MOST_NODES))


def must_generate(subject: Subject) -> None:
    """Refuse what generates no tokens.

    Raises:
        Refused: it is of another kind than chat.
    """
    kind = subject.launch.kind
    must_be_served(kind, subject.title)
    if kind != "chat":
        raise Refused(
            f"{subject.title} is of kind {kind}: it generates no tokens to compare by --for",
            hint="leave --for out: the plan shows what fits",
        )


def wrong_size(subject: Subject) -> list[str]:
    """Return why the size is none that it is known to run at; empty when it is."""
    (low, high), tp = subject.sizes, subject.launch.tp
    if low <= tp <= high:
        return []
    sizes = f"{low}" if low == high else f"{low} to {high}"
    if high == MOST_NODES:
        sizes = f"{low} or more"
    return [f"{subject.title} is known to run with --tp {sizes} only, not {tp}"]


def allowed(subject: Subject) -> int:
    """Return the size nearest to its own that it is known to run at."""
    low, high = subject.sizes
    return min(max(subject.launch.tp, low), high)
