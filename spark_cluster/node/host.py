"""The operations on a node: read, write, run; with check mode, journal and cancellation."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from spark_cluster.node import durable, paths, safe_paths
from spark_cluster.node.journal import Journal, Shape, file_shape, folder_shape, shape
from spark_cluster.node.processes import (
    SEARCH_PATH,
    Cancelled,
    Completed,
    Processes,
    environment,
)
from spark_cluster.node.values import Blob, ResourceError, Unknown, marks_of

# The content of a file while it is written: its digest, and whether a secret is in it.


class WrittenFile:
    """The result of a write: its digest, and whether one of the secrets is in it."""

    def __init__(self, secrets: frozenset[str]) -> None:
        self._marks = marks_of(secrets)
        self._overlap = max((len(mark) for mark in self._marks), default=1) - 1
        self._end = b""
        self.digest = hashlib.sha256()
        self.secret = False

    def add(self, piece: bytes) -> None:
        self.digest.update(piece)
        if self._marks and not self.secret:
            searched = self._end + piece
            self.secret = any(mark in searched for mark in self._marks)
            self._end = searched[-self._overlap :]


# Pending restarts: resources that must act again, also when the run that knows it dies first.


@dataclass(frozen=True)
class PendingRestarts:
    """The pending restarts of a node, each a file that a power cut leaves there.

    Args:
        folder: where the files are.
        boot_id: returns the id of this boot.
    """

    folder: Path
    boot_id: Callable[[], str]

    def notify(self, resource: str) -> None:
        """Note that `resource` must act again."""
        marker = self._marker(resource)
        marker.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        durable.write_file(marker, f"{resource}\n{self.boot_id()}\n".encode())

    def pending(self, resource: str) -> bool:
        """Return whether `resource` has a restart pending."""
        return self._marker(resource).exists()

    def since(self, resource: str) -> str:
        """Return the id of the boot in which it was noted that `resource` must act again."""
        lines = self._marker(resource).read_text().splitlines()
        return lines[1] if len(lines) > 1 else ""

    def clear(self, resource: str) -> None:
        """Clear the pending restart of `resource`: it has acted."""
        self._marker(resource).unlink(missing_ok=True)

    def _marker(self, resource: str) -> Path:
        return self.folder / hashlib.sha256(resource.encode()).hexdigest()[:24]


# Check mode's picture of what earlier resources will have made.


@dataclass
class Overlay:
    """The predicted state of check mode, in which nothing is changed.

    Attributes:
        claims: what will exist (`path:/srv`, `user:nvidia`, ...) to the id of who makes it.
        files: path to the content that it will have; None when it will be absent.
        opaque: path to the id of who gives it a content that is not known here.
    """

    claims: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes | None] = field(default_factory=dict)
    opaque: dict[str, str] = field(default_factory=dict)

    def claim(self, names: tuple[str, ...], maker: str) -> None:
        for name in names:
            self.claims.setdefault(name, maker)


PIECE = 1024 * 1024
"""Bytes of a file that are in memory at a time."""

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def _no_blob(blob: Blob) -> Iterable[bytes]:
    raise ResourceError(f"the content {blob.sha256[:12]} did not come with the document")


_PROXY = re.compile(r"(?im)^[ \t]*(?:export )?((?:https?|all|no)_proxy)=[\"']?([^\"'#\n]+)")


def _silent(_: str) -> None:
    return None


@dataclass
class Host:
    """This node, for the resources of one document.

    Args:
        root: where the file system begins; a scratch folder in tests.
        run: id of the run, for the journal.
        check: observe only.
        fetch: brings a Blob's content from the laptop, piece by piece.
        progress: shows one line of what is going on.
        note: called with a message that stays visible.
        verify_login: asks the laptop to leave a file (its path) over a new connection.
        owner: who runs what, for the journal.
        secrets: what the journal must not hold.
        search_path: where commands are looked for: in the node's root, then as usual.
    """

    root: Path = Path("/")
    run_id: str = "none"
    check: bool = False
    fetch: Callable[[Blob], Iterable[bytes]] = _no_blob
    progress: Callable[[str], None] = _silent
    note: Callable[[str], None] = _silent
    verify_login: Callable[[str], None] = _silent
    owner: Mapping[str, Any] = field(default_factory=dict)
    secrets: frozenset[str] = frozenset()
    processes: Processes = field(default_factory=Processes)
    overlay: Overlay = field(default_factory=Overlay)
    current: str = ""
    search_path: str = ""

    def __post_init__(self) -> None:
        if not self.search_path:
            own = "" if self.root == Path("/") else f"{self.root}/usr/local/bin:"
            self.search_path = own + SEARCH_PATH

    @cached_property
    def journal(self) -> Journal:
        """This run's changes on this node."""
        folder = self.path(paths.JOURNAL)
        return Journal(folder, self.run_id, self.owner, self.secrets)

    @cached_property
    def temporary(self) -> durable.TemporaryFiles:
        """This node's temporary files."""
        return durable.TemporaryFiles(self.path(paths.STATE))

    @cached_property
    def restarts(self) -> PendingRestarts:
        """This node's resources that must act again."""
        return PendingRestarts(self.path(f"{paths.STATE}/pending"), self.boot_id)

    def is_secret(self, name: str) -> bool:
        """Return whether a run has declared the content at this path as secret."""
        return self.journal.secret_paths.has(name, self.path(name))

    def boot_id(self) -> str:
        """Return the id of this boot, which differs from the last one's."""
        path = self.path(BOOT_ID)
        return path.read_text().strip() if path.exists() else ""

    # -- files ---------------------------------------------------------------------------------

    def path(self, name: str) -> Path:
        """The real path of what the node calls `name`."""
        return self.root / name.lstrip("/")

    def will_provide(self, claim: str) -> str | None:
        """In check mode, the earlier resource that will make `claim`."""
        return self.overlay.claims.get(claim) if self.check else None

    def read(self, name: str) -> bytes | None:
        """Content of a regular file, or None; in check mode what it will be by now.

        Raises:
            ResourceError: there is something else than a regular file.
            Unknown: check mode, and an earlier resource gives it a content not known here.
        """
        try:
            return b"".join(self.pieces(name))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def look(self, name: str) -> os.stat_result:
        """Return the status of what is at a path, which may be a link.

        Raises:
            ResourceError: a folder above it is a link that other users can replace.
            OSError: nothing is there.
        """
        with safe_paths.entry(self.path(name)) as place:
            return place.lstat()

    def shape(self, name: str) -> Shape | None:
        """Return what is at a path, as the journal keeps it.

        Raises:
            ResourceError: as `look`.
        """
        try:
            with safe_paths.entry(self.path(name)) as place:
                return shape(place)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def digest(self, name: str) -> str | None:
        """SHA-256 (hex) of what `read` would return, of which little is in memory at a time.

        Raises:
            ResourceError, Unknown: as `read`.
        """
        found = hashlib.sha256()
        try:
            for piece in self.pieces(name):
                found.update(piece)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.hexdigest()

    def size(self, name: str) -> int:
        """Bytes of what `read` would return; 0 when it would return None."""
        if self.check and name in (*self.overlay.opaque, *self.overlay.files):
            return len(self.read(name) or b"")
        try:
            with safe_paths.file(self.path(name)) as source:
                return os.fstat(source.fileno()).st_size
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def pieces(self, name: str) -> Iterator[bytes]:
        """Content of a regular file that is there, piece by piece; in check mode what it will be.

        Raises:
            FileNotFoundError: there is none, or will be none.
            ResourceError, Unknown: as `read`.
        """
        if self.check and name in self.overlay.opaque:
            raise Unknown(f"after: {self.overlay.opaque[name]}")
        if self.check and name in self.overlay.files:
            data = self.overlay.files[name]
            if data is None:
                raise FileNotFoundError(name)
            yield data
            return
        with safe_paths.file(self.path(name)) as source:
            while piece := source.read(PIECE):
                yield piece

    def content(self, value: str | bytes | Blob) -> bytes:
        """The bytes of a declared content, fetched from the laptop when they did not travel."""
        if isinstance(value, Blob):
            return b"".join(self.contents(value))
        return value.encode() if isinstance(value, str) else value

    def contents(self, value: str | bytes | Blob) -> Iterator[bytes]:
        """The same, piece by piece.

        Raises:
            ResourceError: after the last piece: what came is not what was declared.
        """
        if not isinstance(value, Blob):
            yield self.content(value)
            return
        came = hashlib.sha256()
        for piece in self.fetch(value):
            came.update(piece)
            yield piece
        if came.hexdigest() != value.sha256:
            raise ResourceError("content was damaged on its way; run again")

    def write(
        self,
        name: str,
        data: bytes | Iterable[bytes],
        *,
        mode: int | None = None,
        uid: int = -1,
        gid: int = -1,
        secret: bool = False,
        validate: Callable[[Path], None] | None = None,
    ) -> None:
        """Replace a file whole: write next to it, sync, validate, rename; the old one is kept.

        Args:
            data: all of it, or piece by piece.
            mode: permission bits; None keeps those of the old file, 0o644 for a new one.
            uid, gid: owner; -1 keeps the old file's, the agent's own for a new one.
            secret: what the old file holds is not kept. So it is when the new one holds a text
                that this request declares as a Secret.
            validate: checks the new file before it takes the old one's place, and raises.
        """
        with self._staged(name) as (target, staged):
            old = _not_a_link(target)
            handle = os.open(staged, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with durable.naming(target), os.fdopen(handle, "wb") as out:
                written = WrittenFile(self.secrets)
                for piece in (data,) if isinstance(data, bytes) else data:
                    out.write(piece)
                    written.add(piece)
                out.flush()
                os.fchown(
                    handle,
                    uid if uid != -1 or old is None else old.st_uid,
                    gid if gid != -1 or old is None else old.st_gid,
                )  # before the mode: it takes set-user-id bits away
                os.fchmod(handle, mode if mode is not None else _mode_of(old))
                os.fsync(handle)
                after = file_shape(os.fstat(handle), written.digest.hexdigest())
            if validate is not None:
                validate(self.path(name).with_name(staged.name))
            secret = secret or written.secret
            self.journal.keep(self.current, target, name, after, secret=secret)
            staged.replace(target)

    def link(self, name: str, target: str, *, uid: int = -1, gid: int = -1) -> None:
        """Put a symbolic link to `target` in the place of what is there."""
        with self._staged(name) as (path, staged):
            staged.symlink_to(target)
            owned = safe_paths.own_link(staged, uid, gid)
            after = {"kind": "link", "link": target, **owned}
            self.journal.keep(self.current, path, name, after)
            staged.replace(path)

    @contextlib.contextmanager
    def _staged(self, name: str) -> Iterator[tuple[Path, Path]]:
        """The place of a path in its open folder, and a temporary one that is to replace it."""
        with safe_paths.entry(self.path(name)) as target:
            staged = self.temporary.path_for(target)
            try:
                yield target, staged
            finally:
                self.temporary.done(staged)
            durable.sync_folder(target.parent)

    def directory(
        self, name: str, *, mode: int | None = None, uid: int = -1, gid: int = -1
    ) -> None:
        """Make a folder (and missing ones above it, mode 755), or give it this mode and owner.

        Args:
            mode: permission bits; None leaves them (a new one gets 755).
            uid, gid: owner; -1 leaves it.
        """
        path = self.path(name)
        new = not path.is_dir()
        if new:
            parent = name.rsplit("/", 1)[0]
            if parent and not self.path(parent).is_dir():
                self.directory(parent)
            with safe_paths.entry(path) as place:
                self.journal.keep(self.current, place, name, {"kind": "directory"})
                place.mkdir(mode=0o755 if mode is None else mode & 0o755)
                durable.sync_folder(place.parent)
            mode = 0o755 if mode is None else mode
        flags = os.O_RDONLY | os.O_DIRECTORY
        with safe_paths.closing_handle(safe_paths.opened(path, flags)) as handle:
            if not new and (mode is not None or (uid, gid) != (-1, -1)):
                after = folder_shape(os.fstat(handle), mode, uid, gid)
                with safe_paths.entry(path) as place:
                    self.journal.keep(self.current, place, name, after)
            if (uid, gid) != (-1, -1):
                os.fchown(handle, uid, gid)
            if mode is not None:
                os.fchmod(handle, mode)

    def remove(self, name: str, *, keep: bool = True) -> None:
        """Remove a file or link, or a folder with all in it.

        Args:
            keep: what is removed is kept in the journal; unset, only that it was removed is.

        Raises:
            OSError: a part cannot be removed; what is left of it is where it was.
        """
        if not self.path(name).parent.is_dir():
            return
        with safe_paths.entry(self.path(name)) as target:
            self.journal.keep(self.current, target, name, None, tree=keep)
            if not target.is_dir() or target.is_symlink():
                target.unlink(missing_ok=True)
            elif durable.mounts_below(target):  # it cannot be renamed, or not be removed whole
                durable.remove_tree(target)
            else:
                self.temporary.remove_folder(target)
            durable.sync_folder(target.parent)

    # -- commands ------------------------------------------------------------------------------

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float = 60.0,
        must_finish: bool = False,
        user: str | None = None,
        on_output: Callable[[str], None] | None = None,
    ) -> Completed:
        """Run a command and wait.

        Of an output longer than OUTPUT_LIMIT (node/output.py) the middle is left out.

        Args:
            timeout: seconds; then it is ended with all that it started.
            on_output: gets each line of output as it comes.
            must_finish: go on even when the laptop is gone (package managers), to `timeout`.
            user: run as this user, with their groups.

        Raises:
            ResourceError: there is no such command, or it took too long (`TooLong`).
            Cancelled: it was ended because the laptop is gone.
        """
        if self.processes.cancelled.is_set() and not must_finish:
            raise Cancelled
        return self.processes.run(
            argv,
            stdin=stdin,
            on_output=on_output,
            env=environment(self.search_path, **(env or {})),
            cwd=cwd,
            timeout=timeout,
            must_finish=must_finish,
            user=user,
        )

    def proxies(self) -> dict[str, str]:
        """Return what /etc/environment, which sudo leaves out, says of proxies, for commands that
        download; each name in small and in capital letters, since programs know one of them."""
        text = (self.read("/etc/environment") or b"").decode(errors="replace")
        found = _PROXY.findall(text)
        return {
            cased: value.strip() for name, value in found for cased in (name.lower(), name.upper())
        }

    def which(self, command: str) -> str | None:
        """Path of a command on the node."""
        return shutil.which(command, path=self.search_path)

    # -- the laptop ----------------------------------------------------------------------------

    def verify_reconnect(self, within_s: float) -> bool:
        """Return whether the laptop gets a new connection to this node within so many seconds.

        The connection that is there proves little: it may live on where no new one is let in.

        Raises:
            Cancelled: the laptop is gone.
        """
        folder = self.path(paths.RUNTIME)
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        proof = f"{paths.RUNTIME}/proof-{os.urandom(12).hex()}"
        self.verify_login(proof)
        deadline = time.monotonic() + within_s
        while not self.path(proof).exists():
            if self.processes.cancelled.wait(0.05):
                raise Cancelled
            if time.monotonic() > deadline:
                return False
        self.path(proof).unlink()
        return True


def _not_a_link(path: Path) -> os.stat_result | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return None if stat.S_ISLNK(status.st_mode) else status


def _mode_of(old: os.stat_result | None) -> int:
    return stat.S_IMODE(old.st_mode) if old is not None else 0o644
