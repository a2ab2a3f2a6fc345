"""New host keys of a node that is known: announced to the laptop before they are in force there.

Old and new ones are both in known_hosts meanwhile, so that the node can be reached whatever is cut
in the middle. The comment of a new key says which one it replaces: whoever comes next goes on.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path

from spark_cluster.facts.public_keys import kind_of
from spark_cluster.runner import known_hosts, known_hosts_file
from spark_cluster.runner.hostkeys import file_of, known_hosts_line, names_and_files
from spark_cluster.runner.ssh_route import Target

_REPLACES = "spark-cluster:replaces="
"""Begins the comment of a key that was announced: the fingerprint of the one that it replaces."""


def announce(target: Target, keys: Iterable[str], current: Iterable[str]) -> tuple[Path, list[str]]:
    """Write host keys that a node is about to take into known_hosts, next to those of now.

    Args:
        target: the node; the keys came over a connection verified with one of now.
        keys: the new ones, `TYPE BASE64`.
        current: those of now.

    Returns:
        The file, and the new keys as `TYPE FINGERPRINT`.

    Raises:
        Failed: the file cannot be written.
    """
    path = file_of(target)
    name = names_and_files(target)[0].name
    old = {kind_of(blob): blob for blob in map(_blob, current)}
    added: dict[bytes, bytes] = {}
    fingerprints = []
    for blob in map(_blob, keys):
        kind = kind_of(blob)
        replaced = f" {_REPLACES}{known_hosts.fingerprint(old[kind])}" if kind in old else ""
        added[known_hosts_line(name, kind, blob).encode()] = replaced.encode()
        fingerprints.append(f"{kind} {known_hosts.fingerprint(blob)}")

    def change(lines: list[bytes]) -> list[bytes]:
        kept = [line for line in lines if not line.startswith(tuple(added))]
        return [*kept, *(line + comment for line, comment in added.items())]

    known_hosts_file.update(path, change)
    return path, fingerprints


def is_under_way(target: Target) -> bool:
    """Return whether a new key was announced, and the one that it replaces is still there."""
    names, files = names_and_files(target)
    return any(_announced(path, names.name) for path in files if path.is_file())


def forget_replaced(target: Target, shown: bytes, current: Iterable[str]) -> list[str]:
    """Remove the keys of a node that announced ones have replaced.

    Args:
        target: the node.
        shown: the key that it shows on a connection of now.
        current: its host keys as they are on its disk, `TYPE BASE64`.

    Returns:
        The fingerprints of those that went; none while the announced keys are not in force.

    Raises:
        Failed: a file cannot be written.
    """
    names, files = names_and_files(target)
    own = [path for path in files if path.is_file()]
    announced: dict[bytes, str] = {}
    for path in own:
        announced.update(_announced(path, names.name))
    present = {_blob(key) for key in current}
    replaced = {old for blob, old in announced.items() if blob in present}
    if shown not in announced or not replaced:
        return []

    def change(lines: list[bytes]) -> list[bytes]:
        settled = (_settled(*of, names.name, replaced) for of in _of_host(lines, names.name))
        return [line for line in settled if line is not None]

    for path in own:
        known_hosts_file.update(path, change)
    return sorted(replaced)


def _settled(line: bytes, blob: bytes | None, name: str, replaced: set[str]) -> bytes | None:
    if blob is None:
        return line
    if known_hosts.fingerprint(blob) in replaced:
        return next(iter(known_hosts_file.without([line], [name])), None)
    comment = known_hosts_file.comment_of(line)
    if comment.startswith(_REPLACES) and comment.removeprefix(_REPLACES) in replaced:
        return line[: line.index(_REPLACES.encode())].rstrip()
    return line


def _announced(path: Path, name: str) -> dict[bytes, str]:
    """Key to the fingerprint of the one that it replaces."""
    found = {}
    for line, blob in _of_host(path.read_bytes().split(b"\n"), name):
        comment = known_hosts_file.comment_of(line)
        if blob is not None and comment.startswith(_REPLACES):
            found[blob] = comment.removeprefix(_REPLACES)
    return found


def _of_host(lines: list[bytes], name: str) -> list[tuple[bytes, bytes | None]]:
    """Return each line with the key that it gives a host; None where it gives it none."""
    numbers = known_hosts.numbers_of(name, b"\n".join(lines))
    keys = [
        known_hosts.key_in(line) if numbers.get(n) == "" else None
        for n, line in enumerate(lines, 1)
    ]
    return [(line, key and key[1]) for line, key in zip(lines, keys, strict=True)]


def _blob(key: str) -> bytes:
    return base64.b64decode(key.split()[1])
