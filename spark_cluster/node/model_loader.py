"""The program of the unit `spark-cluster-model-loader`: it answers for models that are not there,
and loads them one after the other."""

from __future__ import annotations

import contextlib
import csv
import json
import socket
import socketserver
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from spark_cluster.node import load_watch, local_server, probes
from spark_cluster.node.containers import NEEDS, ContainerState
from spark_cluster.node.health import State, judge
from spark_cluster.node.values import looks

# The decisions of the model loader: what is unloaded for which model, and what its users are told.
#
# Pure: no clock, no process, no file.

SHORTEST_S = 2
"""Seconds of a Retry-After at least."""

LONGEST_S = 60
"""Seconds of a Retry-After at most: a client that waits longer than a load takes is idle."""

USUAL_S = 90.0
"""Seconds of a load of which no earlier one is known."""

FIRST_PAUSE_S = 60.0
"""Seconds after a load that failed, in which it is not tried again; doubled with each failure."""

LONGEST_PAUSE_S = 900.0


@dataclass(frozen=True)
class LoadedModel:
    """A model that is loaded and may be unloaded.

    Attributes:
        program: name of its container.
        frees_gib: what its server gives back.
        requests: that it answers now.
        idle_s: seconds since its last request began; since its load where none came.
        loaded_s: seconds since it was loaded.
    """

    program: str
    frees_gib: float
    requests: int
    idle_s: float
    loaded_s: float

    def busy(self, stays_s: float) -> str:
        """Return why it is not unloaded now; empty when it can be."""
        if self.requests:
            return f"{self.program} has {self.requests} requests"
        if self.loaded_s < stays_s:
            return f"{self.program} was loaded {self.loaded_s:.0f} s ago"
        return ""


@dataclass(frozen=True)
class Room:
    """What is to be done for the memory of a model.

    Attributes:
        unload: programs to unload, the least recently used first.
        why_not: what stands in the way; empty when there is, or will be, enough.
        later: the others will go out of the way by themselves.
    """

    unload: tuple[str, ...] = ()
    why_not: str = ""
    later: bool = False


def make_room(
    need_gib: float, available_gib: float, loaded: Sequence[LoadedModel], stays_s: float
) -> Room:
    """Decide what is unloaded, so that so much memory is available: as few as will do.

    Args:
        stays_s: seconds that a model stays after it was loaded.

    >>> a, b = LoadedModel("a", 10, 0, 300, 900), LoadedModel("b", 10, 0, 100, 900)
    >>> make_room(12, 5, [b, a], 60)
    Room(unload=('a',), why_not='', later=False)
    >>> make_room(12, 5, [LoadedModel("a", 10, 2, 0, 900)], 60).why_not
    'a has 2 requests'
    """
    if available_gib >= need_gib:
        return Room()
    free = sorted((one for one in loaded if not one.busy(stays_s)), key=lambda one: -one.idle_s)
    chosen: list[str] = []
    for one in free:
        chosen.append(one.program)
        available_gib += one.frees_gib
        if available_gib >= need_gib:
            return Room(tuple(chosen))
    busy = [one for one in loaded if one.busy(stays_s)]
    if busy and available_gib + sum(one.frees_gib for one in busy) >= need_gib:
        return Room((), "; ".join(one.busy(stays_s) for one in busy), later=True)
    total = available_gib + sum(one.frees_gib for one in busy)
    return Room(
        (),
        f"it needs {need_gib:.1f} GiB, and with every other model unloaded {total:.1f} are "
        "available: another program has taken memory (`spark-cluster vram` names it)",
    )


@dataclass(frozen=True)
class Failure:
    """A load that failed.

    Attributes:
        why: what went wrong.
        at: when, in seconds of a clock that only goes forward.
        count: failures in a row.
    """

    why: str
    at: float
    count: int = 1

    def pause(self, now: float) -> float:
        """Return the seconds for which it is not tried again."""
        length = min(FIRST_PAUSE_S * 2.0 ** min(self.count - 1, 10), LONGEST_PAUSE_S)
        return max(0.0, self.at + length - now)


def retry_after(elapsed_s: float, usual_s: float) -> int:
    """Return the seconds after which a client is to ask again.

    >>> retry_after(10, 40), retry_after(100, 40), retry_after(0, 400)
    (30, 2, 60)
    """
    return int(min(LONGEST_S, max(SHORTEST_S, usual_s - elapsed_s)))


@dataclass(frozen=True)
class LoaderReply:
    """What a request for a model that is not there gets: HTTP 503.

    Attributes:
        text: for a person.
        retry_s: seconds of the header Retry-After.
    """

    text: str
    retry_s: int


class Queue:
    """Each model once, in the order in which they were asked for.

    Args:
        clock: seconds that only go forward.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: list[str] = []
        self._loading = ""
        self._since = 0.0
        self._doing = ""
        self._usual: dict[str, float] = {}
        self._failures: dict[str, Failure] = {}

    def ask(self, program: str) -> LoaderReply:
        """Take a request for a model: it is queued, unless it has just failed."""
        now = self._clock()
        with self._changed:
            failure = self._failures.get(program)
            if failure is not None and (pause := failure.pause(now)) > 0:
                return LoaderReply(
                    f"it could not be loaded: {failure.why}; it is tried again in {pause:.0f} s "
                    "at the earliest",
                    retry_after(0, pause),
                )
            if program != self._loading and program not in self._waiting:
                self._waiting.append(program)
                self._changed.notify_all()
            return self._told(program, now)

    def _told(self, program: str, now: float) -> LoaderReply:
        usual = self._usual.get(program, USUAL_S)
        if program == self._loading:
            elapsed = now - self._since
            return LoaderReply(
                f"it has been loading for {elapsed:.0f} s: {self._doing}",
                retry_after(elapsed, usual),
            )
        before = self._waiting.index(program) + bool(self._loading)
        ahead = f", {before} before it" if before else ""
        return LoaderReply(f"it is going to be loaded{ahead}", retry_after(0, usual * (before + 1)))

    def take(self, limit_s: float) -> str:
        """Return the next model to load, and mark it as loading; empty after the limit."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting, limit_s)
            if not self._waiting:
                return ""
            self._loading, self._since = self._waiting.pop(0), self._clock()
            self._doing = "begun"
            return self._loading

    def doing(self, text: str) -> None:
        """Say what is being done for the model that is loading."""
        with self._changed:
            self._doing = text

    def done(self, why_not: str = "") -> None:
        """Say that the load has ended, and why it failed if it did."""
        now = self._clock()
        with self._changed:
            program, self._loading = self._loading, ""
            if not why_not:
                self._failures.pop(program, None)
                self._usual[program] = now - self._since
                return
            before = self._failures.get(program)
            self._failures[program] = Failure(why_not, now, before.count + 1 if before else 1)


# The servers, as Docker and the proxy tell of them.

ANSWER_S = 30.0
"""Seconds for an answer of a server."""

STOP_S = 30
"""Seconds that a server has to end before it is killed."""

LEAVE_S = 2.0
"""Seconds in which a request that the proxy has just sent shows itself."""


class LoadFailed(Exception):
    """A server that could not be stopped or started; the text says why."""


class ProxyAway(LoadFailed):
    """The proxy does not answer now, as while it is started again."""


def available_gib() -> float:
    """Return MemAvailable of the node."""
    return load_watch.meminfo().get("MemAvailable", 0) / 2**20


# -- the proxy's runtime API ---------------------------------------------------------------------


PROXY_S = 5.0
"""Seconds for an answer of the proxy."""


@dataclass(frozen=True)
class Use:
    """The use of a server.

    Attributes:
        requests: that it has now.
        idle_s: seconds since its last one began; None where it has had none.
        up: its own /health is fine.
    """

    requests: int = 0
    idle_s: float | None = None
    up: bool = False


def command(path: str, text: str) -> str:
    """Ask HAProxy; return its answer.

    Raises:
        OSError: it is not there, or does not answer in time.
    """
    return probes.ask(path, f"{text}\n".encode(), PROXY_S).decode(errors="replace")


def uses(printed: str) -> dict[str, Use]:
    """Parse `show stat`: name of a server to its use; tolerant of columns that are missing."""
    rows = csv.DictReader(printed.lstrip("# ").splitlines())
    found = {}
    for row in rows:
        server = row.get("svname") or ""
        if server not in ("", "FRONTEND", "BACKEND"):
            idle = _number(row.get("lastsess"))
            found[server] = Use(
                requests=sum(max(0, _number(row.get(name)) or 0) for name in ("scur", "qcur")),
                idle_s=float(idle) if idle is not None and idle >= 0 else None,
                # "UP 1/3" is one whose checks begin to fail.
                up=(row.get("status") or "").startswith("UP"),
            )
    return found


def _number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


LOOK_S = 1.0
"""Seconds between two looks at a server that is loading, and at the memory."""

ROOM_S = 300.0
"""Seconds that a model waits for others to have no requests, and for their memory."""

RETURN_S = 30.0
"""Seconds in which the memory of a server that was stopped comes back: no other one is unloaded
meanwhile."""

REQUEST_S = 30.0
"""Seconds in which a further piece of a request must come."""

BODY_S = 120.0
"""Seconds for the whole body of a request."""

PIECE = 65536
"""Bytes of a body that are read at a time, to be thrown away."""


PEER = struct.Struct("3i")
"""Process, user and group at the other end of a Unix socket."""


class Loader:
    """Loads the models that are asked for.

    Args:
        config: what the role `model_loader` wrote; see `engine.supervision.loader_configuration`.
    """

    def __init__(self, config: Mapping[str, Any], queue: Queue) -> None:
        self.config, self.queue = config, queue
        self.models: dict[str, Mapping[str, Any]] = {
            one["program"]: one for one in config["models"]
        }
        self._loaded_at: dict[str, float] = {}

    def go_on(self) -> None:
        """What was begun before this program was ended: no server stays drained, and one that is
        loading is waited for."""
        for name in self.models:
            self.tell_proxy(name, "state ready")
            try:
                program = self.program(name)
            except LoadFailed:
                continue
            if program.kept_up and not self.state(program).serves:
                self.queue.ask(name)

    def load_next(self, limit_s: float) -> None:
        """Load the next model of the queue."""
        name = self.queue.take(limit_s)
        if not name:
            return
        began = time.monotonic()
        try:
            loaded = self._load(name)
        except (LoadFailed, OSError, subprocess.SubprocessError) as error:
            print(f"{name}: not loaded: {error}", flush=True)
            self.queue.done(str(error))
            return
        what = f"loaded in {time.monotonic() - began:.0f} s" if loaded else "it was being unloaded"
        print(f"{name}: {what}", flush=True)
        self.queue.done()

    def _load(self, name: str) -> bool:
        starts = not self.program(name).kept_up
        if starts:
            self._wait_for_room(name)
            self._do(name, "its server is started")
            self.start(name)
        self._do(name, "its server reads the model")
        try:
            self._wait_for_answer(name)
        except LoadFailed:
            if not (starts or self.program(name).kept_up):
                return False  # its stop began before this program: the next request loads it
            local_server.stop(name, "docker", self.config)
            raise
        local_server.end_guard(name, self.config)
        self._loaded_at[name] = time.monotonic()
        return True

    def _wait_for_room(self, name: str) -> None:
        """Unload others until the memory is there.

        Raises:
            LoadFailed: it is not in time.
        """
        need = self.need_gib(self.program(name))
        deadline = time.monotonic() + ROOM_S
        began = time.monotonic()
        freed, told = began - RETURN_S, ""
        while True:
            room = self._room(name, need)
            if not (room.unload or room.why_not):
                return
            now = time.monotonic()
            # The one before this program's start may have been stopped a moment ago, too.
            settled = now - max(began, freed) >= RETURN_S and not room.later
            if now > deadline or (room.why_not and settled):
                raise LoadFailed(room.why_not or f"{need:.1f} GiB did not become available")
            for other in room.unload if now - freed >= RETURN_S else ():
                self._do(name, f"{other} is unloaded for it")
                if not self.unload(other):
                    break
                freed = time.monotonic()
            if room.why_not and room.why_not != told:
                told = room.why_not
                self._do(name, f"it waits for memory: {told}")
            time.sleep(LOOK_S)

    def _room(self, name: str, need_gib: float) -> Room:
        """Look at the memory; what the proxy does not tell now it may tell a moment later."""
        try:
            missing = self.missing()
            if missing:
                return Room((), f"memory is kept for {', '.join(missing)}, which is not up", True)
            loaded = self.loaded(name)
        except ProxyAway as error:
            return Room((), str(error), later=True)
        return make_room(need_gib, available_gib(), loaded, float(self.config["stays_s"]))

    def _wait_for_answer(self, name: str) -> None:
        for _ in looks(float(self.models[name]["ready_s"]), LOOK_S):
            now = self.program(name)
            if not now.kept_up:
                why = f"its server has ended: `docker logs {name}` on the head says why"
                raise LoadFailed(local_server.load_ended_for(name) or why)
            state = self.state(now)
            if state.serves:
                return
        raise LoadFailed(f"its server does not answer in time: {state.reason}")

    def _do(self, name: str, what: str) -> None:
        print(f"{name}: {what}", flush=True)
        self.queue.doing(what)

    # -- the servers, as Docker and the proxy tell of them ----------------------------------------

    def program(self, name: str) -> ContainerState:
        """Return a container.

        Raises:
            LoadFailed: Docker does not answer, or there is none.
        """
        found = self._look(name)
        if not found.id:
            raise LoadFailed(f"there is no container {name}: `spark-cluster up` makes it")
        return found

    def _look(self, name: str) -> ContainerState:
        found = local_server.program(name, self.config)
        if found.status == "unknown":
            raise LoadFailed("Docker does not answer")
        return found

    def missing(self) -> list[str]:
        """Return the servers of this node that are always to be there, and are not.

        Raises:
            ProxyAway: the proxy, which looks at them, does not answer.
        """
        uses = self._uses()
        return [name for name in self.config["always"] if not uses.get(name, Use()).up]

    def _uses(self) -> dict[str, Use]:
        try:
            return uses(command(self.config["admin"], "show stat"))
        except OSError as error:
            raise ProxyAway(f"the proxy does not answer: {error}") from None

    def need_gib(self, one: ContainerState) -> float:
        """Return the memory that must be available before a server is started."""
        with contextlib.suppress(ValueError):
            return float(one.label(NEEDS))
        return 0.0

    def loaded(self, but: str) -> list[LoadedModel]:
        """Return the others that are loaded, with their use.

        Raises:
            ProxyAway: the proxy does not answer: whether one has requests is not known then.
            LoadFailed: Docker does not.
        """
        uses = self._uses()
        now, found = time.monotonic(), []
        for name in self.models:
            if name == but:
                continue
            program = self._look(name)  # one that someone removed holds no memory
            if program.kept_up:
                use = uses.get(name, Use())
                since = now - self._loaded_at.get(name, float("-inf"))
                idle = use.idle_s if use.idle_s is not None else since
                frees = max(0.0, self.need_gib(program) - float(self.config["reserve_gib"]))
                found.append(LoadedModel(name, frees, use.requests, idle, since))
        return found

    def unload(self, name: str) -> bool:
        """Stop a server that has no requests; False where one came meanwhile.

        Raises:
            LoadFailed: it does not stop.
        """
        self.tell_proxy(name, "state drain")  # no request comes between the look and the stop
        try:
            time.sleep(LEAVE_S)
            if self._uses().get(name, Use()).requests:
                return False
            stop = ["docker", "stop", "-t", str(STOP_S), name]
            if local_server.output(stop, local_server.ACT_S) is None:
                raise LoadFailed(f"docker stop {name} failed")
            self.tell_proxy(name, "health down")
            return True
        except ProxyAway:
            return False  # it is looked at again
        finally:
            self.tell_proxy(name, "state ready")

    def start(self, name: str) -> None:
        """Start a server, whose load is guarded.

        Raises:
            LoadFailed: Docker cannot.
        """
        limit_s = float(self.models[name]["ready_s"])
        if local_server.start(name, "docker", [name], limit_s, self.config):
            raise LoadFailed(
                f"docker start {name} failed: `docker logs {name}` on the head says more"
            )
        self._loaded_at[name] = time.monotonic()

    def state(self, one: ContainerState) -> State:
        """Return whether a server lives; one that has a process is asked for a real answer."""
        if not one.kept_up:
            return judge(one)
        return judge(one, None, local_server.answer(one, ANSWER_S))

    def tell_proxy(self, name: str, what: str) -> None:
        """Set the state of a server in the proxy, which sees by itself when it is wrong."""
        backend = self.models[name]["backend"]
        with contextlib.suppress(OSError):
            command(self.config["admin"], f"set server {backend}/{name} {what}")


class Handler(BaseHTTPRequestHandler):
    """Answers a request that the proxy sends for a model that is not there."""

    protocol_version = "HTTP/1.1"
    timeout = REQUEST_S
    server: LoaderSocket

    def answer(self) -> None:
        """Answer 503 with what is done, in the form of OpenAI's errors."""
        self._read_body()
        program = self.headers.get(self.server.header, "")
        model = self.server.models.get(program)
        if model is None:
            self._send(404, f"no model is loaded on request as {program!r}", "model_not_found", 0)
            return
        told: LoaderReply = self.server.queue.ask(program)
        name = model["names"][0]
        self._send(503, f"{name} is not loaded: {told.text}", "model_loading", told.retry_s)

    def _read_body(self) -> None:
        """Read the body whole: a close with a part unread would take the answer with it."""
        until = time.monotonic() + BODY_S
        if "chunked" not in self.headers.get("Transfer-Encoding", "").lower():
            length = self.headers.get("Content-Length", "0")
            self._skip(int(length) if length.isdecimal() else 0, until)
            return
        with contextlib.suppress(ValueError):  # the end of the connection is no length either
            while size := int(self.rfile.readline(1024).partition(b";")[0], 16):
                self._skip(size + len("\r\n"), until)
            while self.rfile.readline(PIECE).strip():
                pass

    def _skip(self, left: int, until: float) -> None:
        while left > 0 and (part := self.rfile.read1(min(left, PIECE))):
            left -= len(part)
            if time.monotonic() > until:
                raise TimeoutError

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = answer  # noqa: N815

    def _send(self, status: int, message: str, code: str, retry_s: int) -> None:
        kind = "server_error" if status == 503 else "invalid_request_error"
        error = {"message": message, "type": kind, "param": "model", "code": code}
        body = json.dumps({"error": error}).encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if retry_s:
            self.send_header("Retry-After", str(retry_s))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.close_connection = True

    def address_string(self) -> str:
        """A Unix socket has no address."""
        return "proxy"

    def log_message(self, *_: object) -> None:
        """Say nothing: a client that asks again every second would fill the journal."""


class LoaderSocket(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """The socket that the proxy sends requests to."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, read: Mapping[str, Any], models: Mapping[str, Any], queue: Queue) -> None:
        path = Path(read["socket"])
        path.unlink(missing_ok=True)
        self.header, self.models, self.queue = str(read["header"]), models, queue
        self._proxy = Path(read["admin"])
        super().__init__(str(path), Handler)
        path.chmod(0o666)  # the proxy has a user of its own, made when it starts

    def verify_request(self, request: Any, _client: object) -> bool:
        """Take requests of root and of the proxy's user only: other users of the node have shown
        no key."""
        peer = request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
        user = PEER.unpack(peer)[1]
        try:
            return user in (0, self._proxy.stat().st_uid)
        except OSError:  # the proxy is down
            return False

    def handle_error(self, _request: object, _client: object) -> None:
        """A client that is gone is none of our concern."""


def main(config: str) -> int:
    """Answer and load, until the unit is stopped."""
    read = json.loads(Path(config).read_text())
    queue = Queue(time.monotonic)
    loader = Loader(read, queue)
    server = LoaderSocket(read, loader.models, queue)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    loader.go_on()
    while True:
        loader.load_next(60.0)
