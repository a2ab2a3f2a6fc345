"""One request that a server has to answer by its kind of model: `/health` outlives an engine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from spark_cluster.config.model_kind import ModelKind
from spark_cluster.config.recipe_schema import Probe
from spark_cluster.engine.endpoint import Endpoint
from spark_cluster.node.containers import Kind
from spark_cluster.node.health import Completion
from spark_cluster.node.supervision.model_probe import completion_of, request_of
from spark_cluster.runner.session import Session

ANSWERS: Mapping[ModelKind, str] = {
    "chat": "a completion",
    "embedding": "an embedding",
    "reranking": "a score",
    "transcription": "a transcript",
}
"""What a server of each kind answers with, in a sentence."""

FEW_TOKENS = 16
"""Tokens that show that answers come; `verify` and `up` wait for a whole one."""


def probe_once(
    session: Session, endpoint: Endpoint, kind: ModelKind, probe: Probe, *, timeout: float
) -> Completion:
    """Return the answer to one request of the kind, made by a node, within `timeout` seconds.

    Args:
        probe: the question for a chat model.
    """
    asked = cast("Kind", kind)
    path, body, content_type = request_of(asked, endpoint.model, probe.question, probe.max_tokens)
    began = time.monotonic()
    answer = endpoint.request(
        session, path, method="POST", body=body, timeout=timeout, content_type=content_type
    )
    late = answer.status != 200 and time.monotonic() - began >= timeout
    return replace(completion_of(asked, answer.status, answer.body, answer.reason), late=late)


def short(probe: Probe) -> Probe:
    """Return the question with an answer of a few tokens."""
    return probe.model_copy(update={"max_tokens": min(probe.max_tokens, FEW_TOKENS)})
