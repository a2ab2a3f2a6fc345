"""Brings one node's resources to its agent and the results back, over reboots and lost lines.

They travel as one document, with the contents that the agent asks for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cluster.errors import Failed, NotBack, SparkClusterError, Unreachable, naming
from spark_cluster.node.values import Blob, LaptopFile, Secret, mask, secrets_in
from spark_cluster.resources.base import Resource, to_wire
from spark_cluster.resources.file import File
from spark_cluster.runner.events import Applying, Bus, Changing, Note, Options, Progress, Result

if TYPE_CHECKING:
    from spark_cluster.runner.connections import Connections
    from spark_cluster.runner.session import Session


# A node goes away in the middle of a run, and comes back: after a reboot, or a cut connection.

FIRST_TRY_S = 3.0
"""Seconds after the request to reboot until the node is looked for."""

PAUSES = (0.5, 5.0)
"""Seconds between two tries: at first, and at most."""

RECONNECT_S = 30.0
"""Seconds for which a lost node is looked for. Its agent frees the lock no later than 40 s after
the last word, of which 15 have passed by then."""

Tell = Callable[[str], None]


def reboot(connections: Connections, name: str, wanted: Mapping[str, Any], tell: Tell) -> float:
    """Reboot a connected node, and have it connected and locked again, what is known of it renewed.

    Args:
        wanted: the agent's `reboot`: the resource's `id`, the `boot_id` of now, `timeout_s`.
        tell: shows what is being waited for.

    Returns:
        Seconds until it was back.

    Raises:
        NotBack: it did not come back in time.
        Failed: it cannot be rebooted now, or another run has taken its lock.
    """
    session = _may_reboot(connections, name, wanted["id"])
    started = time.monotonic()
    tell("rebooting")
    with contextlib.suppress(Unreachable):  # it may be quicker than its answer
        session.request("reboot", id=wanted["id"], run=connections.run)
    connections.drop(name)
    time.sleep(min(FIRST_TRY_S, wanted["timeout_s"]))
    until = started + float(wanted["timeout_s"])
    missing = _wait(connections, name, until, tell, booted_before=wanted["boot_id"])
    if missing is not None:
        from spark_cluster.issues.entries import catalogue

        raise NotBack(
            f"it did not come back within {wanted['timeout_s']:g} s after the reboot: {missing}",
            where=name,
            hint=catalogue()["no-return-from-reboot"].fix_on(name),
        )
    return time.monotonic() - started


def _may_reboot(connections: Connections, name: str, resource: str) -> Session:
    if connections.nodes[name].is_this_machine:
        raise Failed(
            f"{resource}: this machine has to be rebooted, which would end this run",
            where=name,
            hint="sudo systemctl reboot, then run the same command again",
        )
    session = connections.session(name)
    if session.at_work:
        raise Failed(
            f"{resource}: other work of this run is going on on this node",
            where=name,
            hint="in the playbook, run nothing in parallel with what may reboot",
        )
    return session


def reconnect(connections: Connections, name: str, lost: Unreachable, tell: Tell) -> float:
    """Have a node whose connection was lost connected and locked again.

    Returns:
        Seconds until it was back.

    Raises:
        Unreachable: `lost`, when it cannot be reached any more.
        Failed: another run has taken its lock.
    """
    started = time.monotonic()
    if _wait(connections, name, started + RECONNECT_S, tell) is not None:
        raise lost
    return time.monotonic() - started


def _wait(
    connections: Connections, name: str, until: float, tell: Tell, booted_before: str = ""
) -> str | None:
    """Try until the node is back and entered; otherwise why it is not."""
    pause, most = PAUSES
    while True:
        try:
            connections.reconnect(name, booted_before)
        except SparkClusterError as error:
            why = error.message
        else:
            try:
                connections.enter(name)
                return None
            except Unreachable as error:
                why = error.message
        if time.monotonic() + pause > until:
            connections.drop(name)
            return why
        tell(f"waiting for it to come back ({why})")
        time.sleep(pause)
        pause = min(pause * 1.5, most)


INLINE = 8 * 1024
"""Bytes up to which a file's content travels with its document; more only when it is lacking."""

_TOLD = ("seconds", "changes", "diff", "reason", "error", "hint", "output")


@dataclass
class Applied:
    """The result of one `apply`: node to resource id to result."""

    results: dict[str, dict[str, Result]] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """True if anything was changed (or, in check mode, would be or may be)."""
        return any(self.changes(node) for node in self.results)

    def changes(self, node: str) -> list[str]:
        """Ids of the changed resources of a node."""
        verdicts = ("change", "unknown")
        return [i for i, r in self.results.get(node, {}).items() if r.verdict in verdicts]

    def output(self, node: str, title: str) -> str:
        """Return what a reading Command printed."""
        return self.results[node][f"Command:{title}"].output


@dataclass(eq=False)
class Delivery:
    """The delivery of one document to one node.

    Args:
        node: its name.
        applied: gets the results.
        secrets: of the play so far; those of the document come to them.
    """

    connections: Connections
    bus: Bus
    options: Options
    node: str
    _: KW_ONLY
    applied: Applied
    secrets: set[str]
    _roles: dict[str, str] = field(default_factory=dict, init=False)
    _left_out: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    _away: dict[str, float] = field(default_factory=dict, init=False)

    @property
    def results(self) -> dict[str, Result]:
        """The results of the node's resources so far, by their ids."""
        return self.applied.results.setdefault(self.node, {})

    def deliver(self, resources: list[tuple[str, Resource]]) -> None:
        """Have the chosen ones of these (role, resource) applied.

        Raises:
            Failed: one of them failed, or the user wanted no more.
            Unreachable: the node is lost.
        """
        chosen = []
        for role, resource in resources:
            self._roles[resource.id] = role
            if self.options.selection.wants(self.node, role, resource):
                chosen.append(resource)
            else:
                self._left_out[resource.id] = resource.triggers()
                self.bus.emit(Result(self.node, role, self._shown(resource.id), "skipped"))
        if not chosen:
            return
        label = ", ".join(dict.fromkeys(self._roles[r.id] for r in chosen))
        self.bus.emit(Applying(self.node, label, len(chosen)))
        packed = document(chosen)
        self.secrets |= secrets_in(packed.resources)
        reply = self._send_all(packed, [r.id for r in chosen])
        if "stopped" in reply:
            shown = self._shown(reply["stopped"])
            raise Failed(
                f"stopped by the user before {shown}",
                where=self.node,
                hint=f"--start-at '{shown}' continues there",
            )
        if not reply["ok"]:
            raise self._failed()

    # -- inside ----------------------------------------------------------------------------------

    def _send_all(self, packed: ResourceDocument, ids: list[str]) -> dict[str, Any]:
        """Send the document, and what is left of it again after each time the node was away."""
        begin, rebooted, lost_at = 0, None, -1
        while True:
            rest = ResourceDocument(packed.resources[begin:], packed.blobs)
            try:
                reply = self._send(rest, rebooted)
            except Unreachable as lost:
                undone = sum(name in self.results for name in ids)
                if self.connections.closing or undone in (lost_at, len(ids)):
                    raise
                if self.options.check or self._has_failed():
                    raise  # in check mode the picture of what would be is lost too
                self._reconnect(lost, ids[undone])
                begin = lost_at = undone
                continue
            if "reboot" not in reply:
                self._must_be_whole(reply, ids)
                return reply
            rebooted = reply["reboot"]
            begin += rebooted["at"]
            if ids[begin : begin + 1] != [rebooted["id"]] or rebooted["id"] in {
                **self._away,
                **self.results,
            }:
                raise self._refuse(f"it asks for a reboot for {rebooted['id']}, out of turn")
            self._away[rebooted["id"]] = reboot(
                self.connections, self.node, rebooted, self._progress(rebooted["id"])
            )

    def _send(self, part: ResourceDocument, rebooted: dict[str, Any] | None) -> dict[str, Any]:
        pending = self.connections.session(self.node).submit(
            "apply",
            part.longest_step_s,
            resources=part.resources,
            run=self.connections.run,
            check=self.options.check,
            diff=self.options.diff,
            step=self.options.ask is not None,
            rebooted=rebooted,
            left_out={i: triggers for i, triggers in self._left_out.items() if triggers},
        )
        return pending.wait(self._take, part.blobs, self._ask)

    def _must_be_whole(self, reply: dict[str, Any], ids: list[str]) -> None:
        """Raise the error for a node whose reply and results contradict each other."""
        missing = [name for name in ids if name not in self.results]
        if reply["ok"] and missing and "stopped" not in reply:
            raise self._refuse(f"all is well, it says, without a result of {missing[0]}")
        if not reply["ok"] and not self._has_failed():
            raise self._refuse("a resource has failed, it says, and none of the results has")

    def _refuse(self, fault: str) -> SparkClusterError:
        return self.connections.session(self.node).refuse(fault)

    def _reconnect(self, lost: Unreachable, resource: str) -> None:
        self.bus.emit(Note(f"{lost.message}; connecting again", "warning", self.node))
        seconds = reconnect(self.connections, self.node, lost, self._progress(resource))
        text = f"connected again after {seconds:.0f} s, going on at {self._shown(resource)}"
        self.bus.emit(Note(text, "warning", self.node))

    def _progress(self, resource: str) -> Any:
        return lambda text: self.bus.emit(Progress(self.node, self._shown(resource), text))

    def _shown(self, resource: str) -> str:
        """The id of a resource for people: a secret that a role put into it is masked."""
        return str(mask(resource, self.secrets))

    def _ask(self, event: dict[str, Any]) -> str:
        if self.options.ask is None:
            return "yes"
        return self.options.ask(self.node, {**event, "id": self._shown(event["id"])})

    def _take(self, event: dict[str, Any]) -> None:
        kind, resource = event["event"], event.get("id", "")
        if kind == "changing":
            self.bus.emit(Changing(self.node, self._shown(resource)))
        elif kind == "prove":
            self.connections.verify_new_login(self.node, event["path"])
        elif kind == "progress":
            self._progress(resource)(event["text"])
        elif kind == "note":
            self.bus.emit(Note(event["text"], "warning", self.node))
        elif kind == "result":
            self._result(resource, event)

    def _result(self, resource: str, event: dict[str, Any]) -> None:
        if resource not in self._roles or resource in self.results:
            again = "again" if resource in self.results else "which it was not given"
            raise self._refuse(f"a result of {resource}, {again}")
        known = {k: event[k] for k in _TOLD if k in event}
        if event["verdict"] == "failed" and not event.get("hint"):
            known["hint"] = _advice(event.get("error") or "", self.node)
        if resource in self._away:
            seconds = self._away.pop(resource)
            known["seconds"] = known.get("seconds", 0.0) + seconds
            if event["verdict"] == "change":
                known["reason"] = f"rebooted, back after {seconds:.0f} s"
        shown = self._shown(resource)
        result = Result(self.node, self._roles[resource], shown, event["verdict"], **known)
        self.results[resource] = result
        self.bus.emit(result)

    def _has_failed(self) -> bool:
        return any(result.verdict == "failed" for result in self.results.values())

    def _failed(self) -> Failed:
        result = next(r for r in self.results.values() if r.verdict == "failed")
        name = result.resource.partition(":")[2]
        return Failed(  # a command's error begins with its title, which is in the id already
            f"{result.resource}: {result.error.removeprefix(f'{name}: ')}",
            where=f"{self.node}: role {result.role}",
            hint=result.hint,
        )


def _advice(error: str, node: str) -> str:
    """Return cause and fix of the known issue that a program's last words show, if any."""
    from spark_cluster.issues.entries import (
        fill,  # slow to import, seldom needed
        known_for,
    )

    found = next(filter(None, map(known_for, error.splitlines())), None)
    return fill(f"{found.cause}: {found.fix}", {"NODE": node}) if found else ""


# -- the document ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResourceDocument:
    """The set of resources sent to a node, as JSON, and the contents that are sent on demand."""

    resources: list[dict[str, Any]]
    blobs: dict[str, bytes | Path]

    @property
    def longest_step_s(self) -> float:
        """Seconds that one of the resources may take, by its own limit; 0 when none names one."""
        return max((float(r.get("timeout_s", 0.0)) for r in self.resources), default=0.0)


def check(resources: Sequence[Resource], where: str) -> None:
    """Check that these resources can be one document, before any of them is left out.

    Raises:
        Failed: two have one id, or a trigger names a resource that is not among them.
    """
    known: set[str] = set()
    for resource in resources:
        if resource.id in known:
            raise Failed(f"{resource.id} is declared twice", where=where)
        known.add(resource.id)
    for resource in resources:
        for trigger in resource.triggers():
            if trigger not in known:
                raise Failed(
                    f"{resource.id} is to act on changes of {trigger}, which is not declared",
                    where=where,
                )


def document(resources: Sequence[Resource]) -> ResourceDocument:
    """Pack resources for the wire."""
    blobs: dict[str, bytes | Path] = {}
    return ResourceDocument([to_wire(_lighter(r, blobs)) for r in resources], blobs)


def _lighter(resource: Resource, blobs: dict[str, bytes | Path]) -> Resource:
    if not isinstance(resource, File) or isinstance(resource.content, (Secret, Blob, type(None))):
        return resource
    content = resource.content
    if isinstance(content, LaptopFile):
        return dataclasses.replace(resource, content=_of_file(content, blobs))
    data = content.encode() if isinstance(content, str) else content
    if len(data) <= INLINE:
        return resource
    blob = Blob(hashlib.sha256(data).hexdigest(), len(data))
    blobs[blob.sha256] = data
    return dataclasses.replace(resource, content=blob)


def _of_file(content: LaptopFile, blobs: dict[str, bytes | Path]) -> bytes | Blob:
    """A file of the laptop: itself when it is small."""
    with naming(Failed, str(content.path), hint="it is to be sent to a node"):
        if content.path.stat().st_size <= INLINE:
            return content.path.read_bytes()
        blob = content.blob()
    blobs[blob.sha256] = content.path
    return blob
