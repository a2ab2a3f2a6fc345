"""Models that are loaded when they are asked for: the program on the head, and what it is told."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spark_cluster.config.topology import Node
from spark_cluster.engine import proxy, runtime, supervision, vram
from spark_cluster.engine.deployment import Deployment
from spark_cluster.engine.endpoint import Endpoint, probe_once
from spark_cluster.engine.members import Member
from spark_cluster.engine.proxy import ModelServer
from spark_cluster.engine.supervision import OwnUnit
from spark_cluster.errors import VerificationFailed
from spark_cluster.models.memory import RESERVE_GIB
from spark_cluster.node import paths
from spark_cluster.node.health import judge
from spark_cluster.node.local_server import stop_command
from spark_cluster.runner.play import Play

ANSWER_S = 30.0
"""Seconds for an answer of a server that has just come up."""

STOP_S = 60.0
"""Seconds for a server to end."""

POLL_S = 1.0
"""Seconds between two requests for a model that is loading."""

UNIT = OwnUnit(
    proxy.LOADER_UNIT,
    "spark_cluster.node.model_loader",
    paths.MODEL_LOADER,
    paths.MODEL_LOADER_SETTINGS,
    mode=0o600,
)


def configuration(
    head: Node, servers: Sequence[ModelServer], ready_s: float, stays_s: float
) -> dict[str, Any]:
    """Return what the program is told.

    Args:
        head: the node that it runs on.
        servers: all models of the endpoint, in the order of its backends.
        ready_s: seconds until a server that was started must answer.
        stays_s: seconds that a model stays after it was loaded.
    """
    known = supervision.configuration({}, head)
    return {
        **{name: known[name] for name in ("unit_folder", "unified_memory")},
        "socket": proxy.LOADER,
        "header": proxy.HEADER,
        "admin": proxy.ADMIN_SOCKET,
        "reserve_gib": RESERVE_GIB,
        "stays_s": stays_s,
        "always": [one.program for one in servers if not one.on_request and one.node == head.name],
        "models": [
            {
                "program": server.program,
                "names": list(server.names),
                "backend": f"model-{number}",
                "ready_s": ready_s,
            }
            for number, server in enumerate(servers, 1)
            if server.on_request
        ],
    }


def start_loader(play: Play, deployment: Deployment) -> None:
    """Start the program that loads models, where some are loaded on request; end it elsewhere."""
    waits = [one.recipe.ready_timeout_s for one in deployment.servers if one.on_request]
    settings = {"servers": deployment.endpoint.models, "ready_s": max(waits, default=0.0)}
    play.apply(deployment.nodes, play.role("model_loader", **settings))


def unload(play: Play, found: Sequence[Member]) -> None:
    """Unload what was loaded on request, before memory is counted on by what is started."""
    made = [one for one in found if one.server.on_request]
    present = [one.server.program for one in made if one.running.status != "absent"]
    if play.check or not present:
        return
    session = play.session(play.head)
    session.run(["systemctl", "stop", proxy.LOADER_UNIT])  # or it loads them; the role starts it
    for name in present:  # which of them run may have changed since they were looked at
        session.run(stop_command(name, "docker"), timeout=STOP_S)
    stays = [one.server.program for one in found if not one.server.on_request]
    nodes = [node.name for node in play.nodes]
    vram.until_free(play.sessions, ignored=runtime.our_processes(play, nodes, stays))


def load(play: Play, endpoint: Endpoint, one: Member) -> None:
    """Have a model loaded as a user would: by a request for it.

    Raises:
        VerificationFailed: it does not answer in time, or its load fails: the loader says why.
    """
    recipe = one.server.recipe
    few = recipe.probe.model_copy(update={"max_tokens": 1})
    asked = replace(endpoint, model=one.server.endpoint.model)
    deadline = time.monotonic() + recipe.ready_timeout_s
    session = play.session(play.head)
    while True:
        reply = probe_once(session, asked, recipe.kind, few, timeout=ANSWER_S)
        if judge(None, None, reply).serves:
            return
        failed = "could not be loaded" in reply.why
        if failed or time.monotonic() > deadline:
            raise VerificationFailed(
                f"{asked.model} is not loaded when it is asked for: {reply.why or 'no answer'}",
                where=play.head.name,
                hint=f"journalctl -u {proxy.LOADER_UNIT} there, and `spark-cluster logs`",
            )
        time.sleep(POLL_S)
