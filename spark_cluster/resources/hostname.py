"""The node's own name."""

from __future__ import annotations

from dataclasses import dataclass

from spark_cluster.node.host import Host
from spark_cluster.resources.base import State, checks, like
from spark_cluster.resources.file import EditedFile

FILE = "/etc/hostname"
_LIVE = "/proc/sys/kernel/hostname"
_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"


@dataclass(frozen=True)
class Hostname(EditedFile):
    """The name, now and after every boot. Its line in /etc/hosts is a `Line`'s to give.

    Args:
        hostname: small letters, digits and hyphens; perhaps with a domain.

    Example:
        Hostname("spark1")
    """

    reverts = "the current name stays until the next boot"
    edits = FILE
    valid = checks(
        hostname=like(
            rf"(?=.{{1,64}}\Z){_LABEL}(\.{_LABEL})*",
            "a name of small letters, digits and hyphens (64 characters at most)",
        ),
    )

    hostname: str

    def desired(self) -> State:
        return {"live": self.hostname, "at_boot": self.hostname}

    def observe(self, host: Host) -> State:
        live = host.path(_LIVE)
        at_boot = self._at_boot(host)
        return {"live": live.read_text().strip() if live.exists() else None, "at_boot": at_boot}

    def converge(self, host: Host, actual: State) -> None:
        if actual["at_boot"] != self.hostname:
            host.write(FILE, self.text_after(host) or b"", mode=0o644)
        if actual["live"] != self.hostname:
            host.run(("hostname", self.hostname)).check("setting the host name")

    def text_after(self, host: Host) -> bytes | None:
        is_right = self._at_boot(host) == self.hostname
        return host.read(FILE) if is_right else f"{self.hostname}\n".encode()

    def _at_boot(self, host: Host) -> str | None:
        lines = [line.strip() for line in self.lines(host) or [] if not line.startswith("#")]
        return next(filter(None, lines), None)
