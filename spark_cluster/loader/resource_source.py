"""Checks of one file of a project's `resources/`, made on its text before any of it is run."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from spark_cluster.config.yamlfile import shown
from spark_cluster.errors import InvalidFile
from spark_cluster.node.project_code import PROJECT_RESOURCES
from spark_cluster.resources import base

OLDEST_PYTHON = (3, 10)
"""The oldest Python of a node."""

NEWER_MODULES = frozenset({"tomllib", "annotationlib", "compression"})
"""Modules of the standard library that came after OLDEST_PYTHON."""

OURS = ("spark_cluster.resources", "spark_cluster.node")
"""Packages of ours that are on the nodes."""

SHIPPED = Path(base.__file__).parent
"""The folder of the resources that ship."""


@dataclass(frozen=True)
class ResourceSource:
    """A file: a resource, or with a leading `_` a module that resources share.

    Args:
        path: where it is.
        data: its bytes: what is checked is what is imported, and what is sent.
    """

    path: Path
    data: bytes

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def is_resource(self) -> bool:
        return not self.name.startswith("_")

    @property
    def module(self) -> str:
        """The name that it is imported as."""
        return f"{PROJECT_RESOURCES}.{self.name}"

    @property
    def class_name(self) -> str:
        """`NfsMount` for `nfs_mount.py`."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    @property
    def what(self) -> str:
        """Its description for the user."""
        return f"resource {self.name}" if self.is_resource else f"module {self.name} of resources"

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed text.

        Raises:
            InvalidFile: it is no Python that the oldest node understands; with the line.
        """
        oldest = ".".join(map(str, OLDEST_PYTHON))
        try:
            return ast.parse(self.data, str(self.path), feature_version=OLDEST_PYTHON)
        except SyntaxError as error:
            raise InvalidFile(
                f"{self.what}: {type(error).__name__}: {error.msg}",
                where=f"{shown(self.path)}:{error.lineno or 1}",
                hint=f"it also runs on the nodes: write it for Python {oldest}",
            ) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise InvalidFile(f"{self.what}: not Python: {error}", where=shown(self.path)) from None

    def line_of(self, class_name: str) -> str:
        """Return `file:line` of a class's definition; of the first line when it has none."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ClassDef) and node.name == class_name:
                return f"{shown(self.path)}:{node.lineno}"
        return f"{shown(self.path)}:1"


def check(source: ResourceSource, siblings: Collection[str]) -> None:
    """Check name, syntax, imports and class of a file.

    Args:
        siblings: names of the modules next to it.

    Raises:
        InvalidFile: one of them is wrong, with the line and what to do.
    """
    _name(source)
    for line, module in _imports(source.tree):
        _import(source, line, module, siblings)
    if not source.is_resource:
        return
    if not any(
        isinstance(n, ast.ClassDef) and n.name == source.class_name for n in source.tree.body
    ):
        raise InvalidFile(
            f"{source.what}: no class {source.class_name}",
            where=f"{shown(source.path)}:1",
            hint="a resource's class is named as its file; a module that resources share begins "
            "with '_'",
        )


def _name(source: ResourceSource) -> None:
    where = shown(source.path)
    if not source.is_resource:
        if not source.name.isidentifier():
            raise InvalidFile(f"{source.what}: not a name that Python can import", where=where)
        return
    if not re.fullmatch(r"[a-z][a-z0-9_]*", source.name) or (
        base.module_name(source.class_name) != source.name
    ):
        raise InvalidFile(
            f"{source.what}: found the file name '{source.path.name}', expected words of letters "
            "joined by '_'",
            where=where,
            hint="NfsMount is in nfs_mount.py",
        )
    if (SHIPPED / source.path.name).exists():
        raise InvalidFile(
            f"{source.what}: the name is that of a resource that ships with spark-cluster",
            where=where,
            hint="choose another name for the file and its class",
        )


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and absolute name of each module that is imported, at whatever depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = f"{PROJECT_RESOURCES}.{base}" if node.level == 1 else "." * node.level
            # `from . import part` and `from spark_cluster import node` name modules
            if base.rstrip(".") in (PROJECT_RESOURCES, "spark_cluster"):
                yield from (
                    (node.lineno, f"{base.rstrip('.')}.{alias.name}") for alias in node.names
                )
            else:
                yield node.lineno, base


def _import(source: ResourceSource, line: int, module: str, siblings: Collection[str]) -> None:
    """Raise InvalidFile unless a module can be imported on a node."""
    where, top = f"{shown(source.path)}:{line}", module.partition(".")[0]
    if f"{module}.".startswith(f"{PROJECT_RESOURCES}."):
        name = module.removeprefix(f"{PROJECT_RESOURCES}.").partition(".")[0]
        if name in siblings:
            return
        raise InvalidFile(
            f"{source.what}: imports {name}, which is not next to it",
            where=where,
            hint=f"files there: {', '.join(sorted(siblings))}",
        )
    if any(f"{module}.".startswith(f"{package}.") for package in OURS):
        return
    if top in sys.stdlib_module_names and top not in NEWER_MODULES:
        return
    oldest = ".".join(map(str, OLDEST_PYTHON))
    raise InvalidFile(
        f"{source.what}: imports {module}, expected the standard library of Python {oldest}, "
        f"{', '.join(OURS)}, or a file next to it",
        where=where,
        hint="a resource runs on the nodes, where nothing else is installed",
    )
