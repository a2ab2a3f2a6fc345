"""Recipes of spark-vllm-docker (github.com/eugr/spark-vllm-docker, recipes/README.md)."""

from __future__ import annotations

from typing import Any

from spark_cluster.importing import templated
from spark_cluster.importing.source import Source
from spark_cluster.userfiles.yamlfile import Problem, Sourced


def claims(data: dict[str, Any]) -> bool:
    """Whether the data look like a recipe of spark-vllm-docker: a command, and its container."""
    return isinstance(data.get("command"), str) and "container" in data


def read(source: Sourced) -> Source:
    """What a recipe of spark-vllm-docker says.

    Raises:
        InvalidFile: a field is wrong, or a place of the command has no value.
    """
    data = templated.checked(source)
    if not data.get("command"):
        raise source.invalid([Problem(("command",), "missing; expected the command to run")])
    values = {
        **({"model": data["model"]} if data.get("model") else {}),
        **(data.get("defaults") or {}),
    }
    command, left = templated.filled(source, values)
    made = templated.launch_of(source, command)
    made.kind = "spark-vllm-docker recipe"
    made.left_out += left + templated.rest(source, set(templated.USED))
    return made
