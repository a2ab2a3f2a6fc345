"""A short real load on a server that was just verified, and the GPU memory that is held meanwhile.

What a server holds when it is ready is not the most that it takes: the first batches allocate what
its profile of the memory did not foresee. On a Spark that memory is the machine's.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from spark_cluster.engine import kind_probe, logs, readiness, replies, vram
from spark_cluster.engine.checks.filler import filler
from spark_cluster.engine.deployment import Deployment
from spark_cluster.engine.engine import engine
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.result import Served
from spark_cluster.engine.vram import NodeVram
from spark_cluster.errors import VerificationFailed
from spark_cluster.runner.play import Play

STAGE = "under load"
"""Of `up`; a user's requests are answered meanwhile."""

AT_ONCE = 4
"""Requests at a time to each server."""

MAX_TOKENS = 32
"""Of an answer: at 7 tok/s, the slowest recipe that ships, under five seconds."""

LASTS_S = 3.0
"""Seconds in which new requests are sent."""

LIMIT_S = 10.0
"""Seconds after which an answer is not awaited any more."""

EVERY_S = 0.5
"""Seconds between two readings of GPU memory."""

PROMPT = f"{filler(30)}\nSay in a few sentences what is in each room."


@dataclass(frozen=True)
class _Sent:
    """A request of the load: its status (0 without an answer), why it failed, if it was cut off."""

    status: int
    reason: str = ""
    at_limit: bool = False


def under_load(play: Play, result: Served) -> Served:
    """Return the result with the GPU memory of each node under a short load.

    The load lasts `LASTS_S`, and at most `LIMIT_S`. Answers are not judged: that is done before.

    Raises:
        VerificationFailed: the server is gone after it.
    """
    ended, deployment = threading.Event(), result.deployment

    def load() -> list[_Sent]:
        try:
            return _load(play, deployment)
        finally:
            ended.set()

    note = partial(play.note, warning=True)
    course = vram.Course(play.bus, "under_load")
    read = partial(vram.peak_until, play.sessions, ended, note, EVERY_S, course.take)
    sent: list[_Sent]
    peak: list[NodeVram]
    play.note(f"{deployment.endpoint.url} answers: {result.answer}")
    with play.stage(STAGE):
        sent, peak = play.together(load, read)
        _must_be_there(play, deployment, sent)
    return replace(result, under_load=peak)


def _load(play: Play, deployment: Deployment) -> list[_Sent]:
    """Send requests from several threads until `LASTS_S` are over."""
    began = time.monotonic()
    ask = _asker(play, deployment, began + LIMIT_S)

    def one_after_the_other() -> list[_Sent]:
        found = [ask()]
        while found[-1].status == 200 and time.monotonic() < began + LASTS_S:
            found.append(ask())
        return found

    count = AT_ONCE * len(deployment.servers)
    rounds: list[list[_Sent]] = play.together(*[one_after_the_other] * count)
    return [sent for found in rounds for sent in found]


def _asker(play: Play, deployment: Deployment, until: float) -> Callable[[], _Sent]:
    path, body, content_type = _request(deployment)
    session = play.session(play.head)

    def ask() -> _Sent:
        left = max(0.5, until - time.monotonic())
        answer = deployment.endpoint.request(
            session, path, method="POST", body=body, timeout=left, content_type=content_type
        )
        why = "" if answer.status == 200 else replies.error(answer.body) or answer.reason
        return _Sent(answer.status, why, at_limit=time.monotonic() >= until)

    return ask


def _request(deployment: Deployment) -> tuple[str, str | bytes, str]:
    """Return path, body and content type of a request to a model of the recipe's kind."""
    model, kind = deployment.endpoint.model, deployment.first.recipe.kind
    if kind != "chat":
        return kind_probe.request_of(kind, model)
    asked: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
    }
    return "/v1/chat/completions", json.dumps(asked), "application/json"


def _must_be_there(play: Play, deployment: Deployment, sent: Sequence[_Sent]) -> None:
    failed = [one for one in sent if one.status != 200 and not one.at_limit]
    if not failed:
        return
    session, why = play.session(play.head), failed[0].reason or f"status {failed[0].status}"
    path = engine(deployment.first.engine).health
    health = deployment.endpoint.request(session, path, timeout=10)
    if health.status == 200:
        play.note(
            f"{len(failed)} of {len(sent)} requests of a short load were not answered: {why}; "
            "spark-cluster verify looks closer",
            warning=True,
        )
        return
    written = readiness.program_logs(play, SERVER) | readiness.program_logs(play, RAY)
    fault = logs.first_error(written)
    raise VerificationFailed(
        f"every answer was right, but the server ended under {AT_ONCE} requests at once: "
        f"{fault.text if fault else why}",
        where=fault.where if fault else play.head.name,
        hint=logs.advice(fault, "spark-cluster logs shows more"),
    )
