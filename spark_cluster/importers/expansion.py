"""Variables and conditions of shell scripts and compose files: `$A`, `${A:-b}`, `$((2 * 3))`, files
of variables, and which commands run after `if`, `case` and `&&`.

Nothing is run: `$(...)` and backquotes stay as they are written (source: posix-shell;
compose-specification). Conditions on files, on commands or on what another machine has are not
known. A branch that may run is read, and what it sets counts only where nothing else is known.
"""

from __future__ import annotations

import ast
import copy
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

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
_PLAIN = re.compile(rf"{_NAME.pattern}|\d")
_PARAMETER = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|\d+)(?:(:?[-=+?])(.*))?", re.DOTALL)
_COMMAND = re.compile(r"\$\((?!\()|`|^<[^<>]+>$")
"""What only the machine that runs it knows, or the user who replaces `<MASTER_IP>`."""
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
_COMPARED = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}


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
        script: gives the text of a kit's script by its path; empty without one.
        contained: the commands run in a container, where the kit's scripts are followed.
        exported: names that files of variables, or those who call a script, pass on.
        functions: bodies of a script's functions that pass on what they are given.
    """

    values: dict[str, str | None] = field(default_factory=dict)
    defaulted: dict[str, None] = field(default_factory=dict)
    arrays: dict[str, list[Word]] = field(default_factory=lambda: {"@": [], "*": []})
    doubled: bool = False
    room: ValueRoom = field(default_factory=ValueRoom)
    depth: int = 0
    script: Callable[[str], str] = lambda _path: ""
    contained: bool = False
    exported: dict[str, None] = field(default_factory=dict)
    functions: dict[str, Word] = field(default_factory=dict)

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
    if text.startswith(("$((", "${"), start):
        end = closing(text, start + 1)
        if end < 0:
            variables.room.take(len(text) - start)  # it was read in vain
            return None, start + 2
        if text[start + 1] == "(":
            return _sum(text[start + 3 : end - 1], variables, depth), end + 1
        body = text[start + 2 : end]
        return (_parameter(body, variables, depth) if depth < DEEPEST else None), end + 1
    if found := _PLAIN.match(text, start + 1):
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
    default = f"${{{name}}}" if kind.endswith("?") else expand(word, variables, depth + 1)
    if kind.endswith("?") or _COMMAND.search(default):  # whose message is no word of the command
        return default if kind.endswith("?") else None
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


Truth = bool | None
"""Whether something holds: None where only the machine knows."""

MOST_BLOCKS = 200
"""Blocks inside of blocks; deeper ones are read as if they ran."""


def both(first: Truth, second: Truth) -> Truth:
    """Return whether two conditions hold together."""
    if first is False or second is False:
        return False
    return None if first is None or second is None else True


def negated(value: Truth) -> Truth:
    """Return whether a condition does not hold."""
    return None if value is None else not value


def either(first: Truth, second: Truth) -> Truth:
    """Return whether one of two conditions holds."""
    return negated(both(negated(first), negated(second)))


@dataclass
class Block:
    """An `if`, a `case`, a loop or a group.

    Attributes:
        kind: the keyword that closes it.
        runs: whether the current branch runs.
        earlier: whether an earlier branch runs.
        condition: of the branch that begins; None before its first command.
        joined: operator in front of the next command of the condition.
        asks: the commands that come are the condition, or the patterns of a `case`.
        subject: word of a `case`.
        patterns: of the branch of a `case` that begins.
    """

    kind: str
    runs: Truth = True
    earlier: Truth = False
    condition: list[Truth] = field(default_factory=list)
    joined: str = ""
    asks: bool = False
    subject: str = ""
    patterns: list[str] = field(default_factory=list)

    def add(self, value: Truth, operator: str) -> None:
        """Take a command of the condition and the operator behind it."""
        before = self.condition[-1] if self.condition else None
        join = {"&&": both, "||": either}.get(self.joined)
        self.condition = [join(before, value) if join and self.condition else value]
        self.joined = operator

    def branch(self, value: Truth) -> None:
        """Begin a branch that runs if a condition holds and no earlier one did."""
        self.runs = both(value, negated(self.earlier))
        self.earlier = either(self.earlier, value)
        self.condition, self.joined, self.asks = [], "", False


_CLOSED = {"if": "fi", "while": "done", "until": "done", "for": "done", "select": "done"}
_ENDS = ("fi", "done", "esac", "}")


class Conditions:
    """Follows the blocks of a script, command by command."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.chained: Truth = True

    def step(self, words: list[Word], operator: str, *, blank: bool = False) -> tuple[int, Truth]:
        """Take a command and the operator behind it; a blank one is the end of a line.

        Returns:
            The number of keywords at its beginning, which are no part of it (all words, where it is
            a condition), and whether it runs.
        """
        at = 0
        negative = False
        while at < len(words) and not words[at].quoted:
            block = self.blocks[-1] if self.blocks else Block("")
            if block.kind == "esac" and block.asks and words[at].text != "esac":
                return self._pattern(block, words[at:], len(words), operator)
            if words[at].text == "!":
                negative = not negative
            elif not self._keyword(words[at:], block):
                break
            if words[at].text == "case" and len(words) > at + 3 and operator == ")":
                return self._pattern(self.blocks[-1], words[at + 3 :], len(words), operator)
            if words[at].text in ("case", "for", "select"):
                return len(words), None
            at += 2 if words[at].text == "function" else 1
        if blank:
            operator = operator if operator == ";;" else ""
        return self._command(words[at:], at, operator, negative=negative)

    def _command(
        self, words: list[Word], at: int, operator: str, *, negative: bool
    ) -> tuple[int, Truth]:
        runs = self.chained
        for block in self.blocks:
            runs = both(runs, True if block.asks else block.runs)
        value = tested(words) if words else None
        value = negated(value) if negative else value
        if self.blocks and self.blocks[-1].asks and self.blocks[-1].kind != "esac":
            if words:
                self.blocks[-1].add(value, operator)
            return at, None if runs else runs
        if operator == ";;" and self.blocks and self.blocks[-1].kind == "esac":
            self.blocks[-1].asks = True
        known = bool(words) and words[0].text in ("[", "[[", "((", "test", "true", "false")
        if operator == "&&":
            self.chained = both(self.chained, value) if known else self.chained
        elif operator == "||":
            self.chained = negated(value) if known else None
        elif operator:
            self.chained = True
        return at, runs

    def _keyword(self, words: list[Word], block: Block) -> bool:
        """Return whether the first word is a keyword, which is followed."""
        word = words[0].text
        if len(self.blocks) >= MOST_BLOCKS and word not in _ENDS:
            return False
        if word in _CLOSED:
            loop = word != "if"
            self.blocks.append(Block(_CLOSED[word], None if loop else True, asks=not loop))
        elif word == "case":
            subject = words[1].text if len(words) > 1 else "$"
            self.blocks.append(Block("esac", False, asks=True, subject=subject))
        elif word == "{":
            self.blocks.append(Block("}", self.chained))
            self.chained = True
        elif word == "elif" and block.kind == "fi":
            block.asks, block.condition = True, []
        elif word == "then" and block.kind == "fi":
            block.branch(block.condition[-1] if block.condition else None)
        elif word == "else" and block.kind == "fi":
            block.branch(True)
        elif word in _ENDS and block.kind == word:
            self.blocks.pop()
            self.chained = True
        else:
            return word in ("do", "function")
        return True

    def _pattern(
        self, block: Block, words: list[Word], count: int, operator: str
    ) -> tuple[int, Truth]:
        """Take patterns of a `case`, up to the `)` behind the last one."""
        block.patterns += [word.text for word in words]
        if operator == ")":
            unknown = "$" in block.subject or "`" in block.subject
            hit = any(fnmatchcase(block.subject, pattern) for pattern in block.patterns)
            block.branch(True if "*" in block.patterns else None if unknown else hit)
            block.patterns = []
        return count, None


def tested(words: list[Word]) -> Truth:  # noqa: PLR0911  (one for each kind of test)
    """Return whether a test such as `[ "$A" = 1 ]` holds; None for anything else.

    The value of `((...))` is its second word.
    """
    texts = [word.text for word in words]
    if texts in (["true"], [":"], ["false"]):
        return texts != ["false"]
    if texts[0] in ("[", "[[", "test"):
        texts = texts[1:]
    if texts[-1:] in (["]"], ["]]"]):
        texts = texts[:-1]
    known = not any("$" in text or "`" in text for text in texts)
    match texts:
        case ["((", value] if known:
            return value != "0"
        case ["-n" | "-z" as kind, text] if known:
            return (text != "") is (kind == "-n")
        case [first, "=~", second] if known and not re.search(r"[^\w|-]", second):
            return any(one in first for one in second.split("|"))
        case [first, "=" | "==" | "!=" as kind, second] if known:
            return fnmatchcase(first, second) is (kind != "!=")
        case [first, kind, second] if (
            kind in _COMPARED and first.isdecimal() and second.isdecimal()
        ):
            return _computed(f"{first} {_COMPARED[kind]} {second}") == "1"
    return None
