"""Variables in compose files and shell scripts: `$A`, `${A:-b}`, `$((2 * 3))`, and files of them.

Nothing is run: `$(...)` and backquotes stay as they are written (source: posix-shell;
compose-specification).
"""

from __future__ import annotations

import ast
import copy
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spark_cluster.errors import UsageError

LONGEST_VALUE = 200_000
"""Characters that a text may have with its values: `A=$B$B` doubles with each line."""

MOST_VALUES = 2_000_000
"""Characters that all values of a kit's file may take together: `x $A $A $A ...` repeats a long one
with every word. A start script of the public kits takes 30,000."""

DEEPEST = 20
"""Defaults and sums inside of one another."""

DEEPEST_SHELL = 8
"""Shells, `docker exec` and scripts in here-documents inside of one another."""

_OF_THE_MACHINE = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "HOME", "USER", "HOSTNAME")
"""Variables that are set wherever a script runs."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARAMETER = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|\d+)(?:(:?[-=+?])(.*))?", re.DOTALL)
_COMMAND = re.compile(r"\$\((?!\()|`")
_SUM = re.compile(r"[\d\s()+*/%<>=!&|-]{1,200}")
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
_QUOTED = re.compile(r"""(['"])((?:[^\\]|\\.)*?)\1""")
_OPERATORS: Mapping[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_LARGEST = 1 << 62


@dataclass(frozen=True, slots=True)
class Word:
    """A word after the quotes are removed.

    Attributes:
        text: what the program would get.
        line: where it begins in the text, from 1.
        quoted: whether quotes were used in it.
    """

    text: str
    line: int
    quoted: bool = False

    def wrong(self, message: str, hint: str = "") -> UsageError:
        """Return the error that this word is, with its line."""
        return UsageError(message, where=f"line {self.line}", hint=hint)


@dataclass
class ValueRoom:
    """What is left for values, for a file and all shells inside of it.

    Attributes:
        left: characters.
    """

    left: int = MOST_VALUES

    def take(self, size: int) -> None:
        """Take room for `size` characters.

        Raises:
            UsageError: there is not enough.
        """
        self.left -= size
        if self.left < 0:
            raise UsageError(
                f"the values of its variables repeat to more than {MOST_VALUES:,} characters",
                hint="give the command as --command 'vllm serve ...'",
            )


@dataclass
class Variables:
    """The values of variables, as far as the files say them.

    Attributes:
        values: by name; None for one that is set to something only the machine knows.
        defaulted: names for which the default that stands with them was taken.
        arrays: words by the name of an array; the arguments of a script are none.
        doubled: `$$` stands for `$`, as in a compose file.
        room: for values; shells inside of this one share it.
        depth: shells around this one.
    """

    values: dict[str, str | None] = field(default_factory=dict)
    defaulted: dict[str, None] = field(default_factory=dict)
    arrays: dict[str, list[Word]] = field(default_factory=lambda: {"@": [], "*": []})
    doubled: bool = False
    room: ValueRoom = field(default_factory=ValueRoom)
    depth: int = 0

    def __post_init__(self) -> None:
        self.values = {**dict.fromkeys(_OF_THE_MACHINE), **self.values}

    def note(self) -> list[str]:
        """Return a line about the defaults that were taken, if there are any."""
        names = [name for name in self.defaulted if not name.isdigit()]
        more = f" and {len(names) - 8} others" if len(names) > 8 else ""
        text = f"read with the default that stands with them: {', '.join(names[:8])}{more}"
        return [text] if names else []

    def inside(self, size: int) -> Variables:
        """Return the same variables for a shell inside of this one.

        Args:
            size: characters of what it runs.

        Raises:
            UsageError: shells are nested too deeply, or repeat each other without end.
        """
        if self.depth >= DEEPEST_SHELL:
            raise UsageError(f"more than {DEEPEST_SHELL} shells run one another")
        self.room.take(size)
        inner = copy.copy(self)
        inner.depth += 1
        return inner

    def set(self, name: str, text: str) -> None:
        """Remember a value; one with a command in it is known to the machine only."""
        self.values[name] = None if _COMMAND.search(text) else text


def expand(text: str, variables: Variables, depth: int = 0) -> str:
    """Return a text with the variables that are known; the others stay as they are written.

    Raises:
        UsageError: it becomes longer than any command line, or takes too long to read.
    """
    parts, at, size = [], 0, 0
    while (start := text.find("$", at)) >= 0:
        value, end = expanded(text, start, variables, depth)
        part = text[at:start] + (text[start:end] if value is None else value)
        parts.append(part)
        size += len(part)
        if size > LONGEST_VALUE:
            raise UsageError(
                f"a text of more than {LONGEST_VALUE:,} characters with the values of its variables"
            )
        at = end
    return "".join(parts) + text[at:]


def expanded(text: str, start: int, variables: Variables, depth: int = 0) -> tuple[str | None, int]:
    """Return what the `$` at `start` stands for, and where it ends; None for a value that is not
    known.

    Raises:
        UsageError: its values take more room than is left.
    """
    value, end = _expanded(text, start, variables, depth)
    variables.room.take(len(value or ""))
    return value, end


def _expanded(text: str, start: int, variables: Variables, depth: int) -> tuple[str | None, int]:
    if variables.doubled and text.startswith("$$", start):
        return "$", start + 2
    if text.startswith("$((", start) and (end := closing(text, start + 1)) > 0:
        return _sum(text[start + 3 : end - 1], variables, depth), end + 1
    if text.startswith("${", start):
        end = closing(text, start + 1)
        if end < 0:
            variables.room.take(len(text) - start)  # it was read in vain
            return None, start + 2
        body = text[start + 2 : end]
        return (_parameter(body, variables, depth) if depth < DEEPEST else None), end + 1
    if found := _NAME.match(text, start + 1):
        return variables.values.get(found[0]), found.end()
    return None, start + 1


def closing(text: str, start: int) -> int:
    """Return where the bracket at `start` is closed; -1 if it is not."""
    opened, closed, depth = text[start], {"{": "}", "(": ")"}[text[start]], 0
    for at in range(start, len(text)):
        depth += (text[at] == opened) - (text[at] == closed)
        if depth == 0:
            return at
    return -1


def _parameter(body: str, variables: Variables, depth: int) -> str | None:
    """What `${body}` stands for."""
    found = _PARAMETER.fullmatch(body)
    if not found:
        return None
    name, kind, word = found[1], found[2] or "", found[3] or ""
    value = variables.values.get(name)
    if value is None and (name in variables.values or not kind):
        return None
    if value is not None and (value or not kind.startswith(":")):
        return expand(word, variables, depth + 1) if kind.endswith("+") else value
    if kind.endswith("+"):
        return ""
    default = expand(word, variables, depth + 1)
    if kind.endswith("?") or _COMMAND.search(default):
        return None
    if kind.endswith("="):
        variables.set(name, default)
    variables.defaulted[name] = None
    return default.strip("\"'")


def _sum(text: str, variables: Variables, depth: int) -> str | None:
    """What `$((text))` stands for, in which variables need no `$`."""

    def value(name: re.Match[str]) -> str:
        known = variables.values.get(name[0]) or name[0]
        variables.room.take(len(known))
        return known

    if depth >= DEEPEST:
        return None
    return _computed(_NAME.sub(value, expand(text, variables, depth + 1)))


def _computed(text: str) -> str | None:
    """The value of a sum or a comparison of whole numbers; None where it is something else."""
    if not _SUM.fullmatch(text):
        return None
    python = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or "))
    try:
        return str(int(_value(ast.parse(python.strip(), mode="eval").body)))
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError):
        return None


def _value(node: ast.AST) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.BinOp(left=left, op=sign, right=right):
            value = _OPERATORS[type(sign)](_value(left), _value(right))
        case ast.Compare(left=left, ops=[sign], comparators=[right]):
            value = _OPERATORS[type(sign)](_value(left), _value(right))
        case ast.BoolOp(op=sign, values=values):
            join = all if isinstance(sign, ast.And) else any
            value = join([_value(one) for one in values])
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            value = not _value(inner)
        case _:
            raise ValueError("not a sum of whole numbers")
    if abs(value) > _LARGEST:
        raise ValueError("larger than a shell computes")
    return value


def read_env(text: str, variables: Variables) -> dict[str, str]:
    """Return the variables of a `.env` file: `NAME=value` lines, quoted or not.

    Single quotes keep `$` as it is; a `#` after a blank begins a comment where there are no quotes
    (source: compose-specification). python-dotenv reads the same, and knows nothing of values that
    only another machine has.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        matched = _LINE.fullmatch(line.strip())
        if not matched:
            continue
        name, value = matched[1], matched[2].strip()
        quoted = _QUOTED.match(value)
        if quoted:
            value = quoted[2] if quoted[1] == "'" else re.sub(r'\\(["\\])', r"\1", quoted[2])
        else:
            value = re.split(r"(?:^|\s)#", value, maxsplit=1)[0].strip()
        found[name] = value if quoted and quoted[1] == "'" else expand(value, variables)
        variables.set(name, found[name])
    return found
