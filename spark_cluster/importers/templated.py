"""Recipes with a command template: those of sparkrun and of spark-vllm-docker.

Both hold `model`, `container`, `defaults`, `env` and a `command` with `{key}` places; sparkrun's
come in two versions, the first of which is spark-vllm-docker's own form.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spark_cluster.config.yamlfile import Key, Problem, Sourced, described
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.importers import commandline
from spark_cluster.importers.result import Left
from spark_cluster.importers.source import Source
from spark_cluster.importers.tables import table
from spark_cluster.importers.template import as_word, fill, places

USED = (
    "name",
    "description",
    "model",
    "model_revision",
    "container",
    "defaults",
    "env",
    "command",
    "runtime",
    "min_nodes",
    "max_nodes",
    "cluster_only",
    "solo_only",
)
"""Fields that go into the launch or into the recipe's head."""

LONGEST = 9
"""Digits of a number of nodes that is written as text."""

_NODES = 2
"""`cluster_only` without a number means two at least."""


def checked(source: Sourced) -> dict[str, Any]:
    """The data, with the types of the fields that are used here.

    Raises:
        InvalidFile: a field has another type, or what every recipe needs is missing.
    """
    data = source.data
    problems: list[Problem] = []
    for name, kind, what in (
        ("model", str, "text"),
        ("container", str, "text"),
        ("command", str, "text"),
        ("runtime", str, "text"),
        ("name", str, "text"),
        ("description", str, "text"),
        ("defaults", dict, "a mapping"),
        ("env", dict, "a mapping"),
        ("metadata", dict, "a mapping"),
        ("min_nodes", int, "a whole number"),
        ("max_nodes", int, "a whole number"),
    ):
        found = _with_goodwill(source, name, kind)
        if found is not None and (not isinstance(found, kind) or isinstance(found, bool)):
            problems.append(Problem((name,), f"found {described(found)}, expected {what}"))
    if not data.get("command") and not data.get("model"):
        problems.append(Problem(("model",), "missing; expected a model or a command"))
    if problems:
        raise source.invalid(problems)
    return data


def _with_goodwill(source: Sourced, name: str, kind: type) -> Any:
    """The value of a field; one of another type that can mean one thing only is read as that."""
    found = source.data.get(name)
    read = found
    if kind is dict and found in ([], ""):
        read = {}
    elif name == "name" and isinstance(found, int | float) and not isinstance(found, bool):
        read = str(found)
    elif kind is int and isinstance(found, str) and found.isdecimal() and len(found) < LONGEST:
        read = int(found)
    if read is not found:
        source.data[name] = read
        source.notes.append(f"{name}: found {described(found)}, read as {described(read)}")
    return read


def launch_of(source: Sourced, command: str) -> Source:
    """The launch of a filled command in the recipe's container, with the fields that both have.

    Raises:
        InvalidFile: the command is no launch of vLLM, with its line.
    """
    data = source.data
    where = source.where(("command",) if "command" in data else ())
    try:
        reading = commandline.read(command)
    except UsageError as error:
        inside = f" ({error.where} of the command)" if error.where else ""
        raise InvalidFile(f"{error.message}{inside}", where=where, hint=error.hint) from None
    launch = reading.launch
    left = [Left(text, "it is not part of the launch") for text in reading.left_out]
    named = data.get("model")
    if named and named != launch.model:
        left.append(Left(f"model: {named}", f"the command serves {launch.model}"))
    image, _, digest = str(data.get("container") or "").partition("@")
    if not launch.image and image:
        from spark_cluster.models.naming import version_in

        launch = replace(launch, image=image, digest=digest, vllm=version_in(image))
    env = {str(k): as_word(v) for k, v in (data.get("env") or {}).items()}
    launch = replace(launch, env={**env, **launch.env})
    made = Source(
        launch,
        title=data.get("name") or source.path.stem,
        description=data.get("description") or (data.get("metadata") or {}).get("description", ""),
        revision=as_word(data.get("model_revision")),
        origin=source.path.name,
        left_out=left,
        notes=reading.notes,
    )
    made.sizes = _sizes(source)
    mods = data.get("mods")
    made.mods = [one for one in mods if isinstance(one, str)] if isinstance(mods, list) else []
    made.path = source.path
    return made


def rest(source: Sourced, used: set[str]) -> list[Left]:
    """Every field that is not used, with the reason."""
    reasons: Mapping[str, str] = table("foreign_fields")["templated"]
    consequences: Mapping[str, str] = table("foreign_fields")["templated_consequences"]
    data = dict(source.data)
    if isinstance(data.get("metadata"), dict):
        data["metadata"] = {k: v for k, v in data["metadata"].items() if k != "description"}
    left = []
    for name, value in data.items():
        if name in used or value in (None, [], {}, "", False):
            continue
        why = reasons.get(name, "this field is not known here")
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
    asked = places(command)
    for value in defaults.values():
        asked |= places(value) if isinstance(value, str) else set()
    left = [
        Left(f"defaults.{key}: {_short(value)}", "the command does not use it")
        for key, value in defaults.items()
        if key not in asked
    ]
    return text, left


def with_flag(command: str, flag: str, value: Any) -> str:
    """The command with one more flag at its end."""
    return f"{command.rstrip()} {flag} {shlex.quote(as_word(value))}"


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
    text = " ".join(as_word(value).split())
    return text if len(text) <= 70 else f"{text[:66]}..."
