"""The parameters with which an inference engine is started, the same for all of its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from spark_cluster.config.caches import CACHE_ROOT
from spark_cluster.config.engines import DEFAULT
from spark_cluster.config.flags import words
from spark_cluster.config.ports import LOOPBACK
from spark_cluster.config.recipe_schema import EngineValue, Ray


@dataclass(frozen=True)
class Deployment:
    """A deployment of an engine on its nodes; `serving.plan` makes it, roles and engines read it.

    Attributes:
        engine: name of the inference engine.
        instance: what tells the server of one of several models from the others; empty for one.
        runtime: where its programs live.
        venv: folder of the virtual environment, for the runtime venv.
        image: reference of the image; empty without one.
        model_path: folder of the model, on the node and in the container; empty without one.
        nodes: names of the nodes that serve, the head first.
        flags: the engine's flags without dashes, the same on all ranks.
        executor: what joins several nodes.
        ray: how Ray is started.
        on_request: its server is made, and the model loader starts it when it is asked for.
        host, port: where the server listens: the head's loopback; a replica on another node does on
            its address on the fabric.
        mounts: `SOURCE:TARGET[:ro]`.
        env: environment of the recipe, without its secrets.
        secret_env: variables of the recipe that are secrets.
        cache_root: folder of the caches on every node.
        labels: of the containers.
        ray_token: what every request to Ray must carry; None: Ray asks for none.
    """

    image: str
    model_path: str
    nodes: tuple[str, ...]
    flags: Mapping[str, EngineValue] = field(default_factory=dict)
    executor: Literal["ray", "mp"] = "ray"
    ray: Ray = field(default_factory=Ray)
    host: str = LOOPBACK
    port: int = 8000
    mounts: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cache_root: str = CACHE_ROOT
    labels: Mapping[str, str] = field(default_factory=dict)
    ray_token: str | None = field(default=None, repr=False)
    engine: str = DEFAULT
    instance: str = ""
    runtime: Literal["docker", "venv"] = "docker"
    venv: str = ""
    on_request: bool = False

    @property
    def size(self) -> int:
        """Nodes that serve together, one GPU each: tensor-parallel size times stages."""
        return len(self.nodes)

    @property
    def on_ray(self) -> bool:
        """True if Ray joins the nodes."""
        return self.size > 1 and self.executor == "ray"

    @property
    def args(self) -> tuple[str, ...]:
        """The flags as words of a command line."""
        return words(self.flags)
