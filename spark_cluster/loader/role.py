"""A role: facts and settings in, resources out. Here is what makes a folder one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ValidationError

from spark_cluster.config.inventory import InventoryNode
from spark_cluster.config.schema import objects_of, parse, problems_of
from spark_cluster.config.yamlfile import dotted, shown
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.loader.extension import load_module

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


def load_role(name: str, folder: Path) -> Role:
    """Load the role in a folder.

    Raises:
        InvalidFile: it lacks `Settings` or `role`, or raises while it is imported.
    """
    path = folder / "__init__.py"
    what = f"role {name}"
    if not path.is_file():
        raise InvalidFile(f"{what}: no such file; expected the role's code", where=shown(path))
    module = load_module(path, f"spark_cluster_roles.{name}", what)
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
