"""What a project brings to run, who could have written it, and what its user allows a recipe.

Roles and playbooks are code, and a recipe names the image that runs as root on the nodes. So they
are loaded only from folders that no one but their user (and root) can write.
"""

from __future__ import annotations

import contextlib
import getpass
import importlib.util
import os
import shlex
import stat
import struct
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from spark_cluster.config.yamlfile import shown
from spark_cluster.errors import InvalidFile, SparkClusterError
from spark_cluster.node import paths
from spark_cluster.node.values import PROJECT_PACKAGE

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


# What a project's folder extends the program by: Python files, loaded by path, and others.

T = TypeVar("T")

KNOWN_ISSUES, CHECKS = "known_issues", "checks"
"""Folders of a project."""

SETTLED_S = 2.0
"""Seconds after which a file that was changed again has another time of change: compiled code
remembers that of its source in whole seconds."""


class _Loader(SourceFileLoader):
    """Keeps no compiled code of a file that was changed just now: after the next change within the
    same second, to the same length, it would be taken for current."""

    def set_data(self, path: str, data: ReadableBuffer, *, _mode: int = 0o666) -> None:
        if time.time() - Path(self.path).stat().st_mtime > SETTLED_S:
            super().set_data(path, data, _mode=_mode)


class Extensions:
    """The extensions in a project's folder, as this process has them: modules below a package that
    no other project has, and what was made of its files. They end with this object.

    It may be used by several threads; each piece of code is run once.

    Args:
        folder: of the project.
        must_be_own: raises Refused when others can write a path.

    Attributes:
        package: that its modules are in.
        resource_files: the code that nodes get of its resources, by path in the payload.
    """

    def __init__(self, folder: Path, must_be_own: Callable[[Path, str], None]) -> None:
        self.folder = folder
        self.package = f"{PROJECT_PACKAGE}_{os.urandom(8).hex()}"
        self.resource_files: tuple[tuple[str, bytes], ...] = ()
        self.loading = threading.RLock()
        self._must_be_own = must_be_own
        self._files: dict[tuple[str, str], tuple[Path, ...]] = {}
        self._made: dict[Callable[[], Any], Any] = {}
        weakref.finalize(self, forget, self.package)

    def load_module(self, path: Path, name: str, what: str) -> ModuleType:
        """Run a Python file as a module of this project; see the function."""
        with self.loading:
            return load_module(path, f"{self.package}.{name}", what)

    def files(self, folder: str, suffix: str, mention: bytes = b"") -> tuple[Path, ...]:
        """Return the files of a folder of the project, sorted, as they were when first asked for.

        Args:
            folder: below the project folder.
            suffix: of the files, `.py`.
            mention: a text that at least one of them has; else the folder is another program's and
                is left alone.

        Raises:
            Refused: others can write them.
        """
        with self.loading:
            if (folder, suffix) not in self._files:
                self._files[folder, suffix] = self._look(folder, suffix, mention)
            return self._files[folder, suffix]

    def _look(self, folder: str, suffix: str, mention: bytes) -> tuple[Path, ...]:
        top = self.folder / folder
        if not top.is_dir():
            return ()
        found = code_files(top, suffix, "_")
        if not any(mention in data for data in found.values()):
            return ()
        self._must_be_own(top, f"{folder}/ of the project")
        return tuple(found)

    def made(self, function: Callable[[], T]) -> T:
        """Return what a function makes of this project's files; it is called once."""
        with self.loading:
            if function not in self._made:
                self._made[function] = function()
            found: T = self._made[function]
            return found


LARGEST_FILE = 2 << 20
"""Bytes that are read of a file before it is known who wrote it; no code is as large."""


def code_files(folder: Path, suffix: str, hidden: str) -> dict[Path, bytes]:
    """Read the files of a folder, sorted, whoever wrote them: no pipe is waited for, and of one
    that is too large the beginning is read. A link that leads nowhere has no content.

    Args:
        hidden: begin of names that are left out, besides a dot.
    """
    found = {}
    for path in sorted(folder.glob(f"*{suffix}")):
        if path.name.startswith((".", hidden)):
            continue
        if not path.exists():
            found[path] = b""
        elif path.is_file():
            with path.open("rb") as opened:
                found[path] = opened.read(LARGEST_FILE)
    return found


_in_use: ContextVar[Callable[[], Extensions] | None] = ContextVar("extensions", default=None)


def extensions_in_use() -> Extensions | None:
    """Return the extensions of the project in use: that of the run which this code belongs to, or
    of the command; None without one.
    """
    provider = _in_use.get()
    return None if provider is None else provider()


@contextlib.contextmanager
def using(provider: Callable[[], Extensions] | None) -> Iterator[None]:
    """Have a project in use in the block, and in the threads that are started in it with
    `runner/parallel.py`.

    Args:
        provider: gives its extensions; called when they are asked for.
    """
    token = _in_use.set(provider)
    try:
        yield
    finally:
        _in_use.reset(token)


def forget(package: str) -> None:
    """Drop a module with those below it, and the finder of a package of this name."""
    for finder in list(sys.meta_path):
        if getattr(finder, "package", None) == package:
            sys.meta_path.remove(finder)
    for name in [n for n in list(sys.modules) if f"{n}.".startswith(f"{package}.")]:
        sys.modules.pop(name, None)


def load_module(path: Path, name: str, what: str) -> ModuleType:
    """Run a Python file as a module.

    Args:
        path: the file; with a folder's `__init__.py`, modules next to it can be imported too.
        name: the module's name, registered for as long as the program runs (pydantic and
            dataclasses look their module up by name). An earlier one of that name is replaced.
        what: what it is to the user: `role network`.

    Raises:
        InvalidFile: it cannot be read, or raises; with the file and line.
    """
    is_package = path.name == "__init__.py"
    forget(name)
    spec = importlib.util.spec_from_file_location(
        name,
        path,
        loader=_Loader(name, str(path)),
        submodule_search_locations=[str(path.parent)] if is_package else None,
    )
    if spec is None or spec.loader is None:
        raise InvalidFile(f"{what}: expected a Python file", where=shown(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SparkClusterError:
        raise
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        raise broken(error, path, what) from error
    return module


def broken(error: BaseException, path: Path, what: str) -> InvalidFile:
    """Convert an exception from a user's Python file into an error that locates it there.

    Args:
        error: the exception, with its traceback.
        path: the file; lines of other files in its folder count too for a package.
        what: what it is to the user: `role network`.
    """
    return InvalidFile(
        f"{what}: {type(error).__name__}: {_first_line(error)}",
        where=where_raised(error, path) or shown(path),
    )


def where_raised(error: BaseException, path: Path) -> str:
    """`file:line` of the innermost line of the user's own code that an exception came from.

    Args:
        error: the exception, with its traceback.
        path: the user's file; a package's `__init__.py` stands for all files of its folder.

    Returns:
        `""` when no line of it was involved.
    """
    root = path.parent if path.name == "__init__.py" else path
    if isinstance(error, SyntaxError) and error.filename and _within(Path(error.filename), root):
        return f"{shown(Path(error.filename))}:{error.lineno or 1}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _within(Path(frame.filename), root):
            return f"{shown(Path(frame.filename))}:{frame.lineno}"
    return ""


def _within(path: Path, root: Path) -> bool:
    return path.absolute().is_relative_to(root.absolute())


def _first_line(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return text.splitlines()[0] if text else "(no message)"


_ACLS = {
    "system.posix_acl_access": "lets {} write by its ACL",
    "system.posix_acl_default": "lets {} write new files in it by its default ACL",
}
"""Extended attributes of Linux with POSIX ACLs, and what an entry in them means. acl(5)"""
_WRITE = 2
_USER, _GROUP, _MASK = 2, 8, 0x10
"""Tags of entries: a named user, a named group, and the most that either of them gets."""


def foreign(path: Path, top: Path, program: Path | None = None) -> tuple[str, str] | None:
    """Return what is wrong with a file (or a folder and everything in it), or with the folders
    above it up to `top`, and what to do; None when no one else can write any of them.

    Args:
        program: what runs already: its owner and group may write, too.
    """
    for part in _parts(path, top):
        problem = why_foreign(part, program)
        if problem is not None:
            found, advice = problem
            return f"{shown(part)} {found}", advice
    return None


def why_foreign(path: Path, program: Path | None = None) -> tuple[str, str] | None:
    """Return what is wrong with a file or folder, and what to do; None when it belongs to the user,
    or to the owner of `program`.
    """
    try:
        about, link = path.stat(), path.lstat()
    except OSError:
        return None  # it is not there, or whoever opens it says why not
    name = shlex.quote(str(path))
    runs = program.stat() if program is not None else None
    users, groups = _own(os.getuid(), "SUDO_UID"), _own(os.getgid(), "SUDO_GID")
    if runs is not None:
        users, groups = users | {runs.st_uid}, groups | {runs.st_gid}
    if others := {about.st_uid, link.st_uid} - users:
        of_link = "-h " if link.st_uid in others else ""
        return (
            f"belongs to another user (number {others.pop()})",
            f"check its content; then: sudo chown {of_link}{os.getuid()} {name}",
        )
    # In a folder like /tmp no one replaces what is not theirs, and that is looked at by itself.
    shared = stat.S_ISDIR(about.st_mode) and about.st_mode & stat.S_ISVTX
    if about.st_mode & stat.S_IWOTH and not shared:
        return "is writable by everyone", f"check its content; then: chmod o-w {name}"
    if about.st_mode & stat.S_IWGRP and about.st_gid not in groups and not shared:
        return (
            f"is writable by another group (number {about.st_gid})",
            f"check its content; then: chmod g-w {name}",
        )
    if not shared and (found := _foreign_acl(path, users, groups)):
        return found, f"check its content; then: setfacl -b {name}"
    return None


def _foreign_acl(path: Path, users: set[int], groups: set[int]) -> str | None:
    """Return whom but these users and groups an ACL lets write; None where there is none.

    macOS keeps its ACLs elsewhere: there the mode alone is looked at.
    """
    if sys.platform != "linux":
        return None
    for attribute, meaning in _ACLS.items():
        try:
            acl = os.getxattr(path, attribute)
        except OSError:
            continue  # none, or a file system without ACLs
        entries = list(struct.iter_unpack("<HHI", acl[4:]))  # after the version
        mask = next((rights for tag, rights, _ in entries if tag == _MASK), _WRITE)
        for tag, rights, number in entries:
            kind, own = ("user", users) if tag == _USER else ("group", groups)
            if tag in (_USER, _GROUP) and rights & mask & _WRITE and number not in own:
                return meaning.format(f"{kind} {number}")
    return None


def _own(number: int, of_sudo: str) -> set[int]:
    """Root's, the user's, and that of who became root with sudo: Ubuntu's users have a group of
    their own, which may write what they make.

    Args:
        number: of the user, or of their group.
        of_sudo: the variable in which sudo says it.
    """
    sudo = os.environ.get(of_sudo, "")
    return {0, number} | ({int(sudo)} if os.getuid() == 0 and sudo.isdigit() else set())


def _parts(path: Path, top: Path) -> Iterator[Path]:
    """Yield the folders from the top down, then what is in a folder; targets of links included."""
    path, top = path.absolute(), top.absolute()
    above = [folder for folder in path.parents if folder.is_relative_to(top)]
    yield from reversed(above or [path.parent])
    if path.resolve() != path:
        yield path.resolve().parent
    yield path
    if path.is_dir():
        yield from sorted(path.rglob("*"))


# The secrets that a user is asked for on the terminal.


class Prompts:
    """What a user has answered: each question is asked once, and kept by this object only.

    One belongs to each inventory that is opened, so that a password for a node of one inventory is
    never offered to a node of that name in another.

    Attributes:
        around: entered while a question is asked, so that nothing else is written next to it.
    """

    def __init__(self) -> None:
        self.around: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        self._answers: dict[str, str] = {}
        self._asking = threading.Lock()

    @property
    def ask(self) -> Callable[[str], str] | None:
        """Ask on the terminal what was not answered yet; None without a terminal."""
        return self._ask if sys.stdin.isatty() else None

    def remember(self, what: str, answer: str) -> None:
        """Answer with it where the terminal would be asked."""
        with self._asking:
            self._answers[what] = answer

    def forget(self) -> None:
        """Ask again for everything: the answers are wrong, or no longer needed."""
        with self._asking:
            self._answers.clear()

    def _ask(self, what: str) -> str:
        with self._asking:
            if what not in self._answers:
                with self.around():
                    self._answers[what] = getpass.getpass(f"{what}: ")
            return self._answers[what]


# The permissions that a user gives a recipe beyond those of every recipe.
#
# A recipe may be someone else's. What it would take of the laptop, or reach on the nodes, is named
# by the user first: with an option of the command, or under `serve` in the inventory.


@dataclass(frozen=True)
class Allowances:
    """The permissions that the user named.

    Args:
        files: files and folders of the laptop that may be sent to the nodes, with all in them.
        env: variables of the laptop's environment that the containers may be given.
        mounts: folders of the nodes that may be written to, with all in them.
        venv: an engine may run outside a container, in a virtual environment of the node.
        build: scripts of a recipe may run as root in the build of its image.
        build_network: they may also fetch something.
        own: folders of the nodes that spark-cluster has by the inventory's settings (caches,
            environments), in which no recipe is allowed anything.
        folders: of the recipe and of the project, whose files may be sent.
    """

    files: tuple[Path, ...] = ()
    env: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    venv: bool = False
    build: bool = False
    build_network: bool = False
    own: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()

    def __add__(self, other: Allowances) -> Allowances:
        pairs = ((getattr(self, one.name), getattr(other, one.name)) for one in fields(self))
        both: list[Any] = [a or b if isinstance(a, bool) else a + b for a, b in pairs]
        return Allowances(*both)

    def holds(self, path: Path) -> bool:
        """Return whether a file of the laptop may be sent; links are followed first."""
        real = path.resolve()
        named = [path.expanduser().resolve() for path in (*self.files, LAB_MODELS)]
        if any(real.is_relative_to(one) for one in named):
            return True
        home = Path.home().resolve()  # not a folder where all of the user's files are
        folders = (folder.resolve() for folder in self.folders)
        return any(_inside(real, one) for one in folders if not home.is_relative_to(one))


NOTHING = Allowances()

OF_DOWNLOADS = {".gitattributes", ".gitignore", ".cache"}
"""Hidden names that downloaded models have."""

LAB_MODELS = Path(paths.CACHE, "lab/prepared/models")
"""What the lab has made for the shipped recipe lab-paris: nothing of the user's is in it."""


def _inside(path: Path, folder: Path) -> bool:
    """Return whether it is in the folder, and not in a hidden part of it (.git, .env, .ssh)."""
    if not path.is_relative_to(folder):
        return False
    parts = set(path.relative_to(folder).parts) - OF_DOWNLOADS
    return not any(part.startswith(".") for part in parts)
