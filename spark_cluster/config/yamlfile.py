"""Reads a YAML file that a user wrote into plain data, and remembers where each value stands.

The node tree of ruamel.yaml (YAML 1.2, so `on` and `yes` are text) is turned into dicts, lists,
text, numbers, booleans and None here. Its round-trip loader knows lines too, but takes a quarter
longer, and names neither the path of a duplicate key nor the line of a key that `<<` brings.
"""

from __future__ import annotations

import math
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from spark_cluster.errors import InvalidFile

if TYPE_CHECKING:
    from ruamel.yaml.constructor import SafeConstructor
    from ruamel.yaml.nodes import Node as YamlNode


@cache
def table_beside(module: str, name: str) -> Any:
    """Return a TOML table that lies beside a module, whose `__file__` is given, or below; nobody
    changes it.
    """
    return tomllib.loads((Path(module).parent / name).read_text(encoding="utf-8"))


Key = tuple[str | int, ...]
"""The path of a value inside the data: `("nodes", "spark1", "roles", 0)`."""

MAX_BYTES = 1 << 20
MAX_VALUES = 100_000
"""Aliases can make a small file stand for an endless one; no real file comes near this."""

MAX_DEPTH = 1000
"""Brackets that are open at once: beyond, ruamel.yaml takes a time that grows with their square."""

LONGEST_SHOWN = 200
"""Characters of a line that is shown: a longer one is unreadable, and slow to look through."""

_SECRET_LINE = re.compile(r"(?i)(password|passwd|key|token|secret)\w*[\"']?\s*:")


class Origin(NamedTuple):
    """The place where a value was written: 1-based line and column, and its key in that file."""

    line: int
    column: int
    key: Key


class Problem(NamedTuple):
    """A problem: the key of the value (in the data), and what is wrong with it."""

    key: Key
    message: str


@dataclass(frozen=True, slots=True)
class Sourced:
    """Data with the place in a file where each part of it comes from.

    Args:
        path: the file; empty for data that was not read from one.
        data: plain dicts, lists, text, numbers, booleans and None.
        origins: by key in `data`. A key that is not here stands where its nearest parent does.
        notes: what was read with goodwill.
    """

    path: Path
    data: dict[str, Any]
    origins: Mapping[Key, Origin] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def origin(self, key: Key) -> Origin:
        """Return where `key` is written, or its nearest written parent, named by the whole key."""
        for length in range(len(key), -1, -1):
            known = self.origins.get(key[:length])
            if known is not None:
                return known._replace(key=known.key + key[length:])
        return Origin(1, 1, key)

    def where(self, key: Key = ()) -> str:
        """`file:line` of a key."""
        return f"{shown(self.path)}:{self.origin(key).line}"

    def invalid(self, problems: list[Problem], hint: str = "") -> InvalidFile:
        """Return one error with all problems in file order, a line each: `file:line: key: text`."""
        rows = sorted((self.origin(p.key), p.message) for p in problems)
        lines = [
            (f"{shown(self.path)}:{at.line}", f"{dotted(at.key)}: {text}" if at.key else text)
            for at, text in rows
        ]
        first_where, first = lines[0]
        rest = [f"{where}: {text}" for where, text in lines[1:]]
        return InvalidFile("\n".join([first, *rest]), where=first_where, hint=hint)


def dotted(key: Key) -> str:
    """`nodes.spark1.roles[0]`, as messages name a field."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def shown(path: Path) -> str:
    """The path as messages show it: relative when it is below the current folder."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def load(path: Path, what: str = "file", *, lenient: bool = False) -> Sourced:
    """Read a YAML file whose top level is a mapping.

    Args:
        path: the file.
        what: what the file is to the user, for messages: `inventory`, `recipe`.
        lenient: accept a key that is given twice with the same value, with a note.

    Raises:
        InvalidFile: it is missing, unreadable, binary, empty, no YAML, or not a mapping.
    """
    return parse(_read(path, what), path, what, lenient=lenient)


def parse(text: str, path: Path, what: str = "file", *, lenient: bool = False) -> Sourced:
    """Read the text of a YAML file, as `load` does; `path` is for messages only."""
    root, constructor = _compose(path, text)
    if root is None:
        raise InvalidFile(f"the {what} is empty; expected `key: value` lines", where=shown(path))
    builder = _Builder(path, constructor, lenient=lenient)
    try:
        data = builder.build(root, ())
    except RecursionError:
        raise InvalidFile("nested too deeply", where=shown(path)) from None
    if not isinstance(data, dict):
        raise InvalidFile(
            f"found {described(data)} at the top level; expected `key: value` lines",
            where=f"{shown(path)}:{root.start_mark.line + 1}",
        )
    return Sourced(path, data, builder.origins, builder.notes)


LONG_BITS = 1024
"""Longer whole numbers are not written out; Python itself refuses that beyond 4300 digits."""


def described(value: object) -> str:
    """A found value as messages show it: `'abc'`, `12`, `a list`, `a mapping`, `nothing`."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > LONG_BITS:
        return f"a number of {int(value.bit_length() * math.log10(2)) + 1} digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]}...{text[0]}"


_NO_FILES = {
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def open_foreign(path: Path, expected: str) -> BinaryIO:
    """Open a file that a user names or that somebody else may have made; nothing is waited for.

    A pipe without a name is taken: a shell lends one for `<(COMMAND)`.

    Args:
        expected: what it should be, for errors: `a YAML recipe`.

    Raises:
        InvalidFile: it is a folder, a named pipe, a socket or a device.
        OSError: it is not there or cannot be opened.
    """
    kind = stat.S_IFMT(path.stat().st_mode)
    is_lent = kind == stat.S_IFIFO and str(path.resolve()).startswith(("/proc/", "/dev/fd/"))
    if kind in _NO_FILES and not is_lent:
        raise InvalidFile(f"this is a {_NO_FILES[kind]}; expected {expected}", where=shown(path))
    # Without waiting for a writer, should it have become a pipe meanwhile.
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    os.set_blocking(stream.fileno(), True)
    return stream


def read_foreign(
    path: Path,
    largest: int,
    expected: str,
    check: Callable[[os.stat_result], None] = lambda _: None,
) -> bytes:
    """Read such a file whole.

    Args:
        check: refuses a file that is open by its mode or owner.

    Raises:
        InvalidFile: as `open_foreign`, or it has more than `largest` bytes.
        OSError: it cannot be read.
    """
    with open_foreign(path, expected) as stream:
        check(os.fstat(stream.fileno()))
        data = stream.read(largest + 1)
    if len(data) > largest:
        message = f"larger than {largest >> 20} MiB; expected {expected}"
        raise InvalidFile(message, where=shown(path))
    return data


def _read(path: Path, what: str) -> str:
    try:
        raw = read_foreign(path, MAX_BYTES, f"a YAML {what}")
    except FileNotFoundError:
        raise InvalidFile(f"no such {what}", where=shown(path)) from None
    except OSError as error:
        raise InvalidFile(
            f"the {what} cannot be read: {error.strerror}", where=shown(path)
        ) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InvalidFile(
            f"byte 0x{raw[error.start]:02x} is not UTF-8 text; expected a YAML {what}",
            where=f"{shown(path)}:{line}",
        ) from None
    bad = re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", text)
    if bad:
        raise InvalidFile(
            f"control character 0x{ord(bad[0]):02x}; expected a YAML {what}, not a binary file",
            where=f"{shown(path)}:{text.count(chr(10), 0, bad.start()) + 1}",
        )
    return text


def _compose(path: Path, text: str) -> tuple[YamlNode | None, SafeConstructor]:
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    steps = (1 if mark in "[{" else -1 for mark in re.findall(r"[][{}]", text))
    try:
        if max(accumulate(steps), default=0) > MAX_DEPTH:
            raise RecursionError
        return _nodes(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line, mark.column) if mark else (0, 0)
        raise _syntax_error(path, text, str(error.problem), line, column) from None
    except YAMLError as error:
        raise InvalidFile(f"not YAML: {error}", where=shown(path)) from None
    except RecursionError:
        raise InvalidFile("nested too deeply", where=shown(path)) from None


@lru_cache(maxsize=128)
def _nodes(text: str) -> tuple[YamlNode | None, SafeConstructor]:
    """Return the node tree of a text, which nobody changes: a recipe that several parts of a
    command read is parsed once. As many are kept as ship, and those of a project: with fewer, who
    reads them all twice in order would find none."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    return yaml.compose(text), yaml.constructor


def _syntax_error(path: Path, text: str, problem: str, line: int, column: int) -> InvalidFile:
    lines = text.splitlines()
    source = lines[line] if line < len(lines) else ""
    if "\\t" in problem or "\t" in source[: column + 1]:
        message = "a tab in the indentation; YAML requires spaces"
    elif problem.startswith("found character '"):
        quoted = problem.split("'")[1]
        message = f"a value cannot begin with '{quoted}'; put it in quotes"
    else:
        message = table_beside(__file__, "yaml_errors.toml").get(problem, problem)
    return InvalidFile(message, where=f"{shown(path)}:{line + 1}", hint=_excerpt(source, column))


def _excerpt(source: str, column: int) -> str:
    """The line with a caret under the place; nothing for one that is long or may hold a secret."""
    if not source.strip() or len(source) > LONGEST_SHOWN or _SECRET_LINE.search(source):
        return ""
    return f"{source.expandtabs(1)}\n  {' ' * column}^"


class _Builder:
    """Turns a node tree into plain data and collects the origin of each key."""

    def __init__(self, path: Path, constructor: SafeConstructor, *, lenient: bool = False) -> None:
        self.path = path
        self.origins: dict[Key, Origin] = {}
        self.notes: list[str] = []
        self._lenient = lenient
        self._constructor = constructor
        self._open: set[int] = set()
        self._values = 0

    def build(self, node: YamlNode, key: Key, at: YamlNode | None = None) -> Any:
        """The plain value of a node; `at` is the node whose place counts (a mapping's key)."""
        from ruamel.yaml.nodes import MappingNode

        self._values += 1
        if self._values > MAX_VALUES:
            raise self._error(node, "too many values: aliases ('*name') repeat each other")
        mark = (at or node).start_mark
        self.origins[key] = Origin(mark.line + 1, mark.column + 1, key)
        if isinstance(node.value, str):
            return self._scalar(node)
        if id(node) in self._open:
            raise self._error(node, "an alias ('*name') is a circular reference")
        self._open.add(id(node))
        try:
            is_mapping = isinstance(node, MappingNode)
            if _kind(node) != ("map" if is_mapping else "seq"):
                raise self._unsupported(node)
            if is_mapping:
                return self._mapping(node, key)
            return [self.build(item, (*key, i)) for i, item in enumerate(node.value)]
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: YamlNode, key: Key) -> dict[str, Any]:
        data: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for name_node, value_node in node.value:
            if _kind(name_node) == "merge":
                continue
            name = self._name(name_node)
            if name in lines:
                where = f"{dotted((*key, name))}: given twice; first on line {lines[name]}"
                if not self._lenient or self.build(value_node, (*key, name)) != data[name]:
                    raise self._error(name_node, where)
                self.notes.append(f"line {name_node.start_mark.line + 1}: {where}, and the same")
                continue
            lines[name] = name_node.start_mark.line + 1
            data[name] = self.build(value_node, (*key, name), name_node)
        for name_node, value_node in node.value:
            if _kind(name_node) == "merge":
                self._merge(value_node, key, data)
        return data

    def _merge(self, node: YamlNode, key: Key, data: dict[str, Any]) -> None:
        """`<<: *defaults`: the keys that the mapping does not give itself."""
        from ruamel.yaml.nodes import MappingNode, SequenceNode

        for source in node.value if isinstance(node, SequenceNode) else [node]:
            if not isinstance(source, MappingNode):
                raise self._error(node, "'<<' expects a mapping or a list of mappings")
            kept = dict(self.origins)
            data.update(self.build(source, key) | data)
            self.origins.update(kept)

    def _name(self, node: YamlNode) -> str:
        if not isinstance(node.value, str):
            raise self._error(node, "a key is a list or a mapping; expected text (quote '{{ }}')")
        if node.value == "":
            raise self._error(node, "a key is empty; expected text before the ':'")
        return self._text(node)

    def _text(self, node: YamlNode) -> str:
        """The text, with pairs of surrogates from escapes (\\ud809\\udd44) made one character."""
        try:
            return str(node.value).encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise self._error(node, "an unpaired surrogate: a lone \\u escape of a pair") from None

    def _scalar(self, node: YamlNode) -> Any:
        kind = _kind(node)
        if kind in ("str", "timestamp", "value", "merge"):
            return self._text(node)
        if kind not in ("null", "bool", "int", "float"):
            raise self._unsupported(node)
        try:
            return getattr(self._constructor, f"construct_yaml_{kind}")(node)
        except (LookupError, ValueError):
            raise self._error(node, f"not a number: {described(node.value)}") from None

    def _unsupported(self, node: YamlNode) -> InvalidFile:
        tag = _kind(node) if _kind(node).startswith("!") else f"!!{_kind(node)}"
        return self._error(node, f"the tag {tag} is not supported; write a plain value")

    def _error(self, node: YamlNode, message: str) -> InvalidFile:
        return InvalidFile(message, where=f"{shown(self.path)}:{node.start_mark.line + 1}")


def _kind(node: YamlNode) -> str:
    """`str`, `int`, `map` and so on; another tag whole."""
    return str(node.tag).removeprefix("tag:yaml.org,2002:")


# Suggestions for a name that does not exist: what the user may have meant.

SHOWN = 12


_SIZE = re.compile(r"(?<![a-z0-9.])\d+(?:\.\d+)?b(?![a-z0-9])")
"""The size of a model in a name, such as `27b`: a name with another size is of another model."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name nearest to `word`, the shortest that begins with it before all others; None
    when nothing is near."""
    by_folded = {name.casefold().replace("-", "_"): name for name in known}
    import difflib

    folded = word.casefold().replace("-", "_")
    sizes = {*_SIZE.findall(folded)}
    by_folded = {one: name for one, name in by_folded.items() if sizes <= {*_SIZE.findall(one)}}
    if longer := [name for name in by_folded if name.startswith(folded) and len(folded) > 2]:
        return by_folded[min(longer, key=len)]
    found = difflib.get_close_matches(folded, by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str], what: str = "known") -> str:
    """`did you mean 'address'?`, or the list of what there is."""
    names = sorted(known)
    near = nearest(word, names)
    if near is not None:
        return f"did you mean '{near}'?"
    if not names:
        return f"{what}: none"
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{what}: {', '.join(names[:SHOWN])}{rest}"
