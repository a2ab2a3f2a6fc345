"""Revert what a run changed: byte for byte, all of it or nothing.

First everything is checked: each path must be as the run left it. Only when all of them are, the
first path is touched. What is reverted is a change like any other, with journal entries of its own,
so that a revert can be reverted too. A revert that was killed is continued by the next revert of
the same run, for which its changes are further ones of that run.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from spark_cluster.agent.apply import told
from spark_cluster.node import safe_paths
from spark_cluster.node.durable import is_temporary, sync_folder
from spark_cluster.node.host import Host
from spark_cluster.node.journal import Entry, History, Journal, Shape, digest_of
from spark_cluster.node.values import ResourceError
from spark_cluster.resources.base import resource_class
from spark_cluster.resources.file import DIFF_INPUT_LIMIT, sizes, unified

# The plan of how a run is reverted: what each path was, is and will be, or why it cannot be.

_NOT_KEPT = "what it held before is not kept in the journal"
_SECRET = "its content is secret, and not kept"  # noqa: S105  (a message)


@dataclass(frozen=True)
class RevertStep:
    """The change of one path: `now` becomes `then`. Idempotent."""

    path: str
    now: Shape | None
    then: Shape | None
    resource: str


@dataclass
class RevertPlan:
    """The plan of a revert.

    Attributes:
        steps: the changes, in this order.
        refused: path to why it cannot be reverted; with any of these nothing is done.
        left: (what, why) of all that stays as the run left it.
    """

    steps: list[RevertStep] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    left: list[tuple[str, str]] = field(default_factory=list)


class RevertPlanner:
    """Compares what a run found at each path, what it left there, and what is there now.

    Args:
        killed: a revert of the run that was killed, whose changes count as the run's own: each path
            is as before the revert, as after it, or in between.
    """

    def __init__(self, host: Host, history: History, run: str, killed: str | None = None) -> None:
        self.host = host
        self.history = history
        self.run = run
        self.killed = killed
        self.journal = history.journal(run)
        self._paths: dict[str, ChangedPath] = {}
        self._found: dict[str, Shape | None] = {}
        self._target: dict[str, Shape | None] = {}
        self._lost: set[str] = set()
        self._plan = RevertPlan()

    def plan(self) -> RevertPlan:
        """The steps, or why there are none."""
        entries = self.history.entries(self.run)
        begun = [] if self.killed is None else self.history.entries(self.killed)
        self._paths = changed_paths([*entries, *begun])
        self._found = {path: self.host.shape(path) for path in self._paths}
        self._lost = {path for path in self._paths if self._is_lost(path)}
        for path in reversed(_by_depth(self._paths)):  # a folder can go when all in it can
            self._target[path] = self._decide(path)
        for path in self._paths:
            if self._has_no_folder(path):
                self._plan.refused[path] = (
                    f"{path.rsplit('/', 1)[0]}, where it was, no longer exists"
                )
                self._target[path] = None
        self._plan.left += _beyond_files(entries)
        self._plan.steps = list(self._steps())
        return self._plan

    def _decide(self, path: str) -> Shape | None:
        """The desired content of a path; its content of now where that stays or is refused."""
        changed, found = self._paths[path], self._found[path]
        if found is None and self._went_with_its_folder(path):
            return None
        is_other = self._is_another_folder(path)
        if matches(changed.first, found) and path not in self._lost and not is_other:
            return found
        if why := self._why_refused(path, is_other=is_other):
            self._plan.refused[path] = why
            return found
        if why := self._why_it_stays(path):
            self._plan.left.append((path, why))
            return found
        return changed.first

    def _why_refused(self, path: str, *, is_other: bool) -> str:
        """Return why a path is not as the run left it; empty where it is."""
        changed, found = self._paths[path], self._found[path]
        if changed.unrecorded:
            return f"{path}: an older version did not record what it was changed to"
        if is_other or not changed.may_be_left_as(found):
            return self.since(path, found)
        if changed.disturbed:
            return f"{path} was changed during the run, by something else than spark-cluster"
        return ""

    def _why_it_stays(self, path: str) -> str:
        """Return why a path cannot be as it was before the run; empty where it can."""
        changed = self._paths[path]
        if path in self._lost:
            return _NOT_KEPT
        if not self._can_be_made(changed.first):
            return _SECRET if changed.secret else _NOT_KEPT
        is_in_the_way = is_folder(self._found[path]) and not changed.was_folder()
        return "something is in it" if is_in_the_way and self._holds_more(path) else ""

    def _is_lost(self, path: str) -> bool:
        """Return whether the run removed a folder of which the journal does not hold all."""
        changed, found = self._paths[path], self._found[path]
        if changed.tree_lost:
            was_not_removed = changed.after is None and matches(changed.first, found)
            return not was_not_removed
        inside = [(self._paths[name], self._found[name]) for name in changed.removed or ()]
        return any(
            not one.secret and not matches(one.first, there) and not self._can_be_made(one.first)
            for one, there in inside
        )

    def _went_with_its_folder(self, path: str) -> bool:
        """Return whether nothing is to be in its folder, which is lost or was not there before."""
        folder = self._paths.get(path.rsplit("/", 1)[0])
        above = map(str, PurePosixPath(path).parents)
        return (folder is not None and not folder.was_folder()) or not self._lost.isdisjoint(above)

    def _is_another_folder(self, path: str) -> bool:
        """Return whether something else made a folder again that the run has removed."""
        changed = self._paths[path]
        if changed.after is not None or changed.removed is None:
            return False
        if not is_folder(self._found[path]):
            return False
        if all(matches(self._paths[p].first, self._found[p]) for p in changed.removed):
            return False
        there = self.host.path(path)
        found = (p for p in there.rglob("*") if not is_temporary(p.name))
        return any(f"{path}/{p.relative_to(there)}" not in self._paths for p in found)

    def _holds_more(self, folder: str) -> bool:
        """Return whether something will be in a folder that the steps do not remove."""
        found = (p for p in self.host.path(folder).iterdir() if not is_temporary(p.name))
        names = {f"{folder}/{p.name}" for p in found}
        if any(self._target.get(name, {}) is not None for name in names):
            return True
        coming = (path for path, then in self._target.items() if then is not None)
        return any(path.rsplit("/", 1)[0] == folder for path in coming)

    def _has_no_folder(self, path: str) -> bool:
        """Return whether something is to come to a path whose folder neither is there nor comes."""
        if self._target[path] is None or self._found[path] is not None:
            return False
        parent = path.rsplit("/", 1)[0]
        if not parent or self.host.path(parent).is_dir():
            return False
        return not is_folder(self._target.get(parent))

    def _steps(self) -> Iterator[RevertStep]:
        """Yield what is removed, deepest paths first, then what is added, deepest last."""
        found, target = self._found, self._target
        changed = _by_depth(path for path in target if not same(found[path], target[path]))
        gone = {path for path in changed if _must_go(found[path], target[path])}
        for path in reversed([path for path in changed if path in gone]):
            yield RevertStep(path, found[path], None, self._paths[path].resource)
        for path in changed:
            now, then = None if path in gone else found[path], target[path]
            if then is not None:
                yield RevertStep(path, now, then, self._paths[path].resource)

    def _can_be_made(self, first: Shape | None) -> bool:
        """Return whether the journal has all that is needed to restore it."""
        if first is None or first["kind"] in ("link", "directory"):
            return True
        return first["kind"] == "file" and first.get("kept", True) and self.has_content(first)

    def has_content(self, then: Shape) -> bool:
        """Return whether the journal still has a file's content, undamaged."""
        kept = self.journal.kept(then["sha256"])
        return kept.is_file() and digest_of(kept) == then["sha256"]

    def since(self, path: str, current: Shape | None) -> str:
        """Return who changed a path since the run did."""
        later = self.history.changed_later(path, self.run)
        if later is not None:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(later["since"] or 0))
            who = f"{later['user'] or 'someone'}, `{later['command'] or '?'}`, {when}"
            return f"{path} was changed since, by run {later['run']} ({who}): revert that one first"
        if current is None:
            return f"{path} was removed since, by something other than spark-cluster"
        status = self.host.look(path)
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.st_ctime))
        return f"{path} was changed since, by something other than spark-cluster (at {when})"


def _by_depth(paths: Iterable[str]) -> list[str]:
    """Paths with every folder before what is in it."""
    return sorted(paths, key=lambda path: (path.count("/"), path))


def irrecoverable_last(host: Host, steps: list[RevertStep]) -> list[RevertStep]:
    """The same steps, those last that destroy a content which is not kept because it is secret:
    when a step before them fails, all can be reverted.

    What must make room for something else cannot wait; the folders that it is in wait with it.
    """
    removed = {step.path for step in steps if step.then is None}
    replaced = removed & {step.path for step in steps if step.then is not None}
    waiting: set[str] = set()
    for step in steps:
        is_lost = step.now is not None and step.now["kind"] == "file" and host.is_secret(step.path)
        chain = [step.path, *map(str, PurePosixPath(step.path).parents)]
        if is_lost and replaced.isdisjoint(chain):
            waiting |= {step.path, *removed.intersection(chain)}
    return sorted(steps, key=lambda step: step.path in waiting)


def _must_go(now: Shape | None, then: Shape | None) -> bool:
    """Return whether what is there must be removed before the other thing can be created."""
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


# Changes of a run to each path, read forwards from its journal: the state before and after.


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
    reader = _JournalReader()
    for entry in entries:
        if entry["action"] == "file":
            reader.read(entry)
    return reader.paths


class _JournalReader:
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


Emit = Callable[[dict[str, Any]], None]


def revert(host: Host, run: str, emit: Emit, *, diff: bool = False) -> dict[str, Any]:
    """Revert what a run changed on this node, or continue a revert of it that was killed.

    Args:
        run: its id.
        emit: takes one event a path, as for a resource.

    Returns:
        `ok`, the run's id as `of`, as `left` what stays as the run left it; where there is
        something to say of its journal, `notes`; after a killed revert its run as `continued`.

    Raises:
        ResourceError: something cannot be written; all is as it was before, but for what the hint
            names.
    """
    history = History(host.root)
    killed = history.half_revert(run)
    if not host.check:
        host.temporary.clean(host.note)
    if killed is not None:
        host = dataclasses.replace(host, run_id=killed)
    plan = RevertPlanner(host, history, run, killed).plan()
    reply = {
        "of": run,
        "left": [{"what": what, "why": why} for what, why in plan.left],
        **({"notes": notes} if (notes := history.notes(run)) else {}),
        **({} if killed is None else {"continued": killed}),
    }
    for path, why in plan.refused.items():
        name = _named(path, host.shape(path))
        emit({"event": "result", "id": name, "verdict": "failed", "error": why})
    if plan.refused:
        return {**reply, "ok": False}
    changes = _net(plan.steps)
    events = [_event(step) for step in changes]
    if diff:
        for event, step in zip(events, changes, strict=True):
            event["diff"] = _diff(host, history.journal(run), step)
    if not host.check and (plan.steps or killed):
        _carry_out(host, history, run, plan, begun=killed is not None)
    for event in events:
        emit(event)
    return {**reply, "ok": True}


def _net(steps: list[RevertStep]) -> list[RevertStep]:
    """Merge the steps into one for each path, by path: what makes room is not shown separately."""
    found: dict[str, RevertStep] = {}
    for step in steps:
        before = found.get(step.path, step)
        found[step.path] = dataclasses.replace(step, now=before.now)
    return [found[path] for path in sorted(found)]


def _event(step: RevertStep) -> dict[str, Any]:
    """Return the event for one path."""
    now, then = step.now, step.then
    names = ("kind", "sha256", "link", "mode", "uid", "gid")
    shown = {
        name: [_plain(name, (now or {}).get(name)), _plain(name, (then or {}).get(name))]
        for name in names
        if (now or {}).get(name) != (then or {}).get(name)
    }
    if now is None or then is None:
        shown = {
            "kind": [(now or {"kind": "absent"})["kind"], (then or {"kind": "absent"})["kind"]]
        }
    name = _named(step.path, then or now)
    return {"event": "result", "id": name, "path": step.path, "verdict": "change", "changes": shown}


def _diff(host: Host, journal: Journal, step: RevertStep) -> str:
    kinds = [(side or {}).get("kind") for side in (step.now, step.then)]
    if "file" not in kinds:
        return ""
    if host.is_secret(step.path):
        return f"{step.path}: secret content, not shown\n"
    then = step.then if kinds[1] == "file" else None
    after = journal.kept(then["sha256"]) if then else None
    old = host.size(step.path) if kinds[0] == "file" else 0
    new = after.stat().st_size if after else 0
    if max(old, new) > DIFF_INPUT_LIMIT:
        return sizes(step.path, old, new)
    before = host.read(step.path) if kinds[0] == "file" else None
    return unified(step.path, before or b"", after.read_bytes() if after else b"")


def _named(path: str, found: Shape | None) -> str:
    return f"{str((found or {}).get('kind', 'path')).capitalize()}:{path}"


def _plain(name: str, value: Any) -> Any:
    return f"{value:04o}" if name == "mode" and isinstance(value, int) else value


# -- doing it --------------------------------------------------------------------------------------


def _carry_out(host: Host, history: History, run: str, plan: RevertPlan, *, begun: bool) -> None:
    """Take the steps; when one cannot be taken, take those before it back again."""
    journal, name = history.journal(run), "Revert:" + run
    plan.steps = irrecoverable_last(host, plan.steps)
    at = ""
    host.journal.spared = run
    try:
        if not begun:
            host.journal.record(name, "reverting", of=run)
        for step in plan.steps:
            host.current, at = step.resource, step.path
            _put(host, journal, step.path, step.then)
    except (OSError, ResourceError) as error:
        what = f"{at} cannot be reverted" if at else "nothing can be reverted"
        raise ResourceError(
            f"{what}: {told(error, host.root)[0]}", _undone(host, history, run)
        ) from error
    host.current = name
    host.journal.record(name, "reverted", of=run)


def _undone(host: Host, history: History, run: str) -> str:
    """Undo what this revert has done so far; return what to report of it.

    What cannot be reverted is named, and the revert remains to be continued.
    """
    again = f"`spark-cluster revert {run}` again reverts the remainder"
    try:
        if host.run_id in history.runs():
            plan = RevertPlanner(host, history, host.run_id).plan()
            for step in plan.steps:
                _put(host, history.journal(host.run_id), step.path, step.then)
            lost = [f"{path} ({why})" for path, why in plan.left] + list(plan.refused.values())
            if lost:
                return f"everything is as it was before except {', '.join(lost)}; {again}"
            host.journal.record("Revert:" + run, "undone", of=run)
    except (OSError, ResourceError):
        return f"a part was reverted; {again}"
    return "everything is as it was before"


def _put(host: Host, journal: Journal, path: str, then: Shape | None) -> None:
    """Make what was at a path once."""
    if then is None:
        now = host.shape(path)
        if now is not None and now["kind"] == "directory":
            with safe_paths.entry(host.path(path)) as target:
                host.journal.keep(host.current, target, path, None)
                target.rmdir()
                sync_folder(target.parent)
        elif now is not None:
            host.remove(path)
        return
    uid, gid = then["uid"], then["gid"]
    if then["kind"] == "file":
        kept = journal.kept(then["sha256"])
        with kept.open("rb") as source:
            pieces = iter(lambda: source.read(1 << 20), b"")
            host.write(path, pieces, mode=then["mode"], uid=uid, gid=gid)
    elif then["kind"] == "link":
        host.link(path, then["link"], uid=uid, gid=gid)
    else:
        host.directory(path, mode=then["mode"], uid=uid, gid=gid)
