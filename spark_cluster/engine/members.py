"""The servers of a deployment as they were found, before anything is changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from spark_cluster.config.topology import Node
from spark_cluster.engine import readiness
from spark_cluster.engine.deployment import Deployment, Server
from spark_cluster.engine.names import RAY
from spark_cluster.engine.proxy import DESCRIPTION, models_of
from spark_cluster.errors import Refused
from spark_cluster.node.containers import ContainerState
from spark_cluster.runner.play import Play


@dataclass(frozen=True)
class Member:
    """A server while it is brought up.

    Attributes:
        play: of one of several servers over its nodes alone.
        running: its server as it was found.
        ray: of one of several servers, Ray on its node as it was found.
    """

    play: Play
    server: Server
    running: ContainerState
    ray: ContainerState | None = None

    @property
    def node(self) -> Node:
        """Its node, or the head of several."""
        return self.play.head


def members(play: Play, deployment: Deployment) -> list[Member]:
    """Look at each server, and of several at Ray on its node: what runs there of ours."""
    if deployment.is_one:
        running = readiness.container_state(play, deployment.first.program)
        return [Member(play, deployment.first, running)]

    def look(server: Server) -> Member:
        own = play.part(server.node_names)
        states = [readiness.container_state(own, name) for name in (server.program, RAY)]
        return Member(own, server, *states)

    return play.together(*[partial(look, server) for server in deployment.servers])


def with_servers(found: Sequence[Member], deployment: Deployment) -> list[Member]:
    """Return the members with the servers of the same deployment, of which more is known now."""
    pairs = zip(found, deployment.servers, strict=True)
    return [replace(one, server=server) for one, server in pairs]


def chains(found: Sequence[Member]) -> list[list[Member]]:
    """Return the members by node: those of one are started one after the other, because an engine
    measures the free memory while it starts."""
    names = dict.fromkeys(one.node.name for one in found)
    return [[one for one in found if one.node.name == name] for name in names]


def behind(play: Play) -> str | None:
    """Return what the proxy's own file says of the endpoint; None without a proxy."""
    answer = play.session(play.head).request("gather", files={"endpoint": DESCRIPTION})
    found: str | None = answer["files"]["endpoint"]
    return found


def must_serve_one(play: Play, what: str) -> None:
    """Refuse a command that is for one server where the endpoint has several models.

    Args:
        what: the command and its verb.

    Raises:
        Refused: it has; with their names.
    """
    now = models_of(behind(play))
    if now:
        raise Refused(
            f"the endpoint has {len(now)} models ({', '.join(one.model for one in now)}), and "
            f"{what} one server only",
            where=play.head.name,
            hint="`spark-cluster up` repairs and changes what the inventory lists; "
            "`spark-cluster up --recipe NAME` serves one recipe in place of them",
        )
