"""The mapping of each part of a launch to its place in a recipe, or the reason why it has none."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from spark_cluster.config import engines
from spark_cluster.config.caches import CACHES
from spark_cluster.config.engines import Dialect
from spark_cluster.config.launch import Launch, Volume
from spark_cluster.config.recipe import is_for_models, why_not_writable, why_refused
from spark_cluster.config.recipe_schema import EngineValue, why_no_engine_value
from spark_cluster.config.schema import UNMOUNTABLE
from spark_cluster.config.secret import is_secret, is_secret_setting, looks_secret
from spark_cluster.importers.importer import Carried, Left
from spark_cluster.models.naming import table

_FLAG = re.compile(r"[A-Za-z][A-Za-z0-9]*(-[A-Za-z0-9.]+)*")
_UNEXPANDED = re.compile(r"\$[A-Za-z_({]|\$\d|`")
_PACKAGE = re.compile(r"/(dist|site)-packages/.+\.\w+$")
_CACHE_FOLDER = re.compile(r"/\.(cache|triton)(/|$)")

_HUB_CACHES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE")

_OF_THE_HUB = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_API_TOKEN", "HUGGINGFACE_TOKEN")

_HEAD = {
    "tensor-parallel-size": "tensor_parallel",
    "served-model-name": "model.served_name",
    "revision": "model.revision",
}
"""Flags that the recipe's head says; `recipe_text` writes them."""

_SPECULATIVE = {
    "speculative-model": "model",
    "num-speculative-tokens": "num_speculative_tokens",
    "spec-method": "method",
    "spec-model": "model",
    "spec-tokens": "num_speculative_tokens",
}
"""Flags that are a key of --speculative-config, in versions before and after it."""

_FIELDS = {"pipeline-parallel-size": "pipeline_parallel", "data-parallel-size": "data_parallel"}
"""Flags that are a field of the recipe, for numbers above 1."""

_NEVER = "a secret is never written into a recipe; the laptop's HF_TOKEN downloads the model"


@dataclass(slots=True)
class Parts:
    """The sections of a recipe that come from a launch.

    Attributes:
        engine_args: flags that stay flags.
        env: variables that stay variables; a secret as a reference to the laptop's.
        mounts: as the recipe writes them.
        patches: as the recipe writes them.
        fields: fields at the top: gpu_memory_utilization, executor, drafter, ...
        carried, left_out, to_do: what there is to say about it.
    """

    engine_args: dict[str, EngineValue] = field(default_factory=dict)
    env: dict[str, str | dict[str, str]] = field(default_factory=dict)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    patches: list[dict[str, Any]] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    carried: list[Carried] = field(default_factory=list)
    left_out: list[Left] = field(default_factory=list)
    to_do: list[str] = field(default_factory=list)

    def leave(self, what: str, why: str) -> None:
        self.left_out.append(Left(what, why))

    def carry(self, what: str, where: str) -> None:
        self.carried.append(Carried(what, where))

    def head(self, what: str, name: str, value: object, why: str) -> None:
        """A field at the top; without a value it is left out."""
        if value is None:
            self.leave(what, why)
        else:
            self.fields[name] = value
            self.carry(what, name)

    def ask_leave(self, folder: str) -> None:
        """For a folder of the nodes that is written to."""
        if why := why_not_writable(folder):
            self.to_do.append(
                f"allow {folder} of the nodes to be written to, or leave it out: {why} "
                "(`allow_mounts` under serve in the inventory, or --allow-mount)"
            )


def sort(launch: Launch) -> Parts:
    """The parts of a launch, each in its place."""
    parts = Parts()
    args = dict(launch.args)
    _drafter(parts, args, launch)
    for flag, value in args.items():
        _flag(parts, flag, value, launch)
    for name, text in launch.env.items():
        _variable(parts, name, text)
    for volume in launch.volumes:
        _volume(parts, volume, launch)
    for option, given in launch.docker.items():
        for one in given if isinstance(given, list) else [given]:
            _option(parts, option, one)
    return parts


def shown(flag: str, value: object) -> str:
    """A flag as people write it."""
    if value is True:
        return f"--{flag}"
    text = json.dumps(value, separators=(",", ":")) if isinstance(value, dict | list) else value
    return f"--{flag} {text}"


def folder_on_node(launch: Launch, path: str) -> str:
    """The folder of the node behind a path inside the container; the path itself without one."""
    best = path
    length = -1
    for volume in launch.volumes:
        target = volume.target.rstrip("/")
        if (path == target or path.startswith(f"{target}/")) and len(target) > length:
            best, length = volume.source.rstrip("/") + path[len(target) :], len(target)
    return best


def _flag(parts: Parts, flag: str, value: EngineValue, launch: Launch) -> None:
    dialect = engines.dialect(launch.engine)
    own = dialect.own(flag)
    what = shown(own, value)
    ours = dialect.owned.get(own) or table("launch_reasons", "importers")["flags"].get(flag)
    if flag == "api-key":
        parts.leave("--api-key (value not shown)", dialect.owned[flag])
    elif is_secret(flag.replace("-", "_")) or looks_secret(shown(flag, value)):
        parts.leave(f"--{flag} (value not shown)", _NEVER)
    elif isinstance(value, str) and _UNEXPANDED.search(value):
        parts.leave(what, "only the shell that runs it knows the value")
    elif flag == "gpu-memory-utilization":
        share = float(value) if isinstance(value, int | float) else 0.0
        why = "outside 0.05 to 0.95, which a Spark cannot give; it is computed (auto)"
        parts.head(
            shown(flag, value),
            "gpu_memory_utilization",
            share if 0.05 <= share <= 0.95 else None,
            why,
        )
    elif flag == "distributed-executor-backend":
        why = "the executors of a recipe are ray and mp"
        parts.head(shown(flag, value), "executor", value if value in ("ray", "mp") else None, why)
    elif flag in _HEAD:
        parts.carry(what, _HEAD[flag])
    elif flag in _FIELDS and isinstance(value, int):
        if value > 1:
            parts.fields[_FIELDS[flag]] = value
        parts.carry(what, _FIELDS[flag] if value > 1 else "always so")
    elif why := ours or _why_no_engine_arg(dialect, own, value):
        parts.leave(what, why)
    else:
        parts.engine_args[own] = value
        relative = isinstance(value, str) and not value.startswith("/") and "{" not in value
        if flag == "chat-template" and relative:
            parts.to_do.append(
                f"--chat-template {value} is a path relative to the image's working folder; give "
                "the whole path if the server does not find it"
            )


def _why_no_engine_arg(dialect: Dialect, flag: str, value: EngineValue) -> str:
    """Return why a recipe cannot have this flag under engine_args; empty when it can."""
    if not _FLAG.fullmatch(flag):
        return f"not a name that a flag of {dialect.title} can have"
    return why_no_engine_value(value)


def _drafter(parts: Parts, args: dict[str, EngineValue], launch: Launch) -> None:
    """`--speculative-config`, its short forms, and what came before it."""
    given = {key: args.pop(flag) for flag, key in _SPECULATIVE.items() if flag in args}
    config = args.pop("speculative-config", None)
    if config is not None and not isinstance(config, dict):
        parts.leave(shown("speculative-config", config), "its value is not a JSON object")
        return
    whole: dict[str, Any] = {**given, **(config or {})}
    if not whole:
        return
    what = shown("speculative-config", whole)
    tokens = whole.pop("num_speculative_tokens", None)
    model = whole.pop("model", None)
    method = whole.pop("method", None) or _method(str(model or ""))
    if not isinstance(tokens, int) or not 1 <= tokens <= 32:
        parts.leave(what, "the drafter's number of tokens (1 to 32) is not in it")
    elif not method:
        parts.leave(what, "neither method nor model of the drafter is in it")
    else:
        drafter: dict[str, Any] = {"method": method}
        if isinstance(model, str):
            node = folder_on_node(launch, model)
            drafter |= {"path": node} if node.startswith("/") else {"name": model}
        if "revision" in whole:
            drafter["revision"] = str(whole.pop("revision"))
        drafter["tokens"] = tokens
        options = {key: value for key, value in whole.items() if value is not None}
        drafter |= {"options": options} if options else {}
        parts.head(what, "drafter", drafter, "")


def _method(model: str) -> str:
    """Return how vLLM identifies a drafter by its name (vllm/config/speculative.py)."""
    name = model.lower()
    known = ("eagle3", "eagle", "dflash", "dspark", "assistant", "mtp", "ngram")
    found = next((word for word in known if word in name), "draft_model" if model else "")
    return "mtp" if found == "assistant" else found


def _variable(parts: Parts, name: str, text: str) -> None:
    secret = f"{name} (value not shown)"
    if name in _OF_THE_HUB:
        parts.leave(secret, "a secret: the laptop's HF_TOKEN downloads the model, and nothing else")
    elif name == "VLLM_API_KEY":
        parts.leave(secret, engines.dialect(engines.DEFAULT).owned["api-key"])
    elif is_secret_setting(name, text) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        parts.env[name] = {"env": name}
        advice = f"export {name} on the laptop, then `up --allow-env {name}`"
        parts.carry(secret, f"env, as {{env: {name}}}: {advice}")
    elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        parts.leave(f"{name}={text}", "this is not the name of a variable")
    elif name in table("launch_reasons", "importers")["per_node"]:
        parts.leave(f"{name}={text}", "it is computed for each node")
    elif name in CACHES or name in _HUB_CACHES:
        parts.leave(f"{name}={text}", "models and caches have folders of their own on each node")
    elif _UNEXPANDED.search(text):
        parts.leave(f"{name}={text}", "only the shell that runs it knows the value")
    else:
        parts.env[name] = text


def _volume(parts: Parts, volume: Volume, launch: Launch) -> None:
    written = f"-v {volume.source}:{volume.target}{':ro' if volume.read_only else ''}"
    model = launch.model.rstrip("/")
    target = volume.target.rstrip("/")
    if model == target:
        _model_folder(parts, volume, written)
        return
    if _PACKAGE.search(target):
        _patch(parts, volume, written, launch)
    elif _CACHE_FOLDER.search(target) or _holds_a_cache(target, launch):
        parts.leave(written, "models and caches have folders of their own on each node")
    elif not volume.source.startswith("/"):
        why = "a recipe needs an absolute path of the node"
        if volume.source.startswith("~"):
            why += "; ~ is the home of whoever runs the command"
        elif _UNEXPANDED.search(volume.source):
            why = "only the shell that runs it knows the folder"
        parts.leave(written, why)
    elif ".." in f"{volume.source}/{target}".split("/") or not target.startswith("/"):
        parts.leave(written, "a recipe needs absolute paths without '..'")
    elif UNMOUNTABLE.search(f"{volume.source}{volume.target}"):
        parts.leave(written, "a recipe has no comma, colon or quote in a path")
    elif why := why_refused(volume.source, read_only=volume.read_only):
        parts.leave(written, f"no container may have it: {why}")
    else:
        # A model is only read there: it is fetched before, to model.path.
        read_only = volume.read_only or model.startswith(f"{target}/")
        mount = {"source": volume.source, "target": volume.target, "read_only": read_only}
        parts.mounts.append(mount)
        if not read_only:
            parts.ask_leave(volume.source)
        parts.carry(written, "mounts" if read_only == volume.read_only else "mounts, read-only")


def _holds_a_cache(target: str, launch: Launch) -> bool:
    """Return whether a variable puts a cache into a folder that the container sees."""
    named = [launch.env[name] for name in (*CACHES, *_HUB_CACHES) if name in launch.env]
    return any(path == target or path.startswith(f"{target}/") for path in named)


def _model_folder(parts: Parts, volume: Volume, written: str) -> None:
    if not volume.source.startswith("/"):
        parts.leave(written, "the model is downloaded to /srv/models, or where model.path says")
    elif why := not is_for_models(volume.source) and why_refused(volume.source, read_only=False):
        parts.leave(written, f"no model may be put there: {why}")
    elif UNMOUNTABLE.search(volume.source):
        parts.leave(written, "a recipe has no comma, colon or quote in a path")
    else:
        parts.carry(written, "model.path")


def _patch(parts: Parts, volume: Volume, written: str, launch: Launch) -> None:
    folder = folder_on_node(launch, launch.model).rstrip("/")
    within = volume.source.startswith(f"{folder}/")
    file = volume.source[len(folder) + 1 :] if within else volume.source.rpartition("/")[2]
    patch: dict[str, Any] = {"file": file}
    if not within:
        patch["origin"] = "laptop"
        parts.to_do.append(f"put {file} next to the recipe: {written}")
    patch |= {"target": volume.target, "why": "as the source has it; say what it repairs"}
    parts.patches.append(patch)
    parts.carry(written, "patches")


def _option(parts: Parts, option: str, value: object) -> None:
    data = table("launch_reasons", "importers")
    what = f"--{option}" if value is True else f"--{option} {value}"
    if data["same"].get(option) == value:
        parts.carry(what, "always so")
        return
    parts.leave(what, data["reasons"].get(option, data["otherwise"]))
