"""What a resource may do on a node: read, write, run; with check mode, journal and cancellation."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from spark_cluster.agent.journal import Journal
from spark_cluster.agent.overlay import Overlay
from spark_cluster.resources.base import Blob, ResourceError, Unknown

STATE = "/var/lib/spark-cluster"
RUN = "/run/spark-cluster"
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Cancelled(Exception):
    """The laptop is gone or asked to stop: nothing more is begun."""


@dataclass(frozen=True)
class Completed:
    """A finished command: exit status and its two outputs as text."""

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str

    def check(self, doing: str, hint: str = "") -> Completed:
        """Itself when the status is 0.

        Raises:
            ResourceError: it is not; the message has the last lines that the command printed.
        """
        if self.status == 0:
            return self
        said = (self.stderr.strip() or self.stdout.strip()).splitlines()[-6:]
        tail = "\n    ".join(said) or "(it printed nothing)"
        raise ResourceError(
            f"{doing}: {self.argv[0]} ended with status {self.status}: {tail}", hint
        )


@dataclass
class Processes:
    """The commands running now, so that they can be ended when the laptop is gone."""

    cancelled: threading.Event = field(default_factory=threading.Event)
    _running: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, group: int) -> None:
        with self._lock:
            self._running.add(group)
            if self.cancelled.is_set():  # it was started while `cancel` ended the others
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGTERM)

    def remove(self, group: int) -> None:
        with self._lock:
            self._running.discard(group)

    def cancel(self) -> None:
        """End what may be ended; what must finish (apt) was never added."""
        self.cancelled.set()
        with self._lock:
            for group in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGTERM)


def _no_blob(blob: Blob) -> bytes:
    raise ResourceError(f"the content {blob.sha256[:12]} did not come with the document")


def _silent(_: str) -> None:
    return None


@dataclass
class Host:
    """This node, for the resources of one document.

    Args:
        root: where the file system begins; a scratch folder in tests.
        run: id of the run, for the journal.
        check: observe only.
        fetch: brings a Blob's content from the laptop.
        progress: shows one line of what is going on.
        ask_for_proof: asks the laptop to leave a file (its path) over a new connection.
        search_path: where commands are looked for.
    """

    root: Path = Path("/")
    run_id: str = "none"
    check: bool = False
    fetch: Callable[[Blob], bytes] = _no_blob
    progress: Callable[[str], None] = _silent
    ask_for_proof: Callable[[str], None] = _silent
    processes: Processes = field(default_factory=Processes)
    overlay: Overlay = field(default_factory=Overlay)
    current: str = ""
    search_path: str = SEARCH_PATH

    @property
    def journal(self) -> Journal:
        return Journal(self.path(f"{STATE}/journal"), self.run_id)

    # -- files ---------------------------------------------------------------------------------

    def path(self, name: str) -> Path:
        """The real path of what the node calls `name`."""
        return self.root / name.lstrip("/")

    def pending(self, claim: str) -> str | None:
        """In check mode, the earlier resource that will make `claim`."""
        return self.overlay.maker(claim) if self.check else None

    def read(self, name: str) -> bytes | None:
        """Content of a regular file, or None; in check mode what it will be by now.

        Raises:
            ResourceError: there is something else than a regular file.
            Unknown: check mode, and an earlier resource gives it a content not known here.
        """
        if self.check and name in self.overlay.opaque:
            raise Unknown(f"after: {self.overlay.opaque[name]}")
        if self.check and name in self.overlay.files:
            return self.overlay.files[name]
        path = self.path(name)
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise ResourceError(f"{name} is not a regular file")
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def content(self, value: str | bytes | Blob) -> bytes:
        """The bytes of a declared content, fetched from the laptop when they did not travel."""
        if isinstance(value, Blob):
            data = self.fetch(value)
            if hashlib.sha256(data).hexdigest() != value.sha256:
                raise ResourceError("content was damaged on its way; run again")
            return data
        return value.encode() if isinstance(value, str) else value

    def write(
        self,
        name: str,
        data: bytes,
        *,
        mode: int | None = None,
        uid: int = -1,
        gid: int = -1,
        validate: Callable[[Path], None] | None = None,
    ) -> None:
        """Replace a file whole: written beside, synced, validated, renamed; the old one is kept.

        Args:
            mode: permission bits; None keeps those of the old file, 0o644 for a new one.
            uid, gid: owner; -1 keeps the old file's, the agent's own for a new one.
            validate: looks at the new file before it takes the old one's place, and raises.
        """
        target = self.path(name)
        old = target.lstat() if target.exists() and not target.is_symlink() else None
        handle, beside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(data)
                out.flush()
                os.fchown(
                    handle,
                    uid if uid != -1 or old is None else old.st_uid,
                    gid if gid != -1 or old is None else old.st_gid,
                )  # before the mode: it takes set-user-id bits away
                os.fchmod(handle, mode if mode is not None else _mode_of(old))
                os.fsync(handle)
            if validate is not None:
                validate(Path(beside))
            self.journal.keep(self.current, target, name)
            Path(beside).replace(target)
            _sync_folder(target.parent)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                Path(beside).unlink()
            raise

    def remove(self, name: str) -> None:
        """Remove a file or link, or a folder with all in it; a file's content is kept."""
        target = self.path(name)
        self.journal.keep(self.current, target, name)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)

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
        heard: Callable[[str], None] | None = None,
    ) -> Completed:
        """Run a command and wait.

        Args:
            timeout: seconds.
            heard: is told each line of output as it comes (`stdin` is empty then).
            must_finish: go on to its end even when the laptop is gone (package managers).
            user: run as this user, with their groups.

        Raises:
            ResourceError: there is no such command, or it took too long.
            Cancelled: it was ended because the laptop is gone.
        """
        if self.processes.cancelled.is_set() and not must_finish:
            raise Cancelled
        environment = {"PATH": self.search_path, "LANG": "C.UTF-8", "HOME": "/root", **(env or {})}
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                cwd=cwd,
                start_new_session=True,
                **_as_user(user),
            )
        except FileNotFoundError as error:
            raise ResourceError(f"{error.filename}: no such command or folder") from None
        except PermissionError as error:
            raise ResourceError(f"{error.filename}: permission denied") from None
        with self._watched(process, must_finish):
            try:
                if heard is None:
                    out, err = process.communicate(stdin, timeout=timeout)
                else:
                    out, err = _listen(process, heard, timeout)
            except subprocess.TimeoutExpired:
                _kill(process)
                raise ResourceError(f"{argv[0]}: not done after {timeout:g} s") from None
        if self.processes.cancelled.is_set() and not must_finish:
            raise Cancelled
        return Completed(
            tuple(argv),
            process.returncode,
            out.decode(errors="replace"),
            err.decode(errors="replace"),
        )

    @contextlib.contextmanager
    def _watched(self, process: subprocess.Popen[bytes], must_finish: bool) -> Iterator[None]:
        if must_finish:
            yield
            return
        self.processes.add(process.pid)
        try:
            yield
        finally:
            self.processes.remove(process.pid)

    def which(self, command: str) -> str | None:
        """Path of a command on the node."""
        return shutil.which(command, path=self.search_path)

    # -- the laptop ----------------------------------------------------------------------------

    def reached_anew(self, within_s: float) -> bool:
        """Whether the laptop gets a new connection to this node within so many seconds.

        The connection that is there proves little: it may live on where no new one is let in.

        Raises:
            Cancelled: the laptop is gone.
        """
        folder = self.path(RUN)
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        proof = f"{RUN}/proof-{os.urandom(12).hex()}"
        self.ask_for_proof(proof)
        deadline = time.monotonic() + within_s
        while not self.path(proof).exists():
            if self.processes.cancelled.wait(0.05):
                raise Cancelled
            if time.monotonic() > deadline:
                return False
        self.path(proof).unlink()
        return True

    # -- restarts that are owed ----------------------------------------------------------------

    def _marker(self, resource: str) -> Path:
        return self.path(f"{STATE}/pending") / hashlib.sha256(resource.encode()).hexdigest()[:24]

    def owe(self, resource: str) -> None:
        """Note that `resource` must act again; survives a run that dies before it does."""
        marker = self._marker(resource)
        marker.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        marker.write_text(resource + "\n")
        _sync_folder(marker.parent)

    def owed(self, resource: str) -> bool:
        return self._marker(resource).exists()

    def settle(self, resource: str) -> None:
        """`resource` has acted: nothing is owed any more."""
        self._marker(resource).unlink(missing_ok=True)


def explain(error: OSError, root: Path = Path("/")) -> str:
    """An operating system's error in words that say where and how bad."""
    name = str(error.filename or "")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        folder = Path(name).parent if name else root
        while not folder.exists():
            folder = folder.parent
        free = shutil.disk_usage(folder).free // 1024
        return f"no space left on the disk of {folder} ({free} KiB free)"
    text = error.strerror or str(error)
    return f"{name}: {text.lower()}" if name else text


def _listen(
    process: subprocess.Popen[bytes], heard: Callable[[str], None], timeout: float
) -> tuple[bytes, bytes]:
    """`communicate()` that tells each line as it comes."""
    assert process.stdin and process.stdout and process.stderr  # noqa: S101  (all are pipes)
    process.stdin.close()
    process.stdin = None
    said: tuple[list[bytes], list[bytes]] = ([], [])

    def drain(stream: IO[bytes], lines: list[bytes]) -> None:
        for raw in stream:
            lines.append(raw)
            heard(raw.decode(errors="replace").rstrip())

    readers = [
        threading.Thread(target=drain, args=pair, daemon=True)
        for pair in zip((process.stdout, process.stderr), said, strict=True)
    ]
    for reader in readers:
        reader.start()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        for reader in readers:
            reader.join()
    return b"".join(said[0]), b"".join(said[1])


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _mode_of(old: os.stat_result | None) -> int:
    return stat.S_IMODE(old.st_mode) if old is not None else 0o644


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _as_user(user: str | None) -> dict[str, Any]:
    if user is None:
        return {}
    import grp
    import pwd

    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise ResourceError(f"no user {user!r} on this node") from None
    groups = [g.gr_gid for g in grp.getgrall() if user in g.gr_mem]
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}
