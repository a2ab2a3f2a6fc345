"""What the nodes have before anything is changed: servers, endpoint, memory, models, kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from spark_cluster.engine import launches, vram
from spark_cluster.engine.admission import stays
from spark_cluster.engine.copies.fetch import must_be_present
from spark_cluster.engine.copies.state import Stored, stored
from spark_cluster.engine.deployment import Deployment
from spark_cluster.engine.proxy import ModelServer, Replica, models_of, replicas_of
from spark_cluster.engine.ray import Job
from spark_cluster.engine.ray_cluster import running_jobs
from spark_cluster.engine.readiness import Member, behind, members, with_servers
from spark_cluster.engine.start import obsolete_programs, token
from spark_cluster.runner.play import Play


@dataclass(frozen=True)
class Found:
    """What was found.

    Attributes:
        deployment: with the folders of the models that the nodes have.
        members: its servers.
        before: GPU memory of each node; empty in check mode.
        stores: recipe to what its nodes have of image and models.
        kernels: recipe to what is tuned for it.
        jobs: of users that are running on Ray.
        ray_token: of the head's Ray, or a new one; None for a server without Ray.
        replicas, models: what the endpoint has now.
    """

    deployment: Deployment
    members: list[Member]
    before: list[vram.NodeVram]
    stores: Mapping[str, Stored]
    kernels: Mapping[str, launches.TunedOn]
    jobs: Sequence[Job]
    ray_token: str | None = field(default=None, repr=False)
    replicas: Sequence[Replica] = ()
    models: Sequence[ModelServer] = ()

    @property
    def obsolete(self) -> dict[str, list[str]]:
        """By node the programs of ours that have no place in the deployment."""
        return obsolete_programs(self.deployment, self.replicas, self.models)

    @property
    def starts(self) -> bool:
        """True if a server does not run."""
        return any(one.running.status != "running" for one in self.members)

    @property
    def begins(self) -> bool:
        """True if a server is to be started, or another one takes its place."""
        return not all(stays(one) for one in self.members)

    @property
    def downloaded(self) -> list[Mapping[str, float]]:
        """For each server, GiB of its model that nodes have in the hub cache; infinite: all."""
        recipes = [one.server.recipe for one in self.members]
        return [self.stores[recipe.name].gib_present(recipe.model.name) for recipe in recipes]


def look(play: Play, deployment: Deployment, *, offline: bool = False) -> Found:
    """Look at all of it, in one turn of the network.

    Args:
        offline: refuse what no node has.

    Raises:
        Refused: with what is lacking.
    """
    recipes = deployment.recipes
    count = len(recipes)
    found, before, text, jobs, ray_token, *rest = play.together(
        lambda: members(play, deployment),
        lambda: [] if play.check else vram.sample(play.sessions),
        lambda: behind(play),
        lambda: running_jobs(play),
        lambda: token(play.session(play.head)) if deployment.first.on_ray else None,
        *[partial(stored, play, server.recipe, server.nodes) for server in recipes],
        *[partial(launches.tuned_on, play, server, server.nodes) for server in recipes],
    )
    names = [server.recipe.name for server in recipes]
    stores: dict[str, Stored] = dict(zip(names, rest[:count], strict=True))
    kernels: dict[str, launches.TunedOn] = dict(zip(names, rest[count:], strict=True))
    for server in recipes if offline else ():
        must_be_present(server.recipe, stores[server.recipe.name], adopt=play.options.may_adopt)
    for store in stores.values():
        deployment = deployment.located(store.folders())
    vram.record(play.bus, "before", before)
    found = with_servers(found, deployment)
    return Found(
        deployment,
        found,
        before,
        stores,
        kernels,
        jobs,
        ray_token,
        replicas_of(text),
        models_of(text),
    )
