"""Records of launches that became ready, kept on each node: what the caches there were made with.

Root's file, bounded and written durably. The laptop reads its text with `status`, so it is parsed
with the same code on both sides; what does not have the form of a record is left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spark_cluster.node import durable, paths

FILE = paths.LAUNCHES
"""On every node; mode 600 in a folder of mode 700."""

MOST = 48
"""Records that are kept, the ones used last; a record takes 1 to 4 KiB."""

LARGEST = 256 * 1024
"""Bytes of the file that are read; more is not ours."""

LONGEST = 400
"""Characters of a value that are kept as they are; of a longer one its SHA-256 is."""

MOST_ENTRIES = 200
"""Flags, variables, keys or sizes of a record."""


_TEXTS = ("recipe", "engine", "version", "image", "reference", "gpu", "model", "run")
_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(_TEXTS, (str,)),
    **dict.fromkeys(("tp", "nodes"), (int,)),
    **dict.fromkeys(("first", "last"), (int, float)),
}
_MAPPINGS: Mapping[str, type] = {"flags": str, "env": str, "sizes": int}


@dataclass(frozen=True)
class LaunchRecord:
    """A launch that became ready.

    Attributes:
        recipe: its name.
        engine, version: the inference engine, and the version that it answered with.
        image: id of the image (`sha256:...`); empty for a virtual environment.
        reference: as the recipe names the image, or the virtual environment and its packages.
        gpu: name of the node's GPU, which is a part of the compiler's own keys.
        model: path of the model, as the engine was given it.
        tp, nodes: tensor-parallel size, and nodes that served together.
        flags: of the engine, without dashes, as on the command line.
        env: the variables of the recipe that are a part of the key.
        keys: folders below `torch_compile_cache` that its log named.
        sizes: folder of the caches to bytes on this node when it was ready.
        run: id of the container, or of the unit's start, by which it is known again.
        first, last: when it first and last became ready, seconds since 1970 (UTC).
    """

    recipe: str
    engine: str = ""
    version: str = ""
    image: str = ""
    reference: str = ""
    gpu: str = ""
    model: str = ""
    tp: int = 1
    nodes: int = 1
    flags: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    run: str = ""
    first: float = 0.0
    last: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return it as it is written and sent."""
        return {**vars(self), "keys": list(self.keys)}

    @property
    def launch(self) -> tuple[Any, ...]:
        """What makes two records the same launch."""
        flags, env = (tuple(sorted(m.items())) for m in (self.flags, self.env))
        versions = (self.version, self.image, self.reference, self.gpu)
        return (self.recipe, self.engine, *versions, self.model, self.tp, self.nodes, flags, env)


def short(value: str) -> str:
    """Return a value as records keep it: a long one as its hash, which can be compared."""
    if len(value) <= LONGEST:
        return value
    return f"sha256:{hashlib.sha256(value.encode()).hexdigest()}"


def parse(text: str | None) -> list[LaunchRecord]:
    """Read the file's text, newest first; anything else than a record is left out."""
    if not text or len(text) > LARGEST:
        return []
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    records = found.get("launches") if isinstance(found, dict) else None
    if not isinstance(records, list):
        return []
    made = [record for one in records[:MOST] if (record := from_dict(one)) is not None]
    return sorted(made, key=lambda record: -record.last)


def from_dict(one: Any) -> LaunchRecord | None:
    """Return a record from its JSON; None when a field has another type."""
    if not isinstance(one, dict):
        return None
    values = {name: one[name] for name in _KINDS if name in one}
    if not values.get("recipe") or not all(
        type(value) in _KINDS[name] for name, value in values.items()
    ):
        return None
    mappings: dict[str, Any] = {
        name: _mapping(one.get(name), kind) for name, kind in _MAPPINGS.items()
    }
    keys = one.get("keys", [])
    fits = isinstance(keys, list) and all(isinstance(key, str) for key in keys)
    if not fits or None in mappings.values():
        return None
    return LaunchRecord(**values, **mappings, keys=tuple(keys[:MOST_ENTRIES]))


def _mapping(found: Any, kind: type) -> dict[str, Any] | None:
    if found is None:
        return {}
    if not isinstance(found, dict) or len(found) > MOST_ENTRIES:
        return None
    fits = all(isinstance(k, str) and type(v) is kind for k, v in found.items())
    return found if fits else None


def read(root: Path) -> list[LaunchRecord]:
    """Return the records of this node, newest first; none without the file."""
    try:
        with (root / FILE.lstrip("/")).open("rb") as source:
            text = source.read(LARGEST + 1).decode(errors="replace")
    except OSError:
        return []
    return parse(text)


def add(root: Path, record: LaunchRecord) -> LaunchRecord:
    """Keep a record; one of the same launch is replaced, and keeps its first time and its keys.

    A warm start loads the outer layout and logs that one only; both are of this launch.

    Raises:
        OSError: the disk is full, or not writable; the file is as it was.
    """
    known = read(root)
    same = next((one for one in known if one.launch == record.launch), None)
    if same is not None:
        keys = tuple(dict.fromkeys([*record.keys, *same.keys]))[:MOST_ENTRIES]
        record = replace(record, first=same.first, keys=keys)
    write(root, [record, *(one for one in known if one is not same)])
    return record


def write(root: Path, records: Iterable[LaunchRecord]) -> None:
    """Write the newest of these records, as many as fit.

    Raises:
        OSError: the disk is full, or not writable; the file is as it was.
    """
    path = root / FILE.lstrip("/")
    durable.make_folder(path.parent)
    kept = sorted(records, key=lambda record: -record.last)[:MOST]
    while len(data := _encoded(kept)) > LARGEST and kept:
        kept.pop()
    durable.write_file(path, data)


def _encoded(records: list[LaunchRecord]) -> bytes:
    listed = {"launches": [record.to_dict() for record in records]}
    return json.dumps(listed, sort_keys=True, separators=(",", ":")).encode()
