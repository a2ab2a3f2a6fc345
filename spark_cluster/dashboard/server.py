"""The server of the pages, on the loopback, for as long as the command runs."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path

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
from starlette.routing import Route
from starlette.types import ASGIApp

from spark_cluster.config.ports import LOOPBACK
from spark_cluster.dashboard.sources import QUESTIONS, BenchRuns, Feed, Questions, Source
from spark_cluster.errors import Failed, UsageError, install_extra

# The pages: the dashboard itself, the samples, answers of commands, reports.

# Who may see what the nodes say: the user who was given the address with its token.
#
# The token stands behind the `#` of the address, which browsers send to no server, and the page
# sends it in a header. It is not in a cookie: a browser sends the cookies of 127.0.0.1 to every
# port there, so to the endpoint at the end of a tunnel, too.

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


def with_key(token: str, path: str) -> str:
    """Return an address that opens one path and nothing else: a page is opened without headers."""
    return f"{path}?key={_key(token, path)}"


def _key(token: str, path: str) -> str:
    return hmac.new(token.encode(), path.encode(), "sha256").hexdigest()


class Guard(BaseHTTPMiddleware):
    """Lets requests through that know the token, for this machine's own names, and only GET.

    A page of another site can make a browser ask 127.0.0.1 (also under a name of its own, which it
    makes mean that address), but it does not have the token, and the name is another.

    Args:
        token: the secret part of the address.
        hosts: values of `Host` that mean this server.
        public: paths that need no token: files of this package, which say nothing of the nodes.
    """

    def __init__(
        self, app: ASGIApp, token: str, hosts: frozenset[str], public: frozenset[str]
    ) -> None:
        super().__init__(app)
        self._token = token
        self._hosts = hosts
        self._public = public

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
        if request.url.path in self._public or self._is_known(request):
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


ASSETS = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/dashboard.css": ("dashboard.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/dashboard.js": ("dashboard.js", "text/javascript; charset=utf-8"),
}
"""Path to file and type."""

REPORT = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:" + NEVER
)
"""A report may be somebody else's: its page has no origin, so it cannot ask this server."""


def make_site(
    feed: Feed, questions: Questions, runs: BenchRuns, token: str, hosts: frozenset[str]
) -> Starlette:
    """Return the site.

    Args:
        token, hosts: see `Guard`.
    """

    def samples(request: Request) -> Response:
        if feed.has_ended:
            said = "no samples come any more: start `spark-cluster dashboard` again\n"
            return PlainTextResponse(said, HTTPStatus.SERVICE_UNAVAILABLE)
        return JSONResponse(feed.since(request.path_params["after"]))

    async def ask(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in QUESTIONS:
            return _none(f"no such question; there are {', '.join(QUESTIONS)}")
        return JSONResponse(vars(await questions.ask(name)))

    async def listed(_request: Request) -> Response:
        found = await run_in_threadpool(runs.list)
        for run in found:
            run["report"] = with_key(token, f"/reports/{run['name']}") if run["report"] else None
        return JSONResponse(found)

    async def report(request: Request) -> Response:
        page = runs.page(request.path_params["name"])
        if page is None:
            return _none("no such report; `spark-cluster bench report RUN` makes it")
        return FileResponse(
            page, media_type="text/html", headers={"Content-Security-Policy": REPORT}
        )

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await questions.end()

    return Starlette(
        routes=[
            *(Route(path, _asset(*named), methods=["GET"]) for path, named in ASSETS.items()),
            Route("/samples/{after:int}", samples, methods=["GET"]),
            Route("/ask/{name}", ask, methods=["GET"]),
            Route("/runs", listed, methods=["GET"]),
            Route("/reports/{name}", report, methods=["GET"]),
        ],
        middleware=[Middleware(Guard, token=token, hosts=hosts, public=frozenset(ASSETS))],
        lifespan=lifespan,
    )


def _asset(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    content = (files("spark_cluster.dashboard") / "assets" / name).read_bytes()

    async def answer(_request: Request) -> Response:
        return Response(content, media_type=kind)

    return answer


def _none(text: str) -> Response:
    return PlainTextResponse(f"{text}\n", HTTPStatus.NOT_FOUND)


CLOSES_S = 1
"""Seconds that a request may still take when the server ends."""
ENDS_S = 5.0
"""Seconds that the samples' thread may take to end."""


def need_libraries() -> None:
    """Raise UsageError where the extra is not installed."""
    try:
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"the dashboard needs {error.name}, which is not installed",
            hint=install_extra("dashboard"),
        ) from None


def listen(port: int) -> socket.socket:
    """Return a socket on the loopback.

    Args:
        port: 0 for any that is free.

    Raises:
        Failed: the port is taken.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen(64)  # the address is printed before the server has begun to answer
    except OSError as error:
        listener.close()
        raise Failed(
            f"port {port} of this machine cannot be used: {error.strerror}",
            hint="take another one with --port, or leave it out for one that is free",
        ) from None
    return listener


def serve(
    listener: socket.socket,
    feed: Feed,
    source: Source,
    *,
    questions: Questions,
    runs: Path,
    tell: Callable[[str], None],
) -> None:
    """Serve until KeyboardInterrupt; the listener is closed at the end.

    Args:
        source: of the samples.
        runs: folder of the benchmark runs.
        tell: gets the address with its token, once pages can be asked for.
    """
    import uvicorn

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
