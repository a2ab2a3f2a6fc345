"""A name in /etc/hosts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from spark_cluster.node.host import Host
from spark_cluster.node.values import InvalidResource, Missing
from spark_cluster.resources.base import Resource, State, lines_of
from spark_cluster.resources.file import unified

HOSTS = "/etc/hosts"


@dataclass(frozen=True)
class HostsEntry(Resource):
    """A name that /etc/hosts knows with one IPv4 address; other names and lines stay as they are.

    Args:
        host: the name.
        address: its IPv4 address.
        any_address: leave it when the name has some address already.

    Example:
        HostsEntry("spark2-fabric", address="192.168.177.12")
    """

    reverts = ""

    host: str
    address: str = field(kw_only=True)
    any_address: bool = field(default=False, kw_only=True)

    def validate(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", self.host):
            raise InvalidResource(f"HostsEntry: {self.host!r} is not a host name")
        try:
            IPv4Address(self.address)
        except ValueError:
            raise InvalidResource(
                f"HostsEntry {self.host}: {self.address!r} is not an IPv4 address"
            ) from None

    def desired(self) -> State:
        return {"address": self.address}

    def observe(self, host: Host) -> State:
        found = [words[0] for words in map(_words, self._lines(host)) if self._is_in(words)]
        if found and self.any_address:
            return {"address": self.address}
        return {"address": found[0] if len(found) == 1 else found or None}

    def converge(self, host: Host, actual: State) -> None:
        host.write(HOSTS, self._after(host))

    def plan(self, host: Host, actual: State) -> None:
        host.overlay.files[HOSTS] = self._after(host)

    def diff(self, host: Host, actual: State) -> str:
        return unified(HOSTS, host.read(HOSTS) or b"", self._after(host))

    def _is_in(self, words: list[str]) -> bool:
        """Return whether a line gives this name an IPv4 address."""
        return self.host in words[1:] and ":" not in words[0]

    def _lines(self, host: Host) -> list[str]:
        content = host.read(HOSTS)
        if content is None:
            if not host.path("/etc").is_dir():
                raise Missing("path:/etc", "there is no /etc on this node")
            return []
        return lines_of(content.decode(errors="surrogateescape"))

    def _after(self, host: Host) -> bytes:
        kept, there = [], False
        for line in self._lines(host):
            words = _words(line)
            if not self._is_in(words):
                kept.append(line)
            elif words[0] == self.address and not there:
                there = True
                kept.append(line)
            elif words[2:]:  # other names of the line keep their address
                kept.append(_without(line, self.host))
        if not there:
            kept.append(f"{self.address} {self.host}")
        return "".join(f"{line}\n" for line in kept).encode(errors="surrogateescape")


def _words(line: str) -> list[str]:
    """Address and names of a line, without its comment; of a line without any, one empty word."""
    return line.partition("#")[0].split() or [""]


def _without(line: str, name: str) -> str:
    """The line without one of its names, its spacing and comment kept."""
    text, mark, comment = line.partition("#")
    shorter = re.sub(rf"\s+{re.escape(name)}(?=\s|$)", "", text)
    return f"{shorter}{mark}{comment}"
