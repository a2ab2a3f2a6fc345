"""The payload that starts an agent: a command line, the bootstrap, the code by its hash."""

from __future__ import annotations

import json
from functools import cache

from spark_cluster.agent import bootstrap, frames
from spark_cluster.config.extension import extensions_in_use
from spark_cluster.config.programs import PACKAGE, packed
from spark_cluster.node import paths

ProjectFiles = tuple[tuple[str, bytes], ...]
"""Files of a project's own resources by their path in the payload."""

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

CORE = ""
"""Name of what every agent gets: all but the parts."""

PARTS: dict[str, tuple[str, ...]] = {
    CORE: ("spark_cluster/agent/", "spark_cluster/node/", "spark_cluster/resources/"),
    "probes": ("spark_cluster/node/probes.py",),
    "store": (
        "spark_cluster/agent/model_store.py",
        "spark_cluster/node/store/",
        "spark_cluster/resources/hub_model.py",
    ),
    "tuner": ("spark_cluster/node/kernel_tuner.py", "spark_cluster/resources/tuned_kernels.py"),
}
"""Each part of the agent's code and where its files are. A part is sent when an operation or a
resource first needs one of its modules (`OwnCode` in agent/main.py)."""

UNITS = (
    "spark_cluster/node/completions.py",
    "spark_cluster/node/local_server.py",
    "spark_cluster/node/measure.py",
    "spark_cluster/node/model_loader.py",
    "spark_cluster/node/supervisor.py",
)
"""Modules of programs that units start from archives of their own (config/programs.py)."""

LAPTOP_ONLY = {PACKAGE / "agent" / "messages.py"}
"""The module next to the agent with which the laptop checks what the agent says."""


def code(part: str = CORE) -> bytes:
    """Return a part of the agent's code as a zip, which is sent where it is lacking.

    It holds the agent itself, `node` and all resources, those of the project in use too.
    """
    return _zip(part, _own())


def sent(part: str) -> bytes:
    """Return the frames that answer an agent which asks for a part of its code."""
    head = frames.pack({"op": "code"}) if part else b""  # the bootstrap knows no operations
    return head + frames.pack(code(part))


def digest() -> str:
    """Return the SHA-256 of the agent's code, hex, as the bootstrap computes it from what it finds.

    It names the parts too: PARTS in it has their digests.
    """
    return _digest(_own())


def _own() -> ProjectFiles:
    found = extensions_in_use()
    return () if found is None else found.resource_files


@cache
def _shipped() -> dict[str, dict[str, bytes]]:
    """Return the files of each part, by path."""
    found: dict[str, dict[str, bytes]] = {part: {} for part in PARTS}
    found[CORE]["spark_cluster/__init__.py"] = (PACKAGE / "__init__.py").read_bytes()
    for folder in PARTS[CORE]:
        for file in sorted((PACKAGE.parent / folder).rglob("*.py")):
            path = str(file.relative_to(PACKAGE.parent))
            if not path.startswith(UNITS) and file not in LAPTOP_ONLY:
                found[_part_of(path)][path] = file.read_bytes()
    later = {
        part: {"sha256": bootstrap.digest(files.items()), "files": list(files)}
        for part, files in found.items()
        if part
    }
    found[CORE][bootstrap.PARTS] = json.dumps(later).encode()
    return found


def _part_of(path: str) -> str:
    return next((part for part, places in PARTS.items() if part and path.startswith(places)), CORE)


@cache
def _zip(part: str, own: ProjectFiles) -> bytes:
    files = {**_shipped()[part], **(dict(own) if part == CORE else {})}
    return packed(files.items(), compressed=True)


@cache
def _digest(own: ProjectFiles) -> str:
    return bootstrap.digest((*_shipped()[CORE].items(), *own))


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
