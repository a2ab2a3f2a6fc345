"""The node's own name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_cluster.node.host import Host
from spark_cluster.node.values import InvalidResource
from spark_cluster.resources.base import Resource, State, lines_of
from spark_cluster.resources.file import unified

FILE = "/etc/hostname"
_LIVE = "/proc/sys/kernel/hostname"


@dataclass(frozen=True)
class Hostname(Resource):
    """The name, now and after every boot. Its line in /etc/hosts is a `Line`'s to give.

    Args:
        hostname: small letters, digits and hyphens; perhaps with a domain.

    Example:
        Hostname("spark1")
    """

    reverts = "the current name stays until the next boot"

    hostname: str

    def validate(self) -> None:
        label = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
        if not re.fullmatch(rf"{label}(\.{label})*", self.hostname) or len(self.hostname) > 64:
            raise InvalidResource(
                f"Hostname: {self.hostname!r} is not a name of small letters, digits and hyphens "
                "(64 characters at most)"
            )

    def desired(self) -> State:
        return {"live": self.hostname, "at_boot": self.hostname}

    def observe(self, host: Host) -> State:
        live = host.path(_LIVE)
        content = lines_of((host.read(FILE) or b"").decode(errors="replace"))
        named = [line.strip() for line in content if line.strip() and not line.startswith("#")]
        return {
            "live": live.read_text().strip() if live.exists() else None,
            "at_boot": named[0] if named else None,
        }

    def converge(self, host: Host, actual: State) -> None:
        if actual["at_boot"] != self.hostname:
            host.write(FILE, self._content(), mode=0o644)
        if actual["live"] != self.hostname:
            host.run(("hostname", self.hostname)).check("setting the host name")

    def plan(self, host: Host, actual: State) -> None:
        host.overlay.files[FILE] = self._content()

    def diff(self, host: Host, actual: State) -> str:
        if actual["at_boot"] == self.hostname:
            return ""
        return unified(FILE, host.read(FILE) or b"", self._content())

    def _content(self) -> bytes:
        return f"{self.hostname}\n".encode()
