"""All importers: ours, and those of other packages, whose faults do not touch the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from itertools import chain

from spark_cluster.config.yamlfile import Sourced, shown
from spark_cluster.errors import InvalidFile, SparkClusterError
from spark_cluster.importers import spark_vllm_docker, sparkrun, vllm_recipes
from spark_cluster.importers.command_file import CommandFile
from spark_cluster.importers.importer import Choice, Given, Importer, YamlImporter, no_choice
from spark_cluster.importers.source import Source

GROUP = "spark_cluster.importers"
"""Group of the entry points of other packages."""


def _without_choice(reader: Callable[[Sourced], Source]) -> Callable[[Sourced, Choice], Source]:
    def read(source: Sourced, choice: Choice) -> Source:
        no_choice(choice)
        return reader(source)

    return read


OURS: tuple[Importer, ...] = (
    YamlImporter("a model file of vllm-project/recipes", vllm_recipes.claims, vllm_recipes.read),
    YamlImporter("a recipe of sparkrun", sparkrun.claims, _without_choice(sparkrun.read)),
    YamlImporter(
        "a recipe of spark-vllm-docker",
        spark_vllm_docker.claims,
        _without_choice(spark_vllm_docker.read),
    ),
)
"""Asked first, so that no package changes what they read."""

LAST: tuple[Importer, ...] = (CommandFile(),)
"""Asked after those of other packages: a text of any kind can have a command line in it."""


@dataclass
class Importers:
    """Finds who reads a file.

    Attributes:
        broken: a sentence on each importer of another package that cannot be used.
    """

    broken: list[str] = field(default_factory=list)
    _names: list[str] = field(default_factory=list)

    def find(self, given: Given) -> Importer | None:
        """Return the first importer that recognises a file."""
        for importer in chain(OURS, self._plug_ins(), LAST):
            self._names.append(importer.name)
            if importer.recognises(given):
                return importer
        return None

    @property
    def tried(self) -> str:
        """Return, for a hint, what was looked for and which importers failed."""
        return "\n  ".join(["what can be imported: " + ", ".join(self._names), *self.broken])

    def _plug_ins(self) -> Iterator[Importer]:
        """Those of other packages, looked up when none of ours reads the file."""
        for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
            try:
                found = _loaded(point)
            except (Exception, SystemExit) as error:  # noqa: BLE001  (the others are asked)
                self.broken.append(_broken(point, error))
            else:
                yield PlugIn(point, found, self.broken)


@dataclass(frozen=True)
class PlugIn:
    """An importer of another package: what it raises is its own fault, and says so."""

    point: EntryPoint
    importer: Importer
    broken: list[str]

    @property
    def name(self) -> str:
        return self.importer.name

    def recognises(self, given: Given) -> bool:
        try:
            return bool(self.importer.recognises(given))
        except Exception as error:  # noqa: BLE001  (the other importers are asked)
            self.broken.append(_broken(self.point, error))
            return False

    def read(self, given: Given, choice: Choice) -> Source:
        """As `Importer.read`.

        Raises:
            InvalidFile: also when it raises something else, or returns something else.
        """
        try:
            source = self.importer.read(given, choice)
            if not isinstance(source, Source):
                raise TypeError(f"it returned {type(source).__name__}, expected a Source")
        except SparkClusterError:
            raise
        except Exception as error:
            raise InvalidFile(
                _broken(self.point, error),
                where=shown(given.path),
                hint="report it to the authors of that package",
            ) from error
        return source


def _loaded(point: EntryPoint) -> Importer:
    """The object of an entry point.

    Raises:
        TypeError: it is no importer; anything else that importing it raises.
    """
    importer = point.load()
    name = getattr(importer, "name", None)
    if isinstance(importer, type) or not isinstance(name, str):
        raise TypeError(f"found {importer!r}, expected an object with a name (Importer)")
    for method in ("recognises", "read"):
        if not callable(getattr(importer, method, None)):
            raise TypeError(f"it has no {method}() (Importer)")
    made: Importer = importer
    return made


def _broken(point: EntryPoint, error: BaseException) -> str:
    package = f" of the package {point.dist.name} {point.dist.version}" if point.dist else ""
    first = (str(error).splitlines() or ["(no message)"])[0]
    return (
        f"the importer '{point.name}'{package} ({point.value}) cannot be used: "
        f"{type(error).__name__}: {first}"
    )
