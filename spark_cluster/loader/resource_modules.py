"""The checked files of a project's `resources/` as modules of this process."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from spark_cluster.errors import InvalidFile, SparkClusterError
from spark_cluster.loader.extension import broken
from spark_cluster.loader.resource_source import ResourceSource
from spark_cluster.node.project_code import PROJECT_PACKAGE, PROJECT_RESOURCES
from spark_cluster.resources.base import REGISTRY, Resource


def install(sources: Sequence[ResourceSource]) -> None:
    """Import checked files as `spark_cluster_project.resources.NAME`.

    Raises:
        InvalidFile: one raises, or its class is no resource, with the line; none is left then.
    """
    before = dict(REGISTRY)
    sys.meta_path.append(_Finder(sources))
    try:
        for source in sources:
            _import(source)
        _must_be_theirs(sources)
    except SparkClusterError:
        remove()
        REGISTRY.update(before)
        raise


def remove() -> None:
    """Drop the modules of the project, and the classes that they brought."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    for name in [n for n in list(sys.modules) if f"{n}.".startswith(f"{PROJECT_PACKAGE}.")]:
        del sys.modules[name]
    for name, kind in list(REGISTRY.items()):
        if kind.__module__.startswith(f"{PROJECT_PACKAGE}."):
            del REGISTRY[name]


def _import(source: ResourceSource) -> None:
    """Import a file; its class must be a frozen dataclass and a Resource."""
    try:
        module = importlib.import_module(source.module)
    except (Exception, SystemExit) as error:
        raise broken(error, source.path.parent / "__init__.py", source.what) from error
    if not source.is_resource:
        return
    kind = getattr(module, source.class_name, None)
    where = source.line_of(source.class_name)
    if not (isinstance(kind, type) and issubclass(kind, Resource)):
        raise InvalidFile(
            f"{source.what}: class {source.class_name} is not a subclass of Resource",
            where=where,
            hint=f"class {source.class_name}(Resource): with `from spark_cluster.resources import "
            "Resource`",
        )
    parameters = vars(kind).get("__dataclass_params__")
    if parameters is None or not parameters.frozen:
        raise InvalidFile(
            f"{source.what}: class {source.class_name} is not a frozen dataclass",
            where=where,
            hint="put @dataclass(frozen=True) above it",
        )


def _must_be_theirs(sources: Sequence[ResourceSource]) -> None:
    """Raise InvalidFile when a file has a resource that is not named as the file."""
    by_module = {source.module: source for source in sources}
    for name, kind in REGISTRY.items():
        source = by_module.get(kind.__module__)
        if source is not None and not (source.is_resource and name == source.class_name):
            raise InvalidFile(
                f"{source.what}: found the resource {name}, expected "
                f"{'only ' + source.class_name if source.is_resource else 'none'} in this file",
                where=source.line_of(name),
                hint="a resource has a file of its own, named as its class in snake case",
            )


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the checked files, and nothing else, in the project's package."""

    def __init__(self, sources: Sequence[ResourceSource]) -> None:
        self._sources = {source.module: source for source in sources}

    def find_spec(
        self, fullname: str, _path: object = None, _target: object = None, /
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in (PROJECT_PACKAGE, PROJECT_RESOURCES):
            return importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        source = self._sources.get(fullname)
        if source is None:
            return None
        return importlib.util.spec_from_file_location(fullname, source.path, loader=_Loader(source))


class _Loader(importlib.abc.SourceLoader):
    """Runs the bytes that were checked; nothing compiled is kept in the user's folder."""

    def __init__(self, source: ResourceSource) -> None:
        self._source = source

    def get_filename(self, _fullname: str, /) -> str:
        return str(self._source.path)

    def get_data(self, path: str | bytes) -> bytes:
        if Path(str(path)) != self._source.path:
            raise OSError(f"{path!r} is not kept")
        return self._source.data
