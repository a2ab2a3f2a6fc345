"""What the laptop can ask of an agent: each operation is one function from request to reply."""

from __future__ import annotations

import codecs
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_cluster.agent.apply import Document
from spark_cluster.agent.faults import OUR_FAULT, explain, our_fault
from spark_cluster.agent.host import SEARCH_PATH, Cancelled, Host, Processes
from spark_cluster.agent.lock import Locked, NodeLock
from spark_cluster.agent.masking import secrets_in
from spark_cluster.resources.base import Blob, ResourceError, from_wire

Request = Mapping[str, Any]
Reply = dict[str, Any]
Emit = Callable[[Reply], None]
Fetch = Callable[[Blob], bytes]
Ask = Callable[[Reply], str]

LOCK_FILE = "run/spark-cluster.lock"

REBOOT_S = 1.0
"""Seconds between the promise to reboot and its begin."""


@dataclass(frozen=True)
class Laptop:
    """The way back to who asked: events out, contents and a person's answers in."""

    emit: Emit
    fetch: Fetch
    ask: Ask


@dataclass
class Node:
    """What the operations of one agent share."""

    root: Path = Path("/")
    processes: Processes = field(default_factory=Processes)
    overlays: dict[str, Any] = field(default_factory=dict)
    lock: NodeLock = field(init=False)

    def __post_init__(self) -> None:
        self.lock = NodeLock(self.root / LOCK_FILE)

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
            host.ask_for_proof = lambda path: laptop.emit({"event": "prove", "path": path})
            host.note = lambda text: laptop.emit(
                {"event": "note", "id": host.current, "text": text}
            )
        return host


def do_apply(node: Node, request: Request, laptop: Laptop) -> Reply:
    """Run a document of resources; events as they happen, then whether all went well."""
    try:
        resources = [from_wire(dict(d)) for d in request["resources"]]
    except (LookupError, TypeError, ValueError) as error:
        return {"error": f"the document does not fit this agent: {error}"}
    document = Document(
        resources,
        node.host(request, laptop),
        laptop.emit,
        diff=bool(request.get("diff")),
        ask=laptop.ask if request.get("step") else None,
        rebooted=request.get("rebooted"),
        left_out=request.get("left_out") or {},
    )
    return document.apply()


def do_lock(node: Node, request: Request, _laptop: Laptop) -> Reply:
    """Take this node's lock for as long as the agent lives."""
    try:
        node.lock.take(dict(request["owner"]))
    except Locked as locked:
        return {"locked_by": locked.owner}
    return {}


def do_gather(node: Node, request: Request, _laptop: Laptop) -> Reply:
    """Run reading commands side by side and read files; what is missing is None.

    A command is an argument list, or several lists of which the first one counts that has an
    answer.
    What this process knows of its machine by itself comes along as `machine`.
    """
    commands: Mapping[str, list[Any]] = request.get("commands", {})
    host = node.host(request)

    def one(argv: list[Any]) -> Reply | None:
        choices = argv if argv and isinstance(argv[0], list) else [argv]
        last = None
        for choice in choices:
            try:
                done = host.run(choice, timeout=float(request.get("timeout", 20.0)))
            except (ResourceError, OSError):
                continue
            except Cancelled:
                return None
            last = {"status": done.status, "stdout": done.stdout, "stderr": done.stderr}
            if done.status == 0 and done.stdout:
                return last
        return last

    outputs: Reply = dict.fromkeys(commands)
    workers = [
        threading.Thread(target=lambda n=name, a=argv: outputs.update({n: one(a)}))
        for name, argv in commands.items()
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    files = {name: _text(host, path) for name, path in request.get("files", {}).items()}
    trees = {name: _tree(host, pattern) for name, pattern in request.get("trees", {}).items()}
    return {"commands": outputs, "files": files, "trees": trees, "machine": _machine(node.root)}


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


def _text(host: Host, path: str) -> str | None:
    try:
        return host.path(path).read_text(errors="replace")
    except OSError:
        return None


def _tree(host: Host, pattern: str) -> dict[str, str]:
    """Every readable file that matches a glob, path to text (sysfs has one value a file)."""
    found = {}
    for path in sorted(host.root.glob(pattern.lstrip("/"))):
        text = _text(host, str(path.relative_to(host.root)))
        if text is not None:
            found["/" + str(path.relative_to(host.root))] = text
    return found


def do_run(node: Node, request: Request, laptop: Laptop) -> Reply:
    """One command: status and outputs."""
    done = node.host(request, laptop).run(
        request["argv"],
        stdin=str(request.get("stdin", "")).encode(),
        env=request.get("env"),
        timeout=float(request.get("timeout", 60.0)),
        user=request.get("user"),
    )
    return {"status": done.status, "stdout": done.stdout, "stderr": done.stderr}


def do_stream(node: Node, request: Request, laptop: Laptop) -> Reply:
    """One command whose output is sent as it comes, until it ends or the laptop cancels."""
    process = subprocess.Popen(
        request["argv"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": SEARCH_PATH, "LANG": "C.UTF-8", "HOME": "/root"},
        start_new_session=True,
    )
    assert process.stdout is not None  # noqa: S101  (it is a pipe)
    node.processes.add(process.pid)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    selector = selectors.DefaultSelector()
    selector.register(process.stdout, selectors.EVENT_READ)
    try:
        while not node.processes.cancelled.is_set():
            if not selector.select(timeout=0.5):
                continue
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                break
            laptop.emit({"event": "output", "text": decoder.decode(data)})
    finally:
        node.processes.remove(process.pid)
        if process.poll() is None and node.processes.cancelled.is_set():
            process.terminate()
        status = process.wait()
    return {"status": status}


def do_reboot(node: Node, request: Request, laptop: Laptop) -> Reply:
    """Have the node reboot in a moment, so that this can be answered first."""
    host = node.host(request, laptop)
    if host.which("systemd-run") is None:
        return {"error": "this node has no systemd-run", "hint": "reboot it yourself, then go on"}
    when = f"--on-active={REBOOT_S:g}"
    argv = ("systemd-run", "--quiet", "--no-ask-password", when, "systemctl", "reboot")
    host.run(argv).check("asking systemd for a reboot")
    host.journal.record(str(request["id"]), "reboot", boot_id=host.boot_id())
    return {"boot_id": host.boot_id()}


def do_history(node: Node, request: Request, _laptop: Laptop) -> Reply:
    """What runs changed on this node, or with `of` what one run did."""
    from spark_cluster.agent.history import History  # late: few runs want it

    history = History(node.root)
    if request.get("of") is None:
        return history.overview()
    try:
        return history.document(history.find(str(request["of"])))
    except ResourceError as error:
        return {"missing": error.message, "hint": error.hint}


def do_revert(node: Node, request: Request, laptop: Laptop) -> Reply:
    """Put back what a run changed; events as in `apply`."""
    from spark_cluster.agent.history import History
    from spark_cluster.agent.revert import revert

    try:
        run = History(node.root).find(str(request["of"]))
    except ResourceError as error:
        return {"missing": error.message, "hint": error.hint}
    host = node.host(request, laptop)
    return revert(host, run, laptop.emit, diff=bool(request.get("diff")))


def do_http(_node: Node, request: Request, _laptop: Laptop) -> Reply:
    """One HTTP request from this node: status and body, or why there is no answer."""
    from spark_cluster.agent.http import ask  # late: ssl and email are a third of all imports

    return ask(request)


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
        return {"error": our_fault(error), "hint": OUR_FAULT}
