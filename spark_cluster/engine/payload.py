"""What is sent to start an agent: a tiny command line, the bootstrap, the code where it lacks."""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path

from spark_cluster.agent import frames

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

ROOT_FOLDER = "/var/lib/spark-cluster/agent"
USER_FOLDER = "~/.cache/spark-cluster/agent"


@cache
def code() -> bytes:
    """The agent and all resources as a zip; the same bytes for the same sources."""
    files = [PACKAGE / "__init__.py"]
    for folder in ("agent", "resources"):
        files += sorted((PACKAGE / folder).glob("*.py"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            name = str(path.relative_to(PACKAGE.parent))
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


@cache
def digest() -> str:
    """SHA-256 of the files in `code()`, hex, as the bootstrap computes it from what it finds."""
    total = hashlib.sha256()
    with zipfile.ZipFile(io.BytesIO(code())) as archive:
        for name in sorted(archive.namelist()):
            data = archive.read(name)
            total.update(f"{name} {len(data)}\n".encode() + data)
    return total.hexdigest()


@cache
def zip_digest() -> str:
    """SHA-256 of `code()` itself, hex: by it the bootstrap knows the zip from a request."""
    return hashlib.sha256(code()).hexdigest()


def argv(run: str, *, says_ready: bool = False) -> list[str]:
    """The agent's command line.

    Args:
        run: a label for who looks at the process list.
        says_ready: it says that it runs before it gets its code.
    """
    command = READY_COMMAND if says_ready else COMMAND
    return ["python3", "-I", "-S", "-u", "-c", command, "spark-cluster-agent", run]


def opening(first: bytes, *, root: str, as_root: bool) -> bytes:
    """All that goes down before the first answer is waited for.

    Args:
        first: the first request, a packed frame.
        root: where the node's file system begins; "/" but in tests.
        as_root: the agent runs as root (its code is kept in root's folder).
    """
    source = (PACKAGE / "agent" / "bootstrap.py").read_bytes()
    folder = ROOT_FOLDER if as_root and root == "/" else USER_FOLDER
    head = frames.pack({"sha256": digest(), "zip": zip_digest(), "folder": folder, "root": root})
    return MARKER + b"\n%d\n" % len(source) + source + head + first
