"""New host keys of a known node, which the laptop knows before they are in force there.

Old and new ones are both in known_hosts meanwhile, so that the node can be reached whatever is cut
in the middle. The comment of a new key says which one it replaces, so that the next run goes on.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster.config import fact_gathering
from spark_cluster.config.fact_gathering import public_keys
from spark_cluster.errors import SparkClusterError
from spark_cluster.node import paths
from spark_cluster.runner.known_hosts import (
    PublicKey,
    file_of,
    known_hosts_line,
    of_host,
    update,
    without,
)
from spark_cluster.runner.node_connection import NodeConnection
from spark_cluster.runner.ssh_route import SshHop, Target, node_of

if TYPE_CHECKING:
    from spark_cluster.runner.connections import Connections
    from spark_cluster.runner.play import Play, RoleCall

_REPLACES = b" spark-cluster:replaces="
"""Begins the comment of a key that was announced: the fingerprint of the one that it replaces."""


def replace_shared_keys(
    play: Play,
    bootstrap: RoleCall,
    notes: MutableMapping[str, list[str]],
    failures: MutableMapping[str, list[SparkClusterError]],
) -> None:
    """Give new host keys to the later of nodes that share some; check mode leaves all as it is.

    Whatever is cut in between, known_hosts has the key that the node shows: the new ones are
    written next to the old ones first, and the old ones go when a new one was seen.

    Args:
        bootstrap: the role that puts the keys into force.
        notes, failures: by node; what is to be said is added.

    Raises:
        Failed: known_hosts cannot be written.
    """
    if play.check:
        return
    for node in play.nodes:  # of a run that was cut
        forget_replaced(play.connections, node.name)
    keys = [key for node in play.nodes for key in set(node.facts.host_keys)]
    if len(keys) == len(set(keys)):
        return
    ready = play.apply(play.nodes, play.role("bootstrap", prepare_host_keys=True), fail_fast=False)
    asked = [node.name for node in play.nodes if node.name in ready.results]
    announced = {name: announce(play.connections, name) for name in asked}
    play.apply(play.nodes, bootstrap, fail_fast=False)
    play.refresh(play.nodes, fail_fast=False)
    for name, (path, prints) in announced.items():
        if prints:
            notes[name].append(
                f"it has new SSH host keys ({', '.join(prints)}); they came over the connection "
                f"that was verified with the old one, and are in {path} now. Other machines that "
                "know the node will report a changed key"
            )
            _verify(play.connections, name, notes, failures)


def _verify(
    connections: Connections,
    name: str,
    notes: MutableMapping[str, list[str]],
    failures: MutableMapping[str, list[SparkClusterError]],
) -> None:
    """Add a note if sshd still shows the old key, a failure if it shows neither."""
    try:
        shows_new = verify(connections, name)
    except SparkClusterError as error:
        failures[name].append(error)
        return
    if not shows_new:
        notes[name].append(
            "its sshd still shows the old host key: `systemctl reload ssh` there; both are in "
            "known_hosts until the next run"
        )


def announce(connections: Connections, name: str) -> tuple[Path, list[str]]:
    """Write the host keys that a node has ready into known_hosts, next to the present ones.

    They come over a connection whose host key was verified: no one else can have sent them.

    Returns:
        The file, and the new keys' fingerprints; none when it has none ready, or is reached
        without SSH.

    Raises:
        Failed: the file cannot be written.
    """
    if connections.nodes[name].is_local:
        return Path(), []
    ready = _keys(connections, name, f"{paths.NEXT_HOST_KEYS}/*/key.pub")
    target = connections.dialer.target(connections.nodes[name])
    return announce_keys(target, ready, connections.facts_of(name).host_keys)


def verify(connections: Connections, name: str) -> bool:
    """Connect once more, and when the new host keys are shown, remove those they replace.

    Returns:
        Whether any were removed.

    Raises:
        SparkClusterError: the node does not let one in, or known_hosts cannot be written.
    """
    with contextlib.closing(connections.dialer.dial(connections.nodes[name])) as connection:
        return forget_replaced(connections, name, connection)


def forget_replaced(
    connections: Connections, name: str, connection: NodeConnection | None = None
) -> bool:
    """Remove the keys that announced ones have replaced, when a connection shows a new one.

    Args:
        connection: a new one; None: that of the run, for what a run that was cut has left.

    Returns:
        Whether any were removed.

    Raises:
        Failed: a file cannot be written.
    """
    shown = (connection or connections.connection(name)).host_key()
    if shown is None:
        return False
    target = connections.dialer.target(connections.nodes[name])
    on_disk = fact_gathering.TREES["host_keys"]
    return bool(forget_keys(target, shown, lambda: _keys(connections, name, on_disk)))


def _keys(connections: Connections, name: str, files: str) -> tuple[str, ...]:
    answer = connections.session(name).request("gather", trees={"keys": files})
    return public_keys(answer["trees"]["keys"].values())


# -- known_hosts -----------------------------------------------------------------------------------


def announce_keys(
    target: Target, keys: Iterable[str], current: Iterable[str]
) -> tuple[Path, list[str]]:
    """Write host keys that a node is about to take into known_hosts, next to the present ones.

    Args:
        target: the node; the keys came over a connection verified with a present one.
        keys: the new ones, `KIND BASE64`.
        current: the present ones.

    Returns:
        The file, and the new keys as `KIND FINGERPRINT`.

    Raises:
        Failed: the file cannot be written.
    """
    node = node_of(target)
    old = {key.kind: _REPLACES + key.fingerprint.encode() for key in map(_key, current)}
    new = list(map(_key, keys))
    added = {known_hosts_line(node.known_as, key): old.get(key.kind, b"") for key in new}

    def change(lines: list[bytes]) -> list[bytes]:
        kept = [line for line in lines if not line.startswith(tuple(added))]
        return [*kept, *(line + comment for line, comment in added.items())]

    path = file_of(node)
    update(path, change)
    return path, [f"{key.kind} {key.fingerprint}" for key in new]


def forget_keys(target: Target, shown: bytes, current: Callable[[], Iterable[str]]) -> list[str]:
    """Remove the keys of a node that announced ones have replaced.

    Args:
        target: the node.
        shown: the key that it shows on a new connection.
        current: asks for its host keys as they are on its disk, `KIND BASE64`.

    Returns:
        The fingerprints of those that went; none while the announced keys are not in force.

    Raises:
        Failed: a file cannot be written.
    """
    node = node_of(target)
    announced = _announced(node)
    if PublicKey(shown) not in announced:
        return []
    present = set(map(_key, current()))
    replaced = {old for key, old in announced.items() if key in present}
    if not replaced:
        return []

    def settled(line: bytes, key: PublicKey | None) -> bytes | None:
        if key is not None and key.fingerprint in replaced:
            return without(line, node.known_as)
        return line.partition(_REPLACES)[0] if key and _replaced_by(line) in replaced else line

    def change(lines: list[bytes]) -> list[bytes]:
        found = (settled(line, key) for line, key in of_host(lines, node.known_as))
        return [line for line in found if line is not None]

    for path in filter(Path.is_file, node.own_known_hosts):
        update(path, change)
    return sorted(replaced)


def _announced(node: SshHop) -> dict[PublicKey, str]:
    """Return each announced key with the fingerprint of the one that it replaces."""
    found = {}
    for path in filter(Path.is_file, node.own_known_hosts):
        for line, key in of_host(path.read_bytes().split(b"\n"), node.known_as):
            if key is not None and (old := _replaced_by(line)):
                found[key] = old
    return found


def _replaced_by(line: bytes) -> str:
    """Return the fingerprint of the key that a line's key replaces; empty where it is not said."""
    return line.partition(_REPLACES)[2].decode(errors="replace").strip()


def _key(text: str) -> PublicKey:
    return PublicKey(base64.b64decode(text.split()[1]))
