"""What to serve: the model, its image, the engine's arguments, and how to tell that it works."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from spark_cluster.errors import Refused
from spark_cluster.userfiles.fields import NodePath, Port, Word
from spark_cluster.userfiles.schema import Schema, validate
from spark_cluster.userfiles.yamlfile import Problem, described, load

if TYPE_CHECKING:
    from spark_cluster.project import Project

EngineValue = str | int | float | bool | list[Any] | dict[str, Any]

_FLAG = re.compile(r"[A-Za-z][A-Za-z0-9]*(-[A-Za-z0-9.]+)*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SECRET_NAME = re.compile(r"(?i)(^|_)(token|api_?key|password|passwd|secret)$")

_OWNED = {
    "model": "it is model.name and model.path",
    "served-model-name": "it is model.served_name",
    "revision": "it is model.revision",
    "host": "it is serve.bind in the inventory",
    "port": "it is serve.port in the inventory",
    "api-key": "it is serve.api_key in the inventory; a key is never written into a recipe",
    "tensor-parallel-size": "it is --tp on the command line, within tensor_parallel",
    "gpu-memory-utilization": "it is the recipe's gpu_memory_utilization",
    "distributed-executor-backend": "it is a setting of the role vllm",
    "nnodes": "it follows from --tp",
    "node-rank": "it follows from --tp",
    "master-addr": "it follows from the inventory",
    "master-port": "it follows from the inventory",
    "headless": "it follows from --tp",
}


def _digest(text: str) -> str:
    if not _DIGEST.fullmatch(text):
        raise ValueError(f"found {text!r}, expected sha256: and 64 hexadecimal digits")
    return text


def _flag(text: str) -> str:
    fixed = text.strip().lstrip("-").replace("_", "-")
    if text != fixed:
        raise ValueError(f"found {text!r}; did you mean '{fixed}'?")
    if not _FLAG.fullmatch(text):
        raise ValueError(f"found {text!r}, expected a flag without dashes such as max-model-len")
    if text in _OWNED:
        raise ValueError(f"not an engine argument here: {_OWNED[text]}")
    return text


def _engine_value(value: Any) -> Any:
    if value is False or value is None:
        raise ValueError(
            f"found {described(value)}; leave the flag out, or write its no- form with true"
        )
    if isinstance(value, list) and not all(isinstance(v, str | int | float) for v in value):
        raise ValueError("found a list with more than text and numbers")
    return value


def _variable(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueError(f"found {text!r}, expected the name of an environment variable")
    if _SECRET_NAME.search(text):
        raise ValueError("a secret is never written into a recipe; the inventory refers to it")
    return text


def _as_text(value: Any) -> Any:
    """Numbers too: `OMP_NUM_THREADS: 1` can only mean one thing; `true` could mean several."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class Model(Schema):
    """The model and where it lies."""

    name: str = Field(min_length=1, description="repository on the hub, or a name of your own")
    source: Literal["hub", "directory"] = Field(
        default="hub", description="hub: downloaded; directory: copied from the laptop"
    )
    revision: str = Field(default="main", min_length=1, description="branch, tag or commit")
    path: NodePath | None = Field(
        default=None, description="folder on the nodes (default: /srv/models/ and the name)"
    )
    directory: Path | None = Field(
        default=None, description="folder on the laptop, for source: directory"
    )
    served_name: str = Field(min_length=1, description="name that clients ask for")

    @model_validator(mode="after")
    def _directory_given(self) -> Model:
        if self.source == "directory" and self.directory is None:
            raise ValueError("source: directory needs 'directory', the folder on the laptop")
        if self.source == "hub" and self.directory is not None:
            raise ValueError("'directory' is for source: directory; found source: hub")
        return self

    @property
    def node_path(self) -> str:
        """The folder on the nodes, which is also the path inside the containers."""
        return self.path or f"/srv/models/{self.name.replace('/', '--')}"


class Image(Schema):
    """The container image."""

    ref: str = Field(pattern=r"^\S+$", description="name and tag, as `docker pull` takes it")
    digest: Annotated[str, AfterValidator(_digest)] | None = Field(
        default=None, description="sha256:..., so that all nodes run the same"
    )
    archive: NodePath | None = Field(
        default=None, description="file on the nodes to `docker load` instead of pulling"
    )

    @property
    def reference(self) -> str:
        """What to pull and run: the reference, pinned to the digest where there is one."""
        return f"{self.ref}@{self.digest}" if self.digest else self.ref


class TensorParallel(Schema):
    """How many nodes can share the model."""

    min: int = Field(default=1, ge=1, description="fewest nodes it fits on")
    max: int = Field(default=2, ge=1, description="most nodes it can be split over")

    @model_validator(mode="after")
    def _ordered(self) -> TensorParallel:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is more than max ({self.max})")
        return self


class Mount(Schema):
    """A folder of the nodes that the containers see."""

    source: NodePath = Field(description="folder or file on the node")
    target: NodePath = Field(description="where the containers see it")
    read_only: bool = Field(default=True, description="whether they may only read it")

    @property
    def volume(self) -> str:
        """As `docker run --volume` takes it."""
        return f"{self.source}:{self.target}{':ro' if self.read_only else ''}"


class Ray(Schema):
    """How the Ray nodes are started."""

    port: Port = Field(default=6379, description="of the head's control service")
    dashboard_port: Port = Field(default=8265, description="of the dashboard, on loopback")
    # Ray's own range (10002-19999) runs into other services of a node.
    min_worker_port: Port = Field(default=18400, description="first port of workers")
    max_worker_port: Port = Field(default=18899, description="last port of workers")
    object_store_memory: int | None = Field(
        default=None, ge=80_000_000, description="bytes for the object store of each node"
    )
    num_cpus: int | None = Field(default=None, ge=1, description="CPUs to declare on each node")
    # 10 to 20 seconds were measured for two nodes.
    join_timeout_s: float = Field(
        default=120, gt=0, description="longest wait until all nodes are with Ray, seconds"
    )

    @model_validator(mode="after")
    def _range(self) -> Ray:
        if self.max_worker_port - self.min_worker_port < 20:
            raise ValueError("max_worker_port leaves workers fewer than 20 ports")
        for name in ("port", "dashboard_port"):
            if self.min_worker_port <= getattr(self, name) <= self.max_worker_port:
                raise ValueError(f"{name} lies between min_worker_port and max_worker_port")
        return self


class Probe(Schema):
    """A question whose answer shows that the model is really working."""

    question: str = Field(min_length=1, description="what is asked, at temperature 0")
    expect: str = Field(min_length=1, description="what the answer must contain, in any case")
    max_tokens: int = Field(default=16, ge=1, description="longest answer, tokens")


def _share(value: Any) -> Any:
    """`auto` is None inside."""
    if value == "auto":
        return None
    if isinstance(value, str | bool):
        raise ValueError(f"found {described(value)}, expected 'auto' or a number such as 0.75")
    return value


class Recipe(Schema):
    """The whole file."""

    name: Word = Field(description="the file's name without .yaml")
    description: str = Field(default="", description="what it is good for, in a line or two")
    model: Model = Field(description="the model")
    image: Image = Field(description="the container image")
    tensor_parallel: TensorParallel = Field(default=TensorParallel(), description="node counts")
    engine_args: dict[
        Annotated[str, AfterValidator(_flag)],
        Annotated[EngineValue, BeforeValidator(_engine_value)],
    ] = Field(default={}, description="flags of `vllm serve`, without dashes; true for a bare one")
    env: dict[
        Annotated[str, AfterValidator(_variable)], Annotated[str, BeforeValidator(_as_text)]
    ] = Field(default={}, description="environment of every container")
    mounts: list[Mount] = Field(default=[], description="folders the containers see")
    ray: Ray = Field(default=Ray(), description="how Ray is started")
    probe: Probe = Field(
        default=Probe(
            question="What is the capital of France? Please reply with one word only",
            expect="Paris",
        ),
        description="the question that proves it works",
    )
    gpu_memory_utilization: Annotated[float | None, BeforeValidator(_share)] = Field(
        default=None,
        ge=0.05,
        le=0.95,
        description="share of the node's memory, or 'auto': computed from what the node has",
    )
    ready_timeout_s: float = Field(
        default=1800, gt=0, description="longest wait until it answers, seconds"
    )
    sources: list[str] = Field(default=[], description="where the configuration comes from")

    def args_for(self, tp: int, gpu_memory_utilization: float | None = None) -> list[str]:
        """The arguments of `vllm serve MODEL` that are the same on all ranks.

        Sorted by flag: the compile cache is keyed by them, and a line moved in the recipe shall
        not throw it away.

        Args:
            tp: tensor-parallel size.
            gpu_memory_utilization: what was computed for `auto`; the recipe's own figure wins.

        Raises:
            Refused: the recipe does not do this size.
        """
        low, high = self.tensor_parallel.min, self.tensor_parallel.max
        if not low <= tp <= high:
            sizes = f"{low}" if low == high else f"{low} to {high}"
            raise Refused(
                f"recipe {self.name} runs with tensor-parallel size {sizes}, not {tp}",
                hint=f"use --tp {low if tp < low else high}, or another recipe",
            )
        args: dict[str, EngineValue] = {
            **self.engine_args,
            "served-model-name": self.model.served_name,
            "tensor-parallel-size": tp,
        }
        share = self.gpu_memory_utilization or gpu_memory_utilization
        if share is not None:
            args["gpu-memory-utilization"] = share
        return [word for flag in sorted(args) for word in _words(flag, args[flag])]


def _words(flag: str, value: EngineValue) -> list[str]:
    if value is True:
        return [f"--{flag}"]
    if isinstance(value, list):
        return [f"--{flag}", *map(str, value)]
    if isinstance(value, dict):
        return [f"--{flag}", json.dumps(value, sort_keys=True, separators=(",", ":"))]
    return [f"--{flag}", str(value)]


def load_recipe(name: str | Path, project: Project) -> Recipe:
    """A recipe by name or path; `model.directory` is made absolute.

    Raises:
        UsageError: there is no recipe of that name.
        InvalidFile: the file does not exist or is wrong, with every problem and its line.
    """
    path = project.resolve("recipes", name)
    source = load(path, "recipe")
    recipe = validate(Recipe, source)
    if recipe.name != path.stem:
        message = f"found '{recipe.name}', expected '{path.stem}', as the file is called"
        raise source.invalid([Problem(("name",), message)])
    if recipe.model.directory is None:
        return recipe
    directory = path.absolute().parent / recipe.model.directory.expanduser()
    model = recipe.model.model_copy(update={"directory": directory})
    return recipe.model_copy(update={"model": model})
