"""The recipe: model, image, engine arguments, how to verify that it works; what none may hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from spark_cluster.config import engines
from spark_cluster.config.engines import words
from spark_cluster.config.extension import NOTHING, Allowances
from spark_cluster.config.image_build import RecipeImage
from spark_cluster.config.ports import vllm_ports
from spark_cluster.config.recipe_schema import (
    CHECKS_OF_KIND,
    MOST_NODES,
    Drafter,
    EngineArg,
    EngineValue,
    EnvironmentValue,
    Flag,
    FromLaptop,
    Measured,
    Model,
    ModelKind,
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
    first_readiness_check,
    inferred_kind,
)
from spark_cluster.config.schema import Schema, Word
from spark_cluster.config.secret import is_secret_setting, looks_secret
from spark_cluster.config.yamlfile import Problem, described, did_you_mean, table_beside
from spark_cluster.errors import Refused, UsageError
from spark_cluster.node import paths
from spark_cluster.node.store.manifest import is_repository


def _share(value: Any) -> Any:
    """`auto` is None inside."""
    if value == "auto":
        return None
    if isinstance(value, str | bool):
        raise ValueError(f"found {described(value)}, expected 'auto' or a number such as 0.75")
    return value


def _is_there(name: object) -> bool:
    return isinstance(name, str) and (name in engines.BUILT_IN or name in engines.names())


def _known_engine(name: str) -> str:
    if not _is_there(name):
        raise ValueError(f"found {name!r}; {did_you_mean(name, engines.names(), 'engines')}")
    return name


def _kind_of(data: dict[str, Any]) -> ModelKind:
    """The kind that the flags and the model's name of a file show."""
    model, flags = data.get("model"), data.get("engine_args")
    name = model.get("name") if isinstance(model, dict) else getattr(model, "name", "")
    return inferred_kind(
        flags if isinstance(flags, dict) else {}, name if isinstance(name, str) else ""
    )


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
    image: RecipeImage = RecipeImage.model_construct(ref="")
    """the container image (runtime docker)"""
    tensor_parallel: TensorParallel = TensorParallel()
    """node counts"""
    pipeline_parallel: int = Field(default=1, ge=1, le=MOST_NODES)
    """stages that the layers are split into, each on as many nodes as --tp says"""
    data_parallel: int = Field(default=1, ge=1, le=MOST_NODES)
    """ranks of vLLM's data parallel mode in one server over Ray, each on a node of its own with the
    whole model; experts are divided among them"""
    engine: Annotated[str, AfterValidator(_known_engine)] = engines.DEFAULT
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

    def with_allowances(self, allowances: Allowances) -> Recipe:
        """The recipe with what it may do."""
        copy = self.model_copy()
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


# Folders of a node that no recipe may reach into: with them a container is root on the node.
#
# What is only read is judged by what is known to be secret. What is written the user names: there
# are more ways to root than a list could name, and `/opt/NAME` or `/home/USER/NAME` are programs on
# real machines. Both judge the path as it is written; what a link on the node leads to cannot be
# seen from the laptop.

_FILE = table_beside(__file__, "node_paths.toml")
_OWN = "what spark-cluster itself keeps and runs"

_READABLE = (paths.DROP_CACHES, paths.FORMER_ENVIRONMENTS)
"""Of our own paths those that are no reason against reading a folder above them."""

_PROGRAMS = (*_FILE["read_only"]["programs"], paths.MODELS_FOLDER)
"""Folders of programs, of what installs them, and of models: to be read only."""


def why_refused(path: str, *, read_only: bool) -> str:
    """Return why a container may not have this path of the node; empty when it may.

    Args:
        path: as written; `~` and `$HOME` may begin it in a command line.
        read_only: whether it could only be read.
    """
    pure = _normal(path)
    if _is_harmless(pure, "writable") or (read_only and _is_harmless(pure, "read_only")):
        return ""
    if str(pure) == "/":
        return "it is the whole node"
    if ".." in pure.parts:
        return "it has '..' in it"
    home = _in_a_home(pure)
    by_place = home if home is not None else _system(pure, read_only=read_only)
    return _own(pure) or by_place or _socket(pure)


def why_not_writable(path: str, named: Iterable[str] = ()) -> str:
    """Return why a recipe may not write to this path of the node; empty when it may.

    Args:
        path: as `why_refused` takes it.
        named: folders that the user allows, with all in them; no folder of our own opens by that.
    """
    pure = _normal(path)
    if ".." in pure.parts:
        return "it has '..' in it"
    if own := _own(pure):
        return own
    if _is_harmless(pure, "writable") or any(
        pure.is_relative_to(_normal(folder)) for folder in named
    ):
        return ""
    return "what a container writes there, others may run or follow"


def is_for_models(path: str) -> bool:
    """Return whether a path of a node is in the folder of models: root writes there, no container
    does."""
    pure, models = _normal(path), PurePosixPath(paths.MODELS_FOLDER)
    return ".." not in pure.parts and pure != models and pure.is_relative_to(models)


def is_in(path: str, folder: str) -> bool:
    """Return whether a path of a node is a folder, or is in it."""
    return _normal(path).is_relative_to(_normal(folder))


def overlap(path: str, folder: str) -> bool:
    """Return whether one of two paths of a node is in the other, or is the other."""
    return is_in(path, folder) or is_in(folder, path)


def _normal(path: str) -> PurePosixPath:
    for home in ("~", "$HOME", "${HOME}"):
        if path == home or path.startswith(f"{home}/"):
            path = f"/home/user{path[len(home) :]}"
    return PurePosixPath("/", *(part for part in path.split("/") if part not in ("", ".")))


def _is_harmless(path: PurePosixPath, to_be: str) -> bool:
    return str(path) in _FILE[to_be]["harmless"]


def _own(path: PurePosixPath) -> str:
    for folder in paths.OWN:
        if path.is_relative_to(folder):
            return f"{folder} holds {_OWN}"
    return ""


def _socket(path: PurePosixPath) -> str:
    if path.name.endswith((".sock", ".socket")):
        return "anyone who reaches a socket of the node may become root through it"
    return ""


def _system(path: PurePosixPath, *, read_only: bool) -> str:
    for folder, holds in _FILE["refused"].items():
        if path.is_relative_to(folder):
            return f"{folder} holds {holds}"
        if PurePosixPath(folder).is_relative_to(path):
            return f"{folder} is in it: {holds}"
    for folder in paths.OWN:
        if read_only and folder in _READABLE:
            continue
        if PurePosixPath(folder).is_relative_to(path):
            return f"{folder} is in it: {_OWN}"
    if not read_only and any(overlap(str(path), folder) for folder in _PROGRAMS):
        return "the node's programs or models are there, and it could change them"
    return ""


def _in_a_home(path: PurePosixPath) -> str | None:
    """The verdict on what is in /home and in root's home; None for anything else."""
    parts = path.parts[1:]
    if parts[:1] == ("home",):
        inside = parts[2:]
    elif parts[:1] == ("root",):
        inside = parts[1:]
    else:
        return None
    if not inside:
        return "a whole home, with its keys and passwords, is in it"
    if inside[0].startswith(".") and inside[0] != ".cache":
        return f"{inside[0]} in a home is where keys and settings are"
    return ""


# The checks of what no recipe may contain, beyond each field on its own.
#
# A recipe starts containers as root. So none holds a secret, and none reaches into folders of a
# node that make a container root there.

ADVICE = "put what is needed into a folder of its own, such as /srv/NAME"


def recipe_problems(recipe: Recipe) -> list[Problem]:
    """Every problem of that kind; the messages never repeat what may be a secret."""
    found = (
        _kind,
        _engine_arguments,
        _runtime,
        _secrets,
        _step_secrets,
        _ports,
        _mounts,
        _models,
        _archives,
        _patches,
    )
    return [problem for look in found for problem in look(recipe)]


def _kind(recipe: Recipe) -> Iterator[Problem]:
    """What is asked of another kind of model."""
    own = CHECKS_OF_KIND.get(recipe.kind)
    if own is None:
        return  # `up` and `plan` refuse it, with what to use instead
    for index, rung in enumerate(recipe.readiness.rungs):
        if rung not in own:
            message = f"found {rung}, expected {' or '.join(own)}: the kind is {recipe.kind}"
            yield Problem(("readiness", "rungs", index), message)
    if recipe.kind != "chat" and "probe" in recipe.model_fields_set:
        yield Problem(("probe",), f"a question to a chat model; the kind is {recipe.kind}")


def _engine_arguments(recipe: Recipe) -> Iterator[Problem]:
    """Yield the fields that the engine has no place for."""
    dialect = recipe.dialect
    for flag in recipe.engine_args:
        if flag in dialect.owned:
            message = f"not an engine argument here: {dialect.owned[flag]}"
            yield Problem(("engine_args", flag), message)
        elif dialect.own(flag) != flag:
            message = f"a flag of vLLM; {dialect.title} calls it '{dialect.own(flag)}'"
            yield Problem(("engine_args", flag), message)
    if recipe.executor not in dialect.executors:
        expected = " or ".join(dialect.executors)
        message = f"found {recipe.executor}, expected {expected}: {dialect.title} joins nodes so"
        yield Problem(("executor",), message)
    if recipe.engine != engines.DEFAULT and "vllm" in recipe.model_fields_set:
        yield Problem(("vllm",), f"found versions of vLLM, expected none: {dialect.title} serves")


def _runtime(recipe: Recipe) -> Iterator[Problem]:
    """Yield what the runtime needs, and the fields that it has no place for."""
    if recipe.runtime == "docker":
        if not recipe.image.ref:
            yield Problem(("image",), "missing; expected the container image")
        if recipe.venv is not None:
            yield Problem(("venv",), "found an environment, expected `runtime: venv` with it")
        return
    if recipe.venv is None:
        yield Problem(("venv",), "missing; expected the virtual environment, `venv: {path: ...}`")
    elif why := why_refused(recipe.venv.path, read_only=False):
        message = f"found {recipe.venv.path}, where nothing may be written: {why}; {ADVICE}"
        yield Problem(("venv", "path"), message)
    if recipe.image.ref:
        yield Problem(("image",), "found an image, expected none: `runtime: venv` has no container")
    if recipe.patches:
        message = "found patches of an image, expected none: change the files in the environment"
        yield Problem(("patches",), message)


def _secrets(recipe: Recipe) -> Iterator[Problem]:
    for name, value in recipe.env.items():
        if name == "VLLM_API_KEY":
            yield Problem(("env", name), "it is serve.api_key in the inventory")
        elif isinstance(value, str) and is_secret_setting(name, value):
            yield Problem(
                ("env", name),
                "a secret is never written into a recipe; "
                f"expected {{env: {name}}}, the laptop's variable of that name",
            )
    for flag, given in recipe.engine_args.items():
        if flag in recipe.dialect.owned:
            continue  # said already, without the value
        text = given if isinstance(given, str) else json.dumps(given, default=str)
        if looks_secret(text) or (isinstance(given, str) and is_secret_setting(flag, given)):
            yield Problem(
                ("engine_args", flag),
                "a secret is never written into a recipe; give it as a variable under env, as "
                "{env: NAME}, if vLLM takes one",
            )
    if recipe.image.build is not None and looks_secret(recipe.image.build.text):
        key = "dockerfile" if recipe.image.build.dockerfile else "steps"
        yield Problem(
            ("image", "build", key), "it contains a secret, which would stay in the image"
        )


def _step_secrets(recipe: Recipe) -> Iterator[Problem]:
    """Yield the secret variables of a build's steps: they stay in the image's history."""
    build = recipe.image.build
    for index, step in enumerate(build.steps if build is not None else ()):
        for name, value in step.env.items():
            if is_secret_setting(name, value):
                yield Problem(
                    ("image", "build", "steps", index, "env", name),
                    "a secret, which would stay in the image; give it to the containers, under env",
                )


def _ports(recipe: Recipe) -> Iterator[Problem]:
    """The firewall must know them."""
    if "VLLM_PORT" in recipe.secret_env:
        yield Problem(
            ("env", "VLLM_PORT"), "a port cannot be a secret; expected a port from 1 to 65535"
        )
    try:
        vllm_ports(recipe.plain_env)
    except UsageError as error:
        yield Problem(("env", "VLLM_PORT"), error.message)


def _mounts(recipe: Recipe) -> Iterator[Problem]:
    for index, mount in enumerate(recipe.mounts):
        why = why_refused(mount.source, read_only=mount.read_only)
        if why:
            yield Problem(
                ("mounts", index, "source"),
                f"found {mount.source}, which no container may have: {why}; {ADVICE}",
            )


def _models(recipe: Recipe) -> Iterator[Problem]:
    """Folders that are written as root, and with what someone has put on the hub."""
    for key, model in (("model", recipe.model), ("drafter", recipe.drafter)):
        if model is None or model.node_path is None:
            continue
        name, path = str(model.name), model.node_path
        if model.in_hub_cache:
            if not is_repository(name):
                yield Problem((key, "name"), f"found {name!r}, expected ORG/NAME of the hub")
            continue
        if is_for_models(path):
            continue
        why = why_refused(path, read_only=False)
        if why:
            yield Problem(
                (key, "path"), f"found {path}, where no model may be put: {why}; {ADVICE}"
            )


def _archives(recipe: Recipe) -> Iterator[Problem]:
    """Yield archives in folders that a download or a container writes: what is loaded gets the name
    that the recipe says, by which other recipes have their images."""
    written = [mount.source for mount in recipe.mounts if not mount.read_only]
    written += [one.node_path for one in (recipe.model, recipe.drafter) if one and one.node_path]
    for key, path in recipe.image.archives.items():
        if _own(_normal(path)) or is_for_models(path) or any(is_in(path, one) for one in written):
            message = f"found {path}, which a download or a container may have written; {ADVICE}"
            yield Problem(("image", *key.split(".")), message)


def _patches(recipe: Recipe) -> Iterator[Problem]:
    for index, patch in enumerate(recipe.patches):
        if patch.origin == "model" and (
            patch.file.startswith("/") or ".." in patch.file.split("/")
        ):
            yield Problem(
                ("patches", index, "file"),
                f"found {patch.file!r}, expected a path inside the model's folder",
            )
