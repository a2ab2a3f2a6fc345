"""The update of registries: what is fetched, what has changed, and when a revision is taken."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from spark_cluster import __version__
from spark_cluster.document import Document, Flat, Hidden, derived, printed
from spark_cluster.errors import InvalidFile
from spark_cluster.importers import fetching, snapshot
from spark_cluster.importers.snapshot import Chosen
from spark_cluster.loader import registries as known
from spark_cluster.loader.registries import Index, Listed, Registry


@dataclass(frozen=True)
class Changes:
    """The recipes that differ between two revisions, by name."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @classmethod
    def between(cls, old: Index | None, new: Index) -> Changes:
        """Compare two lists; all are added where there was none."""
        before = {one.name: one.sha256 for one in (old.recipes if old else ())}
        after = {one.name: one.sha256 for one in new.recipes}
        return cls(
            tuple(sorted(after.keys() - before.keys())),
            tuple(sorted(n for n in after.keys() & before.keys() if after[n] != before[n])),
            tuple(sorted(before.keys() - after.keys())),
        )

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


class Unusable(TypedDict):
    """A recipe that this program cannot hold."""

    name: str
    why: str


@dataclass(frozen=True)
class Update(Document):
    """What a look at a registry has found.

    Attributes:
        taken: revision in use before; None when there was none.
        changes: against that.
        rewritten: the revision in use is not among the last commits of the branch any more.
        in_use: the found revision is what recipes are taken from now.
    """

    registry: Hidden[Registry]
    taken: Annotated[str | None, Field(serialization_alias="taken_before")]
    found: Hidden[Index]
    changes: Flat[Changes]
    rewritten: bool = False
    in_use: bool = False
    name = derived(str, "registry.name", key="registry")
    url = derived(str, "registry.url")
    revision = derived(str, "found.revision", key="found")
    recipes = derived(int, lambda update: len(update.found.recipes))
    skipped = derived(list[str], "found.skipped")

    @printed
    def not_usable(self) -> list[Unusable]:
        """The recipes that this program cannot hold, and why."""
        return [{"name": one.name, "why": one.error} for one in self.broken]

    @property
    def broken(self) -> tuple[Listed, ...]:
        """The recipes that this program cannot hold."""
        return tuple(one for one in self.found.recipes if one.error)


def take(found: Update, folder: Path) -> Update:
    """Use the revision that was found from now on.

    Args:
        folder: the project's.

    Raises:
        UsageError: files cannot be written.
        InvalidFile: the file of pins is damaged.
    """
    known.pin(found.registry, found.found.revision, folder)
    return replace(found, in_use=True)


def look(registry: Registry, folder: Path) -> Update:
    """Fetch what is new and compare it with what was used last.

    What the project's file names, and what is in use already, is in use; `take` is for the rest.

    Args:
        folder: the project's.

    Raises:
        UsageError: there is no such commit or branch, git is missing, or files cannot be written.
        Failed: it cannot be fetched within the limits.
        InvalidFile: the file of pins is damaged.
    """
    fixed, taken = registry.fixed, known.last_taken(registry, folder)
    here = _cached(registry, fixed)
    if here is not None:
        found, rewritten = _current(registry, here), False
    else:
        found, rewritten = _fetch(registry, taken)
    before = _cached(registry, taken)
    same = found.revision == taken and before is not None
    changes = Changes() if same else Changes.between(before, found)
    if fixed and found.revision != taken:
        known.pin(registry, found.revision, folder)
    return Update(registry, taken, found, changes, rewritten, bool(fixed) or same)


def _fetch(registry: Registry, taken: str | None) -> tuple[Index, bool]:
    """Fetch what the file names, or the branch; and whether that one was rewritten."""
    chosen = Chosen(registry)
    if registry.sha256:
        files = fetching.archived(registry, chosen)
        return snapshot.store(registry, registry.sha256, files, chosen.skipped), False
    with fetching.fetched(registry, registry.commit) as fetched:
        moves = taken is not None and registry.commit is None
        rewritten = moves and not fetched.has_in_history(taken or "")
        if taken is not None and moves and not rewritten:
            _keep(registry, fetched, taken)
        here = _cached(registry, fetched.commit)
        if here is not None:
            return _current(registry, here), rewritten
        files = fetched.files(chosen)
    return snapshot.store(registry, fetched.commit, files, chosen.skipped), rewritten


def _keep(registry: Registry, repository: fetching.Git, taken: str) -> None:
    """Put the commit in use into the cache where it is not (another machine, an emptied cache), so
    that it can be used without agreeing to what the branch has now."""
    if _cached(registry, taken) is None:
        chosen = Chosen(registry)
        snapshot.store(registry, taken, repository.files(chosen, taken), chosen.skipped)


def _cached(registry: Registry, revision: str | None) -> Index | None:
    """The list of a snapshot; a damaged one counts as none, so that an update makes it anew."""
    with contextlib.suppress(InvalidFile):
        return known.index_of(registry, revision) if revision else None
    return None


def _current(registry: Registry, index: Index) -> Index:
    """The list as this version of the program makes it."""
    return index if index.made_by == __version__ else snapshot.again(registry, index)
