"""The search path of inventories, playbooks, roles, recipes and suites: the user's folder first.

The search goes name by name, so a project that has one role of its own still uses all the others.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from spark_cluster.config import extension
from spark_cluster.config.extension import Extensions, broken, extensions_in_use, forget, using
from spark_cluster.config.yamlfile import Sourced, did_you_mean, load, shown
from spark_cluster.errors import InvalidFile, Refused, SparkClusterError, UsageError
from spark_cluster.node.values import PROJECT_PACKAGE, PROJECT_RESOURCES
from spark_cluster.resources import base
from spark_cluster.resources.base import Resource

if TYPE_CHECKING:
    from spark_cluster.config.topology import Playbook, Role


# The resources of a user's project: checked, importable as ours are, and sent to the nodes.
#
# Each `resources/NAME.py` of the project folder is the module
# `spark_cluster_project.resources.NAME`, on the laptop and on the node. Roles and playbooks import
# its class as they import ours: `from spark_cluster.resources import File, Mount`. On the laptop
# the names stand for the modules of the project in use (`config/project.py`), so that a process can
# have several open. Each file is checked by its text before any of it is run.

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
        _must_import(source, line, module, siblings)
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


def _must_import(source: ResourceSource, line: int, module: str, siblings: Collection[str]) -> None:
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


FOLDER = "resources"

LARGEST = 1024 * 1024
"""Bytes of all files together: they are sent over slow links."""


def load_resources(
    folder: Path, package: str, must_be_own: Callable[[Path, str], None]
) -> tuple[tuple[str, bytes], ...]:
    """Check a project's own resources, import them, and return the code that nodes get of them.

    A folder `resources/` in which no file mentions `spark_cluster` is someone else's and left
    alone.

    Args:
        folder: of the project, which is in use.
        package: that the project's modules belong to.
        must_be_own: raises Refused when others can write a path.

    Raises:
        Refused: others can write them.
        InvalidFile: one of them is wrong, with the line.
    """
    found = _read(folder / FOLDER)
    if not any(b"spark_cluster" in data for data in found.values()):
        return ()
    must_be_own(folder / FOLDER, f"{FOLDER}/ of the project")
    _must_fit(found)
    sources = [ResourceSource(path, data) for path, data in found.items()]
    for source in sources:
        check(source, {one.name for one in sources})
    install(sources, package)
    packages = (PROJECT_PACKAGE, PROJECT_RESOURCES)
    return (
        *((f"{name.replace('.', '/')}/__init__.py", b"") for name in packages),
        *((f"{source.module.replace('.', '/')}.py", source.data) for source in sources),
    )


def _read(folder: Path) -> dict[Path, bytes]:
    if not folder.is_dir():
        return {}
    try:
        return extension.code_files(folder, ".py", "__init__")
    except OSError as error:
        text = f"cannot be read: {error.strerror}"
        raise InvalidFile(text, where=shown(Path(error.filename))) from None


def _must_fit(found: dict[Path, bytes]) -> None:
    size = sum(map(len, found.values()))
    if size > LARGEST:
        raise InvalidFile(
            f"{FOLDER}/ of the project: found {size} bytes of Python, expected at most {LARGEST}",
            where=shown(next(iter(found)).parent),
            hint="all of it is sent to each node: what is not code belongs elsewhere",
        )


def install(sources: Sequence[ResourceSource], package: str) -> None:
    """Import checked files as `PACKAGE.resources.NAME`; `config/extension.py` removes them.

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


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the checked files, and nothing else, in a project's package, and runs the bytes that
    were checked; nothing compiled is kept in the user's folder.
    """

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
        return importlib.util.spec_from_file_location(fullname, source.path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        source = self._sources[module.__name__]
        exec(compile(source.data, source.path, "exec", dont_inherit=True), vars(module))  # noqa: S102


Kind = Literal["inventories", "playbooks", "roles", "recipes", "suites"]

_SUFFIXES = {"playbooks": (".py",), "roles": ("",)}
_YAML = (".yaml", ".yml")


INVENTORY = "inventory.yaml"
"""Of the project folder, when no inventory is named."""

_PACKAGE = Path(__file__).absolute().parent.parent


def shipped_folder() -> Path:
    """The folder with what comes with the program: in the wheel, or the checkout's root."""
    packed = _PACKAGE / "_shipped"
    return packed if packed.is_dir() else _PACKAGE.parent


class Project:
    """The search path.

    Args:
        folder: the user's project folder; the current one when not given.
        shipped: what comes with the program; found by itself when not given.
    """

    def __init__(self, folder: Path | None = None, shipped: Path | None = None) -> None:
        self.folder = (folder or Path.cwd()).expanduser().absolute()
        self.shipped = (shipped or shipped_folder()).absolute()
        self.extensions = Extensions(self.folder, self.must_be_own)
        self._roles: dict[str, Role] = {}
        self._has_resources = False
        if not self.folder.is_dir():
            raise UsageError(f"the project folder {shown(self.folder)} does not exist")

    def list(self, kind: Kind) -> dict[str, Path]:
        """Name and path of everything of a kind, sorted by name; the user's own hide ours."""
        found: dict[str, Path] = {}
        for root in (self.shipped, self.folder):
            folder = root / kind
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                if _is_one(kind, path):
                    found[path.stem if path.is_file() else path.name] = path
        return dict(sorted(found.items()))

    def find(self, kind: Kind, name: str) -> Path:
        """The file (for a role, the folder) of a name.

        Raises:
            UsageError: there is none; it names the nearest, or lists what there is.
        """
        known = self.list(kind)
        if name in known:
            return known[name]
        what = _singular(kind)
        raise UsageError(
            f"no {what} '{name}' in {shown(self.folder)} or among the shipped ones",
            hint=did_you_mean(name, known, kind),
        )

    def resolve(self, kind: Kind, name: str | Path) -> Path:
        """The path of a name, of a file that is given as one (with a '/' or a suffix), or of a
        recipe of a registry (`@REGISTRY/RECIPE`).

        Raises:
            UsageError: there is no such name.
            InvalidFile: there is no such file.
        """
        if kind == "recipes" and isinstance(name, str) and name.startswith("@"):
            from spark_cluster.config import registries

            return registries.resolve(name, self.folder)
        path = Path(name).expanduser()
        has_suffix = kind != "roles" and path.suffix in _SUFFIXES.get(kind, _YAML)
        if isinstance(name, str) and "/" not in name and not has_suffix:
            return self.find(kind, name)
        if path.exists():
            return path
        if path.parent == Path() and path.stem in self.list(kind):
            return self.find(kind, path.stem)
        raise InvalidFile(
            f"no such {_singular(kind)}",
            where=shown(path),
            hint=did_you_mean(path.stem, self.list(kind), kind),
        )

    def inventory_source(self, name: str | Path | None) -> Sourced:
        """Read an inventory's file, without a check of what is in it.

        It is data, but says where sudo passwords are sent and which host keys are believed: one
        that others can write is not used.

        Args:
            name: a file, the name of one in `inventories/`, or None for the project's own
                `inventory.yaml`.

        Raises:
            InvalidFile: it does not exist, or is not YAML.
            UsageError: there is no inventory of that name.
            Refused: others can write it.
        """
        path = self.folder / INVENTORY if name is None else self.resolve("inventories", name)
        if not path.exists():
            raise InvalidFile(
                "no such inventory",
                where=shown(path),
                hint="`spark-cluster init` writes one; or name one with --inventory",
            )
        self.must_be_own(path, "the inventory")
        return load(path, "inventory")

    def load_resources(self) -> None:
        """Check the project's own resources, once, so that roles can import them and agents get
        them; see `runner/wire.py`.

        Raises:
            Refused: others can write them.
            InvalidFile: one of them is wrong, with the line.
        """
        found = self.extensions
        with found.loading, self.in_use():
            if not self._has_resources and any((self.folder / "resources").glob("*.py")):
                found.resource_files = load_resources(self.folder, found.package, self.must_be_own)
            self._has_resources = True

    def in_use(self) -> AbstractContextManager[None]:
        """Have this project in use in a block: names of its resources stand for its own there, and
        its known issues and checks count.
        """
        return using(lambda: self.extensions)

    def load_role(self, name: str) -> Role:
        """A role, loaded once for each project.

        Raises:
            UsageError: there is no such role.
            Refused: others can write it.
            InvalidFile: its code is wrong, with the line.
        """
        from spark_cluster.config.topology import load_role

        with (
            self.extensions.loading,
            self.in_use(),
        ):  # parts of a run at the same time may want the same role
            if name not in self._roles:
                folder = self.find("roles", name)
                self.must_be_own(folder, f"role {name}")
                self.load_resources()
                self._roles[name] = load_role(name, folder, self.extensions)
            return self._roles[name]

    def load_playbook(self, name: str | Path) -> Playbook:
        """A playbook, by name or path.

        Raises:
            UsageError: there is no such playbook.
            Refused: others can write it.
            InvalidFile: its code is wrong, with the line.
        """
        from spark_cluster.config.topology import load_playbook

        path = self.resolve("playbooks", name)
        self.must_be_own(path, f"playbook {path.stem}")
        self.load_resources()
        with self.in_use():
            return load_playbook(path, self.extensions)

    def must_be_own(self, path: Path, what: str) -> None:
        """Look whether others could have written something.

        Raises:
            Refused: they could; with the folder and the command that changes it.
        """
        problem = self.foreign(path)
        if problem is not None:
            found, advice = problem
            raise Refused(f"{what} is not used: {found}", hint=advice)

    def foreign(self, path: Path) -> tuple[str, str] | None:
        """Return what lets others write something, and what to do; None when no one else can.

        What is installed with the program is the program. A checkout is a folder of the user like
        any other, since `recipes import` writes into it; but whoever owns the program may write it.
        """
        path = path.absolute()
        if path.is_relative_to(_PACKAGE):
            return None
        tops = (top for top in (self.folder, self.shipped) if path.is_relative_to(top))
        program = _PACKAGE if path.is_relative_to(self.shipped) else None
        return extension.foreign(path, next(tops, path.parent), program)


def _is_one(kind: Kind, path: Path) -> bool:
    if path.name.startswith((".", "_")):
        return False
    if kind == "roles":
        return path.is_dir()
    return path.is_file() and path.suffix in _SUFFIXES.get(kind, _YAML)


def _singular(kind: Kind) -> str:
    return "inventory" if kind == "inventories" else kind.removesuffix("s")
