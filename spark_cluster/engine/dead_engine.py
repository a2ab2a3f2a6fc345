"""Whether the engine of a server is dead whose completion failed: a busy one must not be ended."""

from __future__ import annotations

import time

from spark_cluster.engine.deployment import Server
from spark_cluster.engine.engine import engine
from spark_cluster.engine.readiness import ask_once, container_state
from spark_cluster.runner.play import Play

LOOKS_S = 20.0
"""Seconds in which one of the signs must be seen; vLLM's API outlives its engine by up to 40 s and
fails with 500 meanwhile (source: make gpu)."""

EVERY_S = 2.0
ANSWER_S = 5.0
"""Seconds for an answer: one that comes later says nothing, as the server may have a queue."""

FAILS = (0, 500)
"""Status of a completion, within that time, when the API has ended or its engine has died."""

TIMES = 2
"""Completions one after the other that must fail."""


def is_dead(play: Play, server: Server) -> bool:
    """Look for a sign that the engine has died; a server that is only late shows none.

    Signs: its program, or that of a rank, ends or is restarted; /health says so (`Engine.died`);
    completions fail at once, twice in turn.
    """
    nodes = (play.head.name, *server.ranks)
    restarts: dict[str, int] = {}
    deadline = time.monotonic() + LOOKS_S
    failed, serves = 0, engine(server.engine)
    while time.monotonic() < deadline:
        for name in nodes:
            now = container_state(play, server.program, name)
            if now.status != "running" or now.restarts > restarts.setdefault(name, now.restarts):
                return True
        session, endpoint = play.session(play.head), server.endpoint.of_engine
        health = endpoint.request(session, serves.health, timeout=ANSWER_S)
        if serves.died is not None and health.status == serves.died:
            return True
        asked = time.monotonic()
        reply = ask_once(session, endpoint, server.recipe.probe, timeout=ANSWER_S)
        if reply.status == 200:
            return False
        at_once = time.monotonic() - asked < ANSWER_S
        failed = failed + 1 if at_once and reply.status in FAILS else 0
        if failed >= TIMES:
            return True
        time.sleep(EVERY_S)
    return False
