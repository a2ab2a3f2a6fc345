"""Who may see the pages: the user who was given the address with its token, on this machine."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp

COOKIE = "spark_cluster_dashboard_"
"""With the port: browsers keep the cookies of all ports of an address together."""
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


class Guard(BaseHTTPMiddleware):
    """Lets requests through that know the token, for this machine's own names, and only GET.

    A page of another site can make a browser ask 127.0.0.1 (also under a name of its own, which it
    makes mean that address), but it has neither token nor cookie, and the name is another.

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
        response = self._refusal(request) or self._entry(request)
        if response is None:
            response = await call_next(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    def _refusal(self, request: Request) -> Response | None:
        if request.headers.get("host", "") not in self._hosts:
            return _said(HTTPStatus.MISDIRECTED_REQUEST, "this is not the address of this server")
        if request.method not in ("GET", "HEAD"):
            return _said(HTTPStatus.METHOD_NOT_ALLOWED, "the dashboard only shows")
        if "token" in request.query_params or self._is_known(
            request.cookies.get(_name(request), "")
        ):
            return None
        return _said(
            HTTPStatus.FORBIDDEN,
            "open the whole address that `spark-cluster dashboard` printed: it ends with a token",
        )

    def _entry(self, request: Request) -> Response | None:
        """Take the token out of the address bar, and keep it in a cookie."""
        given = request.query_params.get("token")
        if given is None:
            return None
        if not self._is_known(given):
            return _said(HTTPStatus.FORBIDDEN, "the token is that of another dashboard")
        response = RedirectResponse(request.url.path, HTTPStatus.SEE_OTHER)
        response.set_cookie(_name(request), given, httponly=True, samesite="strict", path="/")
        return response

    def _is_known(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def _name(request: Request) -> str:
    return f"{COOKIE}{request.url.port}"


def _said(status: HTTPStatus, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status)
