"""Which importer reads a file: ours, and those of other packages, whose faults do not touch the
others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from itertools import chain
from pathlib import Path

from spark_cluster.config.yamlfile import Sourced, described, shown
from spark_cluster.errors import InvalidFile, SparkClusterError
from spark_cluster.importers import templated, vllm_recipes
from spark_cluster.importers.commandline import CommandFile
from spark_cluster.importers.importer import Choice, Given, Importer, Source, YamlImporter

GROUP = "spark_cluster.importers"
"""Group of the entry points of other packages."""

MISSING = (
    "give the path of a file, @REGISTRY/RECIPE of a registry, or --command 'vllm serve ...'; "
    "spark-cluster recipes search WORDS finds recipes by words"
)

OURS: tuple[Importer, ...] = (
    YamlImporter("a model file of vllm-project/recipes", vllm_recipes.claims, vllm_recipes.read),
    YamlImporter("a recipe of sparkrun", templated.is_sparkrun, templated.read_sparkrun),
    YamlImporter("a recipe of spark-vllm-docker", templated.claims, templated.read),
)
"""Asked first, so that no package changes what they read."""

LAST: tuple[Importer, ...] = (CommandFile(),)
"""Asked after those of other packages: a text of any kind can have a command line in it."""


def read_file(path: Path, choice: Choice | None = None) -> Source:
    """Return what a file says, whichever kind it is.

    Args:
        choice: variant and features, for a model file of vllm-project/recipes.

    Raises:
        InvalidFile: it is none of the kinds, or wrong, with the line.
        UsageError: it has no such variant or feature, or `choice` is given for another kind.
    """
    if not path.exists():
        raise InvalidFile("no such file", where=str(path), hint=MISSING)
    given, names, broken = Given(path), list[str](), list[str]()
    for importer in chain(OURS, _plug_ins(broken), LAST):
        names.append(importer.name)
        if importer.recognises(given):
            break
    else:
        raise _unknown(given, _tried(names, broken))
    try:
        source = importer.read(given, choice or Choice())
    except InvalidFile as error:
        if importer not in LAST or error.hint:
            raise
        hint = _tried(names, broken)
        raise InvalidFile(error.message, where=error.where, hint=hint) from None
    if isinstance(given.loaded, Sourced):
        source.notes[:0] = given.loaded.notes
    source.notes += broken
    return source


def _tried(names: list[str], broken: list[str]) -> str:
    """Return, for a hint, what was looked for and which importers failed."""
    return "\n  ".join(["what can be imported: " + ", ".join(names), *broken])


def _plug_ins(broken: list[str]) -> Iterator[Importer]:
    """Yield those of other packages, looked up when none of ours reads the file.

    Args:
        broken: takes a sentence on each that cannot be used.
    """
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            found = _loaded(point)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (the others are asked)
            broken.append(_broken(point, error))
        else:
            yield PlugIn(point, found, broken)


def _unknown(given: Given, tried: str) -> InvalidFile:
    source = given.loaded
    if isinstance(source, InvalidFile):
        return InvalidFile(source.message, where=source.where, hint=source.hint or tried)
    fields = ", ".join(str(key) for key in list(source.data)[:6]) or described(source.data)
    message, hint = f"not a file of a known kind; its fields are {fields}", tried
    if isinstance(source.data.get("model"), dict) and isinstance(source.data.get("image"), dict):
        message = "this is a recipe of spark-cluster already"
        hint = "put it into the project's folder recipes/ and use its name"
    elif isinstance(source.data.get("services"), dict):
        message = "this is a compose file"
        hint = "give the command of its service as --command 'vllm serve ...'"
    return InvalidFile(message, where=source.where(), hint=hint)


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
