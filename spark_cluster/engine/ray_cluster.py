"""A Ray cluster without a model: where it may start, its preparation, its state, its jobs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_cluster.config.recipe import Recipe
from spark_cluster.config.schema import Document
from spark_cluster.config.topology import Node
from spark_cluster.engine import readiness, vram
from spark_cluster.engine.deployment import Deployment, Server
from spark_cluster.engine.job_client import ray_jobs
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.ray import MEASURING, Job, RayState, dashboard_port
from spark_cluster.engine.runtime import present_servers
from spark_cluster.engine.start import prepare_nodes, ray_would_restart
from spark_cluster.errors import Failed, Refused
from spark_cluster.node.containers import RECIPE
from spark_cluster.runner.play import Play

ENDS_WITHIN_S = 60.0
"""Seconds that jobs have to end after they were stopped: Ray kills them after a few."""

POLL_S = 0.5


@dataclass(frozen=True)
class RayMember(Document):
    """A node of a Ray cluster.

    Attributes:
        name: in the inventory.
        address: for Ray, on the fabric; empty without a link.
        alive: whether Ray counts on it.
        gpus: as Ray knows them.
        vram: the processes that hold its GPU memory, by compute-apps.
    """

    name: str
    address: str
    alive: bool
    gpus: float
    vram: vram.NodeVram


@dataclass(frozen=True)
class RayStatus(Document):
    """A Ray cluster.

    Attributes:
        state: `stopped` (there is none), `running` (all nodes are alive), `degraded` (some are) or
            `failed` (it should run and does not answer).
        nodes: the selected nodes, the head first.
        jobs: those that go on.
        recipe: whose image it runs in; empty when it is stopped.
        version: Ray's own; empty when it does not answer.
        model: whether a server of a model runs on it.
    """

    state: str
    nodes: tuple[RayMember, ...]
    jobs: tuple[Job, ...] = ()
    recipe: str = ""
    version: str = ""
    model: bool = False


def must_suit(recipe: Recipe, nodes: int, command: str) -> None:
    """Look whether Ray can join this number of nodes in the image of a recipe.

    Args:
        command: that wants it, for the message.

    Raises:
        Refused: there is one node only, or the recipe has no Ray.
    """
    if nodes < 2:
        raise Refused(
            f"{command} works between nodes, and one node is chosen",
            hint="widen --limit, or add the other Spark to the inventory",
        )
    if recipe.executor != "ray":
        raise Refused(
            f"recipe {recipe.name} joins the nodes without Ray (executor: {recipe.executor}), and "
            f"{command} needs Ray",
            hint="--recipe NAME with another one, whose image has Ray",
        )


def must_serve_nothing(play: Play, nodes: Sequence[Node], command: str) -> None:
    """Look whether a server is up on the nodes.

    Args:
        command: that needs the nodes, for the hint.

    Raises:
        Refused: one is.
    """
    several = present_servers(play)
    for node in nodes:
        for name in (SERVER, *several.get(node.name, ())):
            state = readiness.container_state(play, name, node.name)
            if not state.holds_nothing:
                raise Refused(
                    f"{state.labels.get(RECIPE, 'a server')} is up: it holds the GPU's memory",
                    where=node.name,
                    hint=f"spark-cluster down, then spark-cluster {command}",
                )


def running_port(play: Play) -> int:
    """Return the port of the dashboard of the head's Ray.

    Raises:
        Failed: no Ray runs there.
    """
    state = readiness.container_state(play, RAY)
    if not state.running:
        raise Failed("no Ray cluster is running", where=play.head.name, hint="spark-cluster ray up")
    return dashboard_port(state)


def running_jobs(play: Play) -> list[Job]:
    """Return the jobs of users that go on; none where Ray does not run or does not answer.

    A measurement that a killed `bench fabric` left is not a user's.
    """
    state = readiness.container_state(play, RAY)
    if not state.running or MEASURING in state.labels:
        return []
    found = RayState(play.session(play.head), dashboard_port(state)).jobs()
    return [job for job in found if not job.has_ended]


def must_have_no_jobs(play: Play, jobs: Sequence[Job], *, end_jobs: bool | None) -> None:
    """Refuse to go on while jobs are running on Ray, whose memory or Ray itself is needed.

    Every command that ends or replaces the engine asks this: `up`, `swap`, `down`, `bench`.

    Args:
        jobs: those that are running.
        end_jobs: end them; None where the command has no flag for it.

    Raises:
        Refused: jobs are running, and are not to be ended.
        Failed: one of them does not end.
    """
    if jobs and not end_jobs:
        raise _refused(play, jobs, with_flag=end_jobs is not None)
    if jobs and play.check:
        play.note(f"would end {_named(jobs)}")
    elif jobs:
        _end(play, jobs)


def must_keep_its_jobs(
    play: Play,
    jobs: Sequence[Job],
    server: Server,
    guarded: str,
    labels: Mapping[str, str] | None = None,
    *,
    end_jobs: bool | None,
) -> None:
    """Refuse to restart Ray for a server while jobs are running on it.

    Args:
        jobs: those that are running.
        guarded: whether there is a firewall, for the containers' label.
        labels: more labels of a Ray without a model; None for the Ray under the server.
        end_jobs: restart it all the same; None where the command has no flag for it.

    Raises:
        Refused: jobs are running, and are not to be ended.
    """
    if not jobs or not ray_would_restart(play, server, guarded, labels):
        return
    if not end_jobs:
        raise _refused(play, jobs, with_flag=end_jobs is not None)
    play.note(f"Ray is restarted, which ends {_named(jobs)}", warning=True)


def _refused(play: Play, jobs: Sequence[Job], *, with_flag: bool) -> Refused:
    one = jobs[0].id
    flag = "; --end-jobs goes on and ends them" if with_flag else ""
    return Refused(
        f"{_named(jobs)} {'is' if len(jobs) == 1 else 'are'} running on Ray",
        where=play.head.name,
        hint=f"spark-cluster ray logs -f {one} waits for its end, spark-cluster ray stop {one} "
        f"ends it{flag}",
    )


def _named(jobs: Sequence[Job]) -> str:
    names = ", ".join(job.id for job in jobs[:3])
    more = f" and {len(jobs) - 3} more" if len(jobs) > 3 else ""
    return f"{'job' if len(jobs) == 1 else 'jobs'} {names}{more}"


def _end(play: Play, jobs: Sequence[Job]) -> None:
    with ray_jobs(play, running_port(play)) as client:
        for job in jobs:
            client.stop(job.id)
        until = time.monotonic() + ENDS_WITHIN_S
        while not all(client.job(job.id).has_ended for job in jobs):
            if time.monotonic() > until:
                raise Failed(
                    f"{_named(jobs)} did not end within {ENDS_WITHIN_S:g} s",
                    where=play.head.name,
                    hint="spark-cluster ray down ends Ray with its jobs",
                )
            time.sleep(POLL_S)
    play.note(f"ended {_named(jobs)}", warning=True)


def prepare_ray(play: Play, deployment: Deployment) -> str:
    """Prepare link, firewall, Docker, caches and image, as `up` does it, without a model.

    Returns:
        The state of the firewall, for the label of Ray's containers.
    """
    server = deployment.first
    with play.stage("prepare"):
        guarded = prepare_nodes(play, deployment)
    with play.stage("fetch"):
        venv = server.recipe.venv
        image = (
            play.role("venv", **venv.model_dump())
            if venv
            else play.role("images", **server.image_settings)
        )
        play.apply(deployment.nodes, image)
    return guarded


def look(play: Play) -> RayStatus:
    """Return the state of the Ray cluster over the run's nodes."""
    held = {reading.name: reading for reading in vram.sample(play.sessions)}
    nodes = sorted(play.nodes, key=lambda node: not node.is_head)
    state = readiness.container_state(play, RAY)
    if state.status == "absent":
        members = tuple(
            RayMember(n.name, n.fabric_ip or "", False, 0.0, held[n.name]) for n in nodes
        )
        return RayStatus("stopped", members)
    ray = RayState(play.session(play.head), dashboard_port(state))
    known = {node.address: node for node in ray.nodes()} if state.running else {}
    members = tuple(
        RayMember(
            node.name,
            node.fabric_ip or "",
            node.fabric_ip in known,
            known[node.fabric_ip].gpus if node.fabric_ip in known else 0.0,
            held[node.name],
        )
        for node in nodes
    )
    alive = sum(member.alive for member in members)
    server = readiness.container_state(play, SERVER)
    return RayStatus(
        "running" if alive == len(members) else "degraded" if alive else "failed",
        members,
        tuple(job for job in ray.jobs() if not job.has_ended) if known else (),
        state.labels.get(RECIPE, ""),
        ray.version() if known else "",
        model=server.running,
    )
