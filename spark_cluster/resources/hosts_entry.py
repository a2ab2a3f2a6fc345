"""A name in /etc/hosts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from spark_cluster.node.host import Host
from spark_cluster.resources.base import State, checks, like
from spark_cluster.resources.file import EditedFile, joined, need_folder

HOSTS = "/etc/hosts"


def _ipv4(address: str) -> str:
    try:
        IPv4Address(address)
    except ValueError:
        return f"{address!r} is not an IPv4 address"
    return ""


@dataclass(frozen=True)
class HostsEntry(EditedFile):
    """A name that /etc/hosts knows with one IPv4 address; other names and lines stay as they are.

    Args:
        host: the name.
        address: its IPv4 address.
        any_address: leave it when the name has some address already.

    Example:
        HostsEntry("spark2-fabric", address="192.168.177.12")
    """

    reverts = ""
    edits = HOSTS
    valid = checks(
        host=like("[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", "a host name"),
        address=_ipv4,
    )

    host: str
    address: str = field(kw_only=True)
    any_address: bool = field(default=False, kw_only=True)

    def desired(self) -> State:
        return {"address": self.address}

    def observe(self, host: Host) -> State:
        need_folder(host, HOSTS)
        found = [words[0] for words in map(_words, self.lines(host) or []) if self._is_in(words)]
        if found and self.any_address:
            return {"address": self.address}
        return {"address": found[0] if len(found) == 1 else found or None}

    def _is_in(self, words: list[str]) -> bool:
        """Return whether a line gives this name an IPv4 address."""
        return self.host in words[1:] and ":" not in words[0]

    def text_after(self, host: Host) -> bytes:
        kept, there = [], False
        for line in self.lines(host) or []:
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
        return joined(kept)


def _words(line: str) -> list[str]:
    """Address and names of a line, without its comment; of a line without any, one empty word."""
    return line.partition("#")[0].split() or [""]


def _without(line: str, name: str) -> str:
    """The line without one of its names, its spacing and comment kept."""
    text, mark, comment = line.partition("#")
    shorter = re.sub(rf"\s+{re.escape(name)}(?=\s|$)", "", text)
    return f"{shorter}{mark}{comment}"
