"""Who may see what the nodes say: the user who was given the address with its token.

The token stands behind the `#` of the address, which browsers send to no server, and the page sends
it in a header. It is not in a cookie: a browser sends the cookies of 127.0.0.1 to every port there,
so to the endpoint at the end of a tunnel, too.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

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
