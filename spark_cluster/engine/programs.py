"""The programs of ours that nodes have: names, whatever the endpoint's description says."""

from __future__ import annotations

from collections.abc import Mapping

from spark_cluster.engine import runtime
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.proxy import DESCRIPTION, models_of
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session


def servers_there(play: Play) -> dict[str, tuple[str, ...]]:
    """Return by node the servers of several models that are there, running or not."""
    waiting = {
        node.name: play.session(node).submit(
            "gather", commands={"servers": runtime.servers_there()}
        )
        for node in play.nodes
    }
    found = {}
    for name, pending in waiting.items():
        done = pending.wait()["commands"]["servers"]  # None without Docker
        found[name] = runtime.server_names(done["stdout"]) if done is not None else ()
    return found


def programs_there(play: Play) -> dict[str, tuple[str, ...]]:
    """Return by node the names that a program of ours may have there: those of one server and of
    Ray, which need not be there, and of the servers of several models, which are.
    """
    return {node: (SERVER, *names, RAY) for node, names in servers_there(play).items()}


def models_by_process(sessions: Mapping[str, Session]) -> dict[str, dict[int, str]]:
    """Return by node the ids of processes of several models' servers, and whose they are; empty
    where the endpoint has one model. The one file that tells is on the head.
    """
    asked = {n: s.submit("gather", files={"endpoint": DESCRIPTION}) for n, s in sessions.items()}
    models = [
        model for one in asked.values() for model in models_of(one.wait()["files"]["endpoint"])
    ]
    waiting = {
        name: session.submit(
            "gather",
            commands={m.model: runtime.processes(m.program) for m in models if m.node == name},
        )
        for name, session in sessions.items()
        if any(model.node == name for model in models)
    }
    found: dict[str, dict[int, str]] = {}
    for name, pending in waiting.items():
        for model, done in pending.wait()["commands"].items():
            words = done["stdout"].split() if done is not None else []
            found.setdefault(name, {}).update({int(w): model for w in words if w.isdecimal()})
    return found
