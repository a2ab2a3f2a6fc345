"""Works out how a run is put back: what each path was, is and will be, or why that cannot be."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from spark_cluster.agent.history import Entry, History
from spark_cluster.agent.host import Host
from spark_cluster.agent.journal import Shape, digest_of, shape
from spark_cluster.agent.temporary import is_temporary
from spark_cluster.resources.base import resource_class

_NOT_KEPT = "what it held before is not kept in the journal"
_SECRET = "its content is secret, and not kept"  # noqa: S105  (a message)


@dataclass(frozen=True)
class Step:
    """One path that becomes another thing: `now` becomes `then`. Taking it twice does no harm."""

    path: str
    now: Shape | None
    then: Shape | None
    resource: str

    def to_dict(self) -> dict[str, Any]:
        """As it is kept in the journal."""
        return {"path": self.path, "now": self.now, "then": self.then, "resource": self.resource}


@dataclass
class Plan:
    """What putting back a run comes to.

    Attributes:
        steps: the changes, in this order.
        refused: path to why it cannot be put back; with any of these nothing is done.
        left: (what, why) of all that stays as the run left it.
    """

    steps: list[Step] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    left: list[tuple[str, str]] = field(default_factory=list)


class Planner:
    """Walks a run's entries backwards, over a picture of what will be there by then."""

    def __init__(self, host: Host, history: History, run: str) -> None:
        self.host = host
        self.history = history
        self.run = run
        self.journal = history.journal(run)
        self._will_be: dict[str, Shape | None] = {}
        self._resources: dict[str, str] = {}
        self._lost: set[str] = set()
        self._first: dict[str, Shape | None] = {}
        self._unchanged: set[str] = set()
        self._returns: set[str] = set()
        self._plan = Plan()

    def plan(self) -> Plan:
        """The steps, or why there are none."""
        entries = self.history.entries(self.run)
        self._first = _first_shapes(entries)
        self._unchanged.update(self._as_before())
        for entry in reversed(entries):
            if entry["action"] == "file" and not self._passes_over(entry):
                self._take_back(entry)
        self._plan.left += _beyond_files(entries)
        self._plan.steps = list(self._steps())
        return self._plan

    def _as_before(self) -> Iterator[str]:
        """Paths that are as they were before the run, however often it changed them."""
        for path, before in self._first.items():
            if matches(before, self.will_be(path)) and self._all_there(path, before):
                yield path

    def _passes_over(self, entry: Entry) -> bool:
        path = entry["path"]
        if path in self._returns:  # between the first change of it and now it came and went
            return entry["before"] is not self._first[path]
        return path in self._unchanged | self._lost

    def _steps(self) -> Iterator[Step]:
        """First what goes, the deepest paths first, then what comes, the deepest last."""
        found = {path: shape(self.host.path(path)) for path in self._will_be}
        changed = [path for path, now in found.items() if not same(now, self._will_be[path])]
        changed.sort(key=lambda path: (path.count("/"), path))
        gone = {path for path in changed if _must_go(found[path], self._will_be[path])}
        for path in reversed([path for path in changed if path in gone]):
            yield Step(path, found[path], None, self._resources[path])
        for path in changed:
            now, then = None if path in gone else found[path], self._will_be[path]
            if then is not None:
                yield Step(path, now, then, self._resources[path])

    def will_be(self, path: str) -> Shape | None:
        """What is at a path after the steps so far."""
        if path not in self._will_be:
            return shape(self.host.path(path))
        return self._will_be[path]

    def _take_back(self, entry: Entry) -> None:
        path, before, after = entry["path"], entry["before"], entry.get("after")
        current = self.will_be(path)
        if "after" not in entry:
            self._refuse(path, f"{path}: an older version did not record what it was changed to")
            return
        begun = self._removal_begun(path, before, after, current)
        if matches(before, current) and self._all_there(path, before):
            return  # it never came to it: the power was cut
        if not begun and not matches(after, current) and not on_the_way(before, after, current):
            self._refuse(path, self.since(path, current))
            return
        if before is None and after is not None and after["kind"] == "directory":
            if self._holds_more(path):
                self._keep_folder(entry)
                return
        elif not self._kept(before):
            self._lost.add(path)
            self._plan.left.append((path, _SECRET if entry.get("secret") else _NOT_KEPT))
            return
        if before is not None and current is None and not self._has_folder(path):
            self._refuse(path, f"{path.rsplit('/', 1)[0]}, where it was, is gone")
            return
        self._set(path, before, entry)
        for item in (before or {}).get("tree") or ():
            inside = f"{path}/{item['path']}"
            if inside in self._unchanged:  # the run had made it before it removed the folder
                continue
            if not item.get("secret"):
                self._set(inside, item, entry)
            elif self.will_be(inside) is None:
                self._plan.left.append((inside, _SECRET))

    def _keep_folder(self, entry: Entry) -> None:
        """A folder that is not empty: it was there before the run, or it is left."""
        path, was = entry["path"], self._first[entry["path"]]
        if was is None or was["kind"] != "directory":
            self._plan.left.append((path, "something is in it"))
            return
        self._returns.add(path)
        self._set(path, was, entry)

    def _set(self, path: str, then: Shape | None, entry: Entry) -> None:
        self._will_be[path] = then
        self._resources[path] = entry["resource"]

    def _refuse(self, path: str, why: str) -> None:
        self._lost.add(path)
        self._plan.refused[path] = why

    def _kept(self, before: Shape | None) -> bool:
        """Whether the journal has all that is needed to make it again."""
        if before is None or before["kind"] == "link":
            return True
        if before["kind"] == "directory":
            if "tree" not in before:
                return True
            items = before["tree"]
            if items is None:
                return False
            return all(i.get("secret") or self._kept({"kept": True, **i}) for i in items)
        if before["kind"] != "file" or not before.get("kept", True):
            return False
        return self.has_content(before)

    def has_content(self, then: Shape) -> bool:
        """Whether the journal still has what a file held, undamaged."""
        kept = self.journal.kept(then["sha256"])
        return kept.is_file() and digest_of(kept) == then["sha256"]

    def _all_there(self, path: str, before: Shape | None) -> bool:
        """Whether a folder has all that it had before it was to be removed."""
        items = (before or {}).get("tree") or ()
        return all(matches(item, self.will_be(f"{path}/{item['path']}")) for item in items)

    def _removal_begun(
        self, path: str, before: Shape | None, after: Shape | None, current: Shape | None
    ) -> bool:
        """Whether a folder was to be removed, and a part of what was in it is still there."""
        if after is not None or not (before or {}).get("tree") or not matches(before, current):
            return False
        items = {f"{path}/{i['path']}": i for i in (before or {})["tree"]}
        there = self.host.path(path)
        names = [f"{path}/{p.relative_to(there)}" for p in there.rglob("*")]
        if path in self._returns:  # what else is in it is told by entries of its own
            names = [name for name in names if name in items and name not in self._unchanged]
        return all(
            self.will_be(name) is None or matches(items.get(name), self.will_be(name))
            for name in names
            if not is_temporary(name.rsplit("/", 1)[1])
        )

    def _holds_more(self, folder: str) -> bool:
        """Whether something will be in a folder that the steps do not take away."""
        there = self.host.path(folder)
        found = there.iterdir() if there.is_dir() else ()
        names = {f"{folder}/{p.name}" for p in found if not is_temporary(p.name)}
        names |= {p for p in self._will_be if p.rsplit("/", 1)[0] == folder}
        return any(self.will_be(name) is not None for name in names)

    def _has_folder(self, path: str) -> bool:
        parent = path.rsplit("/", 1)[0]
        if not parent or self.host.path(parent).is_dir():
            return True
        found = self.will_be(parent)
        return found is not None and found["kind"] == "directory"

    def since(self, path: str, current: Shape | None) -> str:
        """Who changed a path since the run did."""
        later = self.history.changed_later(path, self.run)
        if later is not None:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(later["since"] or 0))
            who = f"{later['user'] or 'someone'}, `{later['command'] or '?'}`, {when}"
            return f"{path} was changed since, by run {later['run']} ({who}): revert that one first"
        if current is None:
            return f"{path} was removed since, by something else than spark-cluster"
        status = self.host.path(path).lstat()
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.st_ctime))
        return f"{path} was changed since, by something else than spark-cluster (at {when})"


def _first_shapes(entries: list[Entry]) -> dict[str, Shape | None]:
    """What was at each path before the run changed it for the first time."""
    first: dict[str, Shape | None] = {}
    for entry in entries:
        if entry["action"] == "file":
            before = first.setdefault(entry["path"], entry["before"])
            if before is entry["before"]:
                for item in (before or {}).get("tree") or ():
                    first.setdefault(f"{entry['path']}/{item['path']}", item)
    return first


def irrecoverable_last(host: Host, steps: list[Step]) -> list[Step]:
    """The same steps, those last that destroy a content which is not kept because it is secret:
    when a step before them fails, all can be taken back.

    What must make room for something else cannot wait; the folders that it is in wait with it.
    """
    removed = {step.path for step in steps if step.then is None}
    replaced = removed & {step.path for step in steps if step.then is not None}
    waiting: set[str] = set()
    for step in steps:
        is_lost = step.now is not None and step.now["kind"] == "file" and host.is_secret(step.path)
        chain = [step.path, *_folders_of(step.path)]
        if is_lost and replaced.isdisjoint(chain):
            waiting |= {step.path, *removed.intersection(chain)}
    return sorted(steps, key=lambda step: step.path in waiting)


def _folders_of(path: str) -> list[str]:
    """The folders above a path, the deepest first."""
    return [str(folder) for folder in PurePosixPath(path).parents]


def matches(wanted: Shape | None, found: Shape | None) -> bool:
    """Whether what is there is `wanted`, as far as that was known."""
    if wanted is None or found is None:
        return wanted is found
    known = ("kind", "sha256", "link", "mode", "uid", "gid")
    return all(found.get(k) == wanted[k] for k in known if k in wanted)


def same(one: Shape | None, other: Shape | None) -> bool:
    """Whether two shapes are alike in all that both say."""
    return matches(one, other) and matches(other, one)


def on_the_way(before: Shape | None, after: Shape | None, current: Shape | None) -> bool:
    """Whether a crash left a folder between two states: it got its owner, and not yet its mode."""
    if any(x is None or x["kind"] != "directory" for x in (after, current)):
        return False
    if before is None:
        return True  # made, and not given its mode and owner
    if before["kind"] != "directory":
        return False
    assert after is not None and current is not None  # noqa: S101  (see above)
    return all(current[k] in (before[k], after.get(k, before[k])) for k in ("mode", "uid", "gid"))


def _must_go(now: Shape | None, then: Shape | None) -> bool:
    """Whether what is there must be gone before the other thing can come."""
    if now is None or then is None:
        return now is not None
    return "directory" in (now["kind"], then["kind"]) and now["kind"] != then["kind"]


def _beyond_files(entries: list[Entry]) -> list[tuple[str, str]]:
    """The resources of a run whose work is more than files, and what of it stays."""
    found = {}
    for entry in entries:
        if entry["action"] in ("converged", "repaired"):
            kind = resource_class(str(entry["resource"]).partition(":")[0])
            stays = "what it did stays" if kind is None else kind.reverts
            if stays:
                found[entry["resource"]] = stays
    return list(found.items())
