"""Settings for reaching a node, by its own entry and the inventory's defaults for all nodes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_cluster.config import patterns
from spark_cluster.config.yamlfile import Sourced
from spark_cluster.errors import UsageError

CONNECT_TIMEOUT_S = 10.0

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]*")
"""Host names, addresses and users of the usual form; a `Match exec` of ssh_config puts them into a
command line."""

_FILES = ("identity_file", "known_hosts")


@dataclass(frozen=True, slots=True)
class SshSettings:
    """Settings for reaching one node. What is None is left to the user's ~/.ssh/config.

    Attributes:
        address: IP address or host name.
        identity_file, known_hosts: files on the laptop, absolute.
        jump: `[user@]host[:port]`.
        connect_timeout_s: longest wait for a connection, seconds.
    """

    address: str
    user: str | None
    port: int | None
    identity_file: Path | None
    known_hosts: Path | None
    jump: str | None
    connect_timeout_s: float


def ssh_settings(own: Mapping[str, Any], shared: Mapping[str, Any], inventory: Path) -> SshSettings:
    """Return the settings of a node.

    Args:
        own: the node's entry.
        shared: the entry `ssh`, the defaults of all nodes.
        inventory: the file; relative paths start at its folder.
    """
    folder = inventory.absolute().parent

    def either(name: str) -> Any:
        return own.get(name) or shared.get(name)

    identity_file, known_hosts = (local(either(name), folder) for name in _FILES)
    return SshSettings(
        address=own["address"],
        user=either("user"),
        port=either("port"),
        identity_file=identity_file,
        known_hosts=known_hosts,
        jump=either("jump"),
        connect_timeout_s=either("connect_timeout_s") or CONNECT_TIMEOUT_S,
    )


def local(path: Path | str | None, folder: Path) -> Path | None:
    """A path on the laptop: `~` is the user's home, a relative one starts at `folder`."""
    return folder / Path(path).expanduser() if path is not None else None


def unchecked(source: Sourced, limit: str) -> dict[str, SshSettings]:
    """Return the settings of the selected nodes before the inventory has been checked.

    They serve to connect while the checks are still being imported. Nodes whose entries are not
    of the simplest form (a jump host, a value of another type), or are not reached over SSH, are
    left out.

    Args:
        source: the inventory's data.
        limit: a `--limit` pattern.
    """
    nodes, shared, groups = (source.data.get(key, {}) for key in ("nodes", "ssh", "groups"))
    if not isinstance(nodes, dict) or not _is_simple(shared) or not isinstance(groups, dict):
        return {}
    return {
        name: ssh_settings(entry, shared, source.path)
        for name, entry in nodes.items()
        if _selects(limit, name, nodes, groups) and _is_simple(entry) and "address" in entry
    }


def _is_simple(entry: object) -> bool:
    """Return whether an entry has only values that need no further check before they are used."""
    if not isinstance(entry, dict) or entry.get("jump") is not None:
        return False
    if entry.get("connection", "ssh") != "ssh":
        return False
    texts = [entry[name] for name in ("address", "user") if name in entry]
    files = [entry[name] for name in _FILES if name in entry]
    port, limit_s = entry.get("port", 22), entry.get("connect_timeout_s", CONNECT_TIMEOUT_S)
    return (
        all(isinstance(text, str) and _PLAIN.fullmatch(text) for text in texts)
        and all(isinstance(file, str) and not re.match(r"~[^/]", file) for file in files)
        and isinstance(port, int)
        and 0 < port < 65536
        and isinstance(limit_s, int | float)
        and 0 < limit_s <= 600
    )


def _selects(limit: str, name: str, nodes: Collection[str], groups: Mapping[str, Any]) -> bool:
    """Return whether a `--limit` pattern that names only nodes or `all` selects a node.

    What is in the groups of the inventory is known when they have been checked.
    """
    if limit == "all":
        return True
    if groups:
        return False
    try:
        return name in patterns.select(limit, list(nodes), {"all": frozenset(nodes)})
    except UsageError:
        return False
