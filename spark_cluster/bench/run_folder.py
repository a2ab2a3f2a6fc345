"""The folder of a run on the laptop: `run.json`, `raw/`, `logs/`; what is written is whole."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from spark_cluster.bench.record import FORMAT, Record
from spark_cluster.bench.worker import write_durably
from spark_cluster.errors import InvalidFile, UsageError

RECORD = "run.json"


def load_record(run: Path) -> Record:
    """Read the record of a run, from its folder or the file itself.

    Raises:
        UsageError: there is none.
        InvalidFile: it is not a record, or one of another format.
    """
    path = run / RECORD if run.is_dir() else run
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}", hint="give the folder of a run, which has a run.json"
        ) from None
    try:
        found = json.loads(text)
        if isinstance(found, dict) and found.get("format") != FORMAT:
            raise InvalidFile(f"{path}: format: found {found.get('format')!r}, expected '{FORMAT}'")
        return Record.model_validate(found)
    except json.JSONDecodeError as error:
        raise InvalidFile(f"{path}:{error.lineno}: no JSON: {error.msg}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidFile(f"{path}: {place}: {first['msg']}") from None


def save_record(record: Record, folder: Path) -> None:
    """Write the record of a run; it is there whole or as it was before."""
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(folder / RECORD, record.model_dump_json(indent=1) + "\n")
