"""Recipes of sparkrun, both versions (github.com/spark-arena/sparkrun, RECIPES.md)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spark_cluster.config import engines
from spark_cluster.config.suggest import did_you_mean
from spark_cluster.config.yamlfile import Sourced
from spark_cluster.errors import InvalidFile
from spark_cluster.importers import templated
from spark_cluster.importers.importer import Choice, Left, Source, no_choice
from spark_cluster.importers.templated import as_word
from spark_cluster.importers.vllm_flags import kinds
from spark_cluster.models.naming import quantization_named
from spark_cluster.models.tables import table

_RUNTIMES = {
    "": None,
    "vllm": None,
    "vllm-ray": "ray",
    "eugr-vllm": "ray",
    "vllm-distributed": "mp",
    "sglang": None,
}
"""sparkrun's runtimes that can be imported, and the executor that each one means."""

_FLAGS = {f"{kind}_parallel": f"{kind}-parallel-size" for kind in ("tensor", "pipeline", "data")}
"""Keys of `defaults` that are no flag's own name."""

_ON = ("enable-prefix-caching", "enable-chunked-prefill", "async-scheduling")
"""Flags that vLLM has on by itself, so that `false` has to be said."""


def claims(data: Mapping[str, Any]) -> bool:
    """Return whether the data look like a recipe of sparkrun rather than of spark-vllm-docker."""
    version = str(data.get("sparkrun_version", data.get("recipe_version", "")))
    own = table("foreign_fields", "importers")["only_sparkrun"]
    templated_form = isinstance(data.get("model"), str) or isinstance(data.get("command"), str)
    return templated_form and (version == "2" or any(key in data for key in own))


def read(source: Sourced, choice: Choice) -> Source:
    """Read a recipe of sparkrun.

    Raises:
        InvalidFile: a field is wrong, a place of the command has no value, or the engine is one
            that is not known here.
        UsageError: a variant or feature was chosen.
    """
    no_choice(choice)
    data = templated.checked(source)
    runtime = str(data.get("runtime") or "").strip()
    if runtime not in _RUNTIMES:
        raise InvalidFile(
            f"this recipe is for {runtime}, expected one for vLLM or SGLang",
            where=source.where(("runtime",)),
            hint=did_you_mean(runtime, filter(None, _RUNTIMES), "runtimes"),
        )
    defaults: dict[str, Any] = data.get("defaults") or {}
    if data.get("command"):
        command, left = templated.filled(source, {"model": data.get("model"), **defaults})
        command, left = _served_name(command, left, defaults)
    else:
        engine = runtime if runtime in engines.BUILT_IN else engines.DEFAULT
        command, left = _structured(engine, str(data["model"]), defaults)
    made = templated.launch_of(source, command, left, "sparkrun recipe")
    executor = defaults.get("distributed_executor_backend") or _RUNTIMES[runtime]
    _executor(made, executor, data.get("min_nodes") or 1)
    metadata = data.get("metadata") or {}
    for key in ("quantization", "model_dtype"):  # where flags and names do not say it
        named = quantization_named(metadata.get(key))
        if made.launch.quantization is None and named is not None:
            made.launch = replace(made.launch, quantization=named)
    return made


def _served_name(
    command: str, left: list[Left], defaults: dict[str, Any]
) -> tuple[str, list[Left]]:
    """sparkrun adds the served name when the command does not have it."""
    served = defaults.get("served_model_name")
    passed = ["distributed_executor_backend"]
    if served and "--served-model-name" not in command:
        command = f"{command.rstrip()} --served-model-name {shlex.quote(as_word(served))}"
        passed.append("defaults.served_model_name")
    return command, [one for one in left if not any(name in one.what for name in passed)]


def _structured(engine: str, model: str, defaults: dict[str, Any]) -> tuple[str, list[Left]]:
    """Without a command each default is a flag; one that the engine lacks reaches nothing."""
    dialect = engines.dialect(engine)
    words = list(dialect.command(model, ()))
    left: list[Left] = []
    for key, value in defaults.items():
        flag = dialect.own(_FLAGS.get(key, key.replace("_", "-")))
        kind = kinds(engine).get(flag)
        if kind is None:
            why = f"{dialect.title} has no flag of this name"
            left.append(Left(f"defaults.{key}: {as_word(value)}", why))
        elif value is None or flag == "distributed-executor-backend":
            continue
        elif kind == "bare":
            if value is False or str(value).lower() == "false":
                words += [f"--no-{flag}"] if flag in _ON else []
            else:
                words.append(f"--{flag}")
        elif isinstance(value, list) and kind == "several":
            words += [f"--{flag}", *map(as_word, value)]
        else:
            words += [f"--{flag}={as_word(value)}"]
    return shlex.join(words), left


def _executor(made: Source, executor: object, fewest: int) -> None:
    """The executor that the runtime means, unless the command says one."""
    launch, flag = made.launch, "distributed-executor-backend"
    if flag in launch.args or launch.engine != engines.DEFAULT:
        return
    if executor is None and max(launch.nodes, fewest) > 1:
        executor = "mp"
        made.notes.append(
            "without a runtime sparkrun joins the nodes by vLLM's own way: executor mp"
        )
    if executor is not None:
        made.launch = replace(launch, args={**launch.args, flag: str(executor)})
