"""Secrets that a program of ours reads from files: one folder a program, which only root enters."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping

from spark_cluster.node import paths
from spark_cluster.node.host import Host
from spark_cluster.node.values import Secret

SECRETS = paths.SECRETS


def secret_path(program: str, path: str) -> str:
    """Return where the node keeps the secret file that a program sees as `path`."""
    return f"{SECRETS}/{program}/{_file(path)}"


def compare(host: Host, program: str, wanted: Mapping[str, Secret]) -> str:
    """Return whether the files on the node are those declared: `as declared`, `others`, `none`."""
    folder = host.path(f"{SECRETS}/{program}")
    if not folder.is_dir():
        return "none"
    found = {p.name: p.read_bytes() for p in folder.iterdir()}
    declared = {_file(path): value.encode() for path, value in wanted.items()}
    return "as declared" if found == declared and declared else "others"


def write(host: Host, program: str, files: Mapping[str, Secret]) -> None:
    """Replace the program's files, not through `host.write`: the journal would keep the old ones.

    Without files the folder goes.
    """
    folder = host.path(f"{SECRETS}/{program}")
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
    if not files:
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.parent.chmod(0o700)
    folder.mkdir(mode=0o700)
    for path, value in files.items():
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(folder / _file(path), flags, 0o600), "wb") as out:
            out.write(value.encode())
            out.flush()
            os.fsync(out.fileno())


def _file(path: str) -> str:
    """The name on the node of the file that a program sees as `path`."""
    return f"{path.rsplit('/', 1)[1]}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"
