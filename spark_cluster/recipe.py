"""What to serve: the model, its image, the engine's arguments, and how to tell that it works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr

from spark_cluster.allowances import NOTHING, Allowances
from spark_cluster.errors import Refused
from spark_cluster.laptop_files import Allowed
from spark_cluster.userfiles import recipe_checks
from spark_cluster.userfiles.fields import Word
from spark_cluster.userfiles.recipe_file import (
    Drafter,
    EngineArg,
    EngineValue,
    EnvironmentValue,
    Flag,
    FromLaptop,
    Image,
    Measured,
    Model,
    Mount,
    Patch,
    Probe,
    Ray,
    Readiness,
    TensorParallel,
    Variable,
    Vllm,
)
from spark_cluster.userfiles.schema import Schema, validate
from spark_cluster.userfiles.yamlfile import Problem, described, load

if TYPE_CHECKING:
    from spark_cluster.project import Project


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
    runtime: Literal["docker", "venv"] = Field(
        default="docker", description="where vLLM lives: a container, or an environment on the node"
    )
    executor: Literal["ray", "mp"] = Field(
        default="ray", description="what joins the nodes: Ray, or vLLM's own multi-node mode"
    )
    engine_args: dict[Flag, EngineArg] = Field(
        default={}, description="flags of `vllm serve`, without dashes; true for a bare one"
    )
    env: dict[Variable, EnvironmentValue] = Field(
        default={},
        description="environment of every container; a secret as {env: NAME}, which is the "
        "laptop's variable",
    )
    mounts: list[Mount] = Field(default=[], description="folders the containers see")
    patches: list[Patch] = Field(default=[], description="files mounted over the image's own")
    drafter: Drafter | None = Field(default=None, description="speculative decoding")
    vllm: Vllm = Field(default=Vllm(), description="versions of vLLM")
    ray: Ray = Field(default=Ray(), description="how Ray is started")
    probe: Probe = Field(
        default=Probe(
            question="What is the capital of France? Please reply with one word only",
            expect="Paris",
        ),
        description="the question that proves it works",
    )
    readiness: Readiness = Field(
        default=Readiness(), description="what else must be true before it is called ready"
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
    measured: list[Measured] = Field(default=[], description="what this configuration measured")
    sources: list[str] = Field(default=[], description="where the configuration comes from")

    _laptop: Allowed = PrivateAttr(default=Allowed())

    @property
    def laptop(self) -> Allowed:
        """Which files of the laptop it may have sent to the nodes."""
        return self._laptop

    @property
    def allowances(self) -> Allowances:
        """What the user allows it besides."""
        return self._laptop.user

    @property
    def plain_env(self) -> dict[str, str]:
        """The environment without its secrets."""
        return {name: value for name, value in self.env.items() if isinstance(value, str)}

    @property
    def secret_env(self) -> dict[str, FromLaptop]:
        """The variables whose values come from the laptop's environment."""
        return {n: value for n, value in self.env.items() if isinstance(value, FromLaptop)}

    def flags(self, tp: int, gpu_memory_utilization: float | None = None) -> dict[str, EngineValue]:
        """The flags of `vllm serve MODEL` that are the same on all ranks, without dashes.

        Args:
            tp: tensor-parallel size.
            gpu_memory_utilization: what was computed for `auto`; the recipe's own figure wins.
        """
        flags: dict[str, EngineValue] = {
            **self.engine_args,
            "served-model-name": self.model.served_name,
            "tensor-parallel-size": tp,
        }
        if self.drafter is not None:
            flags["speculative-config"] = self.drafter.config
        share = self.gpu_memory_utilization or gpu_memory_utilization
        if share is not None:
            flags["gpu-memory-utilization"] = share
        return flags

    def args_for(self, tp: int, gpu_memory_utilization: float | None = None) -> list[str]:
        """The `flags` as words of a command line.

        Sorted by flag: the compile cache is keyed by them, and a line moved in the recipe shall
        not throw it away.

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
        flags = self.flags(tp, gpu_memory_utilization)
        return [word for flag in sorted(flags) for word in _words(flag, flags[flag])]


def _words(flag: str, value: EngineValue) -> list[str]:
    if value is True:
        return [f"--{flag}"]
    if isinstance(value, list):
        return [f"--{flag}", *map(str, value)]
    if isinstance(value, dict):
        return [f"--{flag}", json.dumps(value, sort_keys=True, separators=(",", ":"))]
    return [f"--{flag}", str(value)]


def load_recipe(name: str | Path, project: Project, allow: Allowances = NOTHING) -> Recipe:
    """A recipe by name or path; `model.directory` and the laptop's patches are made absolute.

    Args:
        allow: what the user allows it, beside the files of its own and the project's folder.

    Raises:
        UsageError: there is no recipe of that name.
        InvalidFile: the file does not exist or is wrong, with every problem and its line.
    """
    path = project.resolve("recipes", name)
    source = load(path, "recipe")
    recipe = validate(Recipe, source)
    problems = recipe_checks.check(recipe)
    if recipe.name != path.stem:
        message = f"found '{recipe.name}', expected '{path.stem}', as the file is called"
        problems.insert(0, Problem(("name",), message))
    if problems:
        raise source.invalid(problems)
    folder = path.absolute().parent
    patches = [_absolute(patch, folder) for patch in recipe.patches]
    directory = recipe.model.directory and folder / recipe.model.directory.expanduser()
    model = recipe.model.model_copy(update={"directory": directory})
    loaded = recipe.model_copy(update={"model": model, "patches": patches})
    loaded._laptop = Allowed(path, project.folder, allow)
    return loaded


def _absolute(patch: Patch, folder: Path) -> Patch:
    """A patch whose file is absolute when it is the laptop's."""
    if patch.origin == "model":
        return patch
    return patch.model_copy(update={"file": str(folder / Path(patch.file).expanduser())})
