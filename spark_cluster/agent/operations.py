"""The operations that the laptop can ask for: each is a function from request to reply."""

from __future__ import annotations

import codecs
import contextlib
import importlib
import os
import queue
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spark_cluster.agent.apply import Document
from spark_cluster.agent.gathering import Gathering
from spark_cluster.node import durable, own_program
from spark_cluster.node.host import Cancelled, Host, Processes
from spark_cluster.node.values import (
    Blob,
    ResourceError,
    explain,
    project_place,
    secrets_in,
    unforeseen,
)
from spark_cluster.resources.base import from_wire

Request = Mapping[str, Any]
Reply = dict[str, Any]
Emit = Callable[[Reply], None]
Fetch = Callable[[Blob], Iterable[bytes]]
Ask = Callable[[Reply], str]
Action = Callable[[Host, Request], Reply]

GATHER_S = 20.0
"""Seconds that each reading command may take, unless the laptop says otherwise."""

PATIENCE_S = 1.0
"""Seconds to wait for a lock before its holder is named: a run that has just ended may still be
exiting when the next one starts."""

STREAM_AHEAD = 1024 * 1024
"""Characters of streamed output that may be on their way, or wait on the laptop to be shown."""

REBOOT_S = 1.0
"""Seconds between the promise to reboot and its begin."""


@dataclass(frozen=True)
class Laptop:
    """The way back to who asked: events out, contents and a person's answers in.

    Attributes:
        taken: how many characters of streamed output were shown, as the laptop reports it.
    """

    emit: Emit
    fetch: Fetch
    ask: Ask
    taken: queue.Queue[int]


@dataclass
class Node:
    """The state that the operations of one agent share."""

    root: Path = Path("/")
    processes: Processes = field(default_factory=Processes)
    overlays: dict[str, Any] = field(default_factory=dict)
    lock: durable.NodeLock = field(init=False)

    def __post_init__(self) -> None:
        self.lock = durable.NodeLock(self.root / durable.RUN_LOCK.lstrip("/"))

    def host(self, request: Request, laptop: Laptop | None = None) -> Host:
        """This node, for one request."""
        host = Host(
            root=self.root,
            run_id=str(request.get("run", "none")),
            check=bool(request.get("check", False)),
            processes=self.processes,
            owner=self.lock.owner,
            secrets=frozenset(secrets_in(request)),
        )
        if host.check:  # one overlay a run: a later document sees what an earlier one would make
            host.overlay = self.overlays.setdefault(host.run_id, host.overlay)
        if laptop is not None:
            host.fetch = laptop.fetch
            host.progress = lambda text: laptop.emit(
                {"event": "progress", "id": host.current, "text": text}
            )
            host.verify_login = lambda path: laptop.emit({"event": "prove", "path": path})
            host.note = lambda text: laptop.emit(
                {"event": "note", "id": host.current, "text": text}
            )
        return host


def do_apply(node: Node, request: Request, laptop: Laptop) -> Reply:
    """Run a document of resources; events as they happen, then whether all went well."""
    try:
        resources = [from_wire(dict(d)) for d in request["resources"]]
    except (LookupError, TypeError, ValueError) as error:
        place = project_place(error)
        text = f"{place}: {error}" if place else str(error)
        return {"error": f"the document does not fit this agent: {text}"}
    return Document(
        resources,
        node.host(request, laptop),
        laptop.emit,
        diff=bool(request.get("diff")),
        ask=laptop.ask if request.get("step") else None,
        rebooted=request.get("rebooted"),
        left_out=request.get("left_out") or {},
    ).apply()


def do_lock(node: Node, request: Request, _laptop: Laptop) -> Reply:
    """Take this node's lock for as long as the agent lives."""
    try:
        node.lock.take(dict(request["owner"]), PATIENCE_S)
    except durable.Locked as locked:
        return {"locked_by": locked.owner}
    return {}


def do_gather(node: Node, request: Request, _laptop: Laptop) -> Reply:
    """Run reading commands and HTTP requests in parallel and read files; what is missing is None.

    A command is an argument list, or several lists of which the first one counts that has an
    answer. What was not done in time is None as well, and `late` names it.
    What this process knows of its machine by itself comes along as `machine`. Without `links` what
    a glob matches is read only where it is a regular file.
    """
    timeout, links = float(request.get("timeout", GATHER_S)), bool(request.get("links", True))
    gathering = Gathering(node.host(request), timeout, links=links)
    wanted = (request.get(what, {}) for what in ("commands", "files", "trees", "requests"))
    return {**gathering.all(*wanted), "machine": _machine(node.root)}


def _machine(root: Path) -> Reply:
    disk, system = os.statvfs(root), os.uname()
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "cpus": os.cpu_count() or 0,
        "arch": system.machine,
        "kernel": system.release,
        "hostname": system.nodename,
        "disk_total": disk.f_blocks * disk.f_frsize,
        "disk_free": disk.f_bavail * disk.f_frsize,
    }


def do_run(node: Node, request: Request, laptop: Laptop) -> Reply:
    """Run one command, or a program of ours: status and outputs, and how many bytes were too many.

    With `program` (as `own_program` names one), `argv` are its words.
    """
    argv = request["argv"]
    if program := str(request.get("program", "")):
        # Also brings it, where it is in a part of the code that is not here.
        find_spec(program.partition(":")[0])
        argv = own_program.argv(program, *argv)
    done = node.host(request, laptop).run(
        argv,
        stdin=str(request.get("stdin", "")).encode(),
        env=request.get("env"),
        timeout=float(request.get("timeout", 60.0)),
        user=request.get("user"),
    )
    return {
        "status": done.status,
        "stdout": done.stdout,
        "stderr": done.stderr,
        "left_out": done.left_out,
    }


def do_stream(node: Node, request: Request, laptop: Laptop) -> Reply:
    """Stream the output of one command as it comes, until it ends or the laptop cancels.

    What was sent and not yet shown there is limited; the command waits meanwhile.
    """
    host = node.host(request, laptop)
    return _stream(node, request["argv"], host.search_path, laptop)


def do_telemetry(node: Node, request: Request, laptop: Laptop) -> Reply:
    """Stream the sampler's lines until the laptop cancels, as `stream` does; with `file` run it in
    a transient unit that writes them there, and goes on when the laptop is gone."""
    from spark_cluster.agent import gathering

    host = node.host(request, laptop)
    if request.get("file"):
        return gathering.start_unit(host, request)
    return _stream(node, gathering.argv(host, request), host.search_path, laptop)


def _stream(node: Node, argv: Sequence[str], search_path: str, laptop: Laptop) -> Reply:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    cancelled = node.processes.cancelled
    ahead = 0

    def take(_number: int, data: bytes) -> None:
        nonlocal ahead
        text = decoder.decode(data)
        laptop.emit({"event": "output", "text": text})
        ahead += len(text)
        while ahead > STREAM_AHEAD and not cancelled.is_set():
            with contextlib.suppress(queue.Empty):
                ahead -= laptop.taken.get(timeout=0.1)

    environment = {"PATH": search_path, "LANG": "C.UTF-8", "HOME": "/root"}
    unlimited = float("inf")
    with node.processes.start(argv, env=environment, timeout=unlimited, merged=True) as running:
        return {"status": running.attend(take, cancelled)}


def do_reboot(node: Node, request: Request, laptop: Laptop) -> Reply:
    """Have the node reboot in a moment, so that this can be answered first."""
    host = node.host(request, laptop)
    if host.which("systemd-run") is None:
        return {"error": "this node has no systemd-run", "hint": "reboot it, then run this again"}
    # Without an accuracy systemd takes up to a minute longer.
    when = (f"--on-active={REBOOT_S:g}", "--timer-property=AccuracySec=100ms")
    argv = ("systemd-run", "--quiet", "--no-ask-password", *when, "systemctl", "reboot")
    host.run(argv).check("asking systemd for a reboot")
    host.journal.record(str(request["id"]), "reboot", boot_id=host.boot_id())
    return {"boot_id": host.boot_id()}


def do_history(node: Node, request: Request, _laptop: Laptop) -> Reply:
    """Return what runs changed on this node, or with `of` what one run did."""
    from spark_cluster.agent.history import History  # late: few runs want it

    history = History(node.root)
    if request.get("of") is None:
        return history.overview()
    try:
        return history.to_dict(history.find(str(request["of"])))
    except ResourceError as error:
        return {"missing": error.message, "hint": error.hint}


def do_revert(node: Node, request: Request, laptop: Laptop) -> Reply:
    """Revert what a run changed; events as in `apply`."""
    from spark_cluster.agent.history import History
    from spark_cluster.agent.revert import revert

    try:
        run = History(node.root).find(str(request["of"]))
    except ResourceError as error:
        return {"missing": error.message, "hint": error.hint}
    host = node.host(request, laptop)
    return revert(host, run, laptop.emit, diff=bool(request.get("diff")))


def do_http(node: Node, request: Request, _laptop: Laptop) -> Reply:
    """Make one HTTP request from this node: status and body, or why there is no answer."""
    from spark_cluster.node.http import ask  # late: ssl and email are a third of all imports

    return ask(request, node.root)


ACTIONS_OF = {
    "caches": "caches",
    "copy": "copies",
    "image": "docker_images",
    "load_guard": "load_guard",
    "store": "model_store",
}
"""Operation to the module of this folder whose `ACTIONS` carry out its `what`."""


def do_action(node: Node, request: Request, laptop: Laptop) -> Reply:
    """Carry out the `what` of an operation that has several."""
    return act(node.host(request, laptop), request)


def act(host: Host, request: Request) -> Reply:
    """Carry out the `what` of a request on a node.

    Raises:
        ResourceError: it cannot be done, or this agent does not know it.
    """
    op, what = str(request["op"]), str(request.get("what"))
    module = importlib.import_module(f"spark_cluster.agent.{ACTIONS_OF[op]}")  # few runs want it
    action: Action | None = module.ACTIONS.get(what)
    if action is None:
        raise ResourceError(f"this agent's `{op}` has no action {what[:60]!r}")
    return action(host, request)


OPERATIONS: dict[str, Callable[[Node, Request, Laptop], Reply]] = {
    "apply": do_apply,
    "gather": do_gather,
    "history": do_history,
    "http": do_http,
    "lock": do_lock,
    "reboot": do_reboot,
    "revert": do_revert,
    "run": do_run,
    "stream": do_stream,
    "telemetry": do_telemetry,
    **dict.fromkeys(ACTIONS_OF, do_action),
}


def carry_out(node: Node, request: Request, laptop: Laptop) -> Reply:
    """The reply to one request; a fault of the node is a reply with `error`, never a traceback."""
    operation = OPERATIONS.get(str(request.get("op")))
    if operation is None:
        return {"error": f"this agent has no operation {request.get('op')!r}"}
    try:
        return operation(node, request, laptop)
    except ResourceError as error:
        return {"error": error.message, "hint": error.hint}
    except Cancelled:
        return {"error": "cancelled"}
    except OSError as error:
        return {"error": explain(error, node.root)}
    except Exception as error:  # noqa: BLE001  (without a reply the laptop would wait for ever)
        text, hint = unforeseen(error)
        return {"error": text, "hint": hint}
