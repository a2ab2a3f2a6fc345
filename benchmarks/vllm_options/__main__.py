"""`python -m benchmarks.vllm_options FOLDER`: make `lint`'s table of vLLM's options.

Beside options it has their values, and the variables of the environment. FOLDER has the source of
each release in a folder of its version (`0.33.0/vllm/...`), as the source distributions have it;
nothing of it is executed. Each is written with the first release that has it and the first without
it: null where the oldest that was read has it already, and where the newest still does. What
stands in the place of an option that went (`instead`) is written by hand, and kept.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path

from packaging.version import Version

from benchmarks.vllm_options.source import BACKENDS, options, values, variables
from spark_cluster import issues

TABLE = Path(issues.__file__).parent / "data/vllm_options.json"

SOURCE = (
    "python -m benchmarks.vllm_options: arguments of vllm/engine/arg_utils.py and of "
    "vllm/entrypoints/*/cli_args.py, types of vllm/config, vllm/envs.py, and the tables of "
    "parsers, loaders and attention backends, from the released source distributions"
)

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


def read(folder: Path) -> dict[str, object]:
    """Return the table from the sources in a folder."""
    releases = {Version(path.name): path for path in folder.iterdir() if (path / "vllm").is_dir()}
    known = {release: options(path) for release, path in releases.items()}
    takes = {  # before, the tables were elsewhere
        release: values(path) for release, path in releases.items() if (path / BACKENDS).is_file()
    }
    newest = takes[max(releases)]
    limited = [  # in every release that has the option
        name
        for name in sorted(newest)
        if all(
            name in taken
            for release, taken in takes.items()
            if name.partition(".")[0] in known[release]
        )
    ]
    return {
        "source": SOURCE,
        "read": date.today().isoformat(),
        "oldest": str(min(releases)),
        "newest": str(max(releases)),
        "options": spans(known),
        "variables": spans({release: variables(path) for release, path in releases.items()}),
        "values": {
            name: spans({release: taken[name] for release, taken in takes.items() if name in taken})
            for name in limited
        },
    }


def main() -> None:
    """Write the table, and print what of it is new or gone."""
    old = json.loads(TABLE.read_text(encoding="utf-8"))
    table = read(Path(sys.argv[1])) | {"instead": old["instead"]}
    for key in ("options", "variables", "values"):
        before, now = old.get(key, {}), table[key]
        assert isinstance(now, dict)
        differ = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        print(f"{key}: {len(now)}, different: {', '.join(sorted(differ)) or 'none'}")
    text = re.sub(r"\[\s+(\S+),\s+(\S+)\s+\]", r"[\1, \2]", json.dumps(table, indent=1))
    TABLE.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
