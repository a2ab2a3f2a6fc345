"""From started to right answers: every server is waited for and asked, then the proxy.

A server is verified by itself: what the proxy answers says nothing of one that it did not ask.

One that was started is then put under a short real load, and the GPU memory is read meanwhile. What
it holds when it is ready is not the most that it takes: the first batches allocate what its profile
of the memory did not foresee. On a Spark that memory is the machine's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from spark_cluster.config.recipe_schema import Probe
from spark_cluster.engine import readiness, readiness_checks, runtime, supervision, vram
from spark_cluster.engine.answer_checks import filler
from spark_cluster.engine.deployment import (
    ANSWERS,
    Deployment,
    Endpoint,
    Key,
    Server,
    listed_models,
    probe_once,
    short,
)
from spark_cluster.engine.engine import Engine, engine
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.readiness import Again, Member, chains, container_state, healthy
from spark_cluster.engine.result import Served
from spark_cluster.engine.runtime import ask_health
from spark_cluster.engine.start import Starting, begin_one, end_server
from spark_cluster.errors import VerificationFailed
from spark_cluster.node.health import HEALTH_UNDER_LOAD_S, Completion, Life, judge
from spark_cluster.node.values import looks
from spark_cluster.runner.play import Play

BEHIND_PROXY_S = 30.0
"""Seconds in which the proxy must see a server that is healthy; it looks each second."""

POLL_S = 0.5
"""Seconds between two questions to the proxy."""

ANSWER_S = 120.0
"""Seconds that an answer through the proxy may take."""

PROXY_LOG = "journalctl -u spark-cluster-endpoint there says what the proxy does"


def ready(play: Play, now: Starting) -> list[vram.NodeVram]:
    """Wait until every server is healthy, and the proxy in front of several sees them.

    Further servers of a node are started one after the other, each when the one before is healthy.

    Returns:
        The largest VRAM of each node seen meanwhile.

    Raises:
        Failed: a server or a rank ended; with the first real error of its log.
        VerificationFailed: one is not healthy in time.
    """

    def on_node(chain: Sequence[Member]) -> list[vram.NodeVram]:
        peak: list[vram.NodeVram] = []
        for number, one in enumerate(chain):
            if number:
                begin_one(now, one)
            if not one.server.on_request:
                seen = healthy(one.play, one.server, now.begun[one.server.key])
                peak = vram.peak(peak, seen) if peak else seen
        return peak

    peaks: list[list[vram.NodeVram]] = play.together(
        *[partial(on_node, chain) for chain in chains(now.members)]
    )
    deployment = now.deployment
    if not deployment.is_one:
        _until_behind_proxy(play, deployment.endpoint, engine(deployment.first.recipe.engine))
    if deployment.endpoint.models:
        supervision.start_loader(play, deployment)
    return [reading for peak in peaks for reading in peak]


def _until_behind_proxy(play: Play, endpoint: Endpoint, serving: Engine) -> None:
    """Wait until the proxy has seen the servers healthy; it looks every second.

    Raises:
        VerificationFailed: it has not in time.
    """
    session = play.session(play.head)
    for _ in looks(BEHIND_PROXY_S, POLL_S):
        life, answer = ask_health(serving, endpoint, session)
        if life.serves:
            return
    raise VerificationFailed(
        f"each server is healthy, but the endpoint {endpoint.url} is not: status "
        f"{answer.status} {answer.reason}".rstrip(),
        where=play.head.name,
        hint=PROXY_LOG,
    )


# -- the answers -----------------------------------------------------------------------------------


def verify(play: Play, now: Starting) -> list[str]:
    """Run each recipe's readiness checks on its own server, then ask the proxy of several as a user
    would.

    A model that is loaded on request is asked for, and so loaded, when it is new; otherwise it is
    left as it is.

    Returns:
        The answer of each to its own question; empty for one that was left.

    Raises:
        VerificationFailed: at the first check that fails, or the proxy does not lead to one.
    """
    always = [one for one in now.members if not one.server.on_request]
    for one in always:
        if not now.begun[one.server.key]:  # what its log refutes is asked for nothing
            _log_must_fit(one)
    fits = [partial(_log_must_fit, one) for one in always if now.begun[one.server.key]]
    asked = [partial(_check, one, now.begun[one.server.key]) for one in always]
    said = play.together(*fits, *asked)[len(fits) :]
    answers: dict[Key, str] = dict(zip((one.server.key for one in always), said, strict=True))
    endpoint = now.deployment.endpoint
    if not now.deployment.is_one:
        _must_list(play, endpoint, {name for one in now.members for name in one.server.names})
    if endpoint.models:
        play.together(*[partial(_must_reach, play, endpoint, one) for one in always])
    for one in now.members:  # one after the other: each may unload the one before
        if one.server.on_request and one.server.key in now.admitted.new:
            supervision.load_model(play, endpoint, one)
            _log_must_fit(one)
            answers[one.server.key] = readiness_checks.run_all(one.play, one.server)
    return [answers.get(one.server.key, "") for one in now.members]


def _log_must_fit(one: Member) -> None:
    server = one.server
    runtime.must_fit(one.play, server.nodes, server.recipe.readiness, server.program)


def _check(one: Member, again: Again) -> str:
    """Verify a server; one that ran already and whose engine has died is started again, once."""
    try:
        return readiness_checks.run_all(one.play, one.server)
    except readiness.NoCompletion as error:
        if not again or not is_dead(one.play, one.server):
            raise
        one.play.note(f"the running server fails: {error.message}; starting it again")
    end_server(one.play, one.server)
    again.start()
    healthy(one.play, one.server, again)
    return readiness_checks.run_all(one.play, one.server)


def _must_list(play: Play, endpoint: Endpoint, wanted: Collection[str]) -> None:
    """Raise VerificationFailed unless the endpoint lists every name."""
    answer = endpoint.request(play.session(play.head), "/v1/models")
    found = listed_models(answer)
    if set(wanted) - found.keys():
        raise VerificationFailed(
            f"GET {endpoint.url}/models lists {json.dumps(sorted(found))} (status "
            f"{answer.status}), expected {json.dumps(sorted(wanted))}",
            where=play.head.name,
            hint="another program has the endpoint's port, or the proxy has another configuration: "
            + PROXY_LOG,
        )


def _must_reach(play: Play, endpoint: Endpoint, one: Member) -> None:
    """Raise VerificationFailed unless a request for a model is answered through the proxy."""
    recipe = one.server.recipe
    asked = replace(endpoint, model=one.server.endpoint.model)
    reply = probe_once(
        play.session(play.head), asked, recipe.kind, short(recipe.probe), timeout=ANSWER_S
    )
    if not judge(None, None, reply).serves:
        raise VerificationFailed(
            f"{asked.model} answers by itself, but through {endpoint.url} {ANSWERS[recipe.kind]} "
            f"does not come: status {reply.status} {reply.why}".rstrip(),
            where=play.head.name,
            hint=PROXY_LOG,
        )


# -- whether the engine of a server that failed is dead: a busy one must not be ended ------------


LOOKS_S = 20.0
"""Seconds in which one of the signs must be seen; vLLM's API outlives its engine by up to 40 s and
fails with 500 meanwhile (source: make gpu)."""

EVERY_S = 2.0
ALIVE_S = 5.0
"""Seconds for an answer: one that comes later says nothing, as the server may have a queue."""

TIMES = 2
"""Completions one after the other that must fail."""


def is_dead(play: Play, server: Server) -> bool:
    """Look for a sign that the engine has died; a server that is only late shows none.

    Signs: its program, or that of a rank, ends or is restarted; /health says so (`Engine.died`);
    completions fail at once, twice in turn.
    """
    session, endpoint = play.session(play.head), server.endpoint.of_engine
    nodes = (play.head.name, *server.ranks)
    first = {name: container_state(play, server.program, name) for name in nodes}
    deadline = time.monotonic() + LOOKS_S
    failed, serves = 0, engine(server.recipe.engine)
    while time.monotonic() < deadline:
        for name, before in first.items():
            now = container_state(play, server.program, name).watched(before)
            if judge(now).gone:
                return True
        if ask_health(serves, endpoint, session)[0].gone:
            return True
        reply = probe_once(
            session, endpoint, server.recipe.kind, server.recipe.probe, timeout=ALIVE_S
        )
        life = judge(None, None, reply).life
        if life is Life.SERVING:
            return False
        failed = failed + 1 if life is Life.FAILING else 0
        if failed >= TIMES:
            return True
        time.sleep(EVERY_S)
    return False


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

SAMPLE_S = 0.5
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
        sent, peak = vram.peak_while(play, load, SAMPLE_S, course.take)
        _must_still_serve(play, deployment, sent)
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


def _must_still_serve(play: Play, deployment: Deployment, sent: Sequence[Completion]) -> None:
    failed = [one for one in sent if not (one.came or one.late)]
    if not failed:
        return
    session, why = play.session(play.head), failed[0].fault
    serving, endpoint = engine(deployment.first.recipe.engine), deployment.endpoint
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
        hint=runtime.advice(fault, "spark-cluster logs shows more"),
    )
