"""The plan of several models next to each other: each node's memory is shared out once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from spark_cluster.config.facts import Facts
from spark_cluster.config.schema import Document, Flat, Hidden, Rounded, WhenSet, derived, printed
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.models.memory_share import GIB_KIB, Margins, margins
from spark_cluster.plan.fit import Fit, kv_bytes_given
from spark_cluster.plan.plan import Plan
from spark_cluster.plan.planner import Planner, Question, Subject
from spark_cluster.plan.room import NodeMemory

IDLE = Question()
"""The usual load, where only memory is asked for."""


@dataclass(frozen=True)
class Placed:
    """A model on its node.

    Attributes:
        room: the node, as it is without what is planned.
        facts: of the node, where it was asked.
        on_request: it is loaded when it is asked for, with or without the others of that sort.
    """

    subject: Subject
    room: NodeMemory
    facts: Facts | None = None
    on_request: bool = False


@dataclass(frozen=True)
class ModelMemory:
    """What one of several models takes of its node, GiB.

    Attributes:
        reserved_gib: weights, KV cache and runtime: the least that does what is asked where the
            plan does not fit, otherwise what is planned.
        outside_gib: what its server takes in addition.
    """

    title: Annotated[str, Field(serialization_alias="recipe")]
    reserved_gib: Annotated[float, Rounded(2)]
    outside_gib: Hidden[float]

    @property
    def whole_gib(self) -> float:
        """What it reserves, and what its server takes in addition."""
        return self.reserved_gib + self.outside_gib


@dataclass(frozen=True)
class NodeTogether(Document):
    """The memory of a node with all of its models."""

    room: Flat[NodeMemory]
    models: tuple[ModelMemory, ...]
    outside_gib = derived(float, "margins.outside_gib")

    @property
    def margins(self) -> Margins:
        """What the servers and the system take in addition."""
        return margins(self.room.memory)

    @printed
    def taken_gib(self) -> Annotated[float, Rounded(2)]:
        """The sum over the models."""
        return sum(one.whole_gib for one in self.models)

    @printed
    def left_gib(self) -> Annotated[float, Rounded(2)]:
        """What stays for everything else; less than nothing where it is too much."""
        return self.room.available_gib - self.taken_gib

    @property
    def reason(self) -> str:
        """Why they do not fit next to each other; empty when they do."""
        # Shares are in hundredths of the memory, and sums of floats are not exact.
        reserve = self.margins.reserve_gib
        if self.left_gib >= reserve - 1e-6:
            return ""
        parts = " + ".join(
            f"{one.reserved_gib:.1f} for {one.title} and {one.outside_gib:g} that vLLM takes in "
            "addition"
            for one in self.models
        )
        needed = f"{self.taken_gib + reserve:.1f} GiB"
        count = len(self.models)
        who = f"{self.models[0].title} needs {needed}"
        if count > 1:
            who = f"{count} models need {needed} together"
        keeps = f" + {reserve:g} that the system keeps" if reserve else ""
        return (
            f"{self.room.name}: {who} ({parts}{keeps}), and {self.room.available_gib:.1f} are "
            "available"
        )


@dataclass(frozen=True)
class PlanTogether(Document):
    """The result of `plan` for several models.

    Attributes:
        plans: of each model, in the given order, with the memory that the others leave.
        nodes: those that serve.
        on_request: what each model takes that is loaded on request. `nodes` have the largest one.
    """

    plans: Annotated[tuple[Plan, ...], Field(serialization_alias="models")]
    nodes: tuple[NodeTogether, ...]
    on_request: WhenSet[tuple[ModelMemory, ...]] = ()
    fits = derived(bool, lambda plan: not plan.reasons)

    @printed
    def reasons(self) -> tuple[str, ...]:
        """Why they do not fit: the sums first; the parts only where no sum says it."""
        sums = tuple(node.reason for node in self.nodes if node.reason)
        return sums or tuple(
            f"{plan.title}: {reason}" for plan in self.plans for reason in plan.reasons
        )

    @printed
    def obstacles(self) -> tuple[str, ...]:
        """What else prevents one of them, besides memory."""
        found = []
        for plan in self.plans:
            errors = [f"{i.title} ({i.found})" for i in plan.issues if i.severity == "error"]
            found += [f"{plan.title}: {why}" for why in (*plan.obstacles, *errors)]
        return tuple(found)

    @printed
    def feasible(self) -> bool:
        """True if all can work, as far as known."""
        return not (self.reasons or self.obstacles)


def plan_together(
    planner: Planner, placed: Sequence[Placed], question: Question = IDLE
) -> PlanTogether:
    """Plan several models, each with the memory that the others on its node leave.

    A model whose share is given, or whose number of requests is, takes that much. The first one
    without either takes all that the others leave; further ones the KV cache of one request. Of
    models that are loaded on request each must fit next to those that always are, and the largest
    one keeps its place.

    Raises:
        UsageError: the shape of a model is known nowhere; with its recipe.
        Refused: models of this kind are not served.
    """
    always = [one for one in placed if not one.on_request]
    come = [one for one in placed if one.on_request]
    each = [_plan(planner, [*always, one], question) for one in come]
    if not each:
        return _plan(planner, placed, question)
    names = [one.room.name for one in come]
    taken = [
        next(node for node in whole.nodes if node.room.name == name).models[-1]
        for whole, name in zip(each, names, strict=True)
    ]
    largest = max(range(len(each)), key=lambda number: taken[number].reserved_gib)
    stay, comes = iter(each[largest].plans[:-1]), (whole.plans[-1] for whole in each)
    plans = tuple(next(comes) if one.on_request else next(stay) for one in placed)
    return PlanTogether(plans, each[largest].nodes, tuple(taken))


def _plan(planner: Planner, placed: Sequence[Placed], question: Question) -> PlanTogether:
    """Plan models that are all there at the same time."""
    sizes = [_least(_fitted(planner, one), one.room) for one in placed]
    plans: list[Plan] = []
    for index, one in enumerate(placed):
        outside = margins(one.room.memory).outside_gib
        others = [sizes[other] + outside for other in _next_to(placed, index)]
        taken_disk = sum(
            plan.fit.disk_gib
            for before, plan in zip(placed, plans, strict=False)
            if before.room.name == one.room.name and not before.room.has_model
        )
        room = _left(one.room, sum(others), taken_disk)
        facts = (one.facts,) if one.facts is not None else ()
        subject = _remarked(one.subject, sum(others), len(others))
        plan = planner.plan(subject, [room], question, facts)
        plans.append(plan)
        if plan.fit.fits:
            sizes[index] = plan.fit.reserved_gib
    return PlanTogether(tuple(plans), tuple(_nodes(placed, sizes)))


def _fitted(planner: Planner, one: Placed) -> Fit:
    try:
        return planner.fit(one.subject, [one.room])
    except (UsageError, InvalidFile) as error:
        error.where = error.where or one.subject.title
        raise


def _least(alone: Fit, room: NodeMemory) -> float:
    """The least that a model reserves to do what is asked, GiB; what is given where it is."""
    if kv_bytes_given(alone.launch) is not None:
        return alone.reserved_gib
    share = alone.launch.number("gpu-memory-utilization")
    return (alone.needed if share is None else share) * room.total_gib


def _next_to(placed: Sequence[Placed], index: int) -> list[int]:
    """The other models on the node of one."""
    name = placed[index].room.name
    return [i for i, one in enumerate(placed) if i != index and one.room.name == name]


def _left(room: NodeMemory, taken_gib: float, taken_disk: float) -> NodeMemory:
    """A node as the others leave it."""
    available = max(0, room.memory.available_kib - round(taken_gib * GIB_KIB))
    disk = None if room.disk_free_gib is None else max(0.0, room.disk_free_gib - taken_disk)
    memory = replace(room.memory, available_kib=available)
    return replace(room, memory=memory, disk_free_gib=disk)


def _remarked(subject: Subject, taken_gib: float, others: int) -> Subject:
    if not others:
        return subject
    models = "the other model" if others == 1 else f"the {others} other models"
    told = f"{taken_gib:.1f} GiB of the node are kept for {models}, and count as in use here"
    return replace(subject, remarks=(*subject.remarks, told))


def _nodes(placed: Sequence[Placed], sizes: Sequence[float]) -> Iterator[NodeTogether]:
    rooms = {one.room.name: one.room for one in placed}
    for name, room in rooms.items():
        models = [
            ModelMemory(one.subject.title, size, margins(room.memory).outside_gib)
            for one, size in zip(placed, sizes, strict=True)
            if one.room.name == name
        ]
        yield NodeTogether(room, tuple(models))
