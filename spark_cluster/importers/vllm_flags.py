"""Reads the flags of an engine's server as its own parser does, for any version of it.

Which flags take a value is data: `data/vllm_flags.json`, taken from vLLM itself, and
`data/sglang_flags.json`, from SGLang's documentation of its server arguments. A flag that is
not there is read by its looks, and noted.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from spark_cluster.config.engines import DEFAULT, MOST_FLAGS, dialect, with_unit
from spark_cluster.config.launch import finite
from spark_cluster.config.recipe_schema import EngineValue
from spark_cluster.config.yamlfile import described, nearest
from spark_cluster.importers.expansion import Word
from spark_cluster.models.naming import table

_DASHES = "\u2013\u2014\u2212"
"""En dash, em dash, minus: what web pages and chats make of two dashes."""
_LONG = re.compile(r"--(no-)?[A-Za-z]")
_NEGATIVE = re.compile(r"-\d+(\.\d+)?")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE]-?\d+)?")
_BARE_LOOKS = re.compile(r"(no|enable|disable|use|skip|force|allow|trust)-")
LATER = re.compile(r"\$|\{[A-Za-z_]\w*\}|%[A-Z_]+%")
"""A value that only the shell or a recipe's template knows."""


@dataclass(slots=True)
class Flags:
    """The parsed flags.

    Attributes:
        args: flag without dashes and its value; True for a bare one.
        positional: words that belong to no flag, such as the model.
        notes: what was read with goodwill.
    """

    args: dict[str, EngineValue] = field(default_factory=dict)
    positional: list[Word] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@cache
def kinds(engine: str = DEFAULT) -> dict[str, str]:
    """Kind of each known flag: bare, number, size, text, json, several, append or optional."""
    data = table(f"{engine}_flags", "importers")
    groups = [*data["earlier"]["flags"].items(), *data["flags"].items()]
    return {flag: kind for kind, flags in groups for flag in flags}


def read(
    words: list[Word],
    program: str = "vllm serve",
    engine: str = DEFAULT,
    *,
    last_counts: bool = False,
) -> Flags:
    """The flags and positional words after `program`.

    Args:
        last_counts: of a flag that is given twice, as it does for the engine; it is noted.

    Raises:
        UsageError: a flag without its value, given twice or against itself, or a value that vLLM
            would refuse; with the line.
    """
    reader = _FlagReader(words, program, engine, last_counts=last_counts)
    while reader.words:
        reader.step(word := reader.words.popleft())
        if len(reader.flags.args) > MOST_FLAGS:
            raise word.wrong(f"more than {MOST_FLAGS} flags; expected one launch")
    return reader.flags


def of_file(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words that a file of flags stands for, as vLLM makes them of `--config FILE`."""
    for flag, value in data.items():
        if value is not False and value is not None:
            yield f"--{flag}"
            for one in value if isinstance(value, list) else [value]:
                if one is not True:
                    yield json.dumps(one) if isinstance(one, dict) else str(one)


class _FlagReader:
    """Takes words from the front of `words`."""

    def __init__(
        self, words: list[Word], program: str, engine: str, *, last_counts: bool = False
    ) -> None:
        self.last_counts = last_counts
        self.words = deque(words)
        self.program = program
        self.table = table(f"{engine}_flags", "importers")
        self.kinds = kinds(engine)
        self.title = dialect(engine).title
        self.flags = Flags()
        self.given: dict[str, Word] = {}

    def step(self, word: Word) -> None:
        if not _is_flag(word):
            self.flags.positional.append(word)
            return
        if word.text[0] in _DASHES:
            raise word.wrong(
                f"found '{word.text}', which begins with a typographic dash, expected '--'",
                "type the dashes again; web pages and chats change them",
            )
        text, equals, attached = word.text.partition("=")
        name, _, path = text.partition(".")
        name, value = self._name(name, word), attached if equals else None
        if path:
            self._dotted(name, path, self._value(value, word), word)
        else:
            self._flag(name, value, word)

    def _name(self, name: str, word: Word) -> str:
        """The flag's full name."""
        short: dict[str, str] = self.table["short"]
        if name.startswith("--"):
            name = name[2:].replace("_", "-")
        elif name.startswith("-O") and name != "-O":
            self.words.appendleft(Word(name[2:], word.line))
            name = short["-O"]
        elif name in short:
            name = short[name]
        else:
            near = nearest(name, short)
            raise word.wrong(
                f"found '{word.text}', which is not a flag of {self.program}",
                f"did you mean '{near}'?" if near else "long flags begin with two dashes",
            )
        name = self.table["aliases"].get(name, name)
        if name in self.kinds or name.removeprefix("no-") in self.kinds:
            return name
        # argparse takes the unmistakable beginning of a flag for the flag.
        begun = [flag for flag in self.kinds if flag.startswith(name)]
        if len(begun) != 1:
            return name
        self._note(word, f"--{name} is short for --{begun[0]}")
        return begun[0]

    def _flag(self, name: str, value: str | None, word: Word) -> None:
        kind = self.kinds.get(name)
        if kind == "bare" or (name.startswith("no-") and self.kinds.get(name[3:]) == "bare"):
            self._bare(name, value, word)
        elif kind in ("several", "append"):
            self._several(name, value, word, many=kind == "several")
        elif kind == "optional":
            follows = value is not None or self._value_follows()
            self._set(name, self._value(value, word) if follows else True, word)
        elif kind is None:
            self._unknown(name, value, word)
        else:
            self._set(name, converted(name, kind, self._value(value, word), word), word)

    def _bare(self, name: str, value: str | None, word: Word) -> None:
        """A bare flag; `true` and `false` behind it were taken by versions before 0.9."""
        if value is None and self.words and self.words[0].text.lower() in ("true", "false"):
            value = self.words.popleft().text
        opposite = name[3:] if name.startswith("no-") else f"no-{name}"
        if value is not None:
            if value.lower() not in ("true", "false", "1", "0"):
                raise word.wrong(f"--{name} takes no value; found '{value}'")
            self._note(word, f"--{name} {value}: newer versions of {self.title} take no value here")
            if value.lower() in ("false", "0"):
                name, opposite = opposite, name
        if opposite in self.given:
            line = self.given[opposite].line
            raise word.wrong(
                f"--{name} contradicts --{opposite} on line {line}", "keep one of the two"
            )
        self._set(name, True, word)

    def _several(self, name: str, value: str | None, word: Word, *, many: bool) -> None:
        taken = [self._value(value, word)]
        while many and value is None and self._value_follows():
            taken.append(self.words.popleft().text)
        values: list[Any] = [text if name.endswith("name") else scalar(text) for text in taken]
        if not many and name in self.given:
            before = self.flags.args[name]
            values = [*(before if isinstance(before, list) else [before]), *values]
            del self.given[name]
        self._set(name, values[0] if len(values) == 1 else values, word)

    def _unknown(self, name: str, value: str | None, word: Word) -> None:
        near = nearest(name, self.kinds)
        hint = f"; did you mean --{near}?" if near else ""
        bare = value is None and (_BARE_LOOKS.match(name) or not self._value_follows())
        read_as = True if bare else scalar(self._value(value, word))
        how = "bare" if bare else "with a value"
        self._note(word, f"--{name} is not known here, read as {how}{hint}")
        self._set(name, read_as, word)

    def _dotted(self, name: str, path: str, text: str, word: Word) -> None:
        """`--compilation-config.mode 3`: a key of a JSON value."""
        inner: Any = text.split(",") if path.endswith("+") else _loaded(text)
        path = path.removesuffix("+")
        whole = self.flags.args.setdefault(name, {})
        if not isinstance(whole, dict):
            raise word.wrong(f"--{name}.{path} adds to --{name}, which is not a JSON object")
        self.given.setdefault(name, word)
        *outer, last = path.split(".")
        for key in outer:
            whole = whole.setdefault(key, {})
            if not isinstance(whole, dict):
                raise word.wrong(f"--{name}.{path}: '{key}' has a value already")
        if last in whole:
            self._twice(word, f"--{name}.{path} is given twice")
        whole[last] = inner

    def _value_follows(self) -> bool:
        return bool(self.words) and not _is_flag(self.words[0])

    def _value(self, attached: str | None, word: Word) -> str:
        if attached is not None:
            return attached
        if not self._value_follows():
            raise word.wrong(f"{word.text} has no value", "give it one, or leave the flag out")
        return self.words.popleft().text

    def _set(self, name: str, value: EngineValue, word: Word) -> None:
        if name in self.given:
            first = f"first on line {self.given[name].line}"
            hint = f"keep the one you mean; {self.title} takes the last"
            self._twice(word, f"--{name} is given twice, {first}", hint)
        self.given[name] = word
        self.flags.args[name] = value

    def _twice(self, word: Word, text: str, hint: str = "") -> None:
        if not self.last_counts:
            raise word.wrong(text, hint)
        self._note(word, f"{text}; the last counts")

    def _note(self, word: Word, text: str) -> None:
        self.flags.notes.append(f"line {word.line}: {text}")


def _is_flag(word: Word) -> bool:
    text = word.text
    if word.quoted and not _LONG.match(text):
        return False
    return text[:1] in f"-{_DASHES}" and len(text) > 1 and not _NEGATIVE.fullmatch(text)


def scalar(text: str) -> str | int | float:
    """A number where the text is one in its usual form, else the text."""
    if not _NUMBER.fullmatch(text) or len(text) > 30:
        return text
    try:
        return int(text)
    except ValueError:
        return float(text)


def converted(name: str, kind: str, text: str, word: Word) -> EngineValue:
    """The value of a flag of a known kind that takes one word.

    Raises:
        UsageError: vLLM would not take it.
    """
    if kind == "text" or (LATER.search(text) and kind != "json"):
        return text
    if kind == "json":
        return _json(name, text, word)
    if kind == "size" and (size := with_unit(text)) is not None:
        return int(finite(size, f"--{name}"))
    number = scalar(text)
    if isinstance(number, str) and text not in ("auto", "None", "none", ""):
        raise word.wrong(f"--{name}: found {described(text)}, expected a number")
    return number


def _json(name: str, text: str, word: Word) -> EngineValue:
    if not text.lstrip().startswith(("{", "[")):
        # Earlier versions: `--limit-mm-per-prompt image=4`, `--compilation-config 3`.
        return scalar(text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if LATER.search(text):
            return text
        quotes = "put the whole value in single quotes: the shell takes the double ones away"
        raise word.wrong(
            f"--{name}: {text if len(text) < 60 else text[:56] + '...'} is not JSON ({error})",
            "" if '"' in text else quotes,
        ) from None
    # A list stays the text that it is: as a list it would become several words.
    result: EngineValue = value if isinstance(value, dict) else text
    return result


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return scalar(text)
