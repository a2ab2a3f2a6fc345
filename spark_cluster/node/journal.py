"""The journal of a run's changes on this node, kept so that they can be shown and reverted.

`FOLDER/RUN/run.json` says who ran what, `changes.jsonl` holds an entry a change, and `before/` the
contents that were replaced, by digest. Only root may read it, since contents can be private. The
content of a file that is or was declared as a Secret is not kept at all, so such a file cannot be
reverted: what is worth rotating must not lie around in a journal. `History` reads the journals of
all runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from spark_cluster.node import durable, paths
from spark_cluster.node.safe_paths import file_in
from spark_cluster.node.values import ResourceError, marks_of

# Paths on this node that hold secrets: neither the journal nor a diff says what is in them.

LIST = "secret-paths"


class SecretPaths:
    """The paths that any run declared as a Secret, kept longer than the journals of those runs.

    Args:
        folder: the node's journal folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._list = folder / LIST
        self._known: set[str] | None = None

    def known(self) -> set[str]:
        """Return all paths, as declared and with links followed."""
        if self._known is None:
            listed = {path for path in durable.read_lines(self._list)[0] if isinstance(path, str)}
            self._known = listed | self._of_journals()
        return self._known

    def has(self, shown: str, path: Path) -> bool:
        """Return whether `path` (`shown` to users) holds a secret."""
        known = self.known()
        return bool(known) and not known.isdisjoint(_names(shown, path))

    def add(self, shown: str, path: Path) -> None:
        """Note that `path` is to hold a secret, before it does."""
        for name in _names(shown, path) - self.known():
            durable.append_line(self._list, name)
            self.known().add(name)

    def _of_journals(self) -> set[str]:
        """Return the paths from runs before this list existed."""
        files = self._folder.glob("*/changes.jsonl")
        entries = [entry for file in files for entry in durable.read_lines(file)[0]]
        return {e["path"] for e in entries if isinstance(e, dict) and e.get("secret")}


def _names(shown: str, path: Path) -> set[str]:
    """As declared, and as it is called when links above it are followed."""
    return {shown, f"{os.path.realpath(path.parent)}/{path.name}"}


Shape = dict[str, Any]
"""What is at a path: `kind` (file, link, directory, special), `mode`, `uid`, `gid`, and `sha256` of
a file or `link` of a link. None stands for nothing."""

KEPT = 200
"""Runs of which the journal is kept."""

CONTENTS_LIMIT = 4 * 1024**3
"""Bytes of replaced contents that are kept on a node, of all runs together: the oldest go first."""

TREE_LIMIT = 64 * 1024 * 1024
"""Bytes of a removed folder that are kept; of a larger one nothing is."""

MOST_NESTED = 100
"""Folders in each other of a removed one that is kept: reading deeper ones would not end well."""

SEARCHED = 16 * 1024 * 1024
"""Bytes of a replaced file up to which it is searched for the secrets of the request."""

CONTENTS_GONE = "contents-removed"
"""A file in a run's folder: what it replaced was removed to stay below CONTENTS_LIMIT."""

_lock = threading.Lock()
"""Several documents of one run can be at work at once."""


class Journal:
    """The changes of one run on this node.

    An entry is written and synced before the change it describes, so that a power cut leaves
    either an entry too many or none, never an unrecorded change.

    Args:
        folder: the node's journal folder.
        run: id of the run.
        owner: who runs what, as in the node's lock.
        secrets: texts that no kept content may hold.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        owner: Mapping[str, Any] | None = None,
        secrets: frozenset[str] = frozenset(),
    ) -> None:
        self.folder = folder / run
        self.run = run
        self.owner = dict(owner or {})
        self.spared = ""
        """A run whose journal must not be removed to make room: the one that is reverted."""
        self.secret_paths = SecretPaths(folder)
        self._marks = marks_of(secrets)
        self._bytes: int | None = None

    def record(self, resource: str, action: str, **details: Any) -> None:
        """Add an entry; `details` must be JSON and hold no secret."""
        entry = {"time": time.time(), "run": self.run, "resource": resource, "action": action}
        with _lock:
            self._begin()
            durable.append_line(self.folder / "changes.jsonl", {**entry, **details})

    def keep(
        self,
        resource: str,
        path: Path,
        shown: str,
        after: Shape | None,
        *,
        secret: bool = False,
        tree: bool = True,
    ) -> None:
        """Record that what is at `path` (known to users as `shown`) is about to become `after`.

        Args:
            after: as far as it is known; None when nothing will be there.
            secret: the file is declared as a Secret: what it holds is not kept. So it is when an
                earlier run has declared it so, or when it holds a secret of this request.
            tree: keep what is in a folder that is about to be removed.
        """
        with _lock:
            self._begin()
        before = shape(path)
        secret = secret or self._is_secret(path, shown, before)
        if secret:
            self.secret_paths.add(shown, path)
        if before is not None and before["kind"] == "file":
            before["kept"] = not secret and self._content(path, before["sha256"])
        elif before is not None and before["kind"] == "directory" and after is None:
            before["tree"] = self._tree(path, shown) if tree else None
        secrecy = {"secret": True} if secret else {}
        self.record(resource, "file", path=shown, before=before, after=after, **secrecy)

    def kept(self, digest: str) -> Path:
        """Return where a replaced content is."""
        return self.folder / "before" / digest

    def _begin(self) -> None:
        """Make this run's folder, numbered after all others: clocks can be behind."""
        if (self.folder / "run.json").exists():
            return
        durable.make_folder(self.folder)
        self.folder.parent.chmod(0o700)
        others = [p for p in runs_in_order(self.folder.parent) if p != self.folder]
        number = max(map(_number, others), default=0) + 1
        about = {"run": self.run, "since": time.time(), **self.owner, "number": number}
        durable.write_file(self.folder / "run.json", json.dumps(about).encode())
        for old in others[: max(0, len(others) + 1 - KEPT)]:
            if old.name != self.spared:
                shutil.rmtree(old, ignore_errors=True)
        for pattern in ("*/.run.json.*", "*/before/.*"):  # left by a run that was killed
            for left in self.folder.parent.glob(pattern):
                if self.folder not in left.parents:
                    left.unlink(missing_ok=True)

    def _is_secret(self, path: Path, shown: str, found: Shape | None) -> bool:
        if self.secret_paths.has(shown, path):
            return True
        if found is None or found["kind"] != "file" or not self._marks:
            return False
        with file_in(path) as file:
            data = file.read(SEARCHED + 1)
        return len(data) <= SEARCHED and any(mark in data for mark in self._marks)

    def _content(self, path: Path, digest: str) -> bool:
        """Keep a file's content; False when it is not what it was a moment ago, or too much."""
        target = self.kept(digest)
        if target.exists():
            return True
        with _lock:
            if not self._make_room(path.lstat().st_size):
                return False
        durable.make_folder(target.parent)
        staged = target.with_name(f".{digest}.{threading.get_ident()}")
        copied = hashlib.sha256()
        handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with durable.naming(staged), os.fdopen(handle, "wb") as out, file_in(path) as source:
                for block in iter(lambda: source.read(1 << 20), b""):
                    copied.update(block)
                    out.write(block)
                out.flush()
                os.fsync(handle)
        except OSError:
            staged.unlink(missing_ok=True)
            raise
        if copied.hexdigest() != digest:
            staged.unlink()
            return False
        staged.rename(target)
        durable.sync_folder(target.parent)
        return True

    def _make_room(self, size: int) -> bool:
        """Return whether `size` more bytes may be kept; the oldest runs' contents make room."""
        if self._bytes is None:
            self._bytes = sum(map(_contents, runs_in_order(self.folder.parent)))
        self._bytes += size
        for old in runs_in_order(self.folder.parent) if self._bytes > CONTENTS_LIMIT else ():
            held = 0 if old.name in (self.run, self.spared) else _contents(old)
            if held and self._bytes > CONTENTS_LIMIT:
                durable.write_file(old / CONTENTS_GONE, b"")
                shutil.rmtree(old / "before", ignore_errors=True)
                self._bytes -= held
        fits = self._bytes <= CONTENTS_LIMIT
        self._bytes -= 0 if fits else size
        return fits

    def _tree(self, folder: Path, shown: str) -> list[Shape] | None:
        """Return everything in a folder, with contents kept; None when that is not possible."""
        if why_not_kept(folder):
            return None
        found: list[Shape] = []
        for above, folders, files, handle in os.fwalk(folder):
            for name in (*folders, *files):
                path = Path(f"/proc/self/fd/{handle}/{name}")
                inside = os.path.relpath(f"{above}/{name}", folder)
                item = self._inside(path, f"{shown}/{inside}")
                if item is None:
                    return None
                found.append({"path": inside, **item})
        return sorted(found, key=lambda item: PurePosixPath(item["path"]).parts)

    def _inside(self, path: Path, shown: str) -> Shape | None:
        """Return what is at a path in a folder that is removed, kept; None when it cannot be."""
        item = shape(path)
        if item is None or item["kind"] == "special":
            return None
        if self._is_secret(path, shown, item):
            self.secret_paths.add(shown, path)
            item.update(kept=False, secret=True)
        elif item["kind"] == "file" and not self._content(path, item["sha256"]):
            return None
        return item


def runs_in_order(folder: Path) -> list[Path]:
    """The folders of all runs in a node's journal folder, the oldest first."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if p.is_dir()), key=lambda p: (_number(p), p.name))


def _number(run: Path) -> int:
    """A run's number; 0 of one of before they had numbers."""
    try:
        return int(durable.read_object(run / "run.json").get("number", 0))
    except (ValueError, TypeError):
        return 0


def _contents(run: Path) -> int:
    """Bytes of the contents that a run's journal keeps."""
    try:
        return sum(item.stat().st_size for item in os.scandir(run / "before"))
    except OSError:
        return 0


def why_not_kept(folder: Path) -> str:
    """Return why a folder that is removed could not be restored; empty when it could."""
    total = 0
    for path in folder.rglob("*"):
        if len(path.parts) - len(folder.parts) > MOST_NESTED:
            return f"it has more than {MOST_NESTED} folders in each other"
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # it went away meanwhile
        except OSError as error:  # such as a path that is longer than the kernel takes
            return f"it cannot be read: {error.strerror}"
        if stat.S_ISREG(status.st_mode):
            total += status.st_size
        elif not stat.S_ISDIR(status.st_mode) and not stat.S_ISLNK(status.st_mode):
            return f"{path.name} in it is a socket, pipe or device"
    if total > TREE_LIMIT:
        return f"it holds more than {TREE_LIMIT >> 20} MiB"
    return ""


def shape(path: Path) -> Shape | None:
    """Return what is at `path` now.

    Args:
        path: as `safe_paths.entry` gives it, in a folder that other users can write.
    """
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    owned = {"uid": status.st_uid, "gid": status.st_gid}
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return {"kind": "link", "link": str(path.readlink()), **owned}
    if stat.S_ISREG(status.st_mode):
        with file_in(path) as source:
            return file_shape(os.fstat(source.fileno()), _digest(source))
    kind = "directory" if stat.S_ISDIR(status.st_mode) else "special"
    return {"kind": kind, "mode": mode, **owned}


def file_shape(status: os.stat_result, sha256: str) -> Shape:
    """A file with this status and content."""
    owned = {"uid": status.st_uid, "gid": status.st_gid}
    return {"kind": "file", "sha256": sha256, "mode": stat.S_IMODE(status.st_mode), **owned}


def folder_shape(status: os.stat_result, mode: int | None, uid: int, gid: int) -> Shape:
    """A folder with this status once it was given a mode and an owner; None and -1 leave them."""
    return {
        "kind": "directory",
        "mode": stat.S_IMODE(status.st_mode) if mode is None else mode,
        "uid": status.st_uid if uid == -1 else uid,
        "gid": status.st_gid if gid == -1 else gid,
    }


def digest_of(path: Path) -> str:
    """SHA-256 of a file's content, hex."""
    with file_in(path) as source:
        return _digest(source)


def _digest(source: BinaryIO) -> str:
    digest = hashlib.sha256()
    for block in iter(lambda: source.read(1 << 20), b""):
        digest.update(block)
    return digest.hexdigest()


# The history from the journal: which runs changed this node, and what each of them did.

Entry = dict[str, Any]


class History:
    """The journals of all runs on this node.

    Args:
        root: where the node's file system begins.
    """

    def __init__(self, root: Path) -> None:
        self.folder = root / paths.JOURNAL.lstrip("/")

    def runs(self) -> list[str]:
        """Ids of the runs that changed something, the oldest first."""
        return [p.name for p in runs_in_order(self.folder) if (p / "changes.jsonl").exists()]

    def find(self, name: str) -> str:
        """The run of this id, or of the only one that begins with it.

        Raises:
            ResourceError: there is none, or there are several.
        """
        import difflib  # late: few runs want it

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
        found, _ = durable.read_lines(self.folder / run / "changes.jsonl")
        return [entry for entry in found if isinstance(entry, dict)]

    def notes(self, run: str) -> list[str]:
        """Return remarks on a run's journal itself: torn entries, missing contents."""
        _, torn = durable.read_lines(self.folder / run / "changes.jsonl")
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
        header = durable.read_object(self.folder / run / "run.json")
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
        for run in runs:
            run["reverted_by"] = by.get(run["run"])
            run["half_reverted_by"] = half.get(run["run"])
        return {"runs": runs}

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
