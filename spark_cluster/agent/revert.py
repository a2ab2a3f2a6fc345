"""Puts back what a run changed: byte for byte, in reverse order, all of it or nothing.

First everything is looked at: each path must be as the run left it. Only when all of them are, the
first one is touched. What is put back is a change like any other, with journal entries of its
own, so that a revert can be reverted too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_cluster.agent.faults import explain
from spark_cluster.agent.history import Entry, History
from spark_cluster.agent.host import Host
from spark_cluster.agent.journal import Journal, Shape, digest_of, shape
from spark_cluster.resources.base import ResourceError, resource_class
from spark_cluster.resources.file import unified

Emit = Callable[[dict[str, Any]], None]

_NOT_KEPT = "what it held before is not kept in the journal"


@dataclass(frozen=True)
class Step:
    """One change to take back: `path` becomes `before`, as it was kept in `journal`."""

    path: str
    before: Shape | None
    after: Shape | None
    resource: str
    secret: bool = False


@dataclass
class Plan:
    """What taking back a run comes to.

    Attributes:
        steps: the changes to take back, in this order.
        refused: path to why it cannot be put back; with any of these nothing is done.
        left: (what, why) of all that stays as the run left it.
    """

    steps: list[Step] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    left: list[tuple[str, str]] = field(default_factory=list)


def revert(host: Host, run: str, emit: Emit, *, diff: bool = False) -> dict[str, Any]:
    """Take back a run on this node.

    Args:
        run: its id.
        emit: takes one event a path, as for a resource.

    Returns:
        `ok`, the run's id as `of`, and as `left` what stays as the run left it.

    Raises:
        ResourceError: something cannot be written; all is as it was before.
    """
    history = History(host.root)
    planner = _Planner(host, history, run)
    plan = planner.plan()
    reply = {"of": run, "left": [{"what": what, "why": why} for what, why in plan.left]}
    for path, why in plan.refused.items():
        name = _named(path, shape(host.path(path)))
        emit({"event": "result", "id": name, "verdict": "failed", "error": why})
    if plan.refused:
        return {**reply, "ok": False}
    secret = history.secret_paths() if diff else set()
    events = [_event(host, planner, path) for path in planner.changed()]
    for event in events if diff else ():
        event["diff"] = _diff(host, planner, event["path"], secret=event["path"] in secret)
    if not host.check and plan.steps:
        _carry_out(host, history, run, plan.steps)
    for event in events:
        emit(event)
    return {**reply, "ok": True}


class _Planner:
    """Walks a run's entries backwards, over a picture of what will be there by then."""

    def __init__(self, host: Host, history: History, run: str) -> None:
        self.host = host
        self.history = history
        self.run = run
        self.journal = history.journal(run)
        self._will_be: dict[str, Shape | None] = {}
        self._lost: set[str] = set()
        self._plan = Plan()

    def plan(self) -> Plan:
        """The steps, or why there are none."""
        entries = self.history.entries(self.run)
        for entry in reversed(entries):
            if entry["action"] == "file" and entry["path"] not in self._lost:
                self._take_back(entry)
        self._plan.left += _beyond_files(entries)
        return self._plan

    def changed(self) -> list[str]:
        """Paths that will be another thing than they are, in order."""
        return [
            path
            for path, then in sorted(self._will_be.items())
            if not _same(then, shape(self.host.path(path)))
        ]

    def will_be(self, path: str) -> Shape | None:
        """What is at a path after the steps so far."""
        if path not in self._will_be:
            return shape(self.host.path(path))
        return self._will_be[path]

    def content(self, then: Shape | None) -> bytes:
        """What a file to be put back held."""
        if then is None or then["kind"] != "file":
            return b""
        return self.journal.kept(then["sha256"]).read_bytes()

    def _take_back(self, entry: Entry) -> None:
        path, before, after = entry["path"], entry["before"], entry.get("after")
        current = self.will_be(path)
        if "after" not in entry:
            self._refuse(path, f"{path}: an older version did not record what it was changed to")
            return
        if _matches(before, current) and self._all_there(path, before):
            return  # it never came to it: the power was cut
        if not _matches(after, current):
            self._refuse(path, self._since(path, current))
            return
        if before is None and after is not None and after["kind"] == "directory":
            if self._holds_more(path):
                self._plan.left.append((path, "something is in it"))
                return
        elif not self._kept(before):
            self._lost.add(path)
            why = "its content is secret, and not kept" if entry.get("secret") else _NOT_KEPT
            self._plan.left.append((path, why))
            return
        if before is not None and current is None and not self._has_folder(path):
            self._refuse(path, f"{path.rsplit('/', 1)[0]}, where it was, is gone")
            return
        self._will_be[path] = before
        for item in (before or {}).get("tree") or ():
            self._will_be[f"{path}/{item['path']}"] = item
        self._plan.steps.append(Step(path, before, after, entry["resource"]))

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
            return items is not None and all(self._kept({"kept": True, **i}) for i in items)
        if before["kind"] != "file" or not before.get("kept", True):
            return False
        kept = self.journal.kept(before["sha256"])
        return kept.is_file() and digest_of(kept) == before["sha256"]

    def _all_there(self, path: str, before: Shape | None) -> bool:
        """Whether a folder has all that it had before it was to be removed."""
        items = (before or {}).get("tree") or ()
        return all(_matches(item, self.will_be(f"{path}/{item['path']}")) for item in items)

    def _holds_more(self, folder: str) -> bool:
        """Whether something will be in a folder that the steps do not take away."""
        there = self.host.path(folder)
        names = {f"{folder}/{p.name}" for p in (there.iterdir() if there.is_dir() else ())}
        names |= {p for p in self._will_be if p.rsplit("/", 1)[0] == folder}
        return any(self.will_be(name) is not None for name in names)

    def _has_folder(self, path: str) -> bool:
        parent = path.rsplit("/", 1)[0]
        if not parent or self.host.path(parent).is_dir():
            return True
        found = self.will_be(parent)
        return found is not None and found["kind"] == "directory"

    def _since(self, path: str, current: Shape | None) -> str:
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


def _matches(wanted: Shape | None, found: Shape | None) -> bool:
    """Whether what is there is `wanted`, as far as that was known."""
    if wanted is None or found is None:
        return wanted is found
    known = ("kind", "sha256", "link", "mode", "uid", "gid")
    return all(found.get(k) == wanted[k] for k in known if k in wanted)


def _same(one: Shape | None, other: Shape | None) -> bool:
    return _matches(one, other) and _matches(other, one)


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


def _event(host: Host, planner: _Planner, path: str) -> dict[str, Any]:
    """What becomes of one path."""
    now, then = shape(host.path(path)), planner.will_be(path)
    names = ("kind", "sha256", "link", "mode", "uid", "gid")
    told = {
        name: [_plain(name, (now or {}).get(name)), _plain(name, (then or {}).get(name))]
        for name in names
        if (now or {}).get(name) != (then or {}).get(name)
    }
    if now is None or then is None:
        told = {"kind": [(now or {"kind": "absent"})["kind"], (then or {"kind": "absent"})["kind"]]}
    name = _named(path, then or now)
    return {"event": "result", "id": name, "path": path, "verdict": "change", "changes": told}


def _diff(host: Host, planner: _Planner, path: str, *, secret: bool) -> str:
    now, then = shape(host.path(path)), planner.will_be(path)
    if "file" not in ((now or {}).get("kind"), (then or {}).get("kind")):
        return ""
    if secret:
        return f"{path}: secret content, not shown\n"
    held = now is not None and now["kind"] == "file"
    before = host.path(path).read_bytes() if held else b""
    return unified(path, before, planner.content(then))


def _named(path: str, found: Shape | None) -> str:
    return f"{str((found or {}).get('kind', 'path')).capitalize()}:{path}"


def _plain(name: str, value: Any) -> Any:
    return f"{value:04o}" if name == "mode" and isinstance(value, int) else value


# -- doing it --------------------------------------------------------------------------------------


def _carry_out(host: Host, history: History, run: str, steps: list[Step]) -> None:
    """Take the steps; when one cannot be taken, take those before it back again."""
    journal = history.journal(run)
    taken: list[Step] = []
    try:
        for step in steps:
            host.current = step.resource
            taken.append(step)
            _put(host, journal, step.path, step.before)
    except (OSError, ResourceError) as error:
        why = explain(error, host.root) if isinstance(error, OSError) else error.message
        raise ResourceError(
            f"{taken[-1].path} cannot be put back: {why}", _undone(host, history)
        ) from error
    host.current = "Revert:" + run
    host.journal.record(host.current, "reverted", of=run)


def _undone(host: Host, history: History) -> str:
    """Take back what this revert has done so far; what to say of it."""
    try:
        for step in _Planner(host, history, host.run_id).plan().steps:
            _put(host, history.journal(host.run_id), step.path, step.before)
    except (OSError, ResourceError):
        return f"a part was put back; `spark-cluster revert {host.run_id}` takes that back again"
    return "all is again as it was before"


def _put(host: Host, journal: Journal, path: str, before: Shape | None) -> None:
    """Make what was at a path once."""
    target = host.path(path)
    if before is None:
        _remove(host, path, target)
        return
    uid, gid = before["uid"], before["gid"]
    if before["kind"] == "file":
        data = journal.kept(before["sha256"]).read_bytes()
        host.write(path, data, mode=before["mode"], uid=uid, gid=gid)
    elif before["kind"] == "link":
        host.link(path, before["link"], uid=uid, gid=gid)
    else:
        host.directory(path, mode=before["mode"], uid=uid, gid=gid)
        for item in before.get("tree") or ():
            _put(host, journal, f"{path}/{item['path']}", item)


def _remove(host: Host, path: str, target: Path) -> None:
    if target.is_dir() and not target.is_symlink():
        host.journal.keep(host.current, target, path, None)
        target.rmdir()
    else:
        host.remove(path)
