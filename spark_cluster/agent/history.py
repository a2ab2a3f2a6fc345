"""Reads the journal: which runs changed this node, and what each of them did."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

from spark_cluster.agent.journal import Journal
from spark_cluster.resources.base import ResourceError

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
        if not self.folder.is_dir():
            return []
        return sorted(p.name for p in self.folder.iterdir() if (p / "changes.jsonl").exists())

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
        """One run's journal, for the contents that it keeps."""
        return Journal(self.folder, run)

    def entries(self, run: str) -> list[Entry]:
        """What a run did, in order; a last line that a power cut tore is left out."""
        found = []
        text = (self.folder / run / "changes.jsonl").read_text(errors="replace")
        for line in text.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                found.append(entry)
        return found

    def about(self, run: str) -> dict[str, Any]:
        """Who ran what and when, and how much it changed."""
        entries = self.entries(run)
        told = self._told(run)
        return {
            "run": run,
            "since": told.get("since") or (entries[0]["time"] if entries else None),
            "user": told.get("user"),
            "command": told.get("command"),
            "changes": sum(e["action"] == "converged" for e in entries),
            "paths": len({e["path"] for e in entries if e["action"] == "file"}),
            "reverts": next((e["of"] for e in entries if e["action"] == "reverted"), None),
        }

    def overview(self) -> dict[str, Any]:
        """All runs, the newest first; `reverted_by` names the run that put one back."""
        runs = [self.about(run) for run in reversed(self.runs())]
        by = {run["reverts"]: run["run"] for run in reversed(runs) if run["reverts"]}
        return {"runs": [{**run, "reverted_by": by.get(run["run"])} for run in runs]}

    def document(self, run: str) -> dict[str, Any]:
        """One run with its changes, in order."""
        return {**self.about(run), "entries": [_shown(e) for e in self.entries(run)]}

    def changed_later(self, path: str, run: str) -> dict[str, Any] | None:
        """The last run after `run` that changed `path`."""
        for later in reversed([r for r in self.runs() if r > run]):
            if any(e.get("path") == path for e in self.entries(later)):
                return self.about(later)
        return None

    def secret_paths(self) -> set[str]:
        """Paths that any run declared as a Secret: what they hold is not shown."""
        entries = (entry for run in self.runs() for entry in self.entries(run))
        return {entry["path"] for entry in entries if entry.get("secret")}

    def _told(self, run: str) -> dict[str, Any]:
        try:
            told = json.loads((self.folder / run / "run.json").read_text())
        except (OSError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}


def _shown(entry: Entry) -> Entry:
    """An entry for people: kinds instead of digests."""
    wanted = ("time", "resource", "action", "changes", "path", "what", "of")
    shown = {k: entry[k] for k in wanted if k in entry}
    if entry["action"] == "file":
        for side in ("before", "after"):
            found = entry.get(side)
            shown[side] = {k: v for k, v in found.items() if k != "tree"} if found else None
    return shown
