"""One short request that shows that a running server answers, by the kind of its model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from spark_cluster.config.model_kind import RUNGS, ModelKind
from spark_cluster.config.recipe_schema import Probe
from spark_cluster.engine import replies, vector_checks
from spark_cluster.engine.audio import FORM_TYPE, form, tone
from spark_cluster.engine.endpoint import Endpoint
from spark_cluster.engine.readiness import Reply, ask_once
from spark_cluster.runner.session import Session

KIND_LABEL = "spark-cluster.kind"
"""Of the server's container; chat models have none."""

ANSWERS: Mapping[ModelKind, str] = {
    "chat": "a completion",
    "embedding": "an embedding",
    "reranking": "a score",
    "transcription": "a transcript",
}
"""What a server of each kind answers with, in a sentence."""

FEW_TOKENS = 16
"""Tokens that show that answers come; `verify` and `up` wait for a whole one."""

_TEXT = "Is anyone there?"


def kind_of(labels: Mapping[str, str]) -> ModelKind:
    """Return the kind of the model that a container's labels name; chat where they name none."""
    label = labels.get(KIND_LABEL, "chat")
    return cast("ModelKind", label) if label in RUNGS else "chat"


def probe_once(
    session: Session, endpoint: Endpoint, kind: ModelKind, probe: Probe, *, timeout: float
) -> Reply:
    """Return the answer to one request of the kind, made by a node, within `timeout` seconds.

    Args:
        probe: the question for a chat model.
    """
    if kind == "chat":
        return ask_once(session, endpoint, probe, timeout=timeout)
    path, body, content_type = request_of(kind, endpoint.model)
    answer = endpoint.request(
        session, path, method="POST", body=body, timeout=timeout, content_type=content_type
    )
    if answer.status != 200:
        return Reply(answer.status, why=answer.reason or replies.error(answer.body))
    try:
        return Reply(200, _shown(kind, replies.decoded(answer.body)))
    except vector_checks.NotVectors as error:
        return Reply(200, why=str(error))


def short(probe: Probe) -> Probe:
    """Return the question with an answer of a few tokens."""
    return probe.model_copy(update={"max_tokens": min(probe.max_tokens, FEW_TOKENS)})


def request_of(kind: ModelKind, model: str) -> tuple[str, str | bytes, str]:
    """Return path, body and content type of the request of a kind other than chat."""
    if kind == "transcription":
        fields = {"model": model, "response_format": "json"}
        return "/v1/audio/transcriptions", form(fields, "tone.wav", tone(0.5)), FORM_TYPE
    asked: dict[str, Any] = {"model": model}
    if kind == "embedding":
        asked |= {"input": [_TEXT], "encoding_format": "float"}
        return "/v1/embeddings", json.dumps(asked), "application/json"
    asked |= {"query": _TEXT, "documents": [_TEXT]}
    return "/v1/rerank", json.dumps(asked), "application/json"


def _shown(kind: ModelKind, document: Any) -> str:
    """A few words on a good answer.

    Raises:
        NotVectors: it is none.
    """
    if kind == "embedding":
        return f"{len(vector_checks.vectors(document, 1)[0])} numbers"
    if kind == "reranking":
        return f"score {vector_checks.scores(document, 1)[0]:.3g}"
    if not isinstance(replies.at(document, "text"), str):
        raise vector_checks.NotVectors(f"no text came: {replies.short(str(document))}")
    return "a transcript"
