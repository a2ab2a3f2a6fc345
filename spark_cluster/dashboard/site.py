"""The pages: the dashboard itself, the samples, answers of commands, reports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib.resources import files

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
)
from starlette.routing import Route

from spark_cluster.dashboard.feed import Feed
from spark_cluster.dashboard.guard import NEVER, Guard, with_key
from spark_cluster.dashboard.questions import QUESTIONS, Questions
from spark_cluster.dashboard.reports import BenchRuns

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
