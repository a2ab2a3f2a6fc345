"""The recipe: the model, its image, the engine's arguments, and how to verify that it works."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from spark_cluster.config import engines
from spark_cluster.config.allowances import NOTHING, Allowances
from spark_cluster.config.engines import words
from spark_cluster.config.fields import Word
from spark_cluster.config.image_build import Image
from spark_cluster.config.model_kind import ModelKind, first_readiness_check, inferred
from spark_cluster.config.recipe_schema import (
    MOST_NODES,
    Drafter,
    EngineArg,
    EngineValue,
    EnvironmentValue,
    Flag,
    FromLaptop,
    Measured,
    Model,
    Mount,
    NotCarriedOver,
    Patch,
    Probe,
    Ray,
    Readiness,
    TensorParallel,
    Variable,
    Venv,
    Vllm,
)
from spark_cluster.config.schema import Schema
from spark_cluster.config.suggest import did_you_mean
from spark_cluster.config.yamlfile import described
from spark_cluster.errors import Refused


def _share(value: Any) -> Any:
    """`auto` is None inside."""
    if value == "auto":
        return None
    if isinstance(value, str | bool):
        raise ValueError(f"found {described(value)}, expected 'auto' or a number such as 0.75")
    return value


def _is_there(name: object) -> bool:
    return isinstance(name, str) and (name in engines.BUILT_IN or name in engines.names())


def _engine(name: str) -> str:
    if not _is_there(name):
        raise ValueError(f"found {name!r}; {did_you_mean(name, engines.names(), 'engines')}")
    return name


def _kind_of(data: dict[str, Any]) -> ModelKind:
    """The kind that the flags and the model's name of a file show."""
    model, flags = data.get("model"), data.get("engine_args")
    name = model.get("name") if isinstance(model, dict) else getattr(model, "name", "")
    return inferred(flags if isinstance(flags, dict) else {}, name if isinstance(name, str) else "")


Share = Annotated[float, Field(ge=0.05, le=0.95)]


class Recipe(Schema):
    """The whole file."""

    name: Word
    """the file's name without .yaml"""
    description: str = ""
    """what it is good for, in a line or two"""
    model: Model
    """the model"""
    kind: ModelKind = "chat"
    """what the model answers (default: as its flags and its name show, else chat); speech, image
    and video are known and not served"""
    image: Image = Image.model_construct(ref="")
    """the container image (runtime docker)"""
    tensor_parallel: TensorParallel = TensorParallel()
    """node counts"""
    pipeline_parallel: int = Field(default=1, ge=1, le=MOST_NODES)
    """stages that the layers are split into, each on as many nodes as --tp says"""
    data_parallel: int = Field(default=1, ge=1, le=MOST_NODES)
    """ranks of vLLM's data parallel mode in one server over Ray, each on a node of its own with the
    whole model; experts are divided among them"""
    engine: Annotated[str, AfterValidator(_engine)] = engines.DEFAULT
    """the inference engine: vllm or sglang (experimental)"""
    runtime: Literal["docker", "venv"] = "docker"
    """where the engine lives: a container, or a virtual environment on the node"""
    venv: Venv | None = None
    """the virtual environment (runtime venv)"""
    executor: Literal["ray", "mp"] = "ray"
    """executor that joins the nodes: ray, or mp (vLLM's own multi-node mode)"""
    engine_args: dict[Flag, EngineArg] = Field(default={})
    """flags of the engine, without dashes; true for a bare one"""
    env: dict[Variable, EnvironmentValue] = Field(default={})
    """environment of every container; a secret as {env: NAME}, which is the laptop's variable"""
    mounts: list[Mount] = Field(default=[])
    """folders the containers see"""
    patches: list[Patch] = Field(default=[])
    """files mounted over the image's own"""
    drafter: Drafter | None = None
    """speculative decoding"""
    vllm: Vllm = Vllm()
    """versions of vLLM"""
    ray: Ray = Ray()
    """how Ray is started"""
    probe: Probe = Probe(
        question="What is the capital of France? Please reply with one word only",
        expect="Paris",
    )
    """the question that verifies that it works"""
    readiness: Readiness = Readiness()
    """further conditions before it is called ready"""
    gpu_memory_utilization: Annotated[
        Share | None,
        BeforeValidator(_share, json_schema_input_type=Share | Literal["auto"] | None),
    ] = None
    """share of the node's memory, or 'auto': computed from what the node has"""
    ready_timeout_s: float = Field(default=1800, gt=0)
    """seconds until it must answer; three times as long at most while its nodes show that it
    compiles, tunes or loads"""
    measured: list[Measured] = Field(default=[])
    """what this configuration measured"""
    sources: list[str] = Field(default=[])
    """where the configuration comes from"""
    not_carried_over: list[NotCarriedOver] = Field(default=[])
    """what an import could not take over from its source"""

    _allowances: Allowances = PrivateAttr(default=NOTHING)
    _overrides: dict[str, EngineValue | None] = PrivateAttr(default={})

    @model_validator(mode="before")
    @classmethod
    def _executor_of_engine(cls, data: Any) -> Any:
        """Take the engine's own executor where the file names none."""
        given = data.get("engine") if isinstance(data, dict) else None
        if given not in (None, engines.DEFAULT) and "executor" not in data and _is_there(given):
            return {**data, "executor": engines.dialect(given).executors[0]}
        return data

    @model_validator(mode="before")
    @classmethod
    def _kind(cls, data: Any) -> Any:
        """Take the kind that flags and name show where the file names none, and its first rung."""
        if not isinstance(data, dict):
            return data
        kind = data["kind"] if "kind" in data else _kind_of(data)
        readiness = data.get("readiness", {})
        if kind == "chat" or not isinstance(readiness, dict) or "rungs" in readiness:
            return {**data, "kind": kind}
        return {
            **data,
            "kind": kind,
            "readiness": {**readiness, "rungs": [first_readiness_check(kind)]},
        }

    @property
    def dialect(self) -> engines.Dialect:
        """The command line of the recipe's engine."""
        return engines.dialect(self.engine)

    @property
    def allowances(self) -> Allowances:
        """What the recipe may do, and send of the laptop to the nodes."""
        return self._allowances

    @property
    def overrides(self) -> Mapping[str, EngineValue | None]:
        """The engine arguments that the command line gave in place of the file's."""
        return self._overrides

    def with_overrides(self, overrides: Mapping[str, EngineValue | None], **changed: Any) -> Recipe:
        """The recipe with changed fields, and what the command line changed by them."""
        copy = self.model_copy(update=changed)
        copy._overrides = dict(overrides)
        return copy

    def with_allowances(self, allowances: Allowances, **changed: Any) -> Recipe:
        """The recipe with changed fields, and with what it may do."""
        copy = self.model_copy(update=changed)
        copy._allowances = allowances
        return copy

    def located(self, folders: Mapping[str, str]) -> Recipe:
        """The recipe with the folders of what is in the nodes' hub cache.

        Args:
            folders: repository to the folder of its revision; others keep what they have.
        """
        model, drafter = self.model, self.drafter
        if model.in_hub_cache and model.name in folders:
            model = model.at(folders[model.name])
        if drafter is not None and drafter.in_hub_cache and drafter.name in folders:
            drafter = drafter.at(folders[drafter.name or ""])
        return self.model_copy(update={"model": model, "drafter": drafter})

    @property
    def tags(self) -> tuple[str, ...]:
        """Words by which it can be searched for, besides those of its name and description."""
        parsers = {"tool-call-parser": "tools", "reasoning-parser": "reasoning"}
        found = [self.kind, self.engine, self.model.quantization, *self.readiness.rungs]
        found += [word for flag, word in parsers.items() if flag in self.engine_args]
        if self.drafter is not None:
            found += [self.drafter.method, "drafter", "speculative"]
        if self.tensor_parallel.min > 1:
            found.append(f"tp{self.tensor_parallel.min}")
        usual = ("chat", "answer", "coherence", "tool_call")
        return tuple(sorted({word for word in found if word and word not in usual}))

    @property
    def plain_env(self) -> dict[str, str]:
        """The environment without its secrets."""
        return {name: value for name, value in self.env.items() if isinstance(value, str)}

    @property
    def secret_env(self) -> dict[str, FromLaptop]:
        """The variables whose values come from the laptop's environment."""
        return {n: value for n, value in self.env.items() if isinstance(value, FromLaptop)}

    def flags(self, tp: int, gpu_memory_utilization: float | None = None) -> dict[str, EngineValue]:
        """Return the engine's flags that are the same on all ranks, without dashes.

        Args:
            tp: tensor-parallel size.
            gpu_memory_utilization: what was computed for `auto`; the recipe's own figure wins.
        """
        dialect = self.dialect
        flags: dict[str, EngineValue] = {
            **self.engine_args,
            dialect.own("served-model-name"): self.model.served_name,
            dialect.own("tensor-parallel-size"): tp,
        }
        if self.pipeline_parallel > 1:
            flags[dialect.own("pipeline-parallel-size")] = self.pipeline_parallel
        if self.data_parallel > 1:
            flags[dialect.own("data-parallel-size")] = self.data_parallel
        if self.drafter is not None:
            flags |= dialect.drafter(self.drafter)
        share = self.gpu_memory_utilization or gpu_memory_utilization
        if share is not None:
            flags[dialect.own("gpu-memory-utilization")] = share
        return flags

    def nodes_for(self, tp: int) -> int:
        """Return the number of nodes at this tensor-parallel size: one GPU each."""
        return tp * self.pipeline_parallel * self.data_parallel

    def size_for(self, nodes: int) -> int:
        """Return the tensor-parallel size on so many nodes when none is asked for; at least 1."""
        if self.data_parallel > 1:
            return self.tensor_parallel.min  # a rank is on one node
        return self.tensor_parallel.size_for(nodes // self.nodes_for(1))

    def check_size(self, tp: int) -> None:
        """Raise Refused when the recipe does not do this tensor-parallel size."""
        low, high = self.tensor_parallel.min, self.tensor_parallel.max
        if not low <= tp <= high:
            raise Refused(
                f"recipe {self.name} runs with tensor-parallel size {self.tensor_parallel}, "
                f"not {tp}",
                hint=f"use --tp {low if tp < low else high}, or another recipe",
            )

    def args_for(self, tp: int, gpu_memory_utilization: float | None = None) -> list[str]:
        """Return the `flags` as words of a command line; raise Refused as `check_size` does."""
        self.check_size(tp)
        return list(words(self.flags(tp, gpu_memory_utilization)))
