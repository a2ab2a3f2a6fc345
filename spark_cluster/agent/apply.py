"""The run of one document of resources on a node, with the result of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_cluster.node import confinement
from spark_cluster.node.host import Host
from spark_cluster.node.output import shortened
from spark_cluster.node.processes import Cancelled
from spark_cluster.node.values import (
    MASK,
    Missing,
    RebootNeeded,
    ResourceError,
    Skip,
    Unknown,
    explain,
    mask,
    unforeseen,
)
from spark_cluster.resources.base import Resource, State, differences

Emit = Callable[[dict[str, Any]], None]
Ask = Callable[[dict[str, Any]], str]
Changes = dict[str, tuple[Any, Any]]
Waiting = Mapping[str, Sequence[str]]

DIFF_LIMIT = 1024 * 1024
"""Characters of one diff that are shown."""

OK, CHANGE, UNKNOWN, FAILED, SKIPPED = "ok", "change", "unknown", "failed", "skipped"

_OF_ANY_FILE = {"kind", "sha256", "mode", "owner", "group", "restart", "rollback"}
"""Attributes that say nothing of what is in a file."""


class StoppedByUser(Exception):
    """The user said, of a resource, that nothing more shall be done."""


@dataclass
class DocumentRun:
    """Resources that are applied to this node, in order.

    Args:
        emit: takes one event a resource: id, verdict, changes, seconds, and what else there is.
        diff: add a unified diff to each change.
        ask: asked before each change: `yes`, `no` (leave it), `all` (ask no more) or `stop`.
        rebooted: what the reply said that asked for the reboot from which this is the rest.
        left_out: resources that this run leaves out, id to those whose change makes them act: what
            they would have done now they owe to a later run.
    """

    resources: Sequence[Resource]
    host: Host
    emit: Emit
    diff: bool = False
    ask: Ask | None = None
    rebooted: Mapping[str, Any] | None = None
    left_out: Waiting = field(default_factory=dict)
    _touched: set[str] = field(default_factory=set)

    def apply(self) -> dict[str, Any]:
        """Bring every resource to its desired state, in order; stop at the first failure.

        Returns:
            `ok`: whether none failed. With `reboot`, the laptop has to reboot the node and to send
            the resources from `reboot["at"]` on again, together with all of `reboot`. With
            `stopped`, the user wanted no more.

        Raises:
            Cancelled: the laptop is gone; the resource in hand was finished or left as it was.
        """
        if not self.host.check:
            self.host.temporary.clean(self.host.note)
        for number, resource in enumerate(self.resources):
            if self.host.processes.cancelled.is_set():
                raise Cancelled
            self.host.current = resource.id
            started = time.monotonic()
            try:
                event = self._one(resource)
            except RebootNeeded:
                return {"ok": True, "reboot": {"at": number, **self._reboot(resource)}}
            except StoppedByUser:
                return {"ok": True, "stopped": resource.id}
            if event["verdict"] in (CHANGE, UNKNOWN):
                self._touched.add(resource.id)
            seconds = time.monotonic() - started
            self.emit({"event": "result", "id": resource.id, "seconds": seconds, **event})
            if event["verdict"] == FAILED:
                return {"ok": False}
        return {"ok": True}

    def _one(self, resource: Resource) -> dict[str, Any]:
        try:
            if self.rebooted is not None and resource.id == self.rebooted["id"]:
                return self._after_reboot(resource, self.rebooted)
            return self._act(resource)
        except Skip as error:
            return {"verdict": SKIPPED, "reason": str(error)}
        except (Missing, Unknown) as error:
            return self._unknown(resource, error)
        except (Cancelled, RebootNeeded, StoppedByUser):
            raise
        except Exception as error:  # noqa: BLE001  (say which resource it was)
            return _failed(*told(error, self.host.root))

    def _unknown(self, resource: Resource, error: Missing | Unknown) -> dict[str, Any]:
        """Return `unknown` where an earlier resource will provide what is missing, else fail."""
        reason = str(error)
        if isinstance(error, Missing):
            maker = self.host.will_provide(error.claim)
            if maker is None:
                return _failed(error.message, error.hint)
            reason = f"after: {maker}"
        if reason == f"after: {resource.id}":
            reason = "after its change earlier in this run"
        self.host.overlay.claim(resource.provides(), resource.id)
        return {"verdict": UNKNOWN, "reason": reason}

    def _act(self, resource: Resource) -> dict[str, Any]:
        host = self.host
        actual = resource.observe(host)
        changes = self._changes(resource, actual)
        if not changes:
            return {"verdict": OK, **{k: v for k, v in actual.items() if k == "output"}}
        refusal = resource.permit(host, changes)
        event: dict[str, Any] = {"verdict": CHANGE, "changes": self._told(resource, changes)}
        if refusal:
            event["reason"] = refusal
        text = shortened(resource.diff(host, actual), DIFF_LIMIT) if self.diff else ""
        if text:
            secret = self._is_secret(resource)
            event["diff"] = f"{secret}: secret content, not shown\n" if secret else text
        if host.check:
            resource.plan(host, actual)
            host.overlay.claim(resource.provides(), resource.id)
            return event
        self._asked(resource, event)
        if not self._touched:
            confinement.keep(host)
        self.emit({"event": "changing", "id": resource.id})
        self._converge(resource, actual, changes)
        return event

    def _changes(self, resource: Resource, actual: State) -> Changes:
        """Return what differs, a pending restart included (it is added to `actual` too)."""
        changes = differences(actual, resource.desired())
        triggers = set(resource.triggers())
        owed = bool(triggers) and (
            resource.must_act(self.host) or (self.host.check and bool(self._touched & triggers))
        )
        if owed:
            actual["restart"] = "pending"
            changes["restart"] = ("pending", "none")
        return changes

    def _asked(self, resource: Resource, event: dict[str, Any]) -> None:
        """Let the user decide, when that is wanted.

        Raises:
            Skip, Stopped: not this one; nothing more.
        """
        if self.ask is None:
            return
        answer = self.ask({"id": resource.id, **event})
        if answer == "no":
            raise Skip("not wanted")
        if answer == "stop":
            raise StoppedByUser
        if answer == "all":
            self.ask = None

    def _converge(self, resource: Resource, actual: State, changes: Changes) -> None:
        host = self.host
        for other, triggers in self._waiting():
            if resource.id in triggers:
                host.restarts.notify(other)
        resource.converge(host, actual)
        left = self._told(resource, differences(resource.state_after(host), resource.desired()))
        if left:
            wanted = ", ".join(f"{k} is {a!r}, not {d!r}" for k, (a, d) in left.items())
            raise ResourceError(f"it did not converge: {wanted}")
        self._done(resource, self._told(resource, changes))

    def _is_secret(self, resource: Resource) -> str:
        """The file that a resource is about, if what is in it is secret; else nothing."""
        path = getattr(resource, "path", "")
        return path if isinstance(path, str) and path and self.host.is_secret(path) else ""

    def _told(self, resource: Resource, changes: Changes) -> dict[str, list[Any]]:
        """Return the changes as they may be shown: without what a secret file holds now."""
        masked = {name: [is_now, then] for name, (is_now, then) in changes.items()}
        if self._is_secret(resource):
            for name in masked.keys() - _OF_ANY_FILE:
                masked[name][0] = None if masked[name][0] is None else MASK
        return masked

    def _waiting(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield each resource that acts when others change: its id, and the ids that trigger it."""
        yield from ((other.id, other.triggers()) for other in self.resources)
        yield from self.left_out.items()

    def _done(self, resource: Resource, changes: dict[str, list[Any]]) -> None:
        if resource.triggers():
            self.host.restarts.clear(resource.id)
        shown = mask(changes, self.host.secrets)
        self.host.journal.record(resource.id, "converged", changes=shown)

    def _reboot(self, resource: Resource) -> dict[str, Any]:
        """Return what the laptop must know of a reboot, and send back after it."""
        changes = self._changes(resource, resource.observe(self.host))
        return {
            "id": resource.id,
            "boot_id": self.host.boot_id(),
            "changes": self._told(resource, changes),
            "timeout_s": getattr(resource, "timeout_s", 300.0),
        }

    def _after_reboot(self, resource: Resource, before: Mapping[str, Any]) -> dict[str, Any]:
        if self.host.boot_id() == before["boot_id"]:
            raise ResourceError("the node should have been rebooted, and was not")
        left = differences(resource.observe(self.host), resource.desired())
        if left:
            asking = "; ".join(map(str, left["asked_for_by"][0]))
            raise ResourceError(
                f"after the reboot another one is still requested, by {asking}",
                "a path of pending_when must be one that the reboot removes",
            )
        self._done(resource, before["changes"])
        return {"verdict": CHANGE, "changes": before["changes"]}


def told(error: Exception, root: Path) -> tuple[str, str]:
    """Return the message of any error on a node, and what to do; empty where that is not known."""
    if isinstance(error, ResourceError):
        return error.message, error.hint
    return (explain(error, root), "") if isinstance(error, OSError) else unforeseen(error)


def _failed(message: str, hint: str) -> dict[str, Any]:
    return {"verdict": FAILED, "error": message, "hint": hint}
