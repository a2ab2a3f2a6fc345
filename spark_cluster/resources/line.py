"""A line in a text file that others own."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field

from spark_cluster.node.host import Host
from spark_cluster.node.values import InvalidResource, Missing, ResourceError, Secret
from spark_cluster.resources.base import Resource, State, absolute, valid_mode
from spark_cluster.resources.file import unified


@dataclass(frozen=True)
class Line(Resource):
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

    path: str
    line: str = field(kw_only=True)
    match: str | None = field(default=None, kw_only=True)
    after: str | None = field(default=None, kw_only=True)
    state: str = field(default="present", kw_only=True)
    create: bool = field(default=False, kw_only=True)
    mode: int = field(default=0o644, kw_only=True)

    def validate(self) -> None:
        absolute(self.path, "Line")
        valid_mode(self.mode, f"Line in {self.path}")
        if not self.line:
            raise InvalidResource(f"Line in {self.path}: the line is empty")
        if "\n" in self.line:
            raise InvalidResource(f"Line in {self.path}: {self.line!r} is more than one line")
        if self.state not in ("present", "absent"):
            raise InvalidResource(f"Line in {self.path}: state {self.state!r} is unknown")
        for name, expression in (("match", self.match), ("after", self.after)):
            try:
                re.compile(expression or "")
            except re.error as error:
                text = f"Line in {self.path}: {name} {expression!r}: {error}"
                raise InvalidResource(text) from None
        if self.state == "present" and self.match and not re.search(self.match, self.line):
            raise InvalidResource(
                f"Line in {self.path}: {self.line!r} does not match its own {self.match!r}, "
                "so it would be added again on every run"
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
        found = [_shown(text) for text in self._lines(host) if self._matches(text)]
        if not found:
            return {"line": None}
        return {"line": self._told(found[0]) if len(found) == 1 else list(map(self._told, found))}

    def converge(self, host: Host, actual: State) -> None:
        mode = None if host.path(self.path).exists() else self.mode
        host.write(self.path, self._after(host), mode=mode, secret=isinstance(self.line, Secret))

    def plan(self, host: Host, actual: State) -> None:
        host.overlay.files[self.path] = self._after(host)

    def diff(self, host: Host, actual: State) -> str:
        if isinstance(self.line, Secret):
            return f"{self.path}: a secret line, not shown\n"
        return unified(self.path, host.read(self.path) or b"", self._after(host))

    def _told(self, text: str) -> str:
        """A line as it may be shown: in the place of a secret one there may be an older secret."""
        if not isinstance(self.line, Secret):
            return text
        return "as declared" if text == _shown(self.line) else "another"

    def _matches(self, text: str) -> bool:
        return text == self.line or bool(self.match and re.search(self.match, text))

    def _lines(self, host: Host) -> list[str]:
        content = host.read(self.path)
        if content is not None:
            text = content.decode(errors="surrogateescape")
            return text.removesuffix("\n").split("\n") if text else []
        parent = self.path.rsplit("/", 1)[0] or "/"
        there = host.path(parent).is_dir() or host.will_provide(f"path:{parent}")
        if self.state == "absent" or (self.create and there):
            return []
        if not there:
            raise Missing(f"path:{parent}", f"the folder {parent} does not exist")
        raise Missing(
            f"path:{self.path}", f"{self.path} does not exist", "declare a File, or create=True"
        )

    def _after(self, host: Host) -> bytes:
        lines = self._lines(host)
        places = [i for i, text in enumerate(lines) if self._matches(text)]
        if self.state == "present" and places:
            lines[places[-1]] = self.line
            places = places[:-1]
        elif self.state == "present":
            lines.insert(self._place(lines), self.line)
        kept = [text for i, text in enumerate(lines) if i not in places]
        return "".join(f"{text}\n" for text in kept).encode(errors="surrogateescape")

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
