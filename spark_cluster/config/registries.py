"""The registries of a project, what they are pinned to, and their recipes in the cache.

A registry's recipes lie in the cache by its address and revision: what was fetched, as it was
(`sources/`), the same as recipes of ours (`recipes/`), and a list of both (`index.json`).
`recipes update` writes all that; everything here only reads it, without a network.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError, model_validator

from spark_cluster.config import extension
from spark_cluster.config.folders import base_folder
from spark_cluster.config.schema import Schema, Word, matching, validate
from spark_cluster.config.yamlfile import did_you_mean, load, shown
from spark_cluster.errors import InvalidFile, Refused, UsageError, naming
from spark_cluster.node.durable import write_file

GIT_SCHEMES = ("https", "ssh", "file")
"""Of git repositories; plain HTTP and git's own protocol let others change what comes."""

ARCHIVE_SCHEMES = ("https", "http")
"""Of archives: the checksum says whether it is the right one."""

Format = Literal["spark-cluster", "sparkrun", "spark-vllm-docker", "vllm-recipes"]

_PATH = r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*"


def _hexadecimal(length: int) -> AfterValidator:
    return matching(rf"[0-9a-f]{{{length}}}", f"{length} hexadecimal digits, all of them")


def _branch(text: str) -> str:
    if not re.fullmatch(_PATH, text) or ".." in text or text.endswith(".lock"):
        raise ValueError(f"found {text!r}, expected the name of a branch or tag")
    return text


def _url(text: str) -> str:
    found = urlsplit(text)
    if found.password or (found.username and found.scheme != "ssh"):
        raise ValueError("it has a user or a password in it (not shown); git's own helpers have it")
    if found.scheme not in {*GIT_SCHEMES, *ARCHIVE_SCHEMES} or re.search(r"[\s\x00-\x1f]", text):
        raise ValueError(f"found {text!r}, expected https://, ssh:// or file://")
    if found.scheme != "file" and (not found.hostname or found.hostname.startswith("-")):
        raise ValueError(f"found {text!r}, which names no host")
    return text


class Registry(Schema):
    """A collection of recipes: a git repository, or an archive."""

    name: Word
    """its name in `@NAME/RECIPE`"""
    url: Annotated[str, AfterValidator(_url)]
    """git repository (https, ssh, file), or a .tar.gz when `sha256` is given"""
    format: Format
    """the tool that its recipes are written for"""
    branch: Annotated[str, AfterValidator(_branch)] = "main"
    """branch or tag of a git repository that `recipes update` looks at"""
    commit: Annotated[str, _hexadecimal(40)] | None = None
    """commit of a git repository: no other one is ever used"""
    sha256: Annotated[str, _hexadecimal(64)] | None = None
    """checksum of an archive"""
    folders: list[Annotated[str, matching(_PATH, "a folder of the registry, such as recipes")]] = (
        Field(default=[])
    )
    """folders that are looked into (default: all)"""

    @property
    def is_archive(self) -> bool:
        """True for an archive, false for a git repository."""
        return self.sha256 is not None

    @property
    def fixed(self) -> str | None:
        """The revision that the file itself names, which does not move."""
        return self.sha256 or self.commit

    @model_validator(mode="after")
    def _one_kind(self) -> Registry:
        scheme = urlsplit(self.url).scheme
        if self.is_archive and self.commit:
            raise ValueError("'sha256' is for an archive, 'commit' for a git repository: give one")
        if self.is_archive and scheme not in ARCHIVE_SCHEMES:
            raise ValueError(f"an archive (sha256) comes by https or http, not by {scheme}")
        if not self.is_archive and scheme not in GIT_SCHEMES:
            raise ValueError(
                f"a git repository comes by https, ssh or file, not by {scheme}; an archive "
                "needs 'sha256'"
            )
        return self


class Registries(Schema):
    """The whole file."""

    registries: list[Registry] = Field(default=[])
    """looked at in this order"""

    @model_validator(mode="after")
    def _named_once(self) -> Registries:
        names = [one.name for one in self.registries]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two registries have the name '{min(twice)}'")
        return self


FILE = "registries.yaml"
LOCK = "registries.lock.json"
"""Of the project folder; the second has what was taken of branches that move."""

_REVISION = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""A commit, or the checksum of an archive."""

MARK = "@"
"""The first character of a reference to a recipe of a registry."""

LARGEST_INDEX = 32 << 20
"""Bytes of a list of recipes that are read."""


class Listed(Schema):
    """A recipe of a registry.

    Attributes:
        name: of the recipe, after `@REGISTRY/`.
        origin: the file in the registry.
        sha256: of that file, to see what has changed.
        error: why it is no recipe of ours; empty when it is one.
        left_out: what the recipe of ours does not hold.
        tags: as `Recipe.tags`.
    """

    name: str
    origin: str
    sha256: str
    model: str = ""
    base: str = ""
    description: str = ""
    quantization: str = ""
    error: str = ""
    left_out: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


class Index(Schema):
    """The recipes of a registry at a revision.

    Attributes:
        revision: commit of a repository, or checksum of an archive.
        made_by: version of this program that converted them.
        skipped: files that were not taken, each with the reason.
    """

    url: str
    revision: str
    made_by: str
    recipes: tuple[Listed, ...]
    skipped: tuple[str, ...]


def _revision(text: str) -> str:
    if not _REVISION.fullmatch(text):  # it becomes the name of a folder of the cache
        raise ValueError(
            f"found {text[:80]!r}, expected 40 or 64 hexadecimal digits; remove the file: {FILE} "
            "remains, and `spark-cluster recipes update` writes it"
        )
    return text


class TakenRevisions(Schema):
    """The file of what was taken of branches that move."""

    taken: dict[str, Annotated[str, AfterValidator(_revision)]] = Field(
        description=f"the revision of each address; remove the file: {FILE} remains"
    )


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/spark-cluster/registries`, by default under ~/.cache."""
    return base_folder("XDG_CACHE_HOME", "~/.cache") / "spark-cluster" / "registries"


def registries(folder: Path) -> tuple[Registry, ...]:
    """Return the registries that a project names; none without the file.

    Raises:
        InvalidFile: the file is wrong, with the line.
        Refused: others can write it.
    """
    path = folder / FILE
    if not path.exists():
        return ()
    if problem := extension.foreign(path.absolute(), folder.absolute()):
        found, advice = problem
        raise Refused(f"{FILE} is not used: {found}", hint=advice)
    return tuple(validate(Registries, load(path, FILE)).registries)


def registry_named(name: str, folder: Path) -> Registry:
    """Return a registry of a project.

    Raises:
        UsageError: it has none of that name.
    """
    known = {one.name: one for one in registries(folder)}
    if name in known:
        return known[name]
    raise UsageError(
        f"no registry '{name}' in {shown(folder / FILE)}",
        hint=did_you_mean(name, known, "registries") if known else f"name it in {FILE}",
    )


def pins(folder: Path) -> dict[str, str]:
    """Return the revision that was taken of each address (`URL branch`).

    Raises:
        InvalidFile: the file with them is wrong.
    """
    path = folder / LOCK
    return validate(TakenRevisions, load(path, LOCK)).taken if path.exists() else {}


def pin(registry: Registry, revision: str, folder: Path) -> None:
    """Write down what was taken of a registry.

    Raises:
        UsageError: the file cannot be written.
    """
    taken = {**pins(folder), _address(registry): revision}
    text = json.dumps({"taken": dict(sorted(taken.items()))}, indent=2)
    with naming(UsageError, f"{folder / LOCK} cannot be written"):
        write_file(folder / LOCK, f"{text}\n".encode(), 0o644)


def pinned_revision(registry: Registry, folder: Path) -> str | None:
    """Return what is used of a registry: what its entry says, else what was taken last."""
    return registry.fixed or last_taken(registry, folder)


def last_taken(registry: Registry, folder: Path) -> str | None:
    """Return what was taken last of a registry's address; None at first."""
    return pins(folder).get(_address(registry))


def snapshot_folder(registry: Registry, revision: str) -> Path:
    """The folder of the cache for a revision; other folders of it are another snapshot."""
    said = "\0".join([registry.url, registry.format, *registry.folders])
    return cache_folder() / hashlib.sha256(said.encode()).hexdigest()[:16] / revision


def index_of(registry: Registry, revision: str) -> Index | None:
    """The list of a snapshot; None when it is not in the cache.

    Raises:
        InvalidFile: it is damaged.
    """
    path = snapshot_folder(registry, revision) / "index.json"
    if not path.exists():
        return None
    try:
        with path.open("rb") as stream:
            return Index.model_validate_json(stream.read(LARGEST_INDEX))
    except (OSError, ValidationError) as error:
        raise InvalidFile(
            f"is not JSON with a list of recipes: {str(error).splitlines()[0]}",
            where=shown(path),
            hint=_again(registry),
        ) from None


def current(registry: Registry, folder: Path) -> Index:
    """Return the recipes of a registry as it is pinned.

    Raises:
        UsageError: nothing was taken of it yet, or the cache does not have it.
    """
    revision = pinned_revision(registry, folder)
    index = index_of(registry, revision) if revision else None
    if index is None:
        raise UsageError(
            f"the recipes of the registry '{registry.name}' are not on this machine",
            hint=_again(registry),
        )
    return index


def resolve(reference: str, folder: Path) -> Path:
    """Return the file, in our form, of `@REGISTRY/RECIPE`.

    Raises:
        UsageError: there is no such registry or recipe, or it is not on this machine.
        InvalidFile: the recipe is one that this program cannot hold, with the reason.
    """
    registry, listed = find(reference, folder)
    if listed.error:
        raise InvalidFile(f"no recipe for this program: {listed.error}", where=reference)
    return _in_cache(registry, folder, reference, f"recipes/{listed.name}.yaml")


def source_of(reference: str, folder: Path) -> Path:
    """Return the file of `@REGISTRY/RECIPE` as the registry has it.

    Raises:
        UsageError: as `resolve`.
    """
    registry, listed = find(reference, folder)
    return _in_cache(registry, folder, reference, f"sources/{listed.origin}")


def _in_cache(registry: Registry, folder: Path, reference: str, file: str) -> Path:
    path = snapshot_folder(registry, pinned_revision(registry, folder) or "") / file
    if not path.is_file():
        raise UsageError(f"{reference} is not in the cache any more", hint=_again(registry))
    return path


def find(reference: str, folder: Path) -> tuple[Registry, Listed]:
    """Return the registry of a reference and its recipe in it.

    Raises:
        UsageError: there is no such registry or recipe.
    """
    name, _, recipe = reference.removeprefix(MARK).partition("/")
    if not name or not recipe:
        raise UsageError(
            f"{reference}: expected @REGISTRY/RECIPE", hint=f"registries are in {FILE}"
        )
    registry = registry_named(name, folder)
    known = {one.name: one for one in current(registry, folder).recipes}
    if recipe not in known:
        raise UsageError(
            f"no recipe '{recipe}' in the registry '{name}'",
            hint=did_you_mean(recipe, known, "recipes"),
        )
    return registry, known[recipe]


def is_of_registry(path: Path) -> bool:
    """Return whether a recipe's file lies in the cache of registries."""
    return path.absolute().is_relative_to(cache_folder().absolute())


def _address(registry: Registry) -> str:
    return f"{registry.url} {registry.branch}"


def _again(registry: Registry) -> str:
    return f"spark-cluster recipes update {registry.name}"
