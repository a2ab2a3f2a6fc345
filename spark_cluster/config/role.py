"""A role: facts and settings in, resources out. Here is what makes a folder one."""

from __future__ import annotations

import dataclasses
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ValidationError

from spark_cluster.config.extension import Extensions
from spark_cluster.config.inventory import InventoryNode
from spark_cluster.config.schema import objects_of, parse, problems_of
from spark_cluster.config.topology import Node
from spark_cluster.config.yamlfile import dotted, shown
from spark_cluster.errors import Failed, InvalidFile, SparkClusterError, UsageError
from spark_cluster.node.values import InvalidResource
from spark_cluster.resources.base import Resource

RoleFunction = Callable[..., Iterator[Any]]


@dataclass(frozen=True, slots=True)
class Role:
    """A loaded role.

    Args:
        name: the name of its folder.
        path: its `__init__.py`.
        settings_model: its pydantic model `Settings`.
        function: its generator function `role(node, settings)`.
    """

    name: str
    path: Path
    settings_model: type[BaseModel]
    function: RoleFunction

    def settings_for(self, node: InventoryNode, /, **given: Any) -> BaseModel:
        """Its settings on a node: the inventory's, and on top those that a playbook gives.

        Raises:
            InvalidFile: the inventory's are wrong, with their lines.
            UsageError: those that the playbook gives are wrong.
        """
        source, objects = node.settings_for(self.name), objects_of(self.settings_model)
        lacking = [name for name in objects if name not in given]
        if lacking:
            raise UsageError(
                f"settings of role {self.name} on {node.name}: {lacking[0]}: missing; expected "
                f"{objects[lacking[0]].description}"
            )
        data = {**source.data, **{k: v for k, v in given.items() if k not in objects}}
        try:
            made = parse(self.settings_model, data)
            return made.model_copy(update={name: given[name] for name in objects})
        except ValidationError as error:
            problems = problems_of(self.settings_model, data, error)
        if not any(problem.key[:1] and problem.key[0] in given for problem in problems):
            raise source.invalid(problems)
        lines = [f"{dotted(problem.key)}: {problem.message}" for problem in problems]
        raise UsageError(f"settings of role {self.name} on {node.name}: " + "; ".join(lines))

    def resources(
        self, node: Node, entry: InventoryNode, given: Mapping[str, Any]
    ) -> list[Resource]:
        """Return the resources that it declares for a node, tagged with its name.

        Args:
            entry: the node in the inventory.
            given: settings on top of the inventory's.

        Raises:
            InvalidFile, UsageError: as `settings_for`.
            Failed: its code raised something, with the line; nothing was sent to any node.
            SparkClusterError: it refuses the node.
        """
        settings = self.settings_for(entry, **given)
        try:
            return tagged(self.function(node, settings), self.name)
        except SparkClusterError:
            raise
        except Exception as error:
            calls = reversed(traceback.extract_tb(error.__traceback__))
            line = next((call.lineno for call in calls if call.filename == str(self.path)), 0)
            kind = type(error).__name__
            prefix = "" if isinstance(error, InvalidResource) else f"the role raised {kind}: "
            raise Failed(
                f"{prefix}{error}",
                where=f"{self.path}:{line}",
                hint=f"this is a bug in the role {self.name}, found for node {node.name}; "
                "none of its resources were sent to any node",
            ) from error


def tagged(resources: Iterable[Resource], role: str) -> list[Resource]:
    """Return the resources, each with its role's name among its tags."""
    return [
        r if role in r.tags else dataclasses.replace(r, tags=(*r.tags, role)) for r in resources
    ]


def load_role(name: str, folder: Path, extensions: Extensions) -> Role:
    """Load the role in a folder.

    Args:
        extensions: of the project that it is used in.

    Raises:
        InvalidFile: it lacks `Settings` or `role`, or raises while it is imported.
    """
    path = folder / "__init__.py"
    what = f"role {name}"
    if not path.is_file():
        raise InvalidFile(f"{what}: no such file; expected the role's code", where=shown(path))
    module = extensions.load_module(path, f"roles.{name}", what)
    settings = getattr(module, "Settings", None)
    if not (isinstance(settings, type) and issubclass(settings, BaseModel)):
        raise InvalidFile(
            f"{what}: no class Settings(pydantic.BaseModel)",
            where=_line(module, path, "Settings"),
            hint="write one, if only `class Settings(BaseModel): pass`",
        )
    function = getattr(module, "role", None)
    if not inspect.isgeneratorfunction(function):
        raise InvalidFile(
            f"{what}: no generator function role(node, settings)",
            where=_line(module, path, "role"),
            hint="a role yields resources: `def role(node, settings): yield File(...)`",
        )
    return Role(name, path, settings, function)


def _line(module: ModuleType, path: Path, name: str) -> str:
    """Return the line where the module defines a name; its first line when it does not."""
    thing = getattr(module, name, None)
    if inspect.isfunction(thing) and thing.__code__.co_filename == str(path):
        return f"{shown(path)}:{thing.__code__.co_firstlineno}"
    return f"{shown(path)}:1"


@dataclass(frozen=True, slots=True)
class Playbook:
    """A loaded playbook.

    Args:
        name: the file's name without `.py`.
        path: the file.
        function: its `main(play, ...)` (or `play(play, ...)`).
    """

    name: str
    path: Path
    function: Callable[..., Any]


def load_playbook(path: Path, extensions: Extensions) -> Playbook:
    """Load the playbook in a file.

    Args:
        extensions: of the project that it is used in.

    Raises:
        InvalidFile: it has no such function, or raises while it is imported.
    """
    what = f"playbook {path.stem}"
    module = extensions.load_module(path, f"playbooks.{path.stem}", what)
    function = next(
        (f for f in (getattr(module, n, None) for n in ("main", "play")) if inspect.isfunction(f)),
        None,
    )
    if function is None or not inspect.signature(function).parameters:
        raise InvalidFile(
            f"{what}: no function main(play)",
            where=f"{shown(path)}:1",
            hint="a playbook is one: `def main(play): play.apply(play.nodes, 'network')`",
        )
    return Playbook(path.stem, path, function)
