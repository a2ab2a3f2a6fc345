"""A recorded run, run again from its record: suite and recipes are the record's.

A record may be somebody else's. Its recipes are checked as files of recipes are, and count as not
shipped: no file or variable of the laptop is theirs unless the user allows it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from spark_cluster.bench import image_pins
from spark_cluster.bench.describe import node_record, text_of
from spark_cluster.bench.expansion import Expansion, PlannedSetup, expand, measurable
from spark_cluster.bench.record import Record, Repeats, Setup
from spark_cluster.bench.run import BenchRun
from spark_cluster.bench.run_folder import RECORD, load_record
from spark_cluster.bench.suite import Suite
from spark_cluster.bench.suite import check as suite_problems
from spark_cluster.config import recipe_checks
from spark_cluster.config.allowances import Allowances
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.schema import parse, problems_of
from spark_cluster.config.yamlfile import Problem, dotted
from spark_cluster.errors import InvalidFile, Refused, UsageError
from spark_cluster.loader.project import Project
from spark_cluster.loader.recipes import load_recipe
from spark_cluster.node.durable import write_file
from spark_cluster.topology import Node

M = TypeVar("M", bound=BaseModel)

SOURCE = "repeated.json"
"""The record that is repeated, in the folder of the new run."""


@dataclass(frozen=True)
class Original:
    """A record that is to be run again.

    Attributes:
        recipes: id of a server to its recipe, with the changes of its variant.
    """

    record: Record
    content: bytes
    suite: Suite
    recipes: Mapping[str, Recipe]

    def repeats(self, images: Mapping[str, str] | None = None) -> Repeats:
        """Return how the new record names it.

        Args:
            images: server to the digest that its image is pinned to.
        """
        digest = hashlib.sha256(self.content).hexdigest()
        return Repeats(id=self.record.id, sha256=digest, images=dict(images or {}))

    def pinned(self, images: Mapping[str, str]) -> Original:
        """Return it with the images of its servers by these digests."""
        recipes = {
            server: image_pins.pinned(recipe, images.get(server, ""))
            for server, recipe in self.recipes.items()
        }
        return replace(self, recipes=recipes)

    def save(self, folder: Path) -> None:
        """Put the record next to that of the new run, which can then be continued and compared."""
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / SOURCE, self.content, mode=0o644)


def load_original(path: Path, allow: Allowances) -> Original:
    """Read a record to be run again, from the folder of its run or the file itself.

    Raises:
        UsageError: there is none, or it says too little to be repeated.
        InvalidFile: it is no record, or its suite or a recipe in it is wrong.
    """
    path = path / RECORD if path.is_dir() else path
    record = load_record(path)
    if not record.suite_text or not any(setup.recipe_text for setup in record.setups):
        raise UsageError(
            f"{path}: the record has no suite or no recipe, so it cannot be repeated",
            hint="a run records a server's recipe when it is up; older records have none",
        )
    where = str(path)
    recipes = {
        setup.id: recipe_of(setup, where, allow) for setup in record.setups if setup.recipe_text
    }
    return Original(record, path.read_bytes(), suite_of(record, where), recipes)


def suite_of(record: Record, where: str) -> Suite:
    """Return the suite of a record.

    Raises:
        InvalidFile: it is wrong, with every problem.
    """
    return _parsed(Suite, record.suite_text, where, "suite_text", suite_problems)


def recipe_of(setup: Setup, where: str, allow: Allowances) -> Recipe:
    """Return the recipe of a recorded server, to which no folder of the laptop is open.

    Raises:
        InvalidFile: it is wrong, with every problem.
    """
    place = f"recipe_text of {setup.id}"
    recipe = _parsed(Recipe, setup.recipe_text, where, place, recipe_checks.check)
    return recipe.with_allowances(allow)


def _parsed(
    model: type[M], text: str, where: str, place: str, check: Callable[[M], Iterable[Problem]]
) -> M:
    """Return what a text in a record describes.

    Args:
        check: yields what is wrong beyond each field on its own.

    Raises:
        InvalidFile: it is wrong, with every problem, a line each.
    """
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("expected a JSON object")
        found = parse(model, data)
        problems = list(check(found))
    except ValidationError as error:
        problems = problems_of(model, data, error) or [Problem((), error.errors()[0]["msg"])]
    except (ValueError, RecursionError) as error:
        message = str(error) or "nested too deeply"
        raise InvalidFile(f"{place} cannot be read: {message}", where=where) from None
    if problems:
        lines = [f"{place}: {dotted(p.key)}: {p.message}" for p in problems]
        raise InvalidFile("\n".join(lines), where=where)
    return found


def expansion_of(original: Original, nodes: int) -> Expansion:
    """Return the servers and cells of the suite, each server with the recipe that was recorded.

    Args:
        nodes: that there are; servers that need more are left out, with the reason.
    """

    def reason(setup: PlannedSetup) -> str:
        if setup.id not in original.recipes:
            return "the record has no recipe of this server: it was not brought up there"
        return f"it needs {setup.nodes} nodes; there are {nodes}" if setup.nodes > nodes else ""

    names = original.record.recipes
    found = expand(original.suite, names=names, recorded=original.recipes).without(reason)
    return measurable(original.suite, found)


def continued(record: Record, folder: Path, allow: Allowances, nodes: int) -> BenchRun:
    """Return a run that repeats another one, from its folder.

    Raises:
        UsageError: the repeated record is not there any more.
        InvalidFile: it is not the one that this run began with.
    """
    original = load_original(folder / SOURCE, allow)
    repeats = record.repeats
    if repeats is None or repeats != original.repeats(repeats.images):
        raise InvalidFile(
            f"is not the record of {repeats.id if repeats else 'a run'} that this run repeats",
            where=str(folder / SOURCE),
            hint="undo the change, or begin again with `bench repeat`",
        )
    pinned = original.pinned(repeats.images)
    return BenchRun(record, original.suite, expansion_of(pinned, nodes), folder)


def pin(made: BenchRun, original: Original, images: Mapping[str, str], nodes: int) -> None:
    """Have a new run take images by these digests, also when it is continued.

    Args:
        images: server to digest.
        nodes: that there are.
    """
    made.expansion = expansion_of(original.pinned(images), nodes)
    made.record = made.record.model_copy(update={"repeats": original.repeats(images)})


def must_be_trusted(original: Original, project: Project, where: str) -> None:
    """Look whether all recipes are the user's own or shipped.

    Args:
        where: how they can be read, for the hint.

    Raises:
        Refused: they are not.
    """
    if foreign := foreign_setups(original, project):
        raise Refused(
            f"the recipes of {', '.join(foreign)} are the record's, and not yours",
            hint="they start containers as root on the nodes, in images that they name: read them "
            f"{where}, then give --trust-recipes",
        )


def foreign_setups(original: Original, project: Project) -> list[str]:
    """Return the servers whose recipe is none that the user has himself, or that is shipped."""
    return [
        setup.id
        for setup in original.record.setups
        if setup.id in original.recipes and not _is_own(original, setup, project)
    ]


def _is_own(original: Original, setup: Setup, project: Project) -> bool:
    path = project.list("recipes").get(setup.recipe)
    if path is None or project.foreign(path) is not None:
        return False
    try:
        own = load_recipe(setup.recipe, project)
    except InvalidFile:
        return False
    servers = expand(original.suite, {setup.recipe: own}, original.record.recipes).setups
    served = next((one.served for one in servers if one.id == setup.id), None)
    return served is not None and text_of(served) == text_of(original.recipes[setup.id])


# -- what is different here ------------------------------------------------------------------------


def differences(record: Record, nodes: Sequence[Node], tool: str) -> Iterator[str]:
    """Yield what differs on these nodes from those of a record, before anything is measured.

    Args:
        tool: version of the load generator that is used here; empty while it is not known.
    """
    if tool and record.tool.version != tool:
        yield f"{record.tool.name}: {record.tool.version} there, {tool} here"
    if len(record.nodes) != len(nodes):
        yield f"nodes: {len(record.nodes)} there, {len(nodes)} here"
    here = [node_record(node) for node in nodes]
    for name in ("hardware", "driver", "kernel", "dgx", "mtu"):
        theirs, ours = (
            {str(value) for node in side if (value := getattr(node, name))}
            for side in (record.nodes, here)
        )
        if theirs and theirs != ours:
            shown = [", ".join(sorted(side)) or "not known" for side in (theirs, ours)]
            yield f"{name}: {shown[0]} there, {shown[1]} here"
