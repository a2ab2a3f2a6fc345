"""Recipes with a command template: those of sparkrun and of spark-vllm-docker.

Both hold `model`, `container`, `defaults`, `env` and a `command` with `{key}` places; sparkrun's
(github.com/spark-arena/sparkrun, RECIPES.md) come in two versions, the first of which is the form
of spark-vllm-docker (github.com/eugr/spark-vllm-docker, recipes/README.md).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from spark_cluster.config import engines
from spark_cluster.config.yamlfile import Key, Problem, Sourced, described, did_you_mean
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.importers import commandline
from spark_cluster.importers.importer import Choice, Left, Source, no_choice, shortened
from spark_cluster.importers.vllm_flags import kinds
from spark_cluster.models.naming import quantization_named, table

_KINDS = {"text": str, "a list": list, "a mapping": dict, "a whole number": int}
"""Types of fields by the words that messages and the tables in `data` have for them."""

LONGEST = 9
"""Digits of a number of nodes that is written as text."""

_NODES = 2
"""`cluster_only` without a number means two at least."""

_PLACE = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PLACE_OR_DOUBLED = re.compile(rf"\{{\{{|\}}\}}|{_PLACE.pattern}")
_ROUNDS = 5
"""A value may hold places itself: `http://localhost:{port}`."""
_LONGEST_COMMAND = 200_000


def claims(data: Mapping[str, Any]) -> bool:
    """Return whether the data look like a recipe of spark-vllm-docker: command and container."""
    return isinstance(data.get("command"), str) and "container" in data


def read(source: Sourced, choice: Choice) -> Source:
    """Read a recipe of spark-vllm-docker.

    Raises:
        InvalidFile: a field is wrong, or a place of the command has no value.
        UsageError: a variant or feature was chosen.
    """
    no_choice(choice)
    data = checked(source)
    if not data.get("command"):
        raise source.invalid([Problem(("command",), "missing; expected the command to run")])
    named = {"model": data["model"]} if data.get("model") else {}
    command, left = filled(source, {**named, **(data.get("defaults") or {})})
    return launch_of(source, command, left, "spark-vllm-docker recipe")


def checked(source: Sourced) -> dict[str, Any]:
    """The data, with the types of the fields that are used here.

    Raises:
        InvalidFile: a field has another type, or what every recipe needs is missing.
    """
    problems = mistyped(source, table("foreign_fields", "importers")["templated_types"])
    if not source.data.get("command") and not source.data.get("model"):
        problems.append(Problem(("model",), "missing; expected a model or a command"))
    if problems:
        raise source.invalid(problems)
    return source.data


def mistyped(source: Sourced, types: Mapping[str, str]) -> list[Problem]:
    """Return the fields of another type than here, which is given in words: `text`."""
    read = {name: _with_goodwill(source, name, _KINDS[what]) for name, what in types.items()}
    return [Problem((name,), wrong) for name, wrong in wrong_types(read, types)]


def wrong_types(fields: Mapping[str, Any], types: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each field that is of no type that it may have, and what is wrong with it.

    Args:
        fields: by name; None is no value.
        types: in words, such as `text or a list`; true and false are not whole numbers.
    """
    for name, what in types.items():
        kinds, value = tuple(_KINDS[one] for one in what.split(" or ")), fields.get(name)
        if value is not None and (not isinstance(value, kinds) or isinstance(value, bool)):
            yield name, f"found {described(value)}, expected {what}"


def _with_goodwill(source: Sourced, name: str, kind: type) -> Any:
    """The value of a field; one of another type that can mean one thing only is read as that."""
    found = source.data.get(name)
    read: Any = found
    if kind is dict and found in ([], ""):
        read = {}
    elif name == "name" and isinstance(found, int | float) and not isinstance(found, bool):
        read = str(found)
    elif kind is int and isinstance(found, str) and found.isdecimal() and len(found) < LONGEST:
        read = int(found)
    if read is not found:
        source.data[name] = read
        meant = described(read) if read else "an empty mapping"
        source.notes.append(f"{name}: found {described(found)}, read as {meant}")
    return read


def launch_of(source: Sourced, command: str, unused: list[Left], kind: str) -> Source:
    """The launch of a filled command in the recipe's container, with the fields that both have.

    Args:
        unused: what the command does not use.
        kind: of the recipe.

    Raises:
        InvalidFile: the command is no launch of vLLM, with its line.
    """
    data = source.data
    try:
        made = commandline.read(command, source.path.name)
    except UsageError as error:
        inside = f" ({error.where} of the command)" if error.where else ""
        where = source.where(("command",) if "command" in data else ())
        raise InvalidFile(f"{error.message}{inside}", where=where, hint=error.hint) from None
    launch = made.launch
    named = data.get("model")
    if named and named != launch.model:
        made.left_out.append(Left(f"model: {named}", f"the command serves {launch.model}"))
    made.left_out += unused + _rest(data)
    if data.get("container") and not launch.image:
        launch = commandline.in_image(launch, data["container"])
    env = {str(k): as_word(v) for k, v in (data.get("env") or {}).items()}
    made.launch = replace(launch, env={**env, **launch.env})
    made.kind = kind
    own = source.path if source.path.stem != "recipe" else source.path.absolute().parent
    made.title = data.get("name") or (own.stem if own is source.path else own.name)
    about = data.get("metadata") or {}
    made.description = data.get("description") or about.get("description", "")
    made.revision = as_word(data.get("model_revision"))
    made.sizes = _sizes(source)
    mods = data.get("mods")
    made.mods = [one for one in mods if isinstance(one, str)] if isinstance(mods, list) else []
    made.path = source.path
    return made


def _rest(data: dict[str, Any]) -> list[Left]:
    """Every field that is not used, with the reason."""
    reasons: Mapping[str, str] = table("foreign_fields", "importers")["templated"]
    consequences: Mapping[str, str] = table("foreign_fields", "importers")["templated_consequences"]
    about = data.get("metadata")
    if isinstance(about, dict):
        data = {**data, "metadata": {k: v for k, v in about.items() if k != "description"}}
    left = []
    for name, value in data.items():
        why = reasons.get(name, "this field is not known here")
        if not why or value in (None, [], {}, "", False):
            continue
        for one in value if isinstance(value, list) else [value]:
            left.append(Left(f"{name}: {_short(one)}", why, consequences.get(name, "")))
    return left


def filled(source: Sourced, values: dict[str, Any]) -> tuple[str, list[Left]]:
    """The command with its places filled, and the defaults that it does not ask for.

    Raises:
        InvalidFile: a place has no value.
    """
    command: str = source.data["command"]
    text = fill(command, values, source.where(("command",)))
    defaults = source.data.get("defaults") or {}
    texts = [command, *(value for value in defaults.values() if isinstance(value, str))]
    asked = {name for text in texts for name in _PLACE.findall(text)}
    return text, [
        Left(f"defaults.{key}: {_short(value)}", "the command does not use it")
        for key, value in defaults.items()
        if key not in asked
    ]


def _sizes(source: Sourced) -> tuple[int, int | None] | None:
    data = source.data
    low, high = data.get("min_nodes"), data.get("max_nodes")
    if data.get("cluster_only"):
        low = max(low or _NODES, _NODES)
    if data.get("solo_only"):
        high = 1
    if low is None and high is None:
        return None
    low = low or 1
    if low < 1 or (high is not None and low > high):
        key: Key = ("min_nodes",) if "min_nodes" in data else ()
        raise source.invalid([Problem(key, f"at least {low} nodes and at most {high}")])
    return low, high


def _short(value: Any) -> str:
    return shortened(" ".join(as_word(value).split()), 70)


def fill(template: str, values: Mapping[str, Any], where: str) -> str:
    """The command with all places filled.

    A doubled brace stands for one, as in the first versions of both formats; JSON with plain braces
    passes as it is.

    Args:
        template: with `{key}` places.
        values: by key.
        where: file and line, for messages.

    Raises:
        InvalidFile: a placeholder has no value, there is a circular reference, or it is too long.
    """
    pattern = _PLACE_OR_DOUBLED if "{{" in template else _PLACE
    text = _round(pattern, template, values, where)
    for _ in range(_ROUNDS):
        if set(values).isdisjoint(_PLACE.findall(text)):
            break
        text = _round(_PLACE, text, values, where)
    missing = sorted(set(_PLACE.findall(text)))
    if missing:
        raise InvalidFile(
            f"the command asks for {', '.join('{' + name + '}' for name in missing)}, for which "
            "there is no value",
            where=where,
            hint="add it to defaults, or take it out of the command",
        )
    return text


def _round(pattern: re.Pattern[str], text: str, values: Mapping[str, Any], where: str) -> str:
    size = len(text)

    def one(found: re.Match[str]) -> str:
        if found[0] in ("{{", "}}"):
            return found[0][0]
        if found[1] not in values:
            return found[0]
        value = as_word(values[found[1]])
        nonlocal size
        size += len(value)
        if size > _LONGEST_COMMAND:  # before it is made: many long values take all memory
            raise InvalidFile(
                f"the command is longer than {_LONGEST_COMMAND} characters with its values: is "
                "there a circular reference among them?",
                where=where,
            )
        inside = text[found.start() - 1 : found.start()] in ("'", '"')
        return shlex.quote(value) if value.startswith(("{", "[")) and not inside else value

    return pattern.sub(one, text)


def as_word(value: Any) -> str:
    """A value of YAML as a word of a command line."""
    if isinstance(value, dict | list):
        return json.dumps(value, separators=(",", ":"))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


_FLAGS = {f"{kind}_parallel": f"{kind}-parallel-size" for kind in ("tensor", "pipeline", "data")}
"""Keys of `defaults` that are no flag's own name."""

_ON = ("enable-prefix-caching", "enable-chunked-prefill", "async-scheduling")
"""Flags that vLLM has on by itself, so that `false` has to be said."""


def is_sparkrun(data: Mapping[str, Any]) -> bool:
    """Return whether the data look like a recipe of sparkrun rather than of spark-vllm-docker."""
    version = str(data.get("sparkrun_version", data.get("recipe_version", "")))
    own = table("foreign_fields", "importers")["only_sparkrun"]
    templated_form = isinstance(data.get("model"), str) or isinstance(data.get("command"), str)
    return templated_form and (version == "2" or any(key in data for key in own))


def read_sparkrun(source: Sourced, choice: Choice) -> Source:
    """Read a recipe of sparkrun.

    Raises:
        InvalidFile: a field is wrong, a place of the command has no value, or the engine is one
            that is not known here.
        UsageError: a variant or feature was chosen.
    """
    no_choice(choice)
    data = checked(source)
    runtime = str(data.get("runtime") or "").strip()
    runtimes: dict[str, str | None] = table("foreign_fields", "importers")["runtimes"]
    if runtime not in runtimes:
        raise InvalidFile(
            f"this recipe is for {runtime}, expected one for vLLM or SGLang",
            where=source.where(("runtime",)),
            hint=did_you_mean(runtime, filter(None, runtimes), "runtimes"),
        )
    defaults: dict[str, Any] = data.get("defaults") or {}
    if data.get("command"):
        command, left = filled(source, {"model": data.get("model"), **defaults})
        command, left = _served_name(command, left, defaults)
    else:
        engine = runtime if runtime in engines.BUILT_IN else engines.DEFAULT
        command, left = _structured(engine, str(data["model"]), defaults)
    made = launch_of(source, command, left, "sparkrun recipe")
    executor = defaults.get("distributed_executor_backend") or runtimes[runtime]
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
