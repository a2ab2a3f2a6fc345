"""`python -m benchmarks.vllm_options FOLDER`: make `lint`'s tables of options and models.

FOLDER has the source of each release of vLLM or SGLang in a folder of its version
(`0.33.0/vllm/...`, `0.5.23/sglang/...`); nothing of it is executed. Options, their values,
variables of the environment, architectures and those of them that do not do what most do are each
written with the first release that has it and the first without it: null where the oldest that was
read has it already, and where the newest still does. Other keys of the tables are written by hand,
and kept.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from types import ModuleType

from packaging.version import Version

from benchmarks.vllm_options import sglang, source
from spark_cluster import issues

DATA = Path(issues.__file__).parent / "data"

READERS = {"vllm": source, "sglang": sglang}

ABILITIES = {"lora": "SupportsLoRA", "stages": "SupportsPP"}
"""What not every model does, and the interface of those that do."""

PAIR, PAIRED = re.compile(r"\[\s+(\S+),\s+(\S+)\s+\]"), r"[\1, \2]"
"""Releases of a name, which are one line."""

Span = list[str | None]


def spans(named: Mapping[Version, Iterable[str]]) -> dict[str, Span]:
    """Return each name with the first release that has it and the first without it."""
    releases = sorted(named)
    found: dict[str, Span] = {}
    for name in sorted({name for names in named.values() for name in names}):
        having = [release for release in releases if name in named[release]]
        since = None if having[0] == releases[0] else str(having[0])
        after = [release for release in releases if release > having[-1]]
        found[name] = [since, str(after[0]) if after else None]
    return found


def read(releases: Mapping[Version, Path], reader: ModuleType = source) -> dict[str, object]:
    """Return the table of options from the sources of releases."""
    known = {release: reader.options(path) for release, path in releases.items()}
    takes = {one: taken for one, path in releases.items() if (taken := reader.values(path))}
    missing = {  # in a release that has the option
        name
        for name in takes[max(releases)]
        for release, taken in takes.items()
        if name.partition(".")[0] in known[release] and name not in taken
    }
    return {
        "read": date.today().isoformat(),
        "options_of": f">={min(known)},<={max(known)}",
        "values_of": f">={min(takes)},<={max(takes)}",
        "options": spans(known),
        "variables": spans({one: reader.variables(path) for one, path in releases.items()}),
        "values": {
            name: spans({release: taken[name] for release, taken in takes.items() if name in taken})
            for name in sorted(takes[max(releases)].keys() - missing)
        },
    }


def read_models(releases: Mapping[Version, Path]) -> dict[str, object]:
    """Return the table of architectures from the sources of releases."""
    known = {release: source.architectures(path) for release, path in releases.items()}
    bases = {release: source.bases(path) for release, path in releases.items()}
    found: dict[str, object] = {"read": date.today().isoformat(), "architectures": spans(known)}
    for key, ability in ABILITIES.items():
        lacking = {
            release: [name for name in made if source.lacks(ability, made[name], bases[release])]
            for release, made in known.items()
        }
        found[f"without_{key}"] = spans(lacking)
    return found


def write(name: str, made: Mapping[str, object]) -> None:
    """Write a table."""
    path = DATA / f"{name}.json"
    text = json.dumps(json.loads(path.read_text(encoding="utf-8")) | made, indent=1)
    path.write_text(f"{PAIR.sub(PAIRED, text)}\n", encoding="utf-8")


def main() -> None:
    """Write the tables of each engine that the folder has sources of."""
    for engine, reader in READERS.items():
        folders = [path for path in Path(sys.argv[1]).iterdir() if (path / engine).is_dir()]
        if releases := {Version(path.name): path for path in folders}:
            write(f"{engine}_options", read(releases, reader))
            if reader is source:
                write("vllm_models", read_models(releases))


if __name__ == "__main__":
    main()
