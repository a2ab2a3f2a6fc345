"""The parser of the options of `docker run` (and of `podman run`)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from spark_cluster.config.launch import Volume
from spark_cluster.config.suggest import nearest
from spark_cluster.errors import UsageError
from spark_cluster.importers.shell import Word
from spark_cluster.importers.tables import table

Option = str | bool | list[str]

_COLON = re.compile(r":(?![^{]*\})")
"""A colon that is not inside `${...}`."""


@dataclass(slots=True)
class Container:
    """The arguments of a `docker run`.

    Attributes:
        image: as written.
        words: after the image.
        options: all others than these, without dashes.
        env: variables with a value.
        passed: variables that are taken from the shell (`-e HF_TOKEN`).
        volumes: from `-v` and from `--mount type=bind`.
    """

    image: Word
    words: list[Word] = field(default_factory=list)
    options: dict[str, Option] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    passed: list[str] = field(default_factory=list)
    volumes: list[Volume] = field(default_factory=list)


def read(words: list[Word]) -> Container:
    """Parse what follows `docker run`.

    Raises:
        UsageError: an option that Docker does not have, that lacks its value or is given twice, or
            no image; with the line.
    """
    reader = _Reader(words)
    while reader.at < len(words) and words[reader.at].text.startswith("-"):
        if words[reader.at].text == "--":
            reader.at += 1
            break
        reader.step()
    if reader.at >= len(words):
        line = words[-1].line if words else 1
        raise UsageError("docker run: no image", where=f"line {line}", hint="add the image's name")
    container = Container(words[reader.at], words[reader.at + 1 :], reader.options)
    _conflicts(reader)
    for name, variable in reader.variables:
        _take_variable(container, name, variable)
    for word in reader.volumes:
        _take_volume(container, word)
    for word in reader.mounts:
        _take_mount(container, word)
    return container


class _Reader:
    def __init__(self, words: list[Word]) -> None:
        self.words = words
        self.at = 0
        self.options: dict[str, Option] = {}
        self.variables: list[tuple[str, Word]] = []
        self.volumes: list[Word] = []
        self.mounts: list[Word] = []
        self.lines: dict[str, int] = {}

    def step(self) -> None:
        word = self.words[self.at]
        self.at += 1
        if not word.text.startswith("--"):
            self._short(word)
            return
        name, equals, value = word.text[2:].partition("=")
        data = table("docker_options")
        name = data["aliases"].get(name, name)
        if name in data["bare"]:
            self._set(name, value.lower() not in ("false", "0") if equals else True, word)
            return
        if name not in data["valued"] and name not in data["several"]:
            near = nearest(name, [*data["bare"], *data["valued"], *data["several"]])
            raise UsageError(
                f"docker run has no option '--{name}'",
                where=f"line {word.line}",
                hint=f"did you mean '--{near}'?" if near else "flags of vLLM follow the image",
            )
        self._take(name, Word(value, word.line) if equals else self._next(word), word)

    def _short(self, word: Word) -> None:
        """`-d`, `-it`, `-p 80:80`, `-p80:80`."""
        data = table("docker_options")
        letters = word.text[1:]
        while letters:
            name = data["short"].get(f"-{letters[0]}")
            if name is None:
                raise UsageError(
                    f"docker run has no option '-{letters[0]}'; found '{word.text}'",
                    where=f"line {word.line}",
                    hint="long options begin with two dashes; flags of vLLM follow the image",
                )
            letters = letters[1:]
            if name in data["bare"]:
                self._set(name, True, word)
                continue
            rest = letters.removeprefix("=")
            self._take(name, Word(rest, word.line) if rest else self._next(word), word)
            return

    def _next(self, word: Word) -> Word:
        if self.at >= len(self.words):
            raise UsageError(f"{word.text} has no value", where=f"line {word.line}")
        self.at += 1
        return self.words[self.at - 1]

    def _take(self, name: str, value: Word, word: Word) -> None:
        if name == "env":
            self.variables.append((word.text, value))
        elif name == "volume":
            self.volumes.append(value)
        elif name == "mount":
            self.mounts.append(value)
        elif name in table("docker_options")["several"]:
            before = self.options.get(name)
            values = before if isinstance(before, list) else [before] if before else []
            both = [*map(str, values), value.text]
            self.options[name] = both[0] if len(both) == 1 else both
            self.lines.setdefault(name, word.line)
        else:
            self._set(name, value.text, word)

    def _set(self, name: str, value: Option, word: Word) -> None:
        if name in self.options and self.options[name] != value:
            raise UsageError(
                f"--{name} is given twice, as '{self.options[name]}' on line {self.lines[name]} "
                f"and as '{value}'",
                where=f"line {word.line}",
                hint="keep the one you mean",
            )
        self.options[name] = value
        self.lines.setdefault(name, word.line)


def _conflicts(reader: _Reader) -> None:
    restart = reader.options.get("restart", "no")
    if reader.options.get("rm") and restart != "no":
        raise UsageError(
            f"--rm contradicts --restart {restart}; Docker refuses both together",
            where=f"line {reader.lines['rm']}",
            hint="keep one of the two",
        )


def _take_variable(container: Container, option: str, word: Word) -> None:
    name, equals, value = word.text.partition("=")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name):
        # It may be a secret: it is not repeated.
        raise UsageError(
            f"{option.partition('=')[0]} is not followed by NAME=value",
            where=f"line {word.line}",
        )
    if name in container.env and container.env[name] != value:
        raise UsageError(
            f"the variable {name} is given twice with different values", where=f"line {word.line}"
        )
    if equals:
        container.env[name] = value
    elif name not in container.passed:
        container.passed.append(name)


def _take_volume(container: Container, word: Word) -> None:
    source, *rest = _COLON.split(word.text)
    if not rest:
        _add(container.options, "volume", word.text)
        return
    if not source or not rest[0] or len(rest) > 2:
        raise UsageError(
            f"found the volume '{word.text}', expected SOURCE:TARGET[:OPTIONS]",
            where=f"line {word.line}",
        )
    options = rest[1].split(",") if len(rest) > 1 else []
    container.volumes.append(Volume(source, rest[0], "ro" in options))


def _take_mount(container: Container, word: Word) -> None:
    fields = dict(part.partition("=")[::2] for part in word.text.split(","))
    source = fields.get("source") or fields.get("src") or ""
    target = fields.get("target") or fields.get("destination") or fields.get("dst") or ""
    if fields.get("type", "volume") == "tmpfs" or not source:
        _add(container.options, "mount", word.text)
        return
    if not target:
        raise UsageError(f"--mount {word.text} has no target", where=f"line {word.line}")
    read_only = any(
        key in fields and fields[key].lower() not in ("false", "0") for key in ("readonly", "ro")
    )
    container.volumes.append(Volume(source, target, read_only))


def _add(options: dict[str, Option], name: str, value: str) -> None:
    before = options.get(name)
    if before is None:
        options[name] = value
    else:
        options[name] = [*(before if isinstance(before, list) else [str(before)]), value]
