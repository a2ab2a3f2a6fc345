"""A short real load on a server that was just verified, and the GPU memory that is held meanwhile.

What a server holds when it is ready is not the most that it takes: the first batches allocate what
its profile of the memory did not foresee. On a Spark that memory is the machine's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from spark_cluster.config.recipe_schema import Probe
from spark_cluster.engine import logs, readiness, vram
from spark_cluster.engine.checks.filler import filler
from spark_cluster.engine.deployment import Deployment
from spark_cluster.engine.engine import ask_health, engine
from spark_cluster.engine.kind_probe import probe_once
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.result import Served
from spark_cluster.errors import VerificationFailed
from spark_cluster.node.health import HEALTH_UNDER_LOAD_S, Completion
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

PROMPT = Probe(
    question=f"{filler(30)}\nSay in a few sentences what is in each room.",
    expect="room",
    max_tokens=MAX_TOKENS,
)
"""Of a chat model; what it answers is not judged."""


def under_load(play: Play, result: Served) -> Served:
    """Return the result with the GPU memory of each node under a short load.

    The load lasts `LASTS_S`, and at most `LIMIT_S`. Answers are not judged: that is done before.

    Raises:
        VerificationFailed: the server is gone after it.
    """
    deployment = result.deployment
    course = vram.Course(play.bus, "under_load")
    play.note(f"{deployment.endpoint.url} answers: {result.answer}")
    with play.stage(STAGE):
        load = partial(_load, play, deployment)
        sent, peak = vram.peak_while(play, load, EVERY_S, course.take)
        _must_be_there(play, deployment, sent)
    return replace(result, under_load=peak)


def _load(play: Play, deployment: Deployment) -> list[Completion]:
    """Send requests from several threads until `LASTS_S` are over."""
    began = time.monotonic()
    session, endpoint = play.session(play.head), deployment.endpoint
    kind = deployment.first.recipe.kind

    def ask() -> Completion:
        left = max(0.5, began + LIMIT_S - time.monotonic())
        return probe_once(session, endpoint, kind, PROMPT, timeout=left)

    def one_after_the_other() -> list[Completion]:
        found = [ask()]
        while found[-1].came and time.monotonic() < began + LASTS_S:
            found.append(ask())
        return found

    count = AT_ONCE * len(deployment.servers)
    rounds: list[list[Completion]] = play.together(*[one_after_the_other] * count)
    return [sent for found in rounds for sent in found]


def _must_be_there(play: Play, deployment: Deployment, sent: Sequence[Completion]) -> None:
    failed = [one for one in sent if not (one.came or one.late)]
    if not failed:
        return
    session, why = play.session(play.head), failed[0].fault
    serving, endpoint = engine(deployment.first.engine), deployment.endpoint
    if ask_health(serving, endpoint, session, timeout=HEALTH_UNDER_LOAD_S)[0].serves:
        play.note(
            f"{len(failed)} of {len(sent)} requests of a short load were not answered: {why}; "
            "spark-cluster verify looks closer",
            warning=True,
        )
        return
    fault = readiness.first_fault(play, SERVER)
    raise VerificationFailed(
        f"every answer was right, but the server ended under {AT_ONCE} requests at once: "
        f"{fault.text if fault else why}",
        where=fault.where if fault else play.head.name,
        hint=logs.advice(fault, "spark-cluster logs shows more"),
    )
