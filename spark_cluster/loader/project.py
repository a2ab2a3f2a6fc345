"""The search path of inventories, playbooks, roles, recipes and suites: the user's folder first.

The search goes name by name, so a project that has one role of its own still uses all the others.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from spark_cluster.config.suggest import did_you_mean
from spark_cluster.config.yamlfile import Sourced, load, shown
from spark_cluster.errors import InvalidFile, Refused, UsageError
from spark_cluster.loader import trust
from spark_cluster.loader.extension import Extensions, using

if TYPE_CHECKING:
    from spark_cluster.loader.role import Playbook, Role

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
            from spark_cluster.loader import registries

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
        them; see `loader/resources.py`.

        Raises:
            Refused: others can write them.
            InvalidFile: one of them is wrong, with the line.
        """
        found = self.extensions
        with found.loading, self.in_use():
            if not self._has_resources and any((self.folder / "resources").glob("*.py")):
                from spark_cluster.loader.resources import load_resources

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
        from spark_cluster.loader.role import load_role

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
        from spark_cluster.loader.role import load_playbook

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
        return trust.foreign(path, next(tops, path.parent), program)


def _is_one(kind: Kind, path: Path) -> bool:
    if path.name.startswith((".", "_")):
        return False
    if kind == "roles":
        return path.is_dir()
    return path.is_file() and path.suffix in _SUFFIXES.get(kind, _YAML)


def _singular(kind: Kind) -> str:
    return "inventory" if kind == "inventories" else kind.removesuffix("s")
