"""The checked files of a project's `resources/` as modules of this process."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from spark_cluster.errors import InvalidFile, SparkClusterError
from spark_cluster.loader.extension import broken, extensions_in_use, forget
from spark_cluster.loader.resource_source import ResourceSource
from spark_cluster.node.project_code import PROJECT_PACKAGE, PROJECT_RESOURCES
from spark_cluster.resources.base import Resource


def install(sources: Sequence[ResourceSource], package: str) -> None:
    """Import checked files as `PACKAGE.resources.NAME`; `loader/extension.py` removes them.

    The project in use has them under the names that they have on the nodes, too.

    Args:
        package: of the project that is in use.

    Raises:
        InvalidFile: one raises, or its class is no resource, with the line; none is left then.
    """
    if not any(isinstance(finder, _NodeNames) for finder in sys.meta_path):
        sys.meta_path.append(_NodeNames())
    sys.meta_path.append(_Finder(sources, package))
    try:
        for source in sources:
            _import(source, f"{package}.resources.{source.name}")
    except SparkClusterError:
        forget(package)
        raise


def _import(source: ResourceSource, name: str) -> None:
    """Import a file; its class must be a frozen dataclass and a Resource, and the only one."""
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise broken(error, source.path.parent / "__init__.py", source.what) from error
    _must_have_no_other(source, module)
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


def _must_have_no_other(source: ResourceSource, module: ModuleType) -> None:
    """Raise InvalidFile when a file has a resource that is not named as the file."""
    for kind in vars(module).values():
        if not (isinstance(kind, type) and issubclass(kind, Resource)):
            continue
        is_its_own = source.is_resource and kind.__name__ == source.class_name
        if kind.__module__ == module.__name__ and not is_its_own:
            raise InvalidFile(
                f"{source.what}: found the resource {kind.__name__}, expected "
                f"{'only ' + source.class_name if source.is_resource else 'none'} in this file",
                where=source.line_of(kind.__name__),
                hint="a resource has a file of its own, named as its class in snake case",
            )


class _NodeNames(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of the project in use by the names that they have on the nodes."""

    def find_spec(
        self, fullname: str, _path: object = None, _target: object = None, /
    ) -> importlib.machinery.ModuleSpec | None:
        if not f"{fullname}.".startswith(f"{PROJECT_PACKAGE}.") or _in_use(fullname) is None:
            return None
        is_package = fullname in (PROJECT_PACKAGE, PROJECT_RESOURCES)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _ModuleInUse(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is run: the module has what that of the project in use has."""


class _ModuleInUse(ModuleType):
    """A module of the project in use, whichever that is."""

    def __getattr__(self, name: str) -> object:
        found = None if name.startswith("__") else _in_use(self.__name__)
        if found is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(found, name)


def _in_use(name: str) -> ModuleType | None:
    """Return the module of the project in use that has a name on the nodes."""
    found = extensions_in_use()
    if found is None:
        return None
    try:
        return importlib.import_module(found.package + name.removeprefix(PROJECT_PACKAGE))
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(found.package):
            raise
        return None


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the checked files, and nothing else, in a project's package."""

    def __init__(self, sources: Sequence[ResourceSource], package: str) -> None:
        self.package = package
        self._sources = {f"{package}.resources.{source.name}": source for source in sources}

    def find_spec(
        self, fullname: str, _path: object = None, _target: object = None, /
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in (self.package, f"{self.package}.resources"):
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
