"""Changes of a run to each path, read forwards from its journal: the state before and after."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from spark_cluster.agent.history import Entry
from spark_cluster.node.journal import Shape


@dataclass
class ChangedPath:
    """A path that a run changed, once or several times.

    Attributes:
        first: what was there before the run.
        before: what was there before the run's last change of it.
        after: what that last change was to make of it, as far as it is known.
        resource: the one that changed it first.
        secret: what was there first is secret, and not kept.
        removed: all that was in a folder when the run first removed it; None where it did not.
        tree_lost: the run removed a folder that was there before it, and kept nothing of it.
        unrecorded: an entry does not say what became of it.
        disturbed: something else changed it between two changes of the run.
    """

    first: Shape | None
    before: Shape | None
    after: Shape | None
    resource: str
    secret: bool = False
    removed: tuple[str, ...] | None = None
    tree_lost: bool = False
    unrecorded: bool = False
    disturbed: bool = False

    def may_be_left_as(self, found: Shape | None) -> bool:
        """Return whether the run can have left this: a power cut comes before or in a change."""
        return (
            matches(self.after, found)
            or matches(self.before, found)
            or on_the_way(self.before, self.after, found)
        )

    def was_folder(self) -> bool:
        """Return whether there was a folder before the run."""
        return is_folder(self.first)


def changed_paths(entries: Iterable[Entry]) -> dict[str, ChangedPath]:
    """Every path that a run's entries tell of, those in folders that it removed included."""
    reader = _Reader()
    for entry in entries:
        if entry["action"] == "file":
            reader.read(entry)
    return reader.paths


class _Reader:
    """Follows a run's entries in the order in which they were written."""

    def __init__(self) -> None:
        self.paths: dict[str, ChangedPath] = {}
        self._absent_once: set[str] = set()
        """Paths at which there was nothing at some moment of the run."""

    def read(self, entry: Entry) -> None:
        """Take one entry into the picture."""
        path, before = entry["path"], entry["before"]
        came_by_run = self._came_by_run(path)
        if "after" not in entry:
            self._change(path, before, before, entry).unrecorded = True
            return
        after = entry["after"]
        tree = (before or {}).get("tree")
        items = {f"{path}/{item['path']}": item for item in tree or ()}
        new = {inside for inside in items if came_by_run or self._came_by_run(inside)}
        changed = self._change(path, before, after, entry)
        if not is_folder(before) or after is not None:
            return
        if tree is None:
            changed.tree_lost |= not came_by_run and changed.was_folder()
            self._all_gone_below(path, entry)
        elif changed.removed is None:
            changed.removed = tuple(items)
        for inside, item in items.items():
            self._change(inside, item, None, entry, came_by_run=inside in new)

    def _change(
        self,
        path: str,
        before: Shape | None,
        after: Shape | None,
        entry: Entry,
        *,
        came_by_run: bool = False,
    ) -> ChangedPath:
        """Record one change of a path.

        Args:
            came_by_run: its folder was made during the run, so it was not there before.
        """
        known = self.paths.get(path)
        if known is None:
            first = None if came_by_run or before is None else _without_tree(before)
            secret = bool((before or {}).get("secret") or entry.get("secret"))
            known = ChangedPath(first, first, after, entry["resource"], secret)
            self.paths[path] = known
        else:
            known.disturbed |= not known.may_be_left_as(before)
        known.before, known.after = before, after
        if before is None or after is None:
            self._absent_once.add(path)
        return known

    def _all_gone_below(self, folder: str, entry: Entry) -> None:
        """Record that a folder was removed without a list of what was in it."""
        for path in [path for path in self.paths if path.startswith(folder + "/")]:
            self._change(path, self.paths[path].after, None, entry)

    def _came_by_run(self, path: str) -> bool:
        """Return whether a folder above a path was absent at some moment of the run."""
        return any(str(above) in self._absent_once for above in PurePosixPath(path).parents)


def is_folder(found: Shape | None) -> bool:
    """Return whether this is a directory."""
    return found is not None and found["kind"] == "directory"


def matches(wanted: Shape | None, found: Shape | None) -> bool:
    """Return whether the state found is the state wanted, as far as that was known."""
    if wanted is None or found is None:
        return wanted is found
    known = ("kind", "sha256", "link", "mode", "uid", "gid")
    return all(found.get(k) == wanted[k] for k in known if k in wanted)


def same(one: Shape | None, other: Shape | None) -> bool:
    """Return whether two shapes agree in everything that both know."""
    return matches(one, other) and matches(other, one)


def on_the_way(before: Shape | None, after: Shape | None, current: Shape | None) -> bool:
    """Return whether a crash left a folder half changed: it has its owner, but not yet its mode."""
    if after is None or current is None or not (is_folder(after) and is_folder(current)):
        return False
    if before is None:
        return True  # made, and not given its mode and owner
    if not is_folder(before):
        return False
    return all(current[k] in (before[k], after.get(k, before[k])) for k in ("mode", "uid", "gid"))


def _without_tree(found: Shape) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in ("tree", "path")}
