"""`python -m benchmarks.shapes FOLDER`: make the table of shapes from published configs.

`sources.json` says where each config was published: a file of a public repository at a commit,
expected at FOLDER/OWNER+NAME/PATH, or figures that a source gives in another form (`config`). Of a
config that is kept which changes the shape: a key goes when the shape is the same without it.
Entries of the table that `sources.json` does not name stay as they are.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_cluster.errors import SparkClusterError
from spark_cluster.models import config as configs
from spark_cluster.models.naming import of_build
from spark_cluster.models.shape import Geometry
from spark_cluster.models.weights import parameters

SOURCES = Path(__file__).parent / "sources.json"
TABLE = Path(configs.__file__).parent / "data/shapes.json"

OFF = 0.12
"""Most that the parameters may differ from the number in a model's name: names are rounded."""

Config = dict[str, Any]


def shape(config: Mapping[str, Any]) -> Geometry | None:
    """Return the shape of a config; None where it has none."""
    try:
        return configs.from_config(config, "")
    except SparkClusterError:
        return None


def kept(config: Config) -> Config:
    """Return what of a config its shape follows from, large values first."""
    wanted, found = shape(config), copy.deepcopy(config)
    _drop(found, found, wanted)
    return found


def _drop(level: Config, whole: Config, wanted: Geometry | None) -> None:
    for key in sorted(level, key=lambda key: -len(json.dumps(level[key]))):
        value = level.pop(key)
        if shape(whole) == wanted:
            continue
        level[key] = value
        if isinstance(value, dict):
            _drop(value, whole, wanted)


def read(row: Mapping[str, Any], folder: Path) -> Config:
    """Return the config of a source, with the quantization that lies next to it."""
    if "config" in row:
        return dict(row["config"])
    checkout = folder / row["repository"].replace("/", "+")
    config: Config = json.loads((checkout / row["path"]).read_text(encoding="utf-8"))
    name = "hf_quant_config.json"
    beside = checkout / row["path"].replace("config.json", name)
    if beside.is_file():
        document = json.loads(beside.read_text(encoding="utf-8"))
        return dict(configs.with_quantization(config, name, document))
    return config


def must_fit_its_name(name: str, found: Geometry) -> None:
    """Check the parameters against those that the name says (`35B-A3B`): a config can be wrong.

    Names count what sees and hears beside the language model, or leave it out.

    Raises:
        SystemExit: they are not about as many.
    """
    said = re.search(r"(?<![\w.])(\d+(?:\.\d+)?)B(?![a-z]|-\d+E)", name)
    whole = (sum(parameters(found).values()) + found.table_parameters) / 1e9
    language = whole - found.other_parameters / 1e9
    if said and not any(_near(size, float(said[1])) for size in (whole, language)):
        sys.exit(f"{name}: its config gives {whole:.1f} billion parameters")


def _near(size: float, said: float) -> bool:
    """Whether parameters, in billions, are about those of a name."""
    return abs(size / said - 1) <= OFF or abs(size - said) <= 1


def entry(row: Mapping[str, Any], folder: Path) -> Config:
    """Return the entry of the table for a source."""
    config = kept(read(row, folder))
    found = shape(config)
    if found is None:
        sys.exit(f"{row['name']}: its config cannot be read")
    must_fit_its_name(row["name"], found)
    at = f"{row['repository']}@{row['commit'][:12]}" if "repository" in row else row["source"]
    place = f"{at}:{row['path']}" if "path" in row else at
    native = {} if of_build(row["name"]) else {"native": found.quantization or "bf16"}
    aliases = row.get("aliases", [])
    made = {"name": row["name"], "aliases": aliases, **native, "source": place}
    return {**made, "date": row["date"], "config": config}


def main() -> None:
    """Write the table."""
    folder = Path(sys.argv[1])
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    rows = json.loads(SOURCES.read_text(encoding="utf-8"))["models"]
    named = {row["name"] for row in rows}
    entries = [one for one in table["models"] if one["name"] not in named]
    entries += [entry(row, folder) for row in rows]
    names = [name for one in entries for name in (one["name"], *one["aliases"])]
    if twice := {name for name in names if names.count(name) > 1}:
        sys.exit(f"named twice: {', '.join(sorted(twice))}")
    lines = ",\n".join(f"    {json.dumps(one)}" for one in entries)
    text = f'{{\n  "note": {json.dumps(table["note"])},\n  "models": [\n{lines}\n  ]\n}}\n'
    TABLE.write_text(text, encoding="utf-8")
    print(f"{len(entries)} models")


if __name__ == "__main__":
    main()
