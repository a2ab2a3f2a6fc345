"""The server of the pages, on the loopback, for as long as the command runs."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from spark_cluster.config.ports import LOOPBACK
from spark_cluster.dashboard.feed import Feed, Source
from spark_cluster.dashboard.questions import Questions
from spark_cluster.dashboard.reports import BenchRuns
from spark_cluster.errors import Failed, UsageError, install_extra

CLOSES_S = 1
"""Seconds that a request may still take when the server ends."""
ENDS_S = 5.0
"""Seconds that the samples' thread may take to end."""


def need_libraries() -> None:
    """Raise UsageError where the extra is not installed."""
    try:
        import starlette  # noqa: F401
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

    from spark_cluster.dashboard.site import make_site

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
