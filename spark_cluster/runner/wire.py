"""The wire to one node's agent: the Python that is sent, how it starts, frames, why it ended."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cluster.agent import bootstrap, frames
from spark_cluster.config.extension import extensions_in_use
from spark_cluster.node import paths

if TYPE_CHECKING:
    from spark_cluster.resources.file import File


# Programs of ours that run on nodes without an agent: archives that units start.

PACKAGE = Path(__file__).resolve().parent.parent


def program(folder: str, *modules: str) -> File:
    """Return the file by which programs (`own_program`) run without the agent, in units.

    It is an archive that is named by its hash, so that it is another file when,
    and only when, the program is another one. `own_program.entry` starts it; `UnusedPrograms`
    removes the one before.

    Args:
        folder: on the node; only root may write there.
    """
    from spark_cluster.resources.file import File  # late, as is zipfile: few commands want them

    content = archive(*modules)
    return File(f"{folder}/{hashlib.sha256(content).hexdigest()}.pyz", content=content)


@cache
def archive(*modules: str) -> bytes:
    """Return an archive of programs, and all that they import."""
    files = imported(*modules, "spark_cluster.node.__main__")
    files["spark_cluster/__init__.py"] = b""  # or a new version alone would be another program
    # Not compressed: the same files are the same archive, whatever zlib this machine has.
    return packed(files.items(), compressed=False)


def imported(*modules: str) -> dict[str, bytes]:
    """Return the files of modules with all that they need of this package, by path.

    They need what they import (but for types), and the modules of `node` whose names stand in them
    as texts: programs that they start.
    """
    found: dict[str, bytes] = {}
    left = [module.partition(":")[0] for module in modules]
    while left:
        name = left.pop()
        path = _file_of(name)
        if path is None or str(path.relative_to(PACKAGE.parent)) in found:
            continue
        source = path.read_bytes()
        found[str(path.relative_to(PACKAGE.parent))] = source
        left += [*_named(ast.parse(source)), name.rpartition(".")[0]]
    return dict(sorted(found.items()))


def _named(node: ast.AST) -> Iterator[str]:
    """Yield what a syntax tree imports, and the texts that are names of modules of `node`."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from re.findall(r"^(spark_cluster\.node\.[\w.]+)(?::\w+)?$", node.value)
    for below in ast.iter_child_nodes(node):
        yield from _named(below)


def _file_of(module: str) -> Path | None:
    """Return the file of a module of this package; None where there is none of that name."""
    if re.fullmatch(r"spark_cluster(\.\w+)*", module) is None:
        return None
    path = PACKAGE.parent / module.replace(".", "/")
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def packed(files: Iterable[tuple[str, bytes]], *, compressed: bool) -> bytes:
    """Return a zip of files, by path; the same one for the same files."""
    import zipfile

    compression = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files:
            archive.writestr(zipfile.ZipInfo(name), data, compression, 9)
    return buffer.getvalue()


# The payload that starts an agent: a command line, the bootstrap, the code by its hash.

CodeFiles = tuple[tuple[str, bytes], ...]
"""Files by their path in the payload."""

MARKER = b"spark-cluster:begin"

COMMAND = (
    "import os;f=os.fdopen(0,'rb');"
    f"any(l.strip()=={MARKER!r} for l in f)and(exec(f.read(int(f.readline()))),boot(f))"
)
"""Drops lines up to the marker (sudo may not have taken the password), then runs the bootstrap. It
is one line, because csh ends a quoted word where a line ends."""

READY = b'{"event":"ready"}'

READY_COMMAND = f"import os;os.write(1,{len(READY).to_bytes(4, 'big') + READY!r});{COMMAND}"
"""The same for who waits until sudo has let it through."""

ROOT_FOLDER = paths.AGENT
USER_FOLDER = "~/.cache/spark-cluster/agent"

FOLDERS = ("agent", "node", "resources")
"""Folders of the package that every agent gets."""

UNITS = (
    "spark_cluster/node/completions.py",
    "spark_cluster/node/local_server.py",
    "spark_cluster/node/measure.py",
    "spark_cluster/node/model_loader.py",
    "spark_cluster/node/supervisor.py",
)
"""Modules of programs that units start from archives of their own (`program` below)."""

LAPTOP_ONLY = {PACKAGE / "agent" / "messages.py"}
"""The module next to the agent with which the laptop checks what the agent says."""


def code() -> bytes:
    """Return the agent's code as a zip, which is sent where it is lacking.

    It holds the agent itself, `node` and all resources, those of the project in use too.
    """
    return _zip(_own())


def digest() -> str:
    """Return the SHA-256 of the agent's code, hex, as the bootstrap computes it from what it
    finds."""
    return _digest(_own())


def _own() -> CodeFiles:
    found = extensions_in_use()
    return () if found is None else found.resource_files


@cache
def _shipped() -> CodeFiles:
    """Return our own files, by path."""
    found = {"spark_cluster/__init__.py": (PACKAGE / "__init__.py").read_bytes()}
    for folder in FOLDERS:
        for file in sorted((PACKAGE / folder).rglob("*.py")):
            path = str(file.relative_to(PACKAGE.parent))
            if path not in UNITS and file not in LAPTOP_ONLY:
                found[path] = file.read_bytes()
    return tuple(found.items())


@cache
def _zip(own: CodeFiles) -> bytes:
    return packed((*_shipped(), *own), compressed=True)


@cache
def _digest(own: CodeFiles) -> str:
    return bootstrap.digest((*_shipped(), *own))


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


# A two-way byte stream to an agent, as a session needs it.

TAKES_NOTHING_S = 30.0
"""Seconds in which an agent takes not one byte more; then it is lost."""

SLOWEST = 4096
"""Bytes a second that must come and go, on average, of what takes longer than some seconds; the
slowest link to work over."""

SLICE = 64 * 1024
"""Bytes sent or received at once; paramiko copies what is left after each packet."""

SAID_BYTES = 1 << 20
"""Of standard error that are kept; a node may send without an end."""


class TakesNothing(OSError):
    """An agent does not read what is sent to it. Half a frame was sent: nothing can follow it."""


def must_take(taken: int, begun: float, last: float) -> None:
    """Check that an agent reads what is sent to it.

    Args:
        taken: bytes that it has taken since `begun`, the last of them at `last`.

    Raises:
        TakesNothing: it reads nothing, or less than a node that is well.
    """
    now = time.monotonic()
    if now - last > TAKES_NOTHING_S:
        raise TakesNothing(f"the node has read nothing for {TAKES_NOTHING_S:g} s")
    if now - begun > TAKES_NOTHING_S + taken / SLOWEST:
        raise TakesNothing(f"the node has read only {taken} bytes in {now - begun:.0f} s")


class Channel(ABC):
    """The connection to an agent's process that a session needs.

    Args:
        stream: a socket, or what has `send`, `recv` and `settimeout` as one.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def send(self, data: bytes) -> None:
        """Send all of it. Raises OSError when the connection is gone."""
        rest = memoryview(data)
        begun = last = time.monotonic()
        while rest:
            must_take(len(data) - len(rest), begun, last)
            with contextlib.suppress(TimeoutError):  # that of `receive`; a window may need longer
                rest = rest[self._stream.send(bytes(rest[:SLICE])) :]
                last = time.monotonic()

    def receive(self, timeout: float) -> bytes:
        """Return what has come; empty at the end. Raises TimeoutError after `timeout` seconds."""
        self._stream.settimeout(timeout)
        return bytes(self._stream.recv(SLICE))

    @abstractmethod
    def stderr(self) -> str:
        """Return what has come on standard error so far."""

    @abstractmethod
    def status(self) -> int | None:
        """Return the exit status, once it has ended and reported one."""

    @abstractmethod
    def close(self) -> None:
        """End the connection; the agent sees the end of its input."""
