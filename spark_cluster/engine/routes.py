"""Routes by model: what the proxy's configuration says where it serves several models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from spark_cluster.engine.proxy import HEADER, LOADER, ModelServer

CONNECTIONS = 256
"""Connections at a time where the proxy reads bodies for their model: each has two large buffers
at most."""

BUFFER = 2 * 1024 * 1024
"""Bytes of a request's body within which its "model" must be; openai-python puts it after the
messages."""

OWN_FAULT = ("invalid_api_key", "bad_request", "model_not_found", "model_missing")
"""Codes of errors that are the request's own fault."""


@dataclass(frozen=True)
class Routes:
    """The servers of several models, and what the proxy answers itself.

    Attributes:
        hears: number, from 1, of the one server that takes audio; None where there is none, or
            several.
        listed: the answer to `GET /v1/models`.
        unknown, unnamed: the errors for a model that is not served, and for none.
        loader: socket of what loads models on request; empty where none is.
        header: in which it is told the name of the program.
    """

    servers: tuple[ModelServer, ...]
    hears: int | None
    listed: str
    unknown: str
    unnamed: str
    loader: str = ""
    header: str = HEADER
    connections: int = CONNECTIONS
    buffer: int = BUFFER


def routes(servers: Sequence[ModelServer]) -> Routes | None:
    """Return the routes to these servers; None for none."""
    if not servers:
        return None
    hearing = [n for n, server in enumerate(servers, 1) if server.kind == "transcription"]
    names = [name for server in servers for name in server.names]
    there = f"there are: {', '.join(names)}"
    return Routes(
        tuple(servers),
        hearing[0] if len(hearing) == 1 else None,
        _listed(servers),
        error_body(f"this endpoint has no such model; {there}", "model_not_found", "model"),
        error_body(
            "this endpoint has several models, and the request names none within the first "
            f"{BUFFER // 2**20} MiB of its JSON; add ?model=NAME to the address of a longer one; "
            f"{there}",
            "model_missing",
            "model",
        ),
        LOADER if any(server.on_request for server in servers) else "",
    )


def _listed(servers: Sequence[ModelServer]) -> str:
    """The list of models as OpenAI's and vLLM's servers give it; aliases name their model."""
    data = [
        {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "spark-cluster",
            "root": server.model,
            "parent": None,
        }
        for server in servers
        for name in server.names
    ]
    return json.dumps({"object": "list", "data": data})


def error_body(message: str, code: str, param: str | None = None) -> str:
    """An error as OpenAI's servers write it."""
    kind = "invalid_request_error" if code in OWN_FAULT else "server_error"
    error = {"message": message, "type": kind, "param": param, "code": code}
    return json.dumps({"error": error})
