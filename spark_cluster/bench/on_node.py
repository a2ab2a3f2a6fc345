"""The part of a run on the node next to the endpoint: what is sent there, and what comes back.

Files come by SFTP, or where a node is on this machine from its disk. What a node says of its files
is foreign input: names, sizes and contents are bounded, links are not followed, and a node that
hangs is given up.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from spark_cluster.errors import Failed, Unreachable
from spark_cluster.loader import programs
from spark_cluster.node import own_program, paths, safe_paths
from spark_cluster.node.bench import measure
from spark_cluster.resources import Command, Directory, File, Resource
from spark_cluster.runner.connections import Connections
from spark_cluster.runner.local_connection import LocalConnection
from spark_cluster.runner.session import Session
from spark_cluster.runner.ssh import Connection, limited

FOLDER = paths.BENCH
"""On the node; each run has a folder of its own, each server of it one below."""

ARCHIVE = "programs.pyz"
"""In a folder of a run: the programs that measure there. The name is not their hash: by its command
a unit is found again that was started by another version."""

MAIN, ASK = "spark_cluster.node.bench.measure", "spark_cluster.node.bench.ask"

MEASURED = 'test -e "$0" || exit 0; exec 9<"$0"; flock --shared --nonblock 9 || cat "$0"'
"""Prints the folder whose cells are being measured; nothing where none are."""

LARGEST_BYTES = 5 * 1024 * 1024
"""A larger file of a load generator is left on the node."""

MOST_BYTES = 1 << 30
"""Bytes that are taken from one server: the results of a suite are a hundredth of it."""

SLACK_S = 600.0
"""Seconds in addition to the limits of the cells: for waiting until the server answers."""

LIMIT_S = 900.0
"""Seconds for all files that are read at once; then the connection is closed."""

MOST_FILES = 10_000
"""Files of a folder; there is no use for more."""

NAME_BYTES = 255
"""Longest name of a file, as on ext4 and APFS."""


@dataclass(frozen=True)
class Job:
    """The cells of one server.

    Attributes:
        folder: on the node.
        health: URLs that answer with 200 while the servers are up.
        cells: each with its `id`, `timeout_s` (of a run) and the fields of its `Measurement`.
        user: of the node, as whom load generators run.
        limit_s: seconds that all of it may take.
    """

    folder: str
    health: tuple[str, ...]
    cells: tuple[Mapping[str, Any], ...]
    user: str
    limit_s: float

    @property
    def resources(self) -> list[Resource]:
        """The resources that measure them: files, and a unit that goes on without the laptop."""
        plan = {"health": self.health, "cells": self.cells, "user": self.user}
        parts = self.folder.removeprefix(f"{FOLDER}/").split("/")
        folders = ["/".join((FOLDER, *parts[:n])) for n in range(len(parts) + 1)]
        text = json.dumps(plan, indent=1).encode()
        sent = {ARCHIVE: programs.archive(MAIN, ASK), measure.PLAN: text}
        return [
            *[Directory(folder, mode=0o755, owner="root") for folder in folders],
            *[File(f"{self.folder}/{name}", content=content) for name, content in sent.items()],
            Command(
                f"measure {self.folder.removeprefix(f'{FOLDER}/')}",
                command(self.folder, MAIN),
                # Not by its exit status: a run that was stopped is begun again.
                creates=f"{self.folder}/{measure.COMPLETE}",
                long=True,
                timeout_s=self.limit_s,
            ),
        ]


def command(folder: str, module: str, *words: str) -> tuple[str, ...]:
    """Return the command that runs one of the programs in a folder of a run."""
    started = own_program.entry(f"{folder}/{ARCHIVE}", module)
    return ("python3", "-I", "-S", "-B", *started, folder, *words)


def measured(session: Session) -> str:
    """Return the folder whose cells are being measured on a node; empty where none are."""
    return session.run(["sh", "-c", MEASURED, measure.LOCK]).stdout.strip()


def stop(session: Session, folder: str) -> None:
    """Have the process that measures the cells of a folder end, the cell in progress included."""
    _do(session, "touch", f"{folder}/stop")


def may_go_on(session: Session, folder: str) -> None:
    """Take an earlier `stop` back."""
    _do(session, "rm", "-f", f"{folder}/stop")


def _do(session: Session, *argv: str) -> None:
    done = session.run(list(argv))
    if done.status != 0:
        raise Failed(f"{' '.join(argv)}: {done.stderr.strip() or f'status {done.status}'}")


def fetch(files: NodeFiles, folder: str, into: Path) -> list[str]:
    """Copy what was measured from the node; returns the files that are too large to copy.

    Raises:
        Failed: an answer of the node is not what was asked for.
    """
    too_large, total = [], 0
    for place in ("cells", "raw"):
        for name, size in sorted(files.sizes(f"{folder}/{place}").items()):
            if size > LARGEST_BYTES:
                too_large.append(f"{place}/{name}")
                continue
            total += size
            if total > MOST_BYTES:
                raise Failed(f"{folder} holds more than {MOST_BYTES >> 20} MiB of results")
            content = files.read(f"{folder}/{place}/{name}", size)
            path = into / place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return too_large


# -- files of a node -------------------------------------------------------------------------------


class LocalFiles:
    """The files of a node on this machine, as far as its login user may read them.

    Args:
        node: its name in the inventory.
        root: where its file system begins.
    """

    def __init__(self, node: str, root: str) -> None:
        self._node = node
        self._root = root

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the regular files of a folder, by name, with their bytes; none without a folder.

        Raises:
            Failed: it cannot be read, or the answer is not a listing.
        """
        with (
            _named(self._node, folder),
            contextlib.suppress(FileNotFoundError),
            safe_paths.folder(Path(folder), self._root) as place,
            os.scandir(place) as entries,
        ):
            found = ((entry.name, entry.stat(follow_symlinks=False)) for entry in entries)
            return _regular((name, about.st_mode, about.st_size) for name, about in found)
        return {}

    def read(self, path: str, size: int) -> bytes:
        """Return up to `size` bytes of a regular file.

        Raises:
            Failed: it cannot be read.
        """
        with _named(self._node, path), safe_paths.file(Path(path), self._root) as file:
            return file.read(size)


class SftpFiles:
    """The files of a node over SSH, as `LocalFiles`.

    Args:
        node: its name in the inventory.
        sftp: fabric's client.
    """

    def __init__(self, node: str, sftp: paramiko.SFTPClient) -> None:
        self._node = node
        self._sftp = sftp

    def sizes(self, folder: str) -> dict[str, int]:
        with _named(self._node, folder), contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(self._sftp.lstat(folder).st_mode or 0):
                raise ValueError("it is not a folder")
            found = self._sftp.listdir_iter(folder, read_aheads=2)
            return _regular((one.filename, one.st_mode, one.st_size) for one in found)
        return {}

    def read(self, path: str, size: int) -> bytes:
        with _named(self._node, path), self._sftp.open(path, "rb") as file:
            file.prefetch(size)
            return file.read(size)


NodeFiles = LocalFiles | SftpFiles


@contextlib.contextmanager
def files_of(connections: Connections, name: str) -> Iterator[NodeFiles]:
    """Return the files of a connected node that its login user may read, for the block.

    Raises:
        Unreachable: its connection was lost, or the node hangs.
        Failed: it offers no SFTP.
    """
    connection = connections.connection(name)
    if isinstance(connection, LocalConnection):
        yield LocalFiles(name, connection.files_root())
        return
    with over(connections.fabric(name)) as files:
        yield files


@contextlib.contextmanager
def over(connection: Connection) -> Iterator[NodeFiles]:
    """Return the files of a node that is reached over SSH, for the block.

    Args:
        connection: fabric's; its SFTP session ends with the block.

    Raises:
        Failed: the node offers no SFTP.
        Unreachable: the connection ended, or the block took longer than LIMIT_S.
    """
    connection.open()
    node = connection.original_host
    lost = Unreachable(
        f"the connection ended while its files were read, for which it has {LIMIT_S:g} s",
        where=node,
        hint="run the same command again when it answers",
    )
    try:
        with limited(connection.transport, LIMIT_S, lost), contextlib.closing(connection):
            yield SftpFiles(node, _sftp(connection, node))
    except Failed as error:
        if connection.transport is not None and connection.transport.is_active():
            raise
        raise Unreachable(f"{lost.message}: {error}", where=node, hint=lost.hint) from None


@contextlib.contextmanager
def _named(node: str, path: str) -> Iterator[None]:
    """Name the node and the file in any error of reading it.

    Raises:
        Failed: in place of the error.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001  (what a node can make paramiko raise)
        why = str(error) or type(error).__name__
        raise Failed(f"reading {path}: {why[:200]}", where=node) from None


def _sftp(connection: Connection, node: str) -> paramiko.SFTPClient:
    try:
        found: paramiko.SFTPClient = connection.sftp()
    except Exception as error:  # noqa: BLE001  (what a node can make paramiko raise)
        raise Failed(
            f"it gives no files by SFTP: {str(error)[:200] or 'the channel was closed'}",
            where=node,
            hint="sshd_config there needs `Subsystem sftp internal-sftp`, or the package "
            "openssh-sftp-server",
        ) from None
    return found


def _regular(entries: Iterable[tuple[str, int | None, int | None]]) -> dict[str, int]:
    """Return names and sizes of regular files.

    Raises:
        ValueError: there are more than anyone needs.
    """
    found: dict[str, int] = {}
    for count, (name, mode, size) in enumerate(entries):
        if count >= MOST_FILES:
            raise ValueError(f"more than {MOST_FILES} files")
        if _is_name(name) and stat.S_ISREG(mode or 0) and size is not None:
            found[name] = size
    return found


def _is_name(text: str) -> bool:
    """Return whether a text can be the name of a file in a folder, here and on a screen."""
    is_short = len(text.encode(errors="replace")) <= NAME_BYTES
    return is_short and text not in ("", ".", "..") and "/" not in text and text.isprintable()
