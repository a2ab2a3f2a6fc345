"""Reads the arguments of `docker run`: options, variables, volumes, and what follows the image."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

from spark_cluster.config.launch import Volume
from spark_cluster.config.yamlfile import nearest
from spark_cluster.importers.expansion import Word
from spark_cluster.models.naming import table

Option = str | bool | list[str]


@dataclass(slots=True)
class DockerRun:
    """The arguments of a `docker run`.

    Attributes:
        image: as written.
        words: after the image.
        options: all others than these, without dashes.
        env: variables with a value.
        passed: variables that are taken from the shell (`-e HF_TOKEN`).
        volumes: from `-v` and from `--mount type=bind`.
        unread: words before the image of which only the shell knows what they are.
    """

    image: Word
    words: list[Word] = field(default_factory=list)
    options: dict[str, Option] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    passed: list[str] = field(default_factory=list)
    volumes: list[Volume] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


# Beginnings of words that the shell replaces by options of a container, not by $TARGET_IMAGE.
_OPTIONS = re.compile(r"\$\(|`|\$\{?(?!\w*IMA?G)\w*(?:ARG|OPT|FLAG|MOUNT|VOL|ENV)", re.IGNORECASE)


def docker_run(words: list[Word]) -> DockerRun:
    """Parse what follows `docker run`.

    Raises:
        UsageError: an option that Docker does not have, that lacks its value or is given twice, or
            no image; with the line.
    """
    reader = _OptionReader(words)
    unread = list[str]()
    while reader.words and (reader.words[0].text.startswith("-") or reader.begins_with_options()):
        word = reader.words.popleft()
        if not word.text.startswith("-"):
            unread.append(f"{word.text}: only the shell knows which options it has")
            continue
        if word.text == "--":
            break
        (reader.long if word.text.startswith("--") else reader.short)(word)
    if not reader.words:
        last = words[-1] if words else Word("", 1)
        raise last.wrong("docker run: no image", "add the image's name")
    container = DockerRun(reader.words.popleft(), list(reader.words), reader.options, unread=unread)
    restart = reader.options.get("restart", "no")
    if reader.options.get("rm") and restart != "no":
        raise reader.first["rm"].wrong(
            f"--rm contradicts --restart {restart}; Docker refuses both together",
            "keep one of the two",
        )
    for option, take in (("env", _variable), ("volume", _volume), ("mount", _mount)):
        for word, value in reader.taken[option]:
            take(container, word, value)
    return container


class _OptionReader:
    """Takes words from the front of `words`.

    Attributes:
        taken: option to its words and values, of those that are no plain options.
        first: option to the word that gave it first.
    """

    def __init__(self, words: list[Word]) -> None:
        self.words = deque(words)
        self.table = table("docker_options", "importers")
        self.options: dict[str, Option] = {}
        self.taken: dict[str, list[tuple[Word, Word]]] = {"env": [], "volume": [], "mount": []}
        self.first: dict[str, Word] = {}

    def begins_with_options(self) -> bool:
        """Return whether the next word stands for options: the image follows it."""
        word = self.words[0]
        return not word.quoted and len(self.words) > 1 and bool(_OPTIONS.match(word.text))

    def long(self, word: Word) -> None:
        """`--rm`, `--gpus all`, `--gpus=all`."""
        name, equals, value = word.text[2:].partition("=")
        name = self.table["aliases"].get(name, name)
        if name in self.table["bare"]:
            self._set(name, value.lower() not in ("false", "0") if equals else True, word)
        elif name in self.table["valued"] or name in self.table["several"]:
            self._take(name, Word(value, word.line) if equals else None, word)
        else:
            known = [one for kind in ("bare", "valued", "several") for one in self.table[kind]]
            near = nearest(name, known)
            raise word.wrong(
                f"docker run has no option '--{name}'",
                f"did you mean '--{near}'?" if near else "flags of vLLM follow the image",
            )

    def short(self, word: Word) -> None:
        """`-d`, `-it`, `-p 80:80`, `-p80:80`."""
        for at, letter in enumerate(word.text[1:], 2):
            name = self.table["short"].get(f"-{letter}")
            if name is None:
                raise word.wrong(
                    f"docker run has no option '-{letter}'; found '{word.text}'",
                    "long options begin with two dashes; flags of vLLM follow the image",
                )
            if name not in self.table["bare"]:
                rest = word.text[at:].removeprefix("=")
                self._take(name, Word(rest, word.line) if rest else None, word)
                return
            self._set(name, True, word)

    def _take(self, name: str, value: Word | None, word: Word) -> None:
        if value is None:
            if not self.words:
                raise word.wrong(f"{word.text} has no value")
            value = self.words.popleft()
        if name in self.taken:
            self.taken[name].append((word, value))
        elif name in self.table["several"]:
            _add(self.options, name, value.text)
        else:
            self._set(name, value.text, word)

    def _set(self, name: str, value: str | bool, word: Word) -> None:
        first = self.first.setdefault(name, word)
        if self.options.setdefault(name, value) != value:
            raise word.wrong(
                f"--{name} is given twice, as '{self.options[name]}' on line {first.line} "
                f"and as '{value}'",
                "keep the one you mean",
            )


def _variable(container: DockerRun, option: Word, word: Word) -> None:
    name, equals, value = word.text.partition("=")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name):
        # It may be a secret: it is not repeated.
        raise word.wrong(f"{option.text.partition('=')[0]} is not followed by NAME=value")
    if container.env.get(name, value) != value:
        raise word.wrong(f"the variable {name} is given twice with different values")
    if equals:
        container.env[name] = value
    elif name not in container.passed:
        container.passed.append(name)


def _parts(text: str) -> list[str]:
    """Split at the colons that are not inside `${...}`."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "{") - (char == "}")
        if char == ":" and depth < 1:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _volume(container: DockerRun, _: Word, word: Word) -> None:
    source, *rest = _parts(word.text)
    if not rest:
        _add(container.options, "volume", word.text)
    elif not source or not rest[0] or len(rest) > 2:
        raise word.wrong(f"found the volume '{word.text}', expected SOURCE:TARGET[:OPTIONS]")
    else:
        read_only = "ro" in rest[1].split(",") if len(rest) > 1 else False
        container.volumes.append(Volume(source, rest[0], read_only))


def _mount(container: DockerRun, _: Word, word: Word) -> None:
    fields = dict(part.partition("=")[::2] for part in word.text.split(","))
    source = fields.get("source") or fields.get("src") or ""
    target = fields.get("target") or fields.get("destination") or fields.get("dst") or ""
    if fields.get("type", "volume") == "tmpfs" or not source:
        _add(container.options, "mount", word.text)
        return
    if not target:
        raise word.wrong(f"--mount {word.text} has no target")
    given = [fields[key].lower() for key in ("readonly", "ro") if key in fields]
    read_only = any(value not in ("false", "0") for value in given)
    container.volumes.append(Volume(source, target, read_only))


def _add(options: dict[str, Option], name: str, value: str) -> None:
    before = options.get(name)
    if before is None:
        options[name] = value
    else:
        options[name] = [*(before if isinstance(before, list) else [str(before)]), value]
