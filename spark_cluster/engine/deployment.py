"""What is served, where and with what: resolved once (`resolve.py`), frozen, and handed on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from spark_cluster.config.caches import CACHE_ROOT
from spark_cluster.config.engines import words
from spark_cluster.config.inventory import InventoryNode
from spark_cluster.config.launch import Launch, of_recipe
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import EngineValue, Ray
from spark_cluster.config.recipe_settings import MountedPatch, mounted_patches, mounts_of
from spark_cluster.config.topology import Node
from spark_cluster.engine.endpoint import Endpoint
from spark_cluster.engine.names import server_name
from spark_cluster.errors import Refused
from spark_cluster.node.containers import FIREWALL

if TYPE_CHECKING:
    from spark_cluster.plan.planner import Subject


Key = tuple[str, str]
"""A server's place: the name of its head, and of its program there."""


@dataclass(frozen=True)
class Server:
    """A server of a recipe, on one or several nodes, with all that its programs are started with.

    Attributes:
        recipe: what the user wrote.
        nodes: those that serve, its head first.
        launch: what plans and rules look at.
        endpoint: its own, behind the proxy where there is one for several servers.
        flags: the engine's flags without dashes, the same on all ranks.
        env: environment of the recipe, without its secrets.
        secret_env: variables of the recipe that are secrets.
        model_path: folder of the model, on the node and in the container; empty for Ray alone.
        mounts: `SOURCE:TARGET[:ro]`.
        cache_root: folder of the caches on every node.
        labels: of the containers.
        patches: files mounted over the image's own.
        image_settings: of the role `images`.
        models: settings of the role `models`, for a model and a drafter with folders of their own.
        names: by which the model is asked for, its own first.
        instance: what tells the server of one of several models from the others; empty for one.
        on_request: it is made, and the model loader starts it when it is asked for.
        ray_token: what every request to Ray must carry; None: Ray asks for none.
    """

    recipe: Recipe
    nodes: tuple[Node, ...]
    launch: Launch
    endpoint: Endpoint
    flags: Mapping[str, EngineValue]
    env: Mapping[str, str]
    secret_env: Mapping[str, str] = field(repr=False)
    model_path: str
    mounts: tuple[str, ...]
    cache_root: str
    labels: Mapping[str, str]
    patches: tuple[MountedPatch, ...] = ()
    image_settings: Mapping[str, Any] = field(default_factory=dict)
    models: tuple[Mapping[str, Any], ...] = ()
    names: tuple[str, ...] = ()
    instance: str = ""
    on_request: bool = False
    ray_token: str | None = field(default=None, repr=False)

    @property
    def program(self) -> str:
        """The name of its program: of a container, or of a unit."""
        return server_name(self.instance)

    @property
    def key(self) -> Key:
        """Its place: the name of its head, and of its program there."""
        return self.nodes[0].name, self.program

    @property
    def tp(self) -> int:
        """Tensor-parallel size."""
        return self.launch.tp

    @property
    def size(self) -> int:
        """Nodes that serve together, one GPU each: tensor-parallel size times stages."""
        return len(self.nodes)

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names of its nodes, its head first."""
        return tuple(node.name for node in self.nodes)

    @property
    def engine(self) -> str:
        """Name of the inference engine."""
        return self.recipe.engine

    @property
    def runtime(self) -> Literal["docker", "venv"]:
        """Where its programs live."""
        return self.recipe.runtime

    @property
    def venv(self) -> str:
        """Folder of the virtual environment; empty without one."""
        return self.recipe.venv.path if self.recipe.venv else ""

    @property
    def image(self) -> str:
        """Reference of the image; empty without one."""
        return self.recipe.image.ref

    @property
    def executor(self) -> Literal["ray", "mp"]:
        """What joins several nodes."""
        return self.recipe.executor

    @property
    def ray(self) -> Ray:
        """How Ray is started."""
        return self.recipe.ray

    @property
    def on_ray(self) -> bool:
        """True if Ray joins the nodes."""
        return self.size > 1 and self.executor == "ray"

    @property
    def ranks(self) -> tuple[str, ...]:
        """The names of the nodes next to the head that run a rank of their own (executor mp)."""
        return self.node_names[1:] if self.executor == "mp" else ()

    @property
    def host(self) -> str:
        """Address that it listens on: the head's loopback, or of a replica or model on another
        node its address on the fabric."""
        return self.endpoint.of_engine.host

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return self.endpoint.of_engine.port

    @property
    def args(self) -> tuple[str, ...]:
        """The flags as words of a command line."""
        return words(self.flags)

    @property
    def chooses_share(self) -> bool:
        """True if the share of memory is for us to choose: nothing in the recipe sets it."""
        settled = {"gpu-memory-utilization", "kv-cache-memory-bytes"}
        return not settled & self.launch.args.keys()

    @property
    def share_flag(self) -> str:
        """The engine's own name of --gpu-memory-utilization, without dashes."""
        return self.recipe.dialect.own("gpu-memory-utilization")

    @cached_property
    def subject(self) -> Subject:
        """The subject for the planner."""
        # Late: formulas and rules are not read for looking that all is up.
        from spark_cluster.plan.planner import of_a_recipe

        return of_a_recipe(self.recipe, self.launch)

    def located(self, folders: Mapping[str, str]) -> Server:
        """Return it with the folders of what is in the nodes' hub cache.

        Args:
            folders: repository to the folder of its revision; others keep what they have.
        """
        recipe = self.recipe.located(folders)
        if recipe == self.recipe:
            return self
        ours = all(patch.upload for patch in self.patches)  # none comes with the model
        patches = self.patches if ours else mounted_patches(recipe)
        drafting = recipe.dialect.drafter(recipe.drafter) if recipe.drafter is not None else {}
        return replace(
            self,
            recipe=recipe,
            launch=of_recipe(recipe, self.tp),
            model_path=recipe.model.node_path,
            flags={**self.flags, **drafting},
            mounts=mounts_of(recipe, patches),
            patches=patches,
        )

    def starting(
        self, *, share: float | None, guarded: str, ray_token: str | None = None
    ) -> Server:
        """Return it with what is known only when it starts.

        Args:
            share: the --gpu-memory-utilization that was computed; None keeps the recipe's.
            guarded: whether there is a firewall (`present`, `absent`), for the containers' label.
        """
        flags = {**self.flags, self.share_flag: share} if share is not None else self.flags
        labels = {**self.labels, FIREWALL: guarded}
        return replace(self, flags=flags, labels=labels, ray_token=ray_token)


@dataclass(frozen=True)
class Deployment:
    """All that is behind one endpoint: one server over its nodes, replicas, or several models.

    Attributes:
        servers: the head's first.
        nodes: all that serve, the head first.
        idle: the other nodes, on which nothing of the engine is left.
        endpoint: where users reach it.
        firewall: settings of the role `firewall`.
    """

    servers: tuple[Server, ...]
    nodes: tuple[Node, ...]
    idle: tuple[Node, ...]
    endpoint: Endpoint
    firewall: Mapping[str, Any]

    @property
    def first(self) -> Server:
        """The head's server; of several models the first that the inventory names."""
        return self.servers[0]

    @property
    def is_one(self) -> bool:
        """True for one server over all of the nodes."""
        return not self.endpoint.replicas and not self.endpoint.models

    @property
    def recipes(self) -> tuple[Server, ...]:
        """Each recipe once, over all nodes that serve it: for what is fetched and prepared."""
        found: dict[str, Server] = {}
        for server in self.servers:
            known = found.setdefault(server.recipe.name, server)
            if known is not server:
                found[server.recipe.name] = replace(known, nodes=(*known.nodes, *server.nodes))
        return tuple(found.values())

    def with_servers(self, servers: Sequence[Server]) -> Deployment:
        """Return it with these servers in place of its own, in the same order."""
        return replace(self, servers=tuple(servers))

    def located(self, folders: Mapping[str, str]) -> Deployment:
        """Return it with the folders of what is in the nodes' hub cache; see `Server.located`."""
        return self.with_servers([server.located(folders) for server in self.servers])


# The folder of the engine's caches: that of the role `caches` in the inventory, or the default.


def root_on(node: InventoryNode) -> str:
    """The folder of the caches on a node, as the setting `root` of the role `caches` has it."""
    return str(node.settings_for("caches").data.get("root", CACHE_ROOT)).rstrip("/")


def root_of_all(nodes: Iterable[InventoryNode]) -> str:
    """The folder of the caches on all nodes that serve together.

    Raises:
        Refused: it differs; the containers of all ranks are made with one.
    """
    roots = {node.name: root_on(node) for node in nodes}
    if len(set(roots.values())) > 1:
        listed = ", ".join(f"{root} on {name}" for name, root in roots.items())
        raise Refused(
            f"the caches of nodes that serve together have different roots: {listed}",
            hint="give `caches: {root: ...}` once, under `settings` of the inventory; a second "
            "disk can be mounted at the same path on each node",
        )
    return next(iter(roots.values()), CACHE_ROOT)
