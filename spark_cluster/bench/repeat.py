"""A recorded run, run again from its record: suite and recipes are the record's.

A record may be somebody else's. Its recipes are checked as files of recipes are, and count as not
shipped: no file or variable of the laptop is theirs unless the user allows it.

Images are pinned to the digests of the record where possible: a tag may have moved since the run.
Where a node has another image of that name, or none, the recipe's image is taken by the digest
under which the recorded one can be pulled. The name stays that of the recipe, so the image comes
from its repository.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from spark_cluster.bench.compare import change
from spark_cluster.bench.describe import node_record, of_repository, text_of
from spark_cluster.bench.expansion import Expansion, PlannedSetup, expand
from spark_cluster.bench.record import RECORD, Record, Repeats, Setup, load_record, printable
from spark_cluster.bench.steps import BenchRun
from spark_cluster.bench.suite import Suite, canonical, load_suite
from spark_cluster.bench.suite import check as suite_problems
from spark_cluster.config.extension import Allowances
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe, recipe_problems
from spark_cluster.config.recipes import load_recipe
from spark_cluster.config.schema import parse, problems_of
from spark_cluster.config.topology import Node
from spark_cluster.config.yamlfile import Problem, dotted
from spark_cluster.engine.image_copies import why_not_in_registry
from spark_cluster.errors import InvalidFile, Refused, SparkClusterError, UsageError
from spark_cluster.node.dockerd import DockerImage, image_answer, image_question
from spark_cluster.node.durable import write_file
from spark_cluster.resources.image import without_tag
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session

M = TypeVar("M", bound=BaseModel)

SOURCE = "repeated.json"
"""The record that is repeated, in the folder of the new run."""

_REPO_DIGEST = re.compile(r"[^\s@]{1,255}@sha256:[0-9a-f]{64}")

HERE = ("there", "here")
"""The sides of a change: in the record, and on these nodes."""

Found = Mapping[str, DockerImage | None]
"""Node, the head first, to what is there under the name of an image; None where it is not there."""


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
        recipes = dict(self.recipes)
        for server in images.keys() & recipes:
            recipe = recipes[server]
            image = recipe.image.model_copy(update={"digest": images[server]})
            recipes[server] = recipe.model_copy(update={"image": image})
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
    recipe = _parsed(Recipe, setup.recipe_text, where, place, recipe_problems)
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

    def recorded(setup: PlannedSetup) -> Recipe:
        recipe = original.recipes.get(setup.id)
        if recipe is None:
            raise Refused("the record has no recipe of this server: it was not brought up there")
        if (needed := replace(setup, served=recipe).nodes) > nodes:
            raise Refused(f"it needs {needed} nodes; the inventory has {nodes}")
        return recipe

    names = original.record.recipes
    return expand(original.suite, original.recipes, names, recipe_of=recorded)


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


def must_be_own(made: BenchRun, project: Project) -> None:
    """Look whether what a run's folder says is to run is the user's own, or shipped.

    Raises:
        Refused: its suite is another one, or it names a recipe by a path.
    """
    known = project.list("recipes")
    paths = [name for name in made.record.recipes if name not in known and not name.startswith("@")]
    if paths or not _is_own_suite(made.suite, project):
        what = f"the recipe {paths[0]}" if paths else f"the suite {made.suite.name}"
        raise Refused(
            f"{what} is the record's, and not yours",
            where=str(made.folder),
            hint="it starts containers as root on the nodes: read it with `bench attach --check`, "
            "then give --trust-recipes",
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
    if served is None or text_of(served) != text_of(original.recipes[setup.id]):
        return False
    # What a suite varies can name programs, too: the code of another repository, for one.
    return text_of(served) == text_of(own) or _is_own_suite(original.suite, project)


def _is_own_suite(suite: Suite, project: Project) -> bool:
    path = project.list("suites").get(suite.name)
    if path is None or project.foreign(path) is not None:
        return False
    try:
        return canonical(load_suite(suite.name, project)) == canonical(suite)
    except InvalidFile:
        return False


# -- what is different here ------------------------------------------------------------------------


def differences(record: Record, nodes: Sequence[Node], tool: str) -> Iterator[str]:
    """Yield what differs on these nodes from those of a record, before anything is measured.

    Args:
        tool: version of the load generator that is used here; empty while it is not known.
    """
    if tool:
        yield from change(record.tool.name, [record.tool.version], [tool], sides=HERE)
    yield from change("nodes", [len(record.nodes)], [len(nodes)], sides=HERE)
    here = [node_record(node) for node in nodes]
    for name in ("hardware", "driver", "kernel", "dgx", "mtu"):
        theirs, ours = ([getattr(node, name) for node in side] for side in (record.nodes, here))
        if any(theirs):
            yield from change(name, theirs, ours, sides=HERE)


# -- the images ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImagePins:
    """The images of the servers of a run that is repeated.

    Attributes:
        images: server to the digest that its image is pinned to.
        differences: what is not, or not yet, as it was recorded.
    """

    images: Mapping[str, str]
    differences: tuple[str, ...]


def choose(play: Play, setups: Sequence[Setup], recipes: Mapping[str, Recipe]) -> ImagePins:
    """Look on the nodes and at the registries which images can be those of the record.

    A server is not pinned where all of its nodes have the recorded image under the recipe's name.

    Args:
        recipes: server to its recipe, as recorded.
    """
    head_first = sorted(play.nodes, key=lambda node: not node.is_head)
    sessions = [play.session(node) for node in head_first]
    names = sorted({recipe.image.reference for recipe in recipes.values()} - {""})
    commands = {name: image_question(name) for name in names}
    waiting = [(one.node, one.submit("gather", commands=commands)) for one in sessions]
    here = [(node, pending.wait()["commands"]) for node, pending in waiting]
    refusals: dict[str, str] = {}
    images: dict[str, str] = {}
    lines: list[str] = []
    for setup in setups:
        recipe = recipes.get(setup.id)
        if recipe is None or not recipe.image.reference:
            continue
        used = here[: setup.tp * setup.replicas]
        found = {node: image_answer(told.get(recipe.image.reference)) for node, told in used}
        digest, why = candidate(setup, recipe), ""
        if digest and not all(image and is_recorded(setup, image) for image in found.values()):
            by_digest = f"{without_tag(recipe.image.ref)}@{digest}"
            if by_digest not in refusals:
                refusals[by_digest] = _refusal(play, sessions, by_digest)
            why = refusals[by_digest]
            if not why:
                images[setup.id] = digest
        lines += _uncertain(setup, recipe, found, is_pinned=setup.id in images, why=why)
    return ImagePins(images, tuple(dict.fromkeys(lines)))


def _refusal(play: Play, sessions: Sequence[Session], image: str) -> str:
    """Return why a registry does not give an image to all nodes; empty where it does."""

    def asked(session: Session) -> str:
        try:
            why = why_not_in_registry(session, image)
        except SparkClusterError as error:
            why = error.message
        return f"{session.node}: {printable(why)}" if why else ""

    answers = play.together(*[partial(asked, session) for session in sessions])
    return next(filter(None, answers), "")


def candidate(setup: Setup, recipe: Recipe) -> str:
    """Return the digest by which a server's recorded image can be pulled; empty without one.

    There is none for an image that was loaded or built, and none of another repository than the
    recipe's.
    """
    image = recipe.image
    if not image.ref or image.digest or image.archive is not None or image.build is not None:
        return ""
    recorded = (setup.image_repo_digest, setup.image_digest)
    known = (text for text in recorded if _REPO_DIGEST.fullmatch(text))
    return of_repository(known, image.ref).partition("@")[2]


def is_recorded(setup: Setup, image: DockerImage) -> bool:
    """Return True where an image on a node is the one of a recorded server."""
    digests = {text.partition("@")[2] for text in (*image.digests, f"@{image.id}")}
    recorded = {text.rpartition("@")[2] for text in (setup.image_repo_digest, setup.image_digest)}
    return bool((recorded - {""}) & digests)


def _uncertain(
    setup: Setup, recipe: Recipe, found: Found, *, is_pinned: bool, why: str
) -> Iterator[str]:
    """Yield what is not certain about the image of a server.

    Args:
        why: why it cannot be pulled by the recorded digest; empty where it can, or need not be.
    """
    image, recorded = recipe.image.reference, setup.image_repo_digest or setup.image_digest
    if recipe.image.archive is not None or recipe.image.build is not None:
        how = "has to be loaded or built"
    elif recipe.image.digest or is_pinned:
        how = "is pulled by its digest"
    else:
        reason = why or "the record has no digest of a registry"
        how = f"is pulled by its tag, which may have moved ({reason})"
    for node, here in found.items():
        if here is None:
            yield f"image {image} is not on {node}: it {how}"
        elif is_recorded(setup, here):
            continue
        elif is_pinned:
            yield f"image {image} is another one on {node}: the recorded one {how}"
        elif recorded and not recipe.image.digest:
            shown = here.digests[0] if "@" in recorded and here.digests else here.id
            reason = f" ({why})" if why else ""
            yield f"image {image}: {recorded} there, {shown} on {node}{reason}"
