"""The payload that starts an agent: a tiny command line, the bootstrap, the code it lacks."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from spark_cluster.agent import frames
from spark_cluster.loader.resources import ProjectFiles, loaded_files
from spark_cluster.node import paths

PACKAGE = Path(__file__).resolve().parent.parent

MARKER = b"spark-cluster:begin"

COMMAND = (
    "import os\n"
    "f=os.fdopen(0,'rb')\n"
    "for l in f:\n"
    f" if l.strip()=={MARKER!r}:exec(f.read(int(f.readline())));boot(f);break\n"
)
"""Drops lines up to the marker (sudo may not have taken the password), then runs the bootstrap."""

READY = b'{"event":"ready"}'

READY_COMMAND = f"import os\nos.write(1,{len(READY).to_bytes(4, 'big') + READY!r})\n{COMMAND}"
"""The same for who waits until sudo has let it through."""

ROOT_FOLDER = paths.AGENT
USER_FOLDER = "~/.cache/spark-cluster/agent"


UNITS = ("supervision", "model_loader")
"""Folders of `node` with programs of units, whose files roles put on the nodes themselves."""

LAPTOP_ONLY = {PACKAGE / "agent" / name for name in ("messages.py", "shape.py")}
"""Modules next to the agent with which the laptop checks what the agent says."""


@cache
def _shipped() -> dict[str, bytes]:
    paths = [PACKAGE / "__init__.py"]
    for folder in ("agent", "node", "resources"):
        paths += (PACKAGE / folder).rglob("*.py")
    paths = [p for p in paths if p.parent.name not in UNITS and p not in LAPTOP_ONLY]
    return {str(path.relative_to(PACKAGE.parent)): path.read_bytes() for path in sorted(paths)}


def files() -> dict[str, bytes]:
    """Return the code that an agent needs (itself, `node`, all resources), by path in the zip.

    The resources of the user's project are among it, once they are loaded.
    """
    return _shipped() | dict(loaded_files())


def code() -> bytes:
    """Return these files as a zip, which is sent where they are lacking."""
    return _zip(loaded_files())


def digest() -> str:
    """Return the SHA-256 of these files, hex, as the bootstrap computes it from what it finds."""
    return _digest(loaded_files())


@cache
def _zip(own: ProjectFiles) -> bytes:
    import io
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (*_shipped().items(), *own):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, 9)
    return buffer.getvalue()


@cache
def _digest(own: ProjectFiles) -> str:
    total = hashlib.sha256()
    for name, data in sorted((*_shipped().items(), *own)):
        total.update(f"{name} {len(data)}\n".encode() + data)
    return total.hexdigest()


def argv(run: str, *, says_ready: bool = False) -> list[str]:
    """The agent's command line.

    Args:
        run: a label for who looks at the process list.
        says_ready: it says that it runs before it gets its code.
    """
    command = READY_COMMAND if says_ready else COMMAND
    return ["python3", "-I", "-S", "-u", "-c", command, "spark-cluster-agent", run]


def opening(first: bytes, *, root: str, as_root: bool) -> bytes:
    """Return everything sent before the first answer is waited for.

    Args:
        first: the first request, a packed frame.
        root: where the node's file system begins; "/" but in tests.
        as_root: the agent runs as root (its code is kept in root's folder).
    """
    source = (PACKAGE / "agent" / "bootstrap.py").read_bytes()
    folder = ROOT_FOLDER if as_root and root == "/" else USER_FOLDER
    head = frames.pack({"sha256": digest(), "folder": folder, "root": root})
    return MARKER + b"\n%d\n" % len(source) + source + head + first
