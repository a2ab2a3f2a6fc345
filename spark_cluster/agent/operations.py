"""The operations that the laptop can ask for: each is a function from request to reply."""

from __future__ import annotations

import codecs
import contextlib
import importlib
import itertools
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from spark_cluster.agent.apply import DocumentRun, told
from spark_cluster.node import durable, own_program, processes, safe_paths
from spark_cluster.node.host import Host
from spark_cluster.node.journal import History
from spark_cluster.node.output import TEXT_LIMIT, shortened
from spark_cluster.node.processes import Cancelled, Processes, TooLong, environment
from spark_cluster.node.values import (
    Blob,
    ResourceError,
    project_place,
    secrets_in,
)
from spark_cluster.resources.base import from_wire

Request = Mapping[str, Any]
Reply = dict[str, Any]
Emit = Callable[[Reply], None]
Fetch = Callable[[Blob], Iterable[bytes]]
Ask = Callable[[Reply], str]
Action = Callable[[Host, Request], Reply]

# Reading commands, files and local HTTP services of a node in parallel: none that hangs may hold up
# the others.

FILE_S = 5.0
"""Seconds that reading one file, or the files of one glob, may take."""

PIECE = 64 * 1024
"""Bytes of one reading: the kernel answers one of 4 MiB or more of /proc/sys with ENOMEM."""

HTTP_S = 5.0
"""Seconds that an HTTP request may take, unless it says otherwise."""


class Gathering:
    """The reading of everything for one request.

    Args:
        timeout: seconds that each command may take; one that has to be killed takes the graces of
            node/processes.py longer.
        links: files that a glob matches are read through links and whatever they are; without it
            only regular ones with one name, for folders in which other users can write, and one
            that is too large is None. So is one that is too much with those before it.
    """

    def __init__(self, host: Host, timeout: float, *, links: bool = True) -> None:
        self._host = host
        self._timeout = timeout
        self._links = links
        self._found: dict[str, dict[str, Any]] = {}

    def all(
        self,
        commands: Mapping[str, Sequence[Any]],
        files: Mapping[str, str],
        trees: Mapping[str, str],
        requests: Mapping[str, Mapping[str, Any]],
    ) -> Reply:
        """Read it all; None for what is not there or does not answer, `late` for why not."""
        self._found = {
            "commands": dict.fromkeys(commands),
            "files": dict.fromkeys(files),
            "trees": {name: {} for name in trees},
            "requests": {},
            "late": {},
        }
        jobs = {name: partial(self._command, name, argv) for name, argv in commands.items()}
        jobs |= {name: partial(self._request, name, asked) for name, asked in requests.items()}
        threads = {name: threading.Thread(target=job, daemon=True) for name, job in jobs.items()}
        for thread in threads.values():
            thread.start()
        for name, path in files.items():
            self._read("files", name, path)
        for name, path in trees.items():
            self._read("trees", name, path)
        graces = processes.TERM_GRACE + processes.KILL_GRACE + processes.DRAIN_S
        until = time.monotonic() + self._timeout + graces + FILE_S
        for name, thread in threads.items():
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():  # not even its start came to an end
                what = commands[name][0] if name in commands else requests[name]["url"]
                self._found["late"].setdefault(name, f"{what}: it hangs")
        return {kind: dict(found) for kind, found in self._found.items()}

    def _command(self, name: str, argv: Sequence[Any]) -> None:
        choices = argv if argv and isinstance(argv[0], list) else [argv]
        until = time.monotonic() + self._timeout
        left = self._timeout
        for choice in choices:
            try:
                done = self._host.run(choice, timeout=left)
            except TooLong as error:
                self._found["late"][name] = error.message
                return
            except (ResourceError, OSError):
                continue
            except Cancelled:
                return
            said = {"stdout": done.stdout, "stderr": done.stderr}
            self._found["commands"][name] = {"status": done.status, **said}
            if done.status == 0 and done.stdout:
                return
            left = max(0.1, until - time.monotonic())

    def _request(self, name: str, request: Request) -> None:
        from spark_cluster.node.http import ask  # late: ssl and email are a third of all imports

        limit_s = min(self._timeout, request.get("timeout", HTTP_S))
        self._found["requests"][name] = ask({**request, "timeout": limit_s}, self._host.root)

    def _read(self, kind: str, name: str, path: str) -> None:
        """Read a file, or the files of a glob; one that hangs is left behind with its thread."""
        left = threading.Event()

        def take() -> None:
            if kind == "files":
                self._found[kind][name] = _text(self._host, path)
                return
            found = _tree(self._host, path, lambda: not left.is_set(), links=self._links)
            self._found[kind][name] = found

        reader = threading.Thread(target=take, daemon=True)
        reader.start()
        reader.join(FILE_S)
        if reader.is_alive():
            left.set()
            self._found["late"][name] = f"{path}: reading it hangs"


def _text(host: Host, path: str) -> str | None:
    try:
        with host.path(path).open("rb") as source:
            return _start(source)
    except OSError:
        return None


def _start(source: BinaryIO) -> str:
    """Return the text of a file, of a longer one its begin and the end of what is read."""
    data = bytearray()
    while len(data) <= TEXT_LIMIT and (piece := source.read(PIECE)):
        data += piece
    return shortened(data[: TEXT_LIMIT + 1].decode(errors="replace"), TEXT_LIMIT)


TREE_FILES = 10_000
"""Files of one glob that are looked at."""

TREE_BYTES = 96 << 20
"""Bytes of their texts together, as they are sent: a message may have a third more."""


def _tree(
    host: Host, pattern: str, goes_on: Callable[[], bool], *, links: bool
) -> dict[str, str | None]:
    """Return every readable file that matches a glob, path to text (sysfs has one value a file)."""
    found: dict[str, str | None] = {}
    left = TREE_BYTES
    for path in sorted(itertools.islice(host.root.glob(pattern.lstrip("/")), TREE_FILES)):
        if not goes_on():
            break
        try:
            with path.open("rb") if links else safe_paths.file_in(path) as source:
                about = os.fstat(source.fileno())
                if not links and about.st_nlink != 1:  # of a file that this user may not read
                    continue
                is_large = not links and about.st_size > min(TEXT_LIMIT, left)
                text = None if is_large else _start(source)
        except (OSError, ResourceError):
            continue
        size = len(json.dumps(text))
        if size > left:
            text, size = None, 0
        left -= size
        found["/" + str(path.relative_to(host.root))] = text
    return found


# The operations.

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
class AgentNode:
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


def do_apply(node: AgentNode, request: Request, laptop: Laptop) -> Reply:
    """Run a document of resources; events as they happen, then whether all went well."""
    try:
        resources = [from_wire(dict(d)) for d in request["resources"]]
    except (LookupError, TypeError, ValueError) as error:
        place = project_place(error)
        text = f"{place}: {error}" if place else str(error)
        return {"error": f"the document does not fit this agent: {text}"}
    return DocumentRun(
        resources,
        node.host(request, laptop),
        laptop.emit,
        diff=bool(request.get("diff")),
        ask=laptop.ask if request.get("step") else None,
        rebooted=request.get("rebooted"),
        left_out=request.get("left_out") or {},
    ).apply()


def do_lock(node: AgentNode, request: Request, _laptop: Laptop) -> Reply:
    """Take this node's lock for as long as the agent lives."""
    try:
        node.lock.take(dict(request["owner"]), PATIENCE_S)
    except durable.Locked as locked:
        return {"locked_by": locked.owner}
    return {}


def do_gather(node: AgentNode, request: Request, _laptop: Laptop) -> Reply:
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


def do_run(node: AgentNode, request: Request, laptop: Laptop) -> Reply:
    """Run one command, or a program of ours: status and outputs, and how many bytes were too many.

    With `program` (as `own_program` names one), `argv` are its words.
    """
    done = node.host(request, laptop).run(
        _argv(request),
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


def _argv(request: Request) -> Sequence[str]:
    program = str(request.get("program", ""))
    return own_program.argv(program, *request["argv"]) if program else request["argv"]


def do_stream(node: AgentNode, request: Request, laptop: Laptop) -> Reply:
    """Stream the output of one command as it comes, until it ends or the laptop cancels; as in
    `do_run` it may be a program of ours.

    What was sent and not yet shown there is limited; the command waits meanwhile.
    """
    search_path = node.host(request, laptop).search_path
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

    env, unlimited = environment(search_path), float("inf")
    with node.processes.start(_argv(request), env=env, timeout=unlimited, merged=True) as running:
        return {"status": running.attend(take, cancelled)}


def do_reboot(node: AgentNode, request: Request, laptop: Laptop) -> Reply:
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


def do_history(node: AgentNode, request: Request, _laptop: Laptop) -> Reply:
    """Return what runs changed on this node, or with `of` what one run did."""
    history = History(node.root)
    if request.get("of") is None:
        return history.overview()
    try:
        return history.to_dict(history.find(str(request["of"])))
    except ResourceError as error:
        return {"missing": error.message, "hint": error.hint}


def do_revert(node: AgentNode, request: Request, laptop: Laptop) -> Reply:
    """Revert what a run changed; events as in `apply`."""
    from spark_cluster.agent.revert import revert  # late: few runs want it

    try:
        run = History(node.root).find(str(request["of"]))
    except ResourceError as error:
        return {"missing": error.message, "hint": error.hint}
    host = node.host(request, laptop)
    return revert(host, run, laptop.emit, diff=bool(request.get("diff")))


def do_http(node: AgentNode, request: Request, _laptop: Laptop) -> Reply:
    """Make one HTTP request from this node: status and body, or why there is no answer."""
    from spark_cluster.node.http import ask  # late: ssl and email are a third of all imports

    return ask(request, node.root)


ACTIONS_OF = {
    "caches": "actions",
    "copy": "model_store",
    "image": "actions",
    "load_guard": "actions",
    "store": "model_store",
}
"""Operation to the module of this folder whose `ACTIONS` of it carry out its `what`."""


def do_action(node: AgentNode, request: Request, laptop: Laptop) -> Reply:
    """Carry out the `what` of an operation that has several."""
    return act(node.host(request, laptop), request)


def act(host: Host, request: Request) -> Reply:
    """Carry out the `what` of a request on a node.

    Raises:
        ResourceError: it cannot be done, or this agent does not know it.
    """
    op, what = str(request["op"]), str(request.get("what"))
    module = importlib.import_module(f"spark_cluster.agent.{ACTIONS_OF[op]}")  # few runs want it
    action: Action | None = module.ACTIONS[op].get(what)
    if action is None:
        raise ResourceError(f"this agent's `{op}` has no action {what[:60]!r}")
    return action(host, request)


OPERATIONS: dict[str, Callable[[AgentNode, Request, Laptop], Reply]] = {
    "apply": do_apply,
    "gather": do_gather,
    "history": do_history,
    "http": do_http,
    "lock": do_lock,
    "reboot": do_reboot,
    "revert": do_revert,
    "run": do_run,
    "stream": do_stream,
    **dict.fromkeys(ACTIONS_OF, do_action),
}


def carry_out(node: AgentNode, request: Request, laptop: Laptop) -> Reply:
    """The reply to one request; a fault of the node is a reply with `error`, never a traceback."""
    operation = OPERATIONS.get(str(request.get("op")))
    if operation is None:
        return {"error": f"this agent has no operation {request.get('op')!r}"}
    try:
        return operation(node, request, laptop)
    except Cancelled:
        return {"error": "cancelled"}
    except Exception as error:  # noqa: BLE001  (without a reply the laptop would wait for ever)
        text, hint = told(error, node.root)
        return {"error": text, "hint": hint}
