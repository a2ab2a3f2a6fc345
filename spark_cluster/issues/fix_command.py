"""Edits of a pasted command line: only the words that are edited change."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from spark_cluster.config.launch import Launch
from spark_cluster.issues.match import Edit

_WORD = re.compile(r"(?:'[^']*'|\"(?:\\.|[^\"\\])*\"|\\[^\n]|[^\s'\"\\])+", re.DOTALL)
_EMPTY_LINE = re.compile(r"\\\n[ \t]*(?=\\\n|\Z)")
_SHORT = {"publish": "p", "env": "e", "volume": "v"}


@dataclass
class _Word:
    text: str
    start: int
    end: int


def fixed(text: str, edits: Iterable[Edit], launch: Launch) -> str:
    """Return the command line after the edits.

    Args:
        launch: what the text was read as.
    """
    for edit in edits:
        text = _Rewriter(text, launch).apply(edit)
        text = _EMPTY_LINE.sub("", text)
    return text


def can(edit: Edit, launch: Launch) -> bool:
    """Return True when a command line holds what the edit changes."""
    return edit.kind != "recipe" and (bool(launch.image) or edit.kind not in ("docker", "image"))


class _Rewriter:
    def __init__(self, text: str, launch: Launch) -> None:
        self.text = text
        self.launch = launch
        self.words = [_Word(_plain(m[0]), m.start(), m.end()) for m in _WORD.finditer(text)]

    def apply(self, edit: Edit) -> str:
        if edit.kind == "image":
            return self._replaced(self._image(), str(edit.value))
        if edit.kind == "env":
            return self._env(edit)
        if edit.kind == "docker":
            return self._docker(edit)
        return self._flag(edit)

    def _image(self) -> int:
        """Return the index of the image's word."""
        names = (self.launch.image, f"{self.launch.image}@{self.launch.digest}")
        return next(i for i, word in enumerate(self.words) if word.text in names)

    def _flag(self, edit: Edit) -> str:
        names = {f"--{edit.name}", f"--{edit.name.replace('-', '_')}"}
        at = next((i for i, w in enumerate(self.words) if w.text.partition("=")[0] in names), None)
        if at is None:
            return self.text if edit.value is None else self._inserted(edit.name, edit.value)
        bare = self.launch.args.get(edit.name) is True or "=" in self.words[at].text
        last = at if bare else at + 1
        if edit.value is None:
            return self._without(at, last)
        return self._spanned(at, last, _written(edit.name, edit.value))

    def _inserted(self, name: str, value: object) -> str:
        """Insert a new flag behind the model, or before the first flag behind the image."""
        image = self._image() if self.launch.image else -1
        begin = next(
            (
                i
                for i, w in enumerate(self.words)
                if i > image and (w.text == "serve" or w.text.endswith("api_server"))
            ),
            image,
        )
        flags = (w for i, w in enumerate(self.words) if i > begin and w.text.startswith("--"))
        first = next(flags, None)
        written = _written(name, value)
        if first is not None:
            return f"{self.text[: first.start]}{written} {self.text[first.start :]}"
        end = self.words[-1].end
        return f"{self.text[:end]} {written}{self.text[end:]}"

    def _env(self, edit: Edit) -> str:
        pair = f"{edit.name}={edit.value}"
        for i, word in enumerate(self.words):
            name, equals, _ = word.text.partition("=")
            for option in ("--env=", "-e"):
                name = name.removeprefix(option) if word.text.startswith(option) else name
            if name == edit.name and (equals or self._after_option(i, "env")):
                if edit.value is not None:
                    kept = word.text[: word.text.index(name)]
                    return self._replaced(i, kept + pair)
                return self._without(i - 1 if self._after_option(i, "env") else i, i)
        if edit.value is None:
            return self.text
        if not self.launch.image:
            first = self.words[0].start
            return f"{self.text[:first]}{pair} {self.text[first:]}"
        return self._before_image(f"-e {shlex.quote(pair)}")

    def _docker(self, edit: Edit) -> str:
        new = f"--{edit.name} {shlex.quote(str(edit.value))}"
        if edit.replaces is None:
            return self._replaced_option(edit, new) or self._before_image(new)
        for i, word in enumerate(self.words):
            if word.text.endswith(edit.replaces) and self._is_option(i, edit.name):
                kept = word.text.removesuffix(edit.replaces)
                return self._replaced(i, f"{kept}{edit.value}")
        return self.text

    def _replaced_option(self, edit: Edit, new: str) -> str:
        """Replace an option that is there with another value and may be given once only."""
        if isinstance(self.launch.docker.get(edit.name), list) or edit.name in ("device", "ulimit"):
            return ""
        for i, word in enumerate(self.words[: self._image()]):
            name, equals, _ = word.text.partition("=")
            if name == f"--{edit.name}" or (edit.name == "network" and name == "--net"):
                return self._spanned(i, i if equals else i + 1, new)
        return ""

    def _is_option(self, index: int, name: str) -> bool:
        word = self.words[index].text
        return self._after_option(index, name) or word.startswith(
            (f"--{name}=", f"-{_SHORT.get(name, '-')}")
        )

    def _after_option(self, index: int, name: str) -> bool:
        before = self.words[index - 1].text if index else ""
        return before in (f"--{name}", f"-{_SHORT.get(name, '-')}")

    def _before_image(self, written: str) -> str:
        at = self.words[self._image()].start
        return f"{self.text[:at]}{written} {self.text[at:]}"

    def _replaced(self, index: int, new: str) -> str:
        return self._spanned(index, index, shlex.quote(new))

    def _spanned(self, first: int, last: int, new: str) -> str:
        return self.text[: self.words[first].start] + new + self.text[self.words[last].end :]

    def _without(self, first: int, last: int) -> str:
        begin = self.words[first].start
        while begin and self.text[begin - 1] in " \t":
            begin -= 1
        return self.text[:begin] + self.text[self.words[last].end :]


def _plain(raw: str) -> str:
    """Return the word without quotes, or as it stands where they are not closed."""
    try:
        return "".join(shlex.split(raw))
    except ValueError:
        return raw


def _written(name: str, value: object) -> str:
    if value is True:
        return f"--{name}"
    if isinstance(value, dict | list):
        return f"--{name} {shlex.quote(json.dumps(value, separators=(',', ':')))}"
    return f"--{name} {shlex.quote(str(value))}"
