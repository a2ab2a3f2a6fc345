"""Plans of a recipe or of a command line, for nodes that were asked or assumed.

What is planned is a subject: a launch, and what else is known of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

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
from spark_cluster.config.yamlfile import described
from spark_cluster.errors import InvalidFile, Refused, UsageError
from spark_cluster.issues.rules import lint
from spark_cluster.models.hub import DocumentSource
from spark_cluster.models.lookup import Hub, cached, find
from spark_cluster.models.shape import Geometry
from spark_cluster.plan.evidence import Evidence
from spark_cluster.plan.fit import Fit, fit
from spark_cluster.plan.nearest import Nearest, builds, nearest
from spark_cluster.plan.plan import Feasibility, Plan, speed
from spark_cluster.plan.room import NodeMemory
from spark_cluster.plan.speed.constants import Constants, load_constants


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


Measured = Callable[[Launch, int, float], Evidence | None]
"""What the user measured of a launch, with so many users and tokens of context."""


@dataclass(frozen=True)
class Question:
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
        question: Question,
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
        fast = speed(
            fitted,
            self.constants,
            context=question.context,
            prompt=question.prompt,
            concurrency=question.concurrency,
            acceptance=subject.acceptance,
            own=self.measured(launch, question.concurrency, question.context),
        )
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


def _waiting(fitted: Fit, question: Question) -> list[str]:
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
