"""Whether the engine of a server is dead whose completion failed: a busy one must not be ended."""

from __future__ import annotations

import time

from spark_cluster.engine.deployment import Server
from spark_cluster.engine.engine import ask_health, engine
from spark_cluster.engine.kind_probe import probe_once
from spark_cluster.engine.readiness import container_state
from spark_cluster.node.health import Life, judge
from spark_cluster.runner.play import Play

LOOKS_S = 20.0
"""Seconds in which one of the signs must be seen; vLLM's API outlives its engine by up to 40 s and
fails with 500 meanwhile (source: make gpu)."""

EVERY_S = 2.0
ANSWER_S = 5.0
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
    failed, serves = 0, engine(server.engine)
    while time.monotonic() < deadline:
        for name, before in first.items():
            now = container_state(play, server.program, name).watched(before)
            if judge(now).gone:
                return True
        if ask_health(serves, endpoint, session)[0].gone:
            return True
        reply = probe_once(
            session, endpoint, server.recipe.kind, server.recipe.probe, timeout=ANSWER_S
        )
        life = judge(None, None, reply).life
        if life is Life.SERVING:
            return False
        failed = failed + 1 if life is Life.FAILING else 0
        if failed >= TIMES:
            return True
        time.sleep(EVERY_S)
    return False
