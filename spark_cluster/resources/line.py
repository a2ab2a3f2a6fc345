"""A line in a text file that others own."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

from spark_cluster.node.host import Host
from spark_cluster.node.values import Missing, ResourceError, Secret
from spark_cluster.resources.base import PRESENCE, State, absolute, checks, permissions
from spark_cluster.resources.file import EditedFile, joined, need_folder


@dataclass(frozen=True)
class Line(EditedFile):
    """A line in an existing file: present once at the place of the last match, or absent.

    Args:
        path: the file, absolute.
        line: the line, without its end.
        match: regular expression of lines that this one takes the place of (the last one wins,
            the others go); without it only an equal line counts.
        after: regular expression of the line after which a new one stands, such as the header of
            its section; without it, it stands at the end.
        state: `present` or `absent`.
        create: make the file when it does not exist.
        mode: permission bits of a file that it makes; another one's stay.

    Example:
        Line("/etc/hosts", line="192.168.177.11 spark1-fabric", match=r"\\sspark1-fabric$")
    """

    reverts = ""
    valid = checks(path=absolute, mode=permissions, state=PRESENCE)

    path: str
    line: str = field(kw_only=True)
    match: str | None = field(default=None, kw_only=True)
    after: str | None = field(default=None, kw_only=True)
    state: str = field(default="present", kw_only=True)
    create: bool = field(default=False, kw_only=True)
    mode: int = field(default=0o644, kw_only=True)

    def validate(self) -> None:
        self.must(self.line, "the line is empty")
        self.must("\n" not in self.line, f"{self.line!r} is more than one line")
        for name, expression in (("match", self.match), ("after", self.after)):
            try:
                re.compile(expression or "")
            except re.error as error:
                raise self.invalid(f"{name} {expression!r}: {error}") from None
        found = self.state == "absent" or not self.match or re.search(self.match, self.line)
        self.must(
            found,
            f"{self.line!r} does not match its own {self.match!r}, "
            "so it would be added again on every run",
        )

    @property
    def name(self) -> str:
        if isinstance(self.line, Secret):
            return f"{self.path}#secret-{hashlib.sha256(self.line.encode()).hexdigest()[:8]}"
        return f"{self.path}#{self.line}"

    def provides(self) -> tuple[str, ...]:
        return (f"path:{self.path}",) if self.create else ()

    def desired(self) -> State:
        return {"line": self._told(self.line) if self.state == "present" else None}

    def observe(self, host: Host) -> State:
        if host.path(self.path).is_symlink():
            target = host.path(self.path).readlink()
            raise ResourceError(
                f"{self.path} is a link to {target}, which would be lost", "name the file itself"
            )
        found = [_shown(text) for text in self.lines(host) if self._matches(text)]
        if not found:
            return {"line": None}
        return {"line": self._told(found[0]) if len(found) == 1 else list(map(self._told, found))}

    def converge(self, host: Host, actual: State) -> None:
        mode = None if host.path(self.path).exists() else self.mode
        host.write(self.path, self.text_after(host), mode=mode, secret=self.is_secret)

    @property
    def is_secret(self) -> bool:
        return isinstance(self.line, Secret)

    def _told(self, text: str) -> str:
        """A line as it may be shown: in the place of a secret one there may be an older secret."""
        if not self.is_secret:
            return text
        return "as declared" if text == _shown(self.line) else "another"

    def _matches(self, text: str) -> bool:
        return text == self.line or bool(self.match and re.search(self.match, text))

    def lines(self, host: Host) -> list[str]:
        if self.state == "absent" and host.read(self.path) is None:
            return []
        found = super().lines(host)
        if found is None:
            need_folder(host, self.path)
        if found is None and not self.create:
            raise Missing(
                f"path:{self.path}", f"{self.path} does not exist", "declare a File, or create=True"
            )
        return found or []

    def text_after(self, host: Host) -> bytes:
        lines = self.lines(host)
        places = [i for i, text in enumerate(lines) if self._matches(text)]
        if self.state == "present" and places:
            lines[places[-1]] = self.line
            places = places[:-1]
        elif self.state == "present":
            lines.insert(self._place(lines), self.line)
        return joined(text for i, text in enumerate(lines) if i not in places)

    def _place(self, lines: list[str]) -> int:
        if self.after is None:
            return len(lines)
        for place, text in enumerate(lines, 1):
            if re.search(self.after, text):
                return place
        raise ResourceError(
            f"no line matches {self.after!r} in {self.path}",
            "add the line after which it is to stand",
        )


def _shown(text: str) -> str:
    """The text with bytes that are not UTF-8 made visible, so that it can be printed."""
    return text.encode(errors="surrogateescape").decode(errors="replace")
