"""Revert what a run changed: byte for byte, all of it or nothing.

First everything is checked: each path must be as the run left it. Only when all of them are, the
first path is touched. What is reverted is a change like any other, with journal entries of its own,
so that a revert can be reverted too. A revert that was killed is continued by the next revert of
the same run, for which its changes are further ones of that run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from spark_cluster.agent.history import History
from spark_cluster.agent.revert_plan import (
    Plan,
    Planner,
    Step,
    irrecoverable_last,
)
from spark_cluster.node import safe_paths
from spark_cluster.node.durable import sync_folder
from spark_cluster.node.host import Host
from spark_cluster.node.journal import Journal, Shape
from spark_cluster.node.values import ResourceError, explain
from spark_cluster.resources.file import DIFF_INPUT_LIMIT, sizes, unified

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
    plan = Planner(host, history, run, killed).plan()
    reply: dict[str, Any] = {
        "of": run,
        "left": [{"what": what, "why": why} for what, why in plan.left],
    }
    if notes := history.notes(run):
        reply["notes"] = notes
    if killed is not None:
        reply["continued"] = killed
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


def _net(steps: list[Step]) -> list[Step]:
    """Merge the steps into one for each path, by path: what makes room is not shown separately."""
    found: dict[str, Step] = {}
    for step in steps:
        before = found.get(step.path, step)
        found[step.path] = dataclasses.replace(step, now=before.now)
    return [found[path] for path in sorted(found)]


def _event(step: Step) -> dict[str, Any]:
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


def _diff(host: Host, journal: Journal, step: Step) -> str:
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


def _carry_out(host: Host, history: History, run: str, plan: Plan, *, begun: bool) -> None:
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
        why = explain(error, host.root) if isinstance(error, OSError) else error.message
        what = f"{at} cannot be reverted" if at else "nothing can be reverted"
        raise ResourceError(f"{what}: {why}", _undone(host, history, run)) from error
    host.current = name
    host.journal.record(name, "reverted", of=run)


def _undone(host: Host, history: History, run: str) -> str:
    """Undo what this revert has done so far; return what to report of it.

    What cannot be reverted is named, and the revert remains to be continued.
    """
    again = f"`spark-cluster revert {run}` again reverts the remainder"
    try:
        if host.run_id in history.runs():
            plan = Planner(host, history, host.run_id).plan()
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
