"""The server of the pages, on the loopback, and what they show.

Samples of the nodes, answers of commands that only read, reports of benchmark runs; for as long as
the command runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import re
import secrets
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from spark_cluster.bench.record import PAGE, RECORD, REPORT, load_record
from spark_cluster.bench.sampling import LiveState, Lost, Update, warnings
from spark_cluster.config.ports import LOOPBACK
from spark_cluster.errors import Failed, SparkClusterError, naming

KEPT_S = 1800
"""Seconds of samples that a page begins with."""
LOOK_S = 0.5

QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "status": ("status",),
    "vram": ("vram",),
    "doctor": ("doctor",),
    "history": ("history",),
    "logs": ("logs", "--tail", "200"),
}
"""Name to words; all of them only read."""

LIMIT_S = 120.0
LARGEST = 8 << 20
"""Bytes of an answer that are taken."""

MOST = 200
"""Runs that are listed, the newest first."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

OURS = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
NEVER = "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": OURS + NEVER,
}
"""Of every answer that does not say otherwise."""

ASSETS = Path(__file__).with_name("assets")
PUBLIC = frozenset({"/", *(f"/{asset.name}" for asset in ASSETS.iterdir())})
"""Paths that need no token: files of this package, which say nothing of the nodes."""

REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:" + NEVER
)
"""A report may be somebody else's: its page has no origin, so it cannot ask this server."""

CLOSES_S = 1
"""Seconds that a request may still take when the server ends."""
ENDS_S = 5.0
"""Seconds that the samples' thread may take to end."""


class SampleSource(Protocol):
    """What samples come from: `bench.sampling.Sampling`, or a recording."""

    def next(self, timeout: float) -> Update | None:
        """Return the next sample or loss; None after so many seconds without one."""


class Feed:
    """The samples of all nodes in the last half hour, each with a number that grows.

    `run` belongs to a thread of its own; the threads that answer pages call `since`.

    Args:
        names: of the nodes, in the order in which they are shown.
        every: seconds between two samples of a node.
    """

    def __init__(self, names: list[str], every: float) -> None:
        self.names = names
        self.every = every
        self._live = LiveState(names, every)
        self._kept: dict[str, deque[tuple[int, dict[str, Any]]]] = {
            name: deque(maxlen=max(1, round(KEPT_S / every))) for name in names
        }
        self._last = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()

    @property
    def has_ended(self) -> bool:
        """True if no sample comes any more."""
        return self._ended.is_set()

    def run(self, source: SampleSource) -> None:
        """Take samples until `end`.

        An unexpected fault ends it: the pages then show that nothing comes any more.
        """
        try:
            while not self.has_ended:
                update = source.next(LOOK_S)
                if update is not None:
                    self.take(update)
        finally:
            self.end()

    def take(self, update: Update) -> None:
        """Take in a sample, or that a node was lost."""
        with self._lock:
            self._live.take(update)
            if not isinstance(update, Lost):
                self._last += 1
                message = update.to_dict() | {"warnings": warnings(update)}
                self._kept[update.node].append((self._last, message))

    def since(self, number: int) -> dict[str, Any]:
        """Return the samples after one, and which nodes do not answer, for a page.

        Args:
            number: of the last sample that the page has; 0 for all that are kept.
        """
        with self._lock:
            return {
                "nodes": self.names,
                "every": self.every,
                "last": self._last,
                "rows": {n: [m for at, m in kept if at > number] for n, kept in self._kept.items()},
                "troubles": {n: self._live.trouble(node) for n, node in self._live.nodes.items()},
            }

    def end(self) -> None:
        """End it."""
        self._ended.set()


@dataclass(frozen=True)
class CommandAnswer:
    """What a command said.

    Attributes:
        command: as a user types it.
        document: its JSON; None where there is none.
        error: why there is none; empty where there is one.
        seconds: that it took.
    """

    command: str
    document: Any
    error: str
    seconds: float


@dataclass
class CommandQuestions:
    """The commands, each run once at a time.

    Args:
        options: before the command: `-i FILE`, `--project FOLDER`.
        program: the command line; this one by default.
    """

    options: Sequence[str]
    program: Sequence[str] = (sys.executable, "-P", "-m", "spark_cluster")
    limit_s: float = LIMIT_S
    _at_work: dict[str, asyncio.Task[CommandAnswer]] = field(default_factory=dict)

    async def ask(self, name: str) -> CommandAnswer:
        """Run a command, or wait for the one that runs already.

        Raises:
            KeyError: there is no such question.
        """
        words = QUESTIONS[name]
        task = self._at_work.get(name)
        if task is None or task.done():
            task = self._at_work[name] = asyncio.create_task(self._run(words))
        return await asyncio.shield(task)

    async def end(self) -> None:
        """End the commands that run."""
        tasks = [task for task in self._at_work.values() if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, words: Sequence[str]) -> CommandAnswer:
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *self.program,
            *self.options,
            "--json",
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), self.limit_s)
        except TimeoutError:
            out, err = b"", f"no answer within {self.limit_s:g} s".encode()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        document, error = _read(out, err)
        shown = " ".join(("spark-cluster", *self.options, *words))
        return CommandAnswer(shown, document, error, round(time.monotonic() - began, 1))


def _read(out: bytes, err: bytes) -> tuple[Any, str]:
    """Return the JSON document of a command, or why there is none."""
    if len(out) > LARGEST:
        return None, f"the answer has {len(out) >> 20} MiB; run the command in a terminal"
    try:
        return json.loads(out), ""
    except ValueError:
        said = err.decode("utf-8", "replace").strip() or out.decode("utf-8", "replace").strip()
        return None, said[-2000:] or "it said nothing"


@dataclass(frozen=True)
class BenchRuns:
    """The runs below a folder.

    Args:
        folder: has a folder for each run (`bench-results` of the project).
    """

    folder: Path

    def list(self) -> list[dict[str, Any]]:
        """Return the runs, the newest first; one that cannot be read says why."""
        paths = sorted(self.folder.glob(f"*/{RECORD}"), key=_changed, reverse=True)
        return [
            self._one(path.parent) for path in paths[:MOST] if _NAME.fullmatch(path.parent.name)
        ]

    def _one(self, run: Path) -> dict[str, Any]:
        page = self.page(run.name)
        about: dict[str, Any] = {"name": run.name, "report": page is not None}
        try:
            record = load_record(run)
        except SparkClusterError as error:
            return about | {"error": error.message}
        return about | {
            "suite": record.suite,
            "status": record.status,
            "started": record.started.isoformat(),
            "cells": len(record.cells),
            "failed": sum(cell.status == "failed" for cell in record.cells),
            "servers": [setup.id for setup in record.setups],
        }

    def page(self, name: str) -> Path | None:
        """Return the page of a run's report; None where there is none, or the name is no name.

        A report is one file that loads nothing, so that no other file is ever served.
        """
        if not _NAME.fullmatch(name):
            return None
        path = self.folder / name / REPORT / PAGE
        inside = path.resolve().is_relative_to(self.folder.resolve())
        return path if inside and path.is_file() else None


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


# -- the pages, and who may see them ---------------------------------------------------------------

# Who may see what the nodes say: the user who was given the address with its token.
#
# The token stands behind the `#` of the address, which browsers send to no server, and the page
# sends it in a header. It is not in a cookie: a browser sends the cookies of 127.0.0.1 to every
# port there, so to the endpoint at the end of a tunnel, too.


def with_key(token: str, path: str) -> str:
    """Return an address that opens one path and nothing else: a page is opened without headers."""
    return f"{path}?key={_key(token, path)}"


def _key(token: str, path: str) -> str:
    return hmac.new(token.encode(), path.encode(), "sha256").hexdigest()


class TokenGuard(BaseHTTPMiddleware):
    """Lets requests through that know the token, for this machine's own names, and only GET.

    A page of another site can make a browser ask 127.0.0.1 (also under a name of its own, which it
    makes mean that address), but it does not have the token, and the name is another.

    Args:
        token: the secret part of the address.
        hosts: values of `Host` that mean this server.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: frozenset[str]) -> None:
        super().__init__(app)
        self._token = token
        self._hosts = hosts

    async def dispatch(
        self, request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Answer a request, or hand it on."""
        response = self._refusal(request) or await call_next(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    def _refusal(self, request: Request) -> Response | None:
        if request.headers.get("host", "") not in self._hosts:
            return _said(HTTPStatus.MISDIRECTED_REQUEST, "this is not the address of this server")
        if request.method not in ("GET", "HEAD"):
            return _said(HTTPStatus.METHOD_NOT_ALLOWED, "the dashboard only shows")
        if request.url.path in PUBLIC or self._is_known(request):
            return None
        return _said(
            HTTPStatus.FORBIDDEN,
            "open the whole address that `spark-cluster dashboard` printed: it ends with a token",
        )

    def _is_known(self, request: Request) -> bool:
        given, key = request.headers.get("authorization", ""), request.query_params.get("key", "")
        return _same(given, f"Bearer {self._token}") or _same(
            key, _key(self._token, request.url.path)
        )


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def _said(status: HTTPStatus, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status)


@dataclass
class SitePages:
    """What is answered to a request that was let through.

    Args:
        token: the secret part of the address.
    """

    feed: Feed
    questions: CommandQuestions
    runs: BenchRuns
    token: str

    def first(self, _request: Request) -> Response:
        """Return the page that is opened, which asks for all else."""
        return FileResponse(ASSETS / "page.html")

    def samples(self, request: Request) -> Response:
        """Return the samples after one."""
        if self.feed.has_ended:
            text = "no samples come any more: start `spark-cluster dashboard` again"
            return _said(HTTPStatus.SERVICE_UNAVAILABLE, text)
        options = " ".join(self.questions.options)
        return JSONResponse(self.feed.since(request.path_params["after"]) | {"options": options})

    async def ask(self, request: Request) -> Response:
        """Return what a command says."""
        name = request.path_params["name"]
        if name not in QUESTIONS:
            text = f"no such question; there are {', '.join(QUESTIONS)}"
            return _said(HTTPStatus.NOT_FOUND, text)
        return JSONResponse(vars(await self.questions.ask(name)))

    async def listed(self, _request: Request) -> Response:
        """Return the benchmark runs, each with the address of its report."""
        found = await run_in_threadpool(self.runs.list)
        for run in found:
            path = f"/reports/{run['name']}"
            run["report"] = with_key(self.token, path) if run["report"] else None
        return JSONResponse(found)

    async def report(self, request: Request) -> Response:
        """Return the page of a report."""
        page = self.runs.page(request.path_params["name"])
        if page is None:
            text = "no such report; `spark-cluster bench report RUN` makes it"
            return _said(HTTPStatus.NOT_FOUND, text)
        policy = {"Content-Security-Policy": REPORT_POLICY}
        return FileResponse(page, media_type="text/html", headers=policy)

    @asynccontextmanager
    async def until_end(self, _app: Starlette) -> AsyncIterator[None]:
        """End the commands that still run when the site ends."""
        try:
            yield
        finally:
            await self.questions.end()


def make_site(
    feed: Feed, questions: CommandQuestions, runs: BenchRuns, token: str, hosts: frozenset[str]
) -> Starlette:
    """Return the site.

    Args:
        token, hosts: see `TokenGuard`.
    """
    pages = SitePages(feed, questions, runs, token)
    return Starlette(
        routes=[
            Route("/samples/{after:int}", pages.samples, methods=["GET"]),
            Route("/ask/{name}", pages.ask, methods=["GET"]),
            Route("/runs", pages.listed, methods=["GET"]),
            Route("/reports/{name}", pages.report, methods=["GET"]),
            Route("/", pages.first, methods=["GET"]),
            Mount("/", StaticFiles(directory=ASSETS)),
        ],
        middleware=[Middleware(TokenGuard, token=token, hosts=hosts)],
        lifespan=pages.until_end,
    )


def listen(port: int) -> socket.socket:
    """Return a socket on the loopback.

    Args:
        port: 0 for any that is free.

    Raises:
        Failed: the port is taken.
    """
    hint = "take another one with --port, or leave it out for one that is free"
    with naming(Failed, f"port {port} of this machine cannot be used", hint=hint):
        # It listens at once: the address is printed before the server has begun to answer.
        return socket.create_server((LOOPBACK, port), backlog=64)


def serve(
    listener: socket.socket,
    feed: Feed,
    source: SampleSource,
    *,
    questions: CommandQuestions,
    runs: Path,
    tell: Callable[[str], None],
) -> None:
    """Serve until KeyboardInterrupt; the listener is closed at the end.

    Args:
        source: of the samples.
        runs: folder of the benchmark runs.
        tell: gets the address with its token, once pages can be asked for.
    """
    port = listener.getsockname()[1]
    token = secrets.token_urlsafe(32)
    hosts = frozenset({f"{LOOPBACK}:{port}", f"localhost:{port}"})
    site = make_site(feed, questions, BenchRuns(runs), token, hosts)
    config = uvicorn.Config(
        site,
        access_log=False,  # addresses with a token are in it
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=CLOSES_S,
    )

    samples = threading.Thread(target=feed.run, args=(source,), daemon=True)
    samples.start()
    tell(f"http://{LOOPBACK}:{port}/#token={token}")
    with contextlib.closing(listener):
        try:
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            feed.end()
            samples.join(ENDS_S)
