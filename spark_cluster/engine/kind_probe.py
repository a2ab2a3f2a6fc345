"""One short request that shows that a running server answers, by the kind of its model."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, cast

from spark_cluster.config.model_kind import RUNGS, ModelKind
from spark_cluster.config.recipe_schema import Probe
from spark_cluster.engine import vector_checks
from spark_cluster.engine.audio import FORM_TYPE, form, tone
from spark_cluster.engine.endpoint import Endpoint
from spark_cluster.node import replies
from spark_cluster.node.health import Completion
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
) -> Completion:
    """Return the answer to one request of the kind, made by a node, within `timeout` seconds.

    Args:
        probe: the question for a chat model.
    """
    path, body, content_type = request_of(kind, endpoint.model, probe)
    began = time.monotonic()
    answer = endpoint.request(
        session, path, method="POST", body=body, timeout=timeout, content_type=content_type
    )
    if answer.status != 200:
        late = time.monotonic() - began >= timeout
        why = answer.reason or replies.error(answer.body)
        return Completion(answer.status, why=why, late=late)
    try:
        return Completion(200, _shown(kind, answer.body))
    except (replies.NotACompletion, vector_checks.NotVectors) as error:
        return Completion(200, why=str(error))


def short(probe: Probe) -> Probe:
    """Return the question with an answer of a few tokens."""
    return probe.model_copy(update={"max_tokens": min(probe.max_tokens, FEW_TOKENS)})


def request_of(kind: ModelKind, model: str, probe: Probe) -> tuple[str, str | bytes, str]:
    """Return path, body and content type of the request of a kind."""
    if kind == "transcription":
        fields = {"model": model, "response_format": "json"}
        return "/v1/audio/transcriptions", form(fields, "tone.wav", tone(0.5)), FORM_TYPE
    asked: dict[str, Any] = {"model": model}
    if kind == "chat":
        path = "/v1/chat/completions"
        asked |= {
            "messages": [{"role": "user", "content": probe.question}],
            "max_tokens": probe.max_tokens,
            "temperature": 0,
        }
    elif kind == "embedding":
        path = "/v1/embeddings"
        asked |= {"input": [_TEXT], "encoding_format": "float"}
    else:
        path = "/v1/rerank"
        asked |= {"query": _TEXT, "documents": [_TEXT]}
    return path, json.dumps(asked), "application/json"


def _shown(kind: ModelKind, body: str) -> str:
    """Return a good answer of a chat model, or a few words on one of another kind.

    Raises:
        NotACompletion, NotVectors: it is none.
    """
    if kind == "chat":
        return replies.message_of(body)
    document = replies.decoded(body)
    if kind == "embedding":
        return f"{len(vector_checks.vectors(document, 1)[0])} numbers"
    if kind == "reranking":
        return f"score {vector_checks.scores(document, 1)[0]:.3g}"
    if not isinstance(replies.at(document, "text"), str):
        raise vector_checks.NotVectors(f"no text came: {replies.short(str(document))}")
    return "a transcript"
