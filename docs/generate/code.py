"""The sources of the reference: the only module here that names places in the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from pydantic import BaseModel

from playbooks.down import Stopped
from spark_cluster import errors, resources
from spark_cluster.bench.telemetry import Row
from spark_cluster.cli import cli as root
from spark_cluster.cli import exec as exec_command
from spark_cluster.cli import ping, recipe_list, recipes_import
from spark_cluster.cli.app import WOULD_CHANGE
from spark_cluster.cli.version import Versions
from spark_cluster.config.inventory_schema import InventoryFile
from spark_cluster.config.recipe import Recipe
from spark_cluster.doctor.verdict import CheckResult
from spark_cluster.facts.model import Facts
from spark_cluster.known_issues.entries import Issue, files, read
from spark_cluster.known_issues.explain import Explanation
from spark_cluster.known_issues.match import KnownIssueMatch
from spark_cluster.loader.project import Project
from spark_cluster.models import memory
from spark_cluster.planning import fit, plan
from spark_cluster.planning.plan import Plan
from spark_cluster.planning.purpose import Advice
from spark_cluster.planning.speed.constants import Constants
from spark_cluster.resources import Resource
from spark_cluster.runner import events
from spark_cluster.serving.result import Served
from spark_cluster.serving.state import Status
from spark_cluster.serving.vram import NodeVram
from spark_cluster.topology import Link

CHECKOUT = Path(__file__).parents[2]

INVENTORY: type[BaseModel] = InventoryFile
RECIPE: type[BaseModel] = Recipe

PLANNING: tuple[ModuleType, ...] = (memory, fit, plan)
SPEED = Constants

_RUN = {"ok": bool, "changed": int, "seconds": dict[str, float]}
"""What every run that can change something prints."""

OUTPUTS: dict[str, tuple[str, Any]] = {
    "version": ("version", Versions),
    "ping": ("ping", {"nodes": [ping._document]}),
    "facts": ("facts", {"nodes": [(Facts, {"name": str, "address": str, "links": [Link]})]}),
    "doctor": ("doctor", {"checks": [CheckResult], "issues": [KnownIssueMatch]}),
    "recipes-list": ("recipes list", {"recipes": [recipe_list.document]}),
    "recipes-import": ("recipes import", recipes_import._document),
    "plan": ("plan", Plan),
    "plan-for": ("plan --for PURPOSE", (Advice, {"recipe": str})),
    "lint": ("lint", {"issues": [KnownIssueMatch], "variables": [str]}),
    "explain": ("explain", Explanation),
    "up": ("up", (Served | None, _RUN)),
    "down": ("down", (Stopped | None, _RUN)),
    "status": ("status", Status),
    "logs": ("logs", {"logs": [{"node": str, "container": str, "text": str}]}),
    "vram": ("vram", {"nodes": [NodeVram]}),
    "top": ("top", Row),
    "exec": ("exec", {"nodes": [exec_command._document]}),
}
"""Name of a schema to the command that prints it with --json, and the document: a class, a function
that makes it, a mapping, `[each]`, or a class with the keys that the command adds to it (`| None`
where there are only those in check mode)."""


def resource_classes() -> list[type[Resource]]:
    """Every resource that roles and playbooks can use, by name."""
    found = [getattr(resources, name) for name in resources.__all__]
    return [
        kind
        for kind in found
        if isinstance(kind, type) and issubclass(kind, Resource) and kind is not Resource
    ]


def roles() -> dict[str, Any]:
    """The shipped roles by name, loaded."""
    project = Project(CHECKOUT, CHECKOUT)
    return {name: project.load_role(name) for name in project.list("roles")}


def event_classes() -> list[type[events.Event]]:
    """Every event, in the order of a run."""
    return [
        kind
        for kind in vars(events).values()
        if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event
    ]


def error_classes() -> list[type[errors.SparkClusterError]]:
    """Every error that ends a command, by exit status."""
    found = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, errors.SparkClusterError)
        and kind is not errors.SparkClusterError
    ]
    return sorted(found, key=lambda kind: kind.exit_code)


def known_issues() -> dict[str, list[Issue]]:
    """The known issues of each file of the catalogue."""
    return {path.stem: read(path) for path in files()}


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command and group with its full name, in the order of --help."""
    context = click.Context(root, info_name="spark-cluster")
    for name in root.list_commands(context):
        yield from _commands(name, root.get_command(context, name), context)


def _commands(
    name: str, command: click.Command | None, context: click.Context
) -> Iterator[tuple[str, click.Command]]:
    if command is None or command.hidden:
        return
    yield name, command
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            yield from _commands(f"{name} {inner}", command.get_command(context, inner), context)


__all__ = [
    "CHECKOUT",
    "INVENTORY",
    "OUTPUTS",
    "PLANNING",
    "RECIPE",
    "SPEED",
    "WOULD_CHANGE",
    "Issue",
    "Resource",
    "commands",
    "error_classes",
    "event_classes",
    "known_issues",
    "resource_classes",
    "roles",
    "root",
]
