"""The resolved plan of what is served, where and with what: resolved once, and handed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from spark_cluster.config.inventory import Inventory
from spark_cluster.config.launch import Launch, of_recipe
from spark_cluster.config.overrides import text
from spark_cluster.config.patches import MountedPatch, mounted_patches
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_settings import (
    image_settings,
    model_settings,
    mounts_of,
    must_be_servable,
)
from spark_cluster.config.secret_env import secrets_of_laptop
from spark_cluster.inference.deployment import Deployment
from spark_cluster.inference.engine import Engine, engine
from spark_cluster.inference.process import server_name
from spark_cluster.node.containers import DATA_PARALLEL, NODES, OVERRIDES, RECIPE
from spark_cluster.serving import caches, firewall
from spark_cluster.serving.endpoint import LABEL, Endpoint, endpoint_of
from spark_cluster.serving.kind_probe import KIND_LABEL
from spark_cluster.serving.nodes import serving
from spark_cluster.topology import Node

if TYPE_CHECKING:
    from spark_cluster.planning.subject import Subject


@dataclass(frozen=True)
class ServePlan:
    """Everything that `up` needs to know of what it serves.

    Attributes:
        recipe: what the user wrote.
        nodes: those that serve, the head first.
        idle: the other nodes, on which nothing of the engine is left.
        launch: what plans and rules look at.
        engine: the inference engine.
        endpoint: where it answers.
        deployment: what the engine is started with.
        image: settings of the role `images`.
        models: settings of the role `models`, for a model and a drafter with folders of their own.
        patches: files mounted over the image's own.
        firewall: settings of the role `firewall`.
    """

    recipe: Recipe
    nodes: tuple[Node, ...]
    idle: tuple[Node, ...]
    launch: Launch
    engine: Engine
    endpoint: Endpoint
    deployment: Deployment
    image: Mapping[str, Any]
    models: tuple[Mapping[str, Any], ...]
    patches: tuple[MountedPatch, ...]
    firewall: Mapping[str, Any]

    @property
    def tp(self) -> int:
        """Tensor-parallel size."""
        return self.launch.tp

    @cached_property
    def subject(self) -> Subject:
        """The subject for the planner."""
        # Late: formulas and rules are not read for looking that all is up.
        from spark_cluster.planning.subject import of_a_recipe

        return of_a_recipe(self.recipe, self.launch)

    @property
    def server(self) -> str:
        """The name of the server's program."""
        return server_name(self.deployment.instance)

    @property
    def ranks(self) -> tuple[str, ...]:
        """The names of the nodes next to the head that run a rank of their own (executor mp)."""
        return self.deployment.nodes[1:] if self.deployment.executor == "mp" else ()

    @property
    def chooses_share(self) -> bool:
        """True if the share of memory is for us to choose: nothing in the recipe sets it."""
        settled = {"gpu-memory-utilization", "kv-cache-memory-bytes"}
        return not settled & self.launch.args.keys()

    @property
    def share_flag(self) -> str:
        """The engine's own name of --gpu-memory-utilization, without dashes."""
        return self.recipe.dialect.own("gpu-memory-utilization")

    def located(self, folders: Mapping[str, str]) -> ServePlan:
        """Return the plan with the folders of what is in the nodes' hub cache.

        Args:
            folders: repository to the folder of its revision; others keep what they have.
        """
        recipe, made = self.recipe.located(folders), self.deployment
        if recipe == self.recipe:
            return self
        ours = all(patch.upload for patch in self.patches)  # none comes with the model
        patches = self.patches if ours else mounted_patches(recipe)
        drafting = recipe.dialect.drafter(recipe.drafter) if recipe.drafter is not None else {}
        deployment = replace(
            made,
            model_path=recipe.model.node_path,
            flags={**made.flags, **drafting},
            mounts=mounts_of(recipe, patches),
        )
        launch = of_recipe(recipe, self.tp)
        return replace(self, recipe=recipe, launch=launch, deployment=deployment, patches=patches)

    def starting(self, *, share: float | None, guarded: str, ray_token: str | None) -> Deployment:
        """Return the deployment with what is known only when it starts.

        Args:
            share: the --gpu-memory-utilization that was computed; None keeps the recipe's.
            guarded: whether there is a firewall (`present`, `absent`), for the containers' label.
        """
        flags, made = self.deployment.flags, self.deployment
        if share is not None:
            flags = {**flags, self.share_flag: share}
        labels = {**made.labels, firewall.LABEL: guarded}
        return replace(made, flags=flags, labels=labels, ray_token=ray_token)


def resolve(recipe: Recipe, inventory: Inventory, nodes: Sequence[Node], tp: int) -> ServePlan:
    """Resolve what serves a recipe over `tp` of the nodes.

    Raises:
        Refused: the recipe or the nodes cannot do this, or the user's leave is missing.
        UsageError: a variable, the key or the certificate cannot be read.
        Failed: the address of the endpoint is not one of the head's own.
    """
    serves = engine(recipe.engine)
    must_be_servable(recipe, tp, serves.rungs)
    patches, secrets = mounted_patches(recipe), secrets_of_laptop(recipe)
    launch, flags, changed = of_recipe(recipe, tp), recipe.flags(tp), text(recipe.overrides)
    image, models = image_settings(recipe), model_settings(recipe)
    mounts = mounts_of(recipe, patches)
    chosen, idle = serving(nodes, tp, launch.nodes)
    root = caches.root_of_all(inventory.nodes[node.name] for node in chosen)
    endpoint = endpoint_of(inventory, chosen[0], recipe.model.served_name)
    deployment = Deployment(
        image=recipe.image.ref,
        model_path=recipe.model.node_path,
        nodes=tuple(node.name for node in chosen),
        flags=flags,
        executor=recipe.executor,
        ray=recipe.ray,
        port=endpoint.engine_port or endpoint.port,
        mounts=mounts,
        env=launch.env,
        secret_env=secrets,
        cache_root=root,
        labels=_labels(recipe, launch, endpoint, changed),
        engine=recipe.engine,
        runtime=recipe.runtime,
        venv=recipe.venv.path if recipe.venv else "",
    )
    return ServePlan(
        recipe=recipe,
        nodes=tuple(chosen),
        idle=tuple(idle),
        launch=launch,
        engine=serves,
        endpoint=endpoint,
        deployment=deployment,
        image=image,
        models=models,
        patches=patches,
        firewall=firewall.settings(inventory, deployment, chosen),
    )


def _labels(recipe: Recipe, launch: Launch, endpoint: Endpoint, changed: str) -> dict[str, str]:
    """Labels of the containers, by which `status` and a later `up` know what runs."""
    tp, count = launch.tp, launch.nodes
    return {
        **({NODES: str(count)} if count != tp else {}),
        **({DATA_PARALLEL: str(recipe.data_parallel)} if recipe.data_parallel > 1 else {}),
        **({OVERRIDES: changed} if recipe.overrides else {}),
        RECIPE: recipe.name,
        "spark-cluster.model": endpoint.model,
        "spark-cluster.tp": str(tp),
        "spark-cluster.executor": recipe.executor,
        "spark-cluster.engine": recipe.engine,
        "spark-cluster.runtime": recipe.runtime,
        LABEL: endpoint.engine_url,
        "spark-cluster.dashboard": str(recipe.ray.dashboard_port),
        # Of chat models none: a server that was started without the label keeps running.
        **({KIND_LABEL: recipe.kind} if recipe.kind != "chat" else {}),
    }
