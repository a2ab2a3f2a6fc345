"""The archive of `logs --bundle`: texts with secrets masked, within limits, and a list of them."""

from __future__ import annotations

import io
import json
import shlex
import tarfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from spark_cluster.config.secret import masked
from spark_cluster.config.yamlfile import table_beside
from spark_cluster.engine import runtime
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.proxy import UNIT
from spark_cluster.errors import Failed, naming
from spark_cluster.node import containers, durable
from spark_cluster.node.output import shortened
from spark_cluster.node.replies import at, decoded
from spark_cluster.node.values import mask
from spark_cluster.runner.session import Session

LARGEST = 1024 * 1024
"""Bytes of one text; of more, the first quarter and the rest from the end."""

MOST = 32 * 1024 * 1024
"""Bytes of all texts, before they are compressed."""

CONTENTS = "CONTENTS.txt"

HEADER = """\
Made by `spark-cluster logs --bundle` for an issue report. Look through it before you publish it.
Masked: what looks like a secret, and the secrets that the inventory names. Values of environment
variables are left out. Not masked: names and addresses of nodes, paths, names of models, and what
programs log of requests.

"""


@dataclass(frozen=True)
class BundleEntry:
    """A text in the archive.

    Attributes:
        name: its path there.
        bytes: of its text.
        cut: the middle of it was left out, for it was too long.
    """

    name: str
    bytes: int
    cut: bool = False


@dataclass
class BundleArchive:
    """An archive that is being filled.

    Args:
        folder: name of the one folder in it.
        secrets: texts that are masked wherever they are found.

    Attributes:
        left_out: names of texts for which there was no more room.
    """

    folder: str
    secrets: frozenset[str] = frozenset()
    left_out: list[str] = field(default_factory=list)
    _texts: dict[str, bytes] = field(default_factory=dict)
    _cut: set[str] = field(default_factory=set)

    def add(self, name: str, text: str) -> None:
        """Add a text; an empty one is not added."""
        if not text.strip():
            return
        data = shortened(text, LARGEST, first=0.25)
        data = masked(str(mask(data, self.secrets)))
        encoded = data.encode(errors="replace")
        if sum(map(len, self._texts.values())) + len(encoded) > MOST:
            self.left_out.append(name)
            return
        self._texts[name] = encoded
        if len(text) > LARGEST:
            self._cut.add(name)

    def add_json(self, name: str, document: Any) -> None:
        """Add a JSON document."""
        self.add(name, json.dumps(document, indent=2, default=str) + "\n")

    @property
    def entries(self) -> list[BundleEntry]:
        """What is in it."""
        return [BundleEntry(n, len(t), n in self._cut) for n, t in self._texts.items()]

    def write(self, path: Path) -> None:
        """Write it as a gzipped tar archive that its user alone can read.

        Raises:
            Failed: there is such a file already, or it cannot be written.
        """
        must_be_new(path)
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz") as archive:
            contents = _contents(self.entries, self.left_out).encode()
            for name, data in {CONTENTS: contents, **self._texts}.items():
                info = tarfile.TarInfo(f"{self.folder}/{name}")
                info.size, info.mode, info.mtime = len(data), 0o600, int(time.time())
                archive.addfile(info, io.BytesIO(data))
        with naming(Failed, "the archive cannot be written", where=str(path)):
            durable.write_file(path, out.getvalue())


def must_be_new(path: Path) -> None:
    """Raise Failed where there is such a file already."""
    if path.exists():
        raise Failed(
            "there is a file of this name already",
            where=str(path),
            hint="give another one: --bundle FILE",
        )


def _contents(entries: Iterable[BundleEntry], left_out: Iterable[str]) -> str:
    rows = [f"{e.bytes:>9}  {e.name}{'  (its middle is cut)' if e.cut else ''}" for e in entries]
    rows += [f"        -  {name}  (left out: the archive is full)" for name in left_out]
    return HEADER + "\n".join(rows) + "\n"


def listed(entries: Iterable[BundleEntry]) -> list[dict[str, Any]]:
    """Return the contents as `--json` prints them."""
    return [asdict(entry) for entry in entries]


# Questions to a node for `logs --bundle`: logs, states, versions.

LINES = 5000
"""Lines at the end of an engine's log."""

FIRST_BYTES = 500_000
"""Bytes at its beginning, where versions and flags are."""

ASKS_S = 30.0
"""Seconds that each command may take."""

INSPECT = "inspect"

_SEVERAL = shlex.join(runtime.servers_question())
"""Prints the names of the servers of several models."""

_LOG_OF_ONE = f'echo "==> $name"; docker logs --timestamps --tail {LINES} "$name" 2>&1'

_JOURNAL = "journalctl --quiet --no-pager --utc --output short-iso"


@cache
def _questions() -> dict[str, list[str]]:
    """Return names in the archive with the commands that are asked: logs first."""
    listed = table_beside(__file__, "bundle.toml")
    words = {"journal": _JOURNAL, "endpoint": UNIT}
    return {
        f"{SERVER}.log": runtime.log(SERVER, LINES),
        f"{SERVER}.beginning.log": runtime.beginning(SERVER, FIRST_BYTES),
        f"{RAY}.log": runtime.log(RAY, LINES),
        "spark-vllm-models.log": ["sh", "-c", f"for name in $({_SEVERAL}); do {_LOG_OF_ONE}; done"],
        INSPECT: ["sh", "-c", f"docker container inspect {SERVER} {RAY} $({_SEVERAL})"],
        **{name: shlex.split(line.format(**words)) for name, line in listed.items()},
    }


def ask(session: Session) -> dict[str, str]:
    """Return the texts of one node by their names; empty where a program is not there."""
    commands = _questions()
    answer = session.request("gather", commands=commands, timeout=ASKS_S)
    found = {name: _text(answer["commands"].get(name)) for name in commands}
    for name, late in answer["late"].items():
        found[name] = f"{found.get(name, '')}{late}\n"
    for name in (f"{SERVER}.log", f"{RAY}.log"):
        found[name] = containers.stamped(found[name])
    found[f"{INSPECT}.json"] = without_env_values(found.pop(INSPECT))
    return found


def _text(done: Mapping[str, Any] | None) -> str:
    """Return both outputs; None is a program that is not there or did not answer."""
    if done is None:
        return ""
    return f"{done['stdout']}{done['stderr']}"


def without_env_values(inspected: str) -> str:
    """Return what `docker container inspect` printed, with variables' names only.

    Text that is not understood is left out: nobody knows what is in it.
    """
    text, _, _ = inspected.partition("\nError")
    containers = decoded(text)
    if not isinstance(containers, list):
        return ""
    for container in containers:
        config = at(container, "Config")
        if isinstance(config, dict) and "Env" in config:
            config["Env"] = _names(config["Env"])
    return json.dumps(containers, indent=2) + "\n" if containers else ""


def _names(variables: Any) -> list[str]:
    listed: Iterable[Any] = variables if isinstance(variables, list) else ()
    return [str(one).partition("=")[0] for one in listed]
