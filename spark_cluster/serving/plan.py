"""The resolved plan of what is served, where and with what: resolved once, and handed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from spark_cluster.config import overrides
from spark_cluster.config.allowance_checks import must_be_allowed
from spark_cluster.config.inventory import Inventory
from spark_cluster.config.launch import Launch, of_recipe
from spark_cluster.config.model_kind import must_be_served
from spark_cluster.config.parallelism import REPLICAS_INSTEAD, why_not_data_parallel
from spark_cluster.config.recipe import Recipe
from spark_cluster.errors import Refused
from spark_cluster.inference.containers import DATA_PARALLEL, NODES, OVERRIDES, RECIPE
from spark_cluster.inference.deployment import Deployment
from spark_cluster.inference.engine import engine
from spark_cluster.inference.process import server_name
from spark_cluster.node.store.layout import whole_folder
from spark_cluster.serving import caches, firewall, secret_env
from spark_cluster.serving.build_steps import build_settings
from spark_cluster.serving.endpoint import LABEL, Endpoint, endpoint_of
from spark_cluster.serving.kind_probe import KIND_LABEL
from spark_cluster.serving.nodes import serving
from spark_cluster.serving.patches import MountedPatch, mounted_patches
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
    must_be_served(recipe.kind, f"recipe {recipe.name}")
    recipe.check_size(tp)
    _must_start(recipe, tp)
    _must_climb(recipe)
    must_be_allowed(recipe)
    patches = mounted_patches(recipe)
    secrets = secret_env.secrets_of_laptop(recipe)
    chosen, idle = serving(nodes, tp, recipe.nodes_for(tp))
    root = caches.root_of_all(inventory.nodes[node.name] for node in chosen)
    endpoint = endpoint_of(inventory.serve, chosen[0], recipe.model.served_name)
    launch = of_recipe(recipe, tp)
    deployment = Deployment(
        image=recipe.image.ref,
        model_path=recipe.model.node_path,
        nodes=tuple(node.name for node in chosen),
        flags=recipe.flags(tp),
        executor=recipe.executor,
        ray=recipe.ray,
        port=endpoint.engine_port or endpoint.port,
        mounts=_mounts(recipe, patches),
        env=recipe.plain_env,
        secret_env=secrets,
        cache_root=root,
        labels=_labels(recipe, tp, endpoint),
        engine=recipe.engine,
        runtime=recipe.runtime,
        venv=recipe.venv.path if recipe.venv else "",
    )
    return ServePlan(
        recipe=recipe,
        nodes=tuple(chosen),
        idle=tuple(idle),
        launch=launch,
        endpoint=endpoint,
        deployment=deployment,
        image=_image(recipe),
        models=_models(recipe),
        patches=patches,
        firewall=firewall.settings(inventory, recipe, chosen),
    )


def _must_start(recipe: Recipe, tp: int) -> None:
    """Raise Refused for data-parallel ranks that cannot be joined here."""
    why = why_not_data_parallel(
        recipe.data_parallel,
        engine=recipe.engine,
        executor=recipe.executor,
        tp=tp,
        stages=recipe.pipeline_parallel,
    )
    if why:
        raise Refused(f"recipe {recipe.name}: {why}", hint=REPLICAS_INSTEAD)


def _must_climb(recipe: Recipe) -> None:
    """Raise Refused for a rung of readiness that the engine cannot do."""
    known = engine(recipe.engine).rungs
    for rung in recipe.readiness.rungs:
        if rung not in known:
            raise Refused(
                f"recipe {recipe.name}: {recipe.dialect.title} has no rung '{rung}'",
                hint=f"readiness.rungs: {', '.join(sorted(known))}",
            )


def _mounts(recipe: Recipe, patches: Sequence[MountedPatch]) -> tuple[str, ...]:
    path = recipe.drafter.node_path if recipe.drafter else None
    drafter = whole_folder(path) if path else ""
    found = (
        *(mount.volume for mount in recipe.mounts),
        *((f"{drafter}:{drafter}:ro",) if drafter else ()),
        *(patch.volume for patch in patches),
    )
    return tuple(dict.fromkeys(found))


def _labels(recipe: Recipe, tp: int, endpoint: Endpoint) -> dict[str, str]:
    """Labels of the containers, by which `status` and a later `up` know what runs."""
    nodes = recipe.nodes_for(tp)
    return {
        **({NODES: str(nodes)} if nodes != tp else {}),
        **({DATA_PARALLEL: str(recipe.data_parallel)} if recipe.data_parallel > 1 else {}),
        **({OVERRIDES: overrides.text(recipe.overrides)} if recipe.overrides else {}),
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


def _image(recipe: Recipe) -> dict[str, Any]:
    """Settings of the role `images`.

    Raises:
        Refused: a file of a step is not the one that the recipe was made with.
    """
    image, build = recipe.image, recipe.image.build
    given = {"ref": image.ref, "digest": image.digest, "archive": image.archive}
    if build is None:
        return given
    given["dockerfile"] = build.text
    return {**given, **build_settings(build)} if build.steps else given


def _models(recipe: Recipe) -> tuple[Mapping[str, Any], ...]:
    """Settings of the role `models`, for what has a folder of its own."""
    model, drafter = recipe.model, recipe.drafter
    mounts = tuple(mount.volume for mount in recipe.mounts)
    venv = recipe.venv.path if recipe.venv else ""
    common = {"image": recipe.image.ref, "mounts": mounts, "venv": venv}
    found = []
    if not model.in_hub_cache:
        chosen = model.model_dump(include={"name", "revision", "source", "directory"})
        found.append({**common, **chosen, "path": model.node_path})
    if drafter is not None and drafter.name is not None and not drafter.in_hub_cache:
        chosen = drafter.model_dump(include={"name", "revision"})
        found.append({**common, **chosen, "source": "hub", "path": drafter.node_path})
    return tuple(found)
