"""Plans of a recipe or of a command line, for nodes that were asked or assumed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster import models as shapes
from spark_cluster.config.launch import Launch
from spark_cluster.config.recipe_schema import MOST_NODES
from spark_cluster.config.yamlfile import described
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.facts.model import Facts
from spark_cluster.models.hub import Hub, cached
from spark_cluster.models.memory import GIB
from spark_cluster.models.weights import memory_bytes, must_be_known, weights_of
from spark_cluster.planning.evidence import Evidence
from spark_cluster.planning.fit import Fit, fit
from spark_cluster.planning.kv.drafter import is_mtp
from spark_cluster.planning.nearest import Nearest, nearest
from spark_cluster.planning.plan import Plan, speed
from spark_cluster.planning.purpose import Advice, Purpose, Users, advise
from spark_cluster.planning.room import NodeMemory
from spark_cluster.planning.speed.constants import Constants, load_constants
from spark_cluster.planning.speed.serving import of_launch

if TYPE_CHECKING:
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.loader.project import Project


Measured = Callable[[Launch, int, float], Evidence | None]
"""What the user measured of a launch, with so many users and tokens of context."""


@dataclass(frozen=True)
class Subject:
    """The subject of a plan.

    Attributes:
        sizes: fewest and most nodes that it is known to run on.
        acceptance: of drafted tokens by position, where it was measured.
        folders: where the model's own files may be on this machine.
        node_path: the model's folder on the nodes.
        remarks: what to know about it besides, for the plan to say.
    """

    title: str
    launch: Launch
    sizes: tuple[int, int] = (1, 2)
    acceptance: tuple[float, ...] = ()
    folders: tuple[Path, ...] = ()
    node_path: str = ""
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Question:
    """The load for which speeds are predicted: tokens in the cache and in the prompt, requests."""

    context: int = 1024
    prompt: int = 2048
    concurrency: int = 1


def of_a_recipe(recipe: Recipe, launch: Launch) -> Subject:
    """A recipe's launch at a size, also one that it is not known to run at (the plan says so)."""
    directory = recipe.model.directory
    return Subject(
        recipe.name,
        launch,
        (recipe.tensor_parallel.min, recipe.tensor_parallel.max),
        tuple(recipe.drafter.acceptance) if recipe.drafter else (),
        (directory,) if directory else (),
        recipe.model.node_path,
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
    return Subject(launch.model, chosen)


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

    def geometry(self, subject: Subject) -> shapes.Geometry:
        """The model's shape.

        Raises:
            UsageError: it is known nowhere.
            InvalidFile: its config.json is wrong.
        """
        launch = subject.launch
        shape = self._model(subject)
        drafter = self._drafter(launch)
        return replace(shape, drafter=drafter) if drafter is not None else shape

    def _model(self, subject: Subject) -> shapes.Geometry:
        launch = subject.launch
        for folder in subject.folders:
            if (folder / "config.json").is_file():
                return shapes.find(folder)
        return shapes.find(
            launch.model,
            self.project.folder,
            base=launch.base,
            hub=self.hub,
            revision=launch.revisions.get(launch.model) or "main",
        )

    def weights_gib(self, subject: Subject, geometry: shapes.Geometry) -> float:
        """Return the weights of the whole model and its drafter, GiB: of the tensors where they
        are known and lie in the format that is served, else as a server logged it, else computed.

        Raises:
            UsageError: nothing says it.
        """
        launch = subject.launch
        quantization = of_launch(launch, geometry).quantization
        if geometry.stored is not None:
            found = weights_of(geometry, quantization)
            if found.counted:
                mtp = is_mtp(launch.speculative, launch.model)
                return found.memory_bytes(drafter=mtp) / GIB + _drafter_gib(geometry.drafter)
        whole = launch.weights_gib or memory_bytes(geometry, quantization) / GIB
        return whole + _drafter_gib(geometry.drafter)

    def _of_hub(self, launch: Launch) -> list[str]:
        """Say where figures are less sure because the hub could not be asked."""
        problem = self.hub.problem(launch.model)
        if not problem:
            return []
        return [f"{problem}; the model's shape is what is known of it here"]

    def _drafter(self, launch: Launch) -> shapes.Geometry | None:
        """The shape of a drafter that is a model of its own."""
        if launch.drafter is None:
            return None
        with contextlib.suppress(UsageError, InvalidFile):
            return shapes.find(
                launch.drafter,
                self.project.folder,
                hub=self.hub,
                revision=launch.revisions.get(launch.drafter) or "main",
            )
        return None

    def fit(self, subject: Subject, rooms: Sequence[NodeMemory]) -> Fit:
        """Compute what the launch takes on the first `tp` of the nodes.

        Raises:
            UsageError: the model's shape is known nowhere, or cannot be divided so.
        """
        return self._fit(subject, self.geometry(subject), rooms)

    def _fit(self, subject: Subject, geometry: shapes.Geometry, rooms: Sequence[NodeMemory]) -> Fit:
        launch = subject.launch
        return fit(launch, geometry, rooms[: launch.tp], self.weights_gib(subject, geometry))

    def plan(
        self,
        subject: Subject,
        rooms: Sequence[NodeMemory],
        question: Question,
        facts: Sequence[Facts] = (),
    ) -> Plan:
        """The plan of a launch on the first `tp` of the nodes.

        Args:
            rooms: all nodes that there are, the head first; at least one.
            facts: of the nodes that were asked.
        """
        launch, geometry = subject.launch, self.geometry(subject)
        fitted = self._fit(subject, geometry, rooms)
        if fitted.share is not None and launch.origin == "recipe":  # by hand no one computes it
            launch = launch.with_flags({"gpu-memory-utilization": fitted.share})
        fast = speed(
            fitted,
            self.constants,
            context=question.context,
            prompt=question.prompt,
            concurrency=question.concurrency,
            acceptance=subject.acceptance,
            own=self.measured(launch, question.concurrency, question.context),
        )
        at_a_time = launch.number("max-num-seqs")
        if at_a_time and question.concurrency > at_a_time:
            remark = f"--max-num-seqs {at_a_time:g}: further requests wait for their turn"
            fitted = replace(fitted, remarks=(*fitted.remarks, remark))
        fitted = replace(fitted, remarks=(*fitted.remarks, *self._of_hub(launch), *subject.remarks))
        reasons = (*_size(subject), *fitted.reasons)
        near = nearest(fitted, geometry, rooms, subject.sizes[1]) if fitted.reasons else []
        if not fitted.reasons and reasons:
            near = [Nearest(f"--tp {_allowed(subject)}", "a size that the recipe is known to run")]
        from spark_cluster.known_issues.rules import lint

        found = lint(launch, geometry, facts)
        return Plan(subject.title, fitted, fast, tuple(found), tuple(near), reasons)

    def advise(
        self,
        subject: Subject,
        rooms: Sequence[NodeMemory],
        question: Question,
        purpose: Purpose,
    ) -> Advice:
        """Return which use of two nodes serves a purpose best, for `question.concurrency` users."""
        geometry = self.geometry(subject)
        weights = self.weights_gib(subject, geometry)
        own = {
            tp: evidence
            for tp in (1, 2)
            if (
                evidence := self.measured(
                    subject.launch.at_size(tp), question.concurrency, question.context
                )
            )
        }
        users = Users(question.concurrency, question.context, question.prompt, subject.acceptance)
        return advise(
            purpose,
            users,
            subject.launch,
            geometry,
            rooms,
            weights_gib=weights,
            constants=self.constants,
            sizes=subject.sizes,
            own=own,
        )


def _drafter_gib(drafter: shapes.Geometry | None) -> float:
    """The weights of a drafter, GiB; one that is not known is left out: they are small."""
    if drafter is None:
        return 0.0
    quantization = drafter.stored.quantization if drafter.stored else "bf16"
    with contextlib.suppress(UsageError):
        return memory_bytes(drafter, must_be_known(quantization)) / GIB
    return 0.0


def _size(subject: Subject) -> list[str]:
    (low, high), tp = subject.sizes, subject.launch.tp
    if low <= tp <= high:
        return []
    sizes = f"{low}" if low == high else f"{low} to {high}"
    return [f"{subject.title} is known to run with --tp {sizes} only, not {tp}"]


def _allowed(subject: Subject) -> int:
    low, high = subject.sizes
    return min(max(subject.launch.tp, low), high)
