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
    """SHA-256 of `code()`, hex."""
    return hashlib.sha256(code()).hexdigest()


def argv(run: str) -> list[str]:
    """The agent's command line; `run` is only a label for who looks at the process list."""
    return ["python3", "-I", "-S", "-u", "-c", COMMAND, "spark-cluster-agent", run]


def opening(first: bytes, *, root: str, as_root: bool) -> bytes:
    """All that goes down before the first answer is waited for.

    Args:
        first: the first request, a packed frame.
        root: where the node's file system begins; "/" but in tests.
        as_root: the agent runs as root (its code is kept in root's folder).
    """
    source = (PACKAGE / "agent" / "bootstrap.py").read_bytes()
    folder = ROOT_FOLDER if as_root and root == "/" else USER_FOLDER
    head = frames.pack({"sha256": digest(), "folder": folder, "root": root})
    return MARKER + b"\n%d\n" % len(source) + source + head + first
