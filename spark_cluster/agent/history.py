"""The history from the journal: which runs changed this node, and what each of them did."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from spark_cluster.node.durable import read_lines, read_object
from spark_cluster.node.journal import (
    CONTENTS_GONE,
    CONTENTS_LIMIT,
    Journal,
    SecretPaths,
    runs_in_order,
)
from spark_cluster.node.values import ResourceError

FOLDER = "var/lib/spark-cluster/journal"

Entry = dict[str, Any]


class History:
    """The journals of all runs on this node.

    Args:
        root: where the node's file system begins.
    """

    def __init__(self, root: Path) -> None:
        self.folder = root / FOLDER

    def runs(self) -> list[str]:
        """Ids of the runs that changed something, the oldest first."""
        return [p.name for p in runs_in_order(self.folder) if (p / "changes.jsonl").exists()]

    def find(self, name: str) -> str:
        """The run of this id, or of the only one that begins with it.

        Raises:
            ResourceError: there is none, or there are several.
        """
        runs = self.runs()
        found = [name] if name in runs else [run for run in runs if run.startswith(name)]
        if len(found) == 1:
            return found[0]
        if found:
            raise ResourceError(f"{name} can be {', '.join(found[-5:])}", "give more of it")
        close = difflib.get_close_matches(name, runs, n=2, cutoff=0.7)
        hint = f"did you mean {' or '.join(close)}?" if close else "see `spark-cluster history`"
        raise ResourceError(f"no run {name} has changed anything on this node", hint)

    def journal(self, run: str) -> Journal:
        """Return a run's journal, for the contents that it keeps."""
        return Journal(self.folder, run)

    def entries(self, run: str) -> list[Entry]:
        """Return what a run did, in order; entries torn by a crash are left out."""
        found, _ = read_lines(self.folder / run / "changes.jsonl")
        return [entry for entry in found if isinstance(entry, dict)]

    def notes(self, run: str) -> list[str]:
        """Return remarks on a run's journal itself: torn entries, missing contents."""
        _, torn = read_lines(self.folder / run / "changes.jsonl")
        notes = []
        if torn:
            number = "one entry was" if torn == 1 else f"{torn} entries were"
            change = "its change" if torn == 1 else "their changes"
            notes.append(f"{number} torn by a crash before {change} began; the others are whole")
        if (self.folder / run / CONTENTS_GONE).exists():
            limit = f"{CONTENTS_LIMIT >> 30} GiB"
            notes.append(
                "it cannot be reverted any more: what it replaced was removed, the oldest first, "
                f"to keep the journal below {limit}"
            )
        return notes

    def about(self, run: str) -> dict[str, Any]:
        """Return who ran what and when, and how much it changed.

        `reverts` is the run that this one reverted; `reverting` the one that it was to revert
        when it was killed.
        """
        entries = self.entries(run)
        header = read_object(self.folder / run / "run.json")
        began, ended = _revert_of(entries)
        return {
            "run": run,
            "since": header.get("since") or (entries[0]["time"] if entries else None),
            "user": header.get("user"),
            "command": header.get("command"),
            "changes": sum(e["action"] == "converged" for e in entries),
            "paths": len({e["path"] for e in entries if e["action"] == "file"}),
            "reverts": ended,
            "reverting": began,
            "notes": self.notes(run),
        }

    def overview(self) -> dict[str, Any]:
        """Return all runs, the newest first.

        `reverted_by` names the run that reverted one, `half_reverted_by` one that was killed
        before it had reverted all.
        """
        runs = [self.about(run) for run in reversed(self.runs())]
        by = {run["reverts"]: run["run"] for run in reversed(runs) if run["reverts"]}
        half = {
            run["reverting"]: run["run"]
            for run in reversed(runs)
            if run["reverting"] and run["run"] not in by
        }
        return {
            "runs": [
                {
                    **run,
                    "reverted_by": by.get(run["run"]),
                    "half_reverted_by": half.get(run["run"]),
                }
                for run in runs
            ]
        }

    def half_revert(self, run: str) -> str | None:
        """The run that was killed while it put `run` back, and that is to be continued."""
        listed = {item["run"]: item["half_reverted_by"] for item in self.overview()["runs"]}
        return listed.get(run)

    def to_dict(self, run: str) -> dict[str, Any]:
        """Return one run with its changes, in order."""
        return {**self.about(run), "entries": [_shown(e) for e in self.entries(run)]}

    def changed_later(self, path: str, run: str) -> dict[str, Any] | None:
        """The last run after `run` that changed `path`."""
        runs = self.runs()
        for later in reversed(runs[runs.index(run) + 1 :] if run in runs else []):
            if any(e.get("path") == path for e in self.entries(later)):
                return self.about(later)
        return None

    def secret_paths(self) -> set[str]:
        """Paths that any run declared as a Secret: what they hold is not shown."""
        return SecretPaths(self.folder).known()


def _revert_of(entries: list[Entry]) -> tuple[str | None, str | None]:
    """The run that these entries began to revert and have not, and the one that they have."""
    began = ended = None
    for entry in entries:
        if entry["action"] == "reverting":
            began = entry["of"]
        elif entry["action"] == "undone":
            began = None
        elif entry["action"] == "reverted":
            began, ended = None, entry["of"]
    return began, ended


def _shown(entry: Entry) -> Entry:
    """An entry for people: kinds instead of digests."""
    wanted = ("time", "resource", "action", "changes", "path", "what", "of")
    shown = {k: entry[k] for k in wanted if k in entry}
    if entry["action"] == "file":
        for side in ("before", "after"):
            found = entry.get(side)
            shown[side] = {k: v for k, v in found.items() if k != "tree"} if found else None
    return shown
