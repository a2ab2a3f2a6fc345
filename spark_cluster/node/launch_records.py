"""Records of launches that became ready, kept on each node: what was started, what its log said.

Root's file, bounded and written durably. The laptop reads its text with `status`, so it is parsed
with the same code on both sides; what does not have the form of a record is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from spark_cluster.node import durable, paths

MOST = 48
"""Records that are kept, the ones used last; a record takes 1 to 3 KiB."""

LARGEST = 256 * 1024
"""Bytes of the file that are read; more is not ours."""

LATEST = 1e11
"""Seconds that no clock shows and nothing takes."""

MOST_KEYS = 32
"""Folders of compiled code in a record, and models."""


@dataclass(frozen=True)
class LaunchRecord:
    """A launch that became ready.

    Attributes:
        recipe: its name.
        engine, version: the inference engine, and the version that it answered with.
        image: id of the image (`sha256:...`); empty for a virtual environment.
        reference: as the recipe names the image, or the folder of the virtual environment.
        arguments: SHA-256 of the arguments and the environment that the engine is given.
        keys: folders below `torch_compile_cache` that its log named.
        models: those of the hub cache that it serves, ORG/NAME@COMMIT.
        outcome: `compiled` or `loaded` (from the cache) by its log; empty where it says neither.
        compile_s: seconds that torch.compile took by its log, of the slowest rank.
        run: id of the container, or of the unit's start, by which it is known again.
        last: when it last became ready, seconds since 1970 (UTC).
    """

    recipe: str
    engine: str = ""
    version: str = ""
    image: str = ""
    reference: str = ""
    arguments: str = ""
    keys: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    outcome: str = ""
    compile_s: float = 0.0
    run: str = ""
    last: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return it as it is written and sent."""
        return {**vars(self), "keys": list(self.keys), "models": list(self.models)}

    @property
    def launch(self) -> tuple[str, ...]:
        """What makes two records the same launch."""
        engine = (self.engine, self.version, self.image, self.reference)
        return (self.recipe, *engine, self.arguments)


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
    """Return a record from its JSON; None when a field has another type, or a time cannot be."""
    if not isinstance(one, dict) or not one.get("recipe"):
        return None
    found = {field.name: one[field.name] for field in fields(LaunchRecord) if field.name in one}
    keys, models = found.pop("keys", []), found.pop("models", [])
    numbers = {name: found[name] for name in ("compile_s", "last") if name in found}
    right = all(type(v) in (int, float) and 0 <= v < LATEST for v in numbers.values())
    right &= all(isinstance(found[name], str) for name in found.keys() - numbers.keys())
    if not (right and _are_texts(keys) and _are_texts(models)):
        return None
    return LaunchRecord(**found, keys=tuple(keys[:MOST_KEYS]), models=tuple(models[:MOST_KEYS]))


def _are_texts(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(one, str) for one in found)


def read(root: Path) -> list[LaunchRecord]:
    """Return the records of this node, newest first; none without the file."""
    try:
        with (root / paths.LAUNCHES.lstrip("/")).open("rb") as source:
            text = source.read(LARGEST + 1).decode(errors="replace")
    except OSError:
        return []
    return parse(text)


def served(root: Path) -> dict[str, float]:
    """Return when each model last became ready, ORG/NAME@COMMIT to seconds since 1970 (UTC)."""
    return {model: record.last for record in reversed(read(root)) for model in record.models}


def add(root: Path, record: LaunchRecord) -> LaunchRecord:
    """Keep a record; one of the same launch is replaced, and keeps its keys.

    A warm start loads the outer layout and logs that one only; both are of this launch.

    Raises:
        OSError: the disk is full, or not writable; the file is as it was.
    """
    known = read(root)
    same = next((one for one in known if one.launch == record.launch), None)
    if same is not None:
        keys = tuple(dict.fromkeys([*record.keys, *same.keys]))[:MOST_KEYS]
        record = replace(record, keys=keys)
    write(root, [record, *(one for one in known if one is not same)])
    return record


def write(root: Path, records: Iterable[LaunchRecord]) -> None:
    """Write the newest of these records.

    Raises:
        OSError: the disk is full, or not writable; the file is as it was.
    """
    path = root / paths.LAUNCHES.lstrip("/")
    durable.make_folder(path.parent)
    kept = sorted(records, key=lambda record: -record.last)[:MOST]
    listed = {"launches": [record.to_dict() for record in kept]}
    durable.write_file(path, json.dumps(listed, sort_keys=True, separators=(",", ":")).encode())
