"""The programs of ours that nodes have: names, whatever the endpoint's description says."""

from __future__ import annotations

from spark_cluster.inference import runtime
from spark_cluster.inference.process import RAY, SERVER
from spark_cluster.runner.play import Play


def programs_there(play: Play) -> dict[str, tuple[str, ...]]:
    """Return by node the names that a program of ours may have there: those of one server and of
    Ray, which need not be there, and of the servers of several models, which are.
    """
    waiting = {
        node.name: play.session(node).submit(
            "gather", commands={"servers": runtime.servers_there()}
        )
        for node in play.nodes
    }
    found = {}
    for name, pending in waiting.items():
        done = pending.wait()["commands"]["servers"]  # None without Docker
        listed = done["stdout"].split() if done is not None and done["status"] == 0 else []
        found[name] = (SERVER, *sorted(listed), RAY)
    return found
