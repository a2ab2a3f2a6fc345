"""The server that runs now, as far as clients need to know it: its address, model and limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_cluster.config.model_kind import ModelKind
from spark_cluster.engine import runtime
from spark_cluster.engine.endpoint import running
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.proxy import DESCRIPTION, Access, ModelServer, described, models_of
from spark_cluster.errors import Failed
from spark_cluster.node import replies, unit_state
from spark_cluster.node.containers import ENDPOINT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_cluster.runner.session import Session

ASKS_S = 5.0
"""Seconds for the list of models, which an engine that is ready has at once."""

MOST_TOKENS = 10**9
"""A longer context than any model has: it is no length."""


@dataclass(frozen=True)
class Current:
    """What serves now.

    Attributes:
        access: who can reach the endpoint, and how it is guarded.
        model: the name to ask for.
        kind: of the model.
        context: longest request, tokens; None when the engine does not answer (yet) or has none.
        certificate: the PEM certificate that clients have to trust; empty where they know it.
    """

    access: Access
    model: str
    kind: ModelKind
    context: int | None = None
    certificate: str = ""


def current(session: Session, node: str) -> Current:
    """Ask the head what serves; its API key is not needed.

    Args:
        node: its name, for errors.

    Raises:
        Failed: nothing serves there.
    """
    answer = session.request(
        "gather",
        commands={SERVER: runtime.question(SERVER)},
        files={"endpoint": DESCRIPTION},
    )
    state = unit_state.answered(answer["commands"][SERVER])
    description = answer["files"]["endpoint"]
    if models := models_of(description):
        return _first(session, models, description)
    endpoint = running(state.labels, description, None)
    if state.status == "absent" or endpoint is None:
        raise Failed("nothing serves there", where=node, hint="spark-cluster up starts a server")
    access = described(description) or Access(endpoint.url)
    return Current(
        access,
        endpoint.model,
        state.kind,
        _context(session, state.label(ENDPOINT), endpoint.model),
        _certificate(session, access),
    )


def _first(session: Session, models: Sequence[ModelServer], description: str) -> Current:
    """Return the first of several models; clients ask for the others at the same address."""
    access, server = described(description) or Access(""), models[0]
    context = _context(session, server.url, server.model)
    certificate = _certificate(session, access)
    return Current(access, server.model, server.kind, context, certificate)


def _context(session: Session, base: str, model: str) -> int | None:
    """Ask the engine itself, behind the proxy, where no key is needed.

    Args:
        base: its own OpenAI base URL; empty where that is not known.
    """
    if not base:
        return None
    answer = session.http(f"{base}/models", timeout=ASKS_S)
    if answer.status != 200:
        return None
    listed = replies.at(replies.decoded(answer.body), "data")
    for one in listed if isinstance(listed, list) else []:
        length = replies.at(one, "max_model_len")
        if replies.at(one, "id") == model and type(length) is int and 0 < length < MOST_TOKENS:
            return length
    return None


def _certificate(session: Session, access: Access) -> str:
    """The certificate that was made on the node, without its private key."""
    if access.tls != "self-signed" or access.certificate is None:
        return ""
    done = session.run(["openssl", "x509", "-in", access.certificate], timeout=ASKS_S)
    return done.stdout if done.status == 0 else ""
