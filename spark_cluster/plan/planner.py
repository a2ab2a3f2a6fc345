"""Plans of recipes or of a command line, for nodes that were asked or assumed.

What is planned is a subject: a launch, and what else is known of it. Several subjects next to each
other share out the memory of each node once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from spark_cluster.config.facts import Facts
from spark_cluster.config.launch import Launch, Overrides
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import (
    MOST_NODES,
    NotCarriedOver,
    inferred_kind,
    must_be_served,
)
from spark_cluster.config.recipe_settings import why_not_data_parallel
from spark_cluster.config.schema import Document, Flat, Hidden, Rounded, WhenSet, derived, printed
from spark_cluster.config.yamlfile import described
from spark_cluster.errors import InvalidFile, Refused, UsageError
from spark_cluster.issues.rules import lint
from spark_cluster.models.hub import DocumentSource
from spark_cluster.models.lookup import Hub, cached, find
from spark_cluster.models.memory_share import GIB_KIB, Margins, margins
from spark_cluster.models.shape import Geometry
from spark_cluster.plan.estimate import Constants, load_constants
from spark_cluster.plan.evidence import Evidence, by_others
from spark_cluster.plan.fit import Fit, fit, kv_bytes_given
from spark_cluster.plan.plan import Feasibility, Nearest, Plan, Speed, builds, nearest
from spark_cluster.plan.prefill import prefill
from spark_cluster.plan.room import NodeMemory
from spark_cluster.plan.speed import decode, speculative


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
        if self.launch.origin == "recipe" and (why := why_not_data_parallel(self.launch)):
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


Measured = Callable[[Launch, int, float], Evidence | None]
"""What the user measured of a launch, with so many users and tokens of context."""


@dataclass(frozen=True)
class PlannedLoad:
    """The load for which speeds are predicted: tokens in the cache and in the prompt, requests."""

    context: int = 1024
    prompt: int = 2048
    concurrency: int = 1


class Planner:
    """Plans with the user's own calibration and the models of this machine.

    Args:
        hub: where models that are not on this machine are looked up; by default only what was
            read from it before.
        measured: gives what the user measured of a launch, for so many users and tokens of context;
            it comes before what others measured.

    Raises:
        InvalidFile: the project's calibration is wrong.
    """

    def __init__(
        self, project: Project, hub: Hub | None = None, measured: Measured | None = None
    ) -> None:
        self.project = project
        self.hub = hub or cached()
        self.measured: Measured = measured or (lambda *_: None)
        self.constants: Constants = load_constants(project)

    def geometry(self, subject: Subject) -> Geometry:
        """The model's shape.

        Raises:
            UsageError: it is known nowhere.
            InvalidFile: its config.json is wrong.
        """
        launch = subject.launch
        own = next((one for one in subject.folders if (one / "config.json").is_file()), None)
        shape = find(own) if own else self._find(launch, launch.model, launch.base)
        if launch.drafter is not None:  # a model of its own; one that is not known is left out
            with contextlib.suppress(UsageError, InvalidFile):
                return replace(shape, drafter=self._find(launch, launch.drafter))
        return shape

    def _find(self, launch: Launch, model: str, base: str | None = None) -> Geometry:
        revision = launch.revisions.get(model) or "main"
        return find(model, self.project.folder, base=base, hub=self.hub, revision=revision)

    def look_up(self, subject: Subject, source: DocumentSource) -> None:
        """Have the model looked up, through `source` where the hub cannot be reached from here.

        What goes wrong is raised by the plan, not here.
        """
        with contextlib.suppress(UsageError, InvalidFile):
            self.geometry(subject)
        if self.hub.ask_through(source):
            with contextlib.suppress(UsageError, InvalidFile):
                self.geometry(subject)

    def fit(
        self, subject: Subject, rooms: Sequence[NodeMemory], geometry: Geometry | None = None
    ) -> Fit:
        """Compute what the launch takes on the first of the nodes.

        Args:
            geometry: of the model, where it was looked up.

        Raises:
            UsageError: the model's shape is known nowhere, or cannot be divided so.
        """
        launch, runtime = subject.launch, self.constants.measured_runtime_gib
        shape = geometry or self.geometry(subject)
        return fit(launch, shape, rooms[: launch.ranks], runtime_gib=runtime)

    def feasibility(
        self, subject: Subject, rooms: Sequence[NodeMemory], facts: Sequence[Facts] = ()
    ) -> Feasibility:
        """Return whether a launch can work on the first of the nodes, and what would instead.

        Args:
            rooms: all nodes that there are, the head first; at least one.
            facts: of the nodes that were asked.

        Raises:
            UsageError: as `fit`.
            Refused: models of this kind are not served.
        """
        must_be_served(subject.launch.kind, subject.title)
        geometry = self.geometry(subject)
        if subject.launch.origin == "command":  # it says no kind; the model's config does
            kind = inferred_kind(subject.launch.args, subject.launch.model, geometry.architectures)
            subject = replace(subject, launch=replace(subject.launch, kind=kind))
        launch = subject.launch
        fitted = self.fit(subject, rooms, geometry)
        if fitted.share is not None and launch.origin == "recipe":  # by hand no one computes it
            launch = launch.with_flags({"gpu-memory-utilization": fitted.share})
        wrong = wrong_size(subject)
        near = self._nearest(subject, fitted, rooms, facts) if fitted.reasons else []
        if wrong and not fitted.reasons:
            near = self._known_size(subject, rooms)

        return Feasibility(
            launch=launch,
            fit=fitted,
            issues=tuple(lint(launch, geometry, facts)),
            nearest=tuple(near),
            reasons=(*wrong, *fitted.reasons),
            obstacles=subject.obstacles,
        )

    def plan(
        self,
        subject: Subject,
        rooms: Sequence[NodeMemory],
        question: PlannedLoad,
        facts: Sequence[Facts] = (),
    ) -> Plan:
        """The plan of a launch on the first of the nodes: whether it can work, and how fast.

        Args:
            rooms, facts: as `feasibility` takes them.

        Raises:
            UsageError: as `fit`.
            Refused: models of this kind are not served.
        """
        found = self.feasibility(subject, rooms, facts)
        launch, fitted = found.launch, found.fit
        fast = self.speed(launch, fitted, question, subject.acceptance)
        more = _waiting(fitted, question)
        if problem := self.hub.problem(launch.model):
            more.append(f"{problem}; the model's shape is what is known of it here")
        more += subject.all_remarks
        if launch.kind != "chat":
            more.append(f"a model of kind {launch.kind} generates nothing: no tokens/s apply to it")
        return Plan(
            **{**vars(found), "fit": replace(fitted, remarks=(*fitted.remarks, *more))},
            title=subject.title,
            speed=fast,
            not_carried_over=subject.not_carried_over,
            overrides=subject.overrides,
        )

    def speed(
        self,
        launch: Launch,
        fitted: Fit,
        load: PlannedLoad,
        acceptance: Sequence[float] = (),
    ) -> Speed:
        """Predict how fast a fitted launch will be.

        Args:
            launch: as the user measured it, if he did.
            acceptance: of drafted tokens by position; empty gives a range.

        Raises:
            UsageError: a count that cannot be.
        """
        context, users, serving = load.context, load.concurrency, fitted.serving
        plain = decode(serving, context, users, self.constants)
        drafts, drafted = fitted.launch.drafted_tokens, None
        if drafts:
            drafted = speculative(
                serving,
                context,
                drafts,
                acceptance,
                concurrency=users,
                constants=self.constants,
                method=str(fitted.launch.speculative.get("method", "")),
            )
        first = prefill(serving, load.prompt, constants=self.constants)
        measured = self.measured(launch, users, context) or by_others(
            fitted.launch, serving, users=users, context=context, drafted=drafts or 0
        )
        return Speed(
            *(context, load.prompt, users, plain, drafted, first, measured),
            fits=fitted.fits,
            generates=fitted.launch.kind == "chat",
        )

    def _nearest(
        self,
        subject: Subject,
        fitted: Fit,
        rooms: Sequence[NodeMemory],
        facts: Sequence[Facts],
    ) -> list[Nearest]:
        """Return what would work instead, each planned: it fits, and no further issue prevents it.

        The same model with a change, then smaller builds of it.
        """

        geometry, (low, high) = fitted.serving.geometry, subject.sizes

        def prevented(launch: Launch, shape: Geometry) -> set[str]:
            if launch.origin == "command":  # a line for one node is another one for two
                return set()
            return {i.id for i in lint(launch, shape, facts) if i.severity == "error"}

        had = prevented(subject.launch, geometry)
        found = nearest(fitted, geometry, rooms, high, smallest_tp=low)
        able = [
            near
            for near in found
            if near.launch is None
            or (low <= near.launch.tp <= high and prevented(near.launch, geometry) <= had)
        ]
        known = Planner(self.project)  # a proposal is not worth asking anyone else
        for name, launch in builds(subject.launch, self.project):
            other = known._build(Subject(name, launch), fitted, rooms)
            if other is not None and prevented(launch, other.serving.geometry) <= had:
                why = f"{other.serving.quantization}, {other.weights_gib:.1f} GiB of weights"
                able.append(Nearest(name, why, launch))
        return able

    def _known_size(self, subject: Subject, rooms: Sequence[NodeMemory]) -> list[Nearest]:
        """Return the nearest size that the recipe is known to run, where it fits."""
        launch = subject.launch.at_size(allowed(subject))
        fitted = self.fit(replace(subject, launch=launch), rooms)
        why = "a size that the recipe is known to run"
        return [Nearest(f"--tp {launch.tp}", why, launch)] if fitted.fits else []

    def _build(self, other: Subject, than: Fit, rooms: Sequence[NodeMemory]) -> Fit | None:
        """Return what a build takes; None where it does not fit, or is no smaller."""
        try:
            found = self.fit(other, rooms)
        except UsageError:  # no shape, or it cannot be divided so
            return None
        return found if found.fits and found.weights_gib < than.weights_gib else None


def _waiting(fitted: Fit, question: PlannedLoad) -> list[str]:
    """Say which of the concurrent requests cannot run at once."""
    at_a_time, cache = fitted.launch.number("max-num-seqs"), fitted.cache
    if at_a_time and question.concurrency > at_a_time:
        return [f"--max-num-seqs {at_a_time:g}: further requests wait for their turn"]
    if cache is None or not question.context:
        return []
    held = max(int(cache.max_concurrency), int(cache.tokens // question.context))
    if question.concurrency <= held:
        return []
    return [
        f"the KV cache holds {held:,} requests of {question.context:,} tokens: further ones wait, "
        f"so the speed for {question.concurrency:,} at a time is not reached"
    ]


# Several models next to each other.

IDLE = PlannedLoad()
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
    planner: Planner, placed: Sequence[Placed], question: PlannedLoad = IDLE
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


def _plan(planner: Planner, placed: Sequence[Placed], question: PlannedLoad) -> PlanTogether:
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
