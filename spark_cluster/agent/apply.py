"""Runs one document of resources on a node and tells what came of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_cluster.agent.host import OUR_FAULT, Cancelled, Host, explain, our_fault
from spark_cluster.resources.base import (
    Missing,
    Resource,
    ResourceError,
    State,
    Unknown,
    differences,
)

Emit = Callable[[dict[str, Any]], None]
Waiting = Mapping[str, Sequence[str]]

OK, CHANGE, UNKNOWN, FAILED = "ok", "change", "unknown", "failed"


def apply(
    resources: Sequence[Resource],
    host: Host,
    emit: Emit,
    *,
    diff: bool = False,
    left_out: Waiting | None = None,
) -> bool:
    """Bring every resource to its desired state, in order; stop at the first failure.

    Args:
        host: the node; with `host.check` nothing is changed.
        emit: takes one event a resource: id, verdict, changes, seconds, and what else there is.
        diff: add a unified diff to each change.
        left_out: resources that this run leaves out, id to those whose change makes them act: what
            they would have done now they owe to a later run.

    Returns:
        Whether none failed.

    Raises:
        Cancelled: the laptop is gone; the resource in hand was finished or left as it was.
    """
    touched: set[str] = set()
    waiting = {r.id: r.triggers() for r in resources} | dict(left_out or {})
    for resource in resources:
        if host.processes.cancelled.is_set():
            raise Cancelled
        host.current = resource.id
        started = time.monotonic()
        event = _one(resource, waiting, host, touched, diff=diff, emit=emit)
        if event["verdict"] != OK:
            touched.add(resource.id)
        emit({"event": "result", "id": resource.id, "seconds": time.monotonic() - started, **event})
        if event["verdict"] == FAILED:
            return False
    return True


def _one(
    resource: Resource,
    waiting: Waiting,
    host: Host,
    touched: set[str],
    *,
    diff: bool,
    emit: Emit,
) -> dict[str, Any]:
    try:
        return _act(resource, waiting, host, touched, diff=diff, emit=emit)
    except Missing as error:
        maker = host.pending(error.claim)
        if maker is None:
            return _failed(error.message, error.hint)
        reason = f"after: {maker}"
    except Unknown as error:
        reason = str(error)
    except ResourceError as error:
        return _failed(error.message, error.hint)
    except OSError as error:
        return _failed(explain(error, host.root), "")
    except Cancelled:
        raise
    except Exception as error:  # noqa: BLE001  (say which resource it was)
        return _failed(our_fault(error), OUR_FAULT)
    host.overlay.claim(resource.provides(), resource.id)
    return {"verdict": UNKNOWN, "reason": reason}


def _act(
    resource: Resource,
    waiting: Waiting,
    host: Host,
    touched: set[str],
    *,
    diff: bool,
    emit: Emit,
) -> dict[str, Any]:
    actual = resource.observe(host)
    changes = _changes(resource, host, actual, touched)
    if not changes:
        return {"verdict": OK, **_output(actual)}
    text = resource.diff(host, actual) if diff else ""
    if host.check:
        resource.plan(host, actual)
        host.overlay.claim(resource.provides(), resource.id)
    else:
        emit({"event": "changing", "id": resource.id})
        _converge(resource, waiting, host, actual)
    return {"verdict": CHANGE, "changes": _told(changes), **({"diff": text} if text else {})}


def _changes(
    resource: Resource, host: Host, actual: State, touched: set[str]
) -> dict[str, tuple[Any, Any]]:
    """What differs, a restart that is owed included (it is put into `actual` too)."""
    changes = differences(actual, resource.desired())
    owed = bool(resource.triggers()) and (
        host.owed(resource.id) or (host.check and bool(touched & set(resource.triggers())))
    )
    if owed:
        actual["restart"] = "owed"
        changes["restart"] = ("owed", "none")
    return changes


def _converge(resource: Resource, waiting: Waiting, host: Host, actual: State) -> None:
    for other, triggers in waiting.items():
        if resource.id in triggers:
            host.owe(other)
    resource.converge(host, actual)
    left = differences(resource.settled(host), resource.desired())
    if left:
        wanted = ", ".join(f"{k} is {a!r}, not {d!r}" for k, (a, d) in left.items())
        raise ResourceError(f"it did not converge: {wanted}")
    if resource.triggers():
        host.settle(resource.id)
    host.journal.record(resource.id, "converged")


def _told(changes: dict[str, tuple[Any, Any]]) -> dict[str, list[Any]]:
    return {name: [is_now, then] for name, (is_now, then) in changes.items()}


def _output(actual: State) -> dict[str, Any]:
    return {"output": actual["output"]} if "output" in actual else {}


def _failed(message: str, hint: str) -> dict[str, Any]:
    return {"verdict": FAILED, "error": message, "hint": hint}
