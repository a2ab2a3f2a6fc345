"""Recipes of spark-vllm-docker (github.com/eugr/spark-vllm-docker, recipes/README.md)."""

from __future__ import annotations

from typing import Any

from spark_cluster.config.yamlfile import Problem, Sourced
from spark_cluster.importers import templated
from spark_cluster.importers.source import Source


def claims(data: dict[str, Any]) -> bool:
    """Return whether the data look like a recipe of spark-vllm-docker: command and container."""
    return isinstance(data.get("command"), str) and "container" in data


def read(source: Sourced) -> Source:
    """Read a recipe of spark-vllm-docker.

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
