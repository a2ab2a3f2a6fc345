"""The files of a registry: of a git repository at a commit, or of an archive with a known checksum.

Nothing of a repository is checked out and nothing in it is run: no hooks, no submodules, no
filters. What is fetched lies in a temporary bare repository, of which git writes an archive.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import io
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field, ValidationError
from typing_extensions import TypedDict

from spark_cluster import __version__
from spark_cluster.config import registries as known
from spark_cluster.config.registries import ARCHIVE_SCHEMES, GIT_SCHEMES, Index, Listed, Registry
from spark_cluster.config.schema import Document, Flat, Hidden, derived, printed
from spark_cluster.errors import Failed, InvalidFile, UsageError
from spark_cluster.importers import snapshot
from spark_cluster.importers.snapshot import MOST_FILES, Chosen, SourceFile

TIMEOUT_S = 120.0
"""Seconds for everything that is fetched of one registry."""

STALL_S = 20.0
"""Seconds without a byte after which a server of archives is given up."""

LARGEST_PACK = 256 << 20
"""Bytes of any file that git may write."""

LARGEST_ARCHIVE = 64 << 20
"""Bytes of an archive."""

LARGEST_CONTENT = 256 << 20
"""Bytes that an archive may unpack to; a small one can stand for an endless one."""

MOST_LISTED = 400_000
"""Files and folders that are looked at. A small pack can list the same folder over and over."""

KIT = "kit"
"""Name of a repository that is fetched for one import, and kept nowhere."""

HISTORY = 200
"""Commits of a branch that are fetched, to see whether the taken one is still among them."""

_BLOCK = 64 << 10
_NO_ADDRESS = "this is not the address of a repository"
_KEPT = "what was taken before remains in use"
_AS_THEY_ARE = "* -export-ignore -export-subst -filter -ident -text -working-tree-encoding !eol\n"
"""Attributes by which git writes files into an archive without a change (gitattributes(5))."""

_SETTINGS = (
    "protocol.allow=never",
    *(f"protocol.{scheme}.allow=always" for scheme in GIT_SCHEMES),
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "fetch.recurseSubmodules=false",
    "submodule.recurse=false",
    "fetch.writeCommitGraph=false",
    "http.followRedirects=initial",
)
_MISSING = re.compile(
    r"not our ref|couldn't find remote ref|no such remote ref|not a valid object|bad object"
    r"|unadvertised object",
    re.IGNORECASE,
)
_LIMITED = 'ulimit -f "$1" && shift && exec "$@"'
_ULIMIT_UNIT = 512  # bytes (POSIX; the bash 3.2 of macOS takes 1,024, so twice as much there)
_TOO_LARGE = re.compile(rf"File too large|write error|died of signal {signal.SIGXFSZ.value}\b")


@contextlib.contextmanager
def fetched(registry: Registry, revision: str | None, history: int = HISTORY) -> Iterator[Git]:
    """Fetch a commit, or the newest one of the branch: `Git.commit`.

    Args:
        registry: the repository.
        revision: a commit; None for the branch.
        history: commits of the branch.

    Raises:
        UsageError: git is not installed, or the repository has no such commit or branch.
        Failed: it cannot be fetched, or not within the limits of time and size.
    """
    with tempfile.TemporaryDirectory(prefix="spark-cluster-registry-") as folder:
        git = Git(registry, Path(folder), time.monotonic() + TIMEOUT_S)
        git.output("init", "--quiet", "--bare", "--template=", "--", str(git.folder))
        (git.folder / "info").mkdir()
        (git.folder / "info/attributes").write_text(_AS_THEY_ARE)
        # A branch or a tag by its name; a commit needs no history.
        wanted = revision or registry.branch
        depth = 1 if revision else history
        git.output(
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-recurse-submodules",
            f"--depth={depth}",
            "--",
            registry.url,
            wanted,
        )
        found = git.output("rev-parse", "--verify", "FETCH_HEAD^{commit}").decode().strip()
        if not re.fullmatch(r"[0-9a-f]{40}", found) or (revision and found != revision):
            raise Failed(f"{registry.url}: asked for {wanted}, and {found!r} came")
        git.commit = found
        yield git


class KitFiles(Chosen):
    """Decides about each file of a kit: files of a text's size, hidden ones only if they are `.env`
    or its like."""

    def takes(self, path: str, size: int, *, regular: bool) -> bool:
        *folders, name = path.split("/")
        hidden = any(part.startswith(".") for part in folders)
        if hidden or (name.startswith(".") and not name.startswith(".env")):
            return False
        if self._why_not("/".join([*folders, name.removeprefix(".")]), size, regular=regular):
            return False
        self._folded.add(path.casefold())
        self._count += 1
        if self._count > MOST_FILES:
            raise Failed(f"more than {MOST_FILES} files", where=self.registry.url)
        return True


def is_url(text: str) -> bool:
    """Return whether a text is the address of a repository rather than a file's name."""
    return "://" in text or bool(re.match(r"git@[\w.-]+:", text))


def fetched_kit(url: str, folder: Path) -> tuple[Path, str]:
    """Fetch a kit: the newest commit of a repository's main branch, its text files only.

    Args:
        url: https://, ssh:// or file://, or git@HOST:PATH.
        folder: into which its files are written, in a folder of its name.

    Returns:
        Its folder, and where it comes from.

    Raises:
        UsageError: it is no address of a repository, or git is not installed.
        Failed: it cannot be fetched within the limits of time and size.
    """
    address = re.sub(r"^(git@[^:/]+):", r"ssh://\1/", url)
    try:
        parts = urlsplit(address)
        if parts.query or parts.fragment:
            raise UsageError(f"{_NO_ADDRESS}: it has a query in it (not shown)")
        name = re.sub(r"[^\w.-]+", "-", parts.path.rstrip("/").rpartition("/")[2])
        given = {"name": KIT, "url": address, "format": "spark-vllm-docker", "branch": "HEAD"}
        registry = Registry.model_validate(given)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(f"{_NO_ADDRESS}: {why}") from None
    except ValueError as error:
        raise UsageError(f"{_NO_ADDRESS}: {error}") from None
    with fetched(registry, None, history=1) as repository:
        origin = f"{url} at {repository.commit[:12]}"
        root = folder / (name.removesuffix(".git").strip(".-") or "kit")
        for file in repository.files(KitFiles(registry)):
            place = root / file.path
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("xb") as stream:
                stream.write(file.content)
    root.mkdir(exist_ok=True)
    return root, origin


class Git:
    """git in a bare repository of its own, with limits.

    Args:
        until: moment (monotonic) at which everything must be done.

    Attributes:
        commit: the one that was fetched.
    """

    commit = ""

    def __init__(self, registry: Registry, folder: Path, until: float) -> None:
        self.registry = registry
        self.folder = folder / "repository.git"
        self.scratch = folder
        self.until = until

    def files(self, chosen: Chosen, commit: str = "") -> list[SourceFile]:
        """Return the files of a commit that are taken; of the one that was fetched by default.

        Raises:
            Failed: git does not read them, or there are too many.
        """
        with self._ran("archive", "--format=tar", commit or self.commit) as stream:
            return list(_members(stream, chosen))

    def has_in_history(self, commit: str) -> bool:
        """Return whether an older commit is among the last ones of the branch."""
        known = self.output("rev-list", f"--max-count={HISTORY}", self.commit, "--")
        return commit in known.decode("ascii", "replace").split()

    def output(self, *words: str) -> bytes:
        """Return what a command prints.

        Raises:
            UsageError: git is not installed, or the repository has no such commit or branch.
            Failed: it ended with another error, or not in time.
        """
        with self._ran(*words) as stream:
            return stream.read()

    @contextlib.contextmanager
    def _ran(self, *words: str) -> Iterator[IO[bytes]]:
        settings = [word for one in _SETTINGS for word in ("-c", one)]
        where = [] if words[0] == "init" else [f"--git-dir={self.folder}"]
        with (
            tempfile.TemporaryFile(dir=self.scratch) as out,
            tempfile.TemporaryFile(dir=self.scratch) as err,
        ):
            status = self._run(["git", *settings, *where, *words], out.fileno(), err.fileno())
            out.seek(0)
            err.seek(0)
            if status != 0:
                raise self._failed(words[0], status, err.read(64 << 10))
            yield out

    def _run(self, argv: list[str], out: int, err: int) -> int:
        """Run it in a session of its own, which is killed at the limit.

        A shell sets the limit of what it writes: with a `preexec_fn` Python would fork, which
        copies the tables of all its memory, where it can vfork.
        """
        if shutil.which("git") is None:
            raise UsageError(
                "git is not installed on this machine, which fetching a repository needs",
                hint="install git (a registry can also be an archive with its sha256)",
            )
        limited = ["/bin/sh", "-c", _LIMITED, "sh", str(LARGEST_PACK // _ULIMIT_UNIT), *argv]
        process = subprocess.Popen(
            limited,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=_environment(),
            start_new_session=True,
        )
        try:
            return process.wait(max(0.0, self.until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Failed(
                f"the repository '{self.registry.name}' was not fetched within {TIMEOUT_S:g} s",
                where=self.registry.url,
                hint=f"try again; {_KEPT}" if self.registry.name != KIT else "try again",
            ) from None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _failed(self, command: str, status: int, printed: bytes) -> Failed | UsageError:
        text = printed.decode("utf-8", "replace")
        last = [line for line in text.splitlines() if line.strip()][-3:]
        if _MISSING.search(text):
            wanted = self.registry.commit or self.registry.branch
            return UsageError(
                f"the repository '{self.registry.name}' has no such commit or branch: {wanted}",
                where=self.registry.url,
                hint="name another one in registries.yaml: `branch: NAME` or `commit: ID`",
            )
        if status == -signal.SIGXFSZ or _TOO_LARGE.search(text):
            return Failed(
                f"the repository '{self.registry.name}' is larger than {LARGEST_PACK >> 20} MiB",
                where=self.registry.url,
            )
        return Failed(
            f"git {command} of the repository '{self.registry.name}' failed: {'; '.join(last)}",
            where=self.registry.url,
            hint=_KEPT if self.registry.name != KIT else "",
        )


def _environment() -> dict[str, str]:
    """The user's own, without what would lead git to another repository or let it ask."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    ssh = os.environ.get("GIT_SSH_COMMAND", "ssh -oBatchMode=yes -oConnectTimeout=20")
    return {
        **plain,
        "GIT_ALLOW_PROTOCOL": ":".join(GIT_SCHEMES),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "GIT_SSH_COMMAND": ssh,
        "GIT_LFS_SKIP_SMUDGE": "1",
        "LC_ALL": "C",
    }


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to HTTP only: not to files of this machine or to FTP."""

    def redirect_request(self, *words: Any) -> urllib.request.Request | None:
        request, stream, code, _, headers, target = words
        if target.partition(":")[0] not in ARCHIVE_SCHEMES:
            why = "redirected to something that is not HTTP"
            raise urllib.error.HTTPError(request.full_url, code, why, headers, stream)
        return super().redirect_request(*words)


def archived(registry: Registry, chosen: Chosen) -> list[SourceFile]:
    """Return the files of an archive that are taken.

    Raises:
        Failed: it cannot be fetched within the limits, is not the archive that the checksum
            names, or is none.
    """
    data = download(registry)
    found = hashlib.sha256(data).hexdigest()
    if found != registry.sha256:
        raise Failed(
            f"the archive of the registry '{registry.name}' has the sha256 {found}, "
            f"expected {registry.sha256}",
            where=registry.url,
            hint="it was changed or damaged: nothing of it is used",
        )
    try:
        return list(_members(_Unpacked(fileobj=io.BytesIO(data)), chosen))
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        raise Failed(f"is not a .tar.gz: {error}", where=registry.url) from None


def download(registry: Registry) -> bytes:
    """Return the archive.

    A socket's limit is for each byte, so one thread fetches and another looks at the clock; what
    it leaves behind ends with the process, or with the next byte of the body.

    Raises:
        Failed: it cannot be fetched within the limits.
    """
    fetched: Future[bytes] = Future()

    def fetch() -> None:
        try:
            fetched.set_result(_fetch(registry, time.monotonic() + TIMEOUT_S))
        except BaseException as error:  # noqa: BLE001  (handed to who waits)
            fetched.set_exception(error)

    threading.Thread(target=fetch, name="archive", daemon=True).start()
    done, _ = wait([fetched], TIMEOUT_S)
    if not done:
        raise _too_slow(registry)
    return fetched.result()


def _fetch(registry: Registry, until: float) -> bytes:
    opener = urllib.request.build_opener(_Redirects)
    try:
        with opener.open(registry.url, timeout=STALL_S) as answer:
            return b"".join(_blocks(answer, registry, until))
    except urllib.error.HTTPError as error:
        raise Failed(
            f"the server answers {error.code} {error.reason}", where=registry.url
        ) from None
    except http.client.HTTPException as error:
        raise Failed(f"cannot be fetched: {error!r}", where=registry.url) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise Failed(f"cannot be fetched: {reason}", where=registry.url) from None


def _too_slow(registry: Registry) -> Failed:
    return Failed(f"not fetched within {TIMEOUT_S:g} s", where=registry.url)


def _blocks(answer: IO[bytes], registry: Registry, until: float) -> Iterator[bytes]:
    size = 0
    while block := getattr(answer, "read1", answer.read)(_BLOCK):
        size += len(block)
        if size > LARGEST_ARCHIVE:
            raise Failed(f"larger than {LARGEST_ARCHIVE >> 20} MiB", where=registry.url)
        if time.monotonic() > until:
            raise _too_slow(registry)
        yield block


class _Unpacked(gzip.GzipFile):
    """The content of a .gz, as far as the limit."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > LARGEST_CONTENT:
            raise ValueError(f"it unpacks to more than {LARGEST_CONTENT >> 20} MiB")
        return super().read(size)


def _members(stream: IO[bytes] | gzip.GzipFile, chosen: Chosen) -> Iterator[SourceFile]:
    with tarfile.open(fileobj=stream, mode="r|", errors="replace") as archive:
        for number, member in enumerate(archive):
            if number > MOST_LISTED:
                raise Failed(
                    f"the repository '{chosen.registry.name}' lists more files than are looked at",
                    where=chosen.registry.url,
                )
            path = member.name.removeprefix("./")
            if not chosen.takes(path, member.size, regular=member.isreg()):
                continue
            content = archive.extractfile(member)
            if content is not None:
                yield SourceFile(path, content.read())


# The update of registries: what is fetched, what has changed, and when a revision is taken.


@dataclass(frozen=True)
class Changes:
    """The recipes that differ between two revisions, by name."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @classmethod
    def between(cls, old: Index | None, new: Index) -> Changes:
        """Compare two lists; all are added where there was none."""
        before = {one.name: one.sha256 for one in (old.recipes if old else ())}
        after = {one.name: one.sha256 for one in new.recipes}
        return cls(
            tuple(sorted(after.keys() - before.keys())),
            tuple(sorted(n for n in after.keys() & before.keys() if after[n] != before[n])),
            tuple(sorted(before.keys() - after.keys())),
        )

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


class Unusable(TypedDict):
    """A recipe that this program cannot hold."""

    name: str
    why: str


@dataclass(frozen=True)
class Update(Document):
    """What a look at a registry has found.

    Attributes:
        taken: revision in use before; None when there was none.
        changes: against that.
        rewritten: the revision in use is not among the last commits of the branch any more.
        in_use: the found revision is what recipes are taken from now.
    """

    registry: Hidden[Registry]
    taken: Annotated[str | None, Field(serialization_alias="taken_before")]
    found: Hidden[Index]
    changes: Flat[Changes]
    rewritten: bool = False
    in_use: bool = False
    name = derived(str, "registry.name", key="registry")
    url = derived(str, "registry.url")
    revision = derived(str, "found.revision", key="found")
    recipes = derived(int, lambda update: len(update.found.recipes))
    skipped = derived(list[str], "found.skipped")

    @printed
    def not_usable(self) -> list[Unusable]:
        """The recipes that this program cannot hold, and why."""
        return [{"name": one.name, "why": one.error} for one in self.broken]

    @property
    def broken(self) -> tuple[Listed, ...]:
        """The recipes that this program cannot hold."""
        return tuple(one for one in self.found.recipes if one.error)


def take(found: Update, folder: Path) -> Update:
    """Use the revision that was found from now on.

    Args:
        folder: the project's.

    Raises:
        UsageError: files cannot be written.
        InvalidFile: the file of pins is damaged.
    """
    known.pin(found.registry, found.found.revision, folder)
    return replace(found, in_use=True)


def look(registry: Registry, folder: Path) -> Update:
    """Fetch what is new and compare it with what was used last.

    What the project's file names, and what is in use already, is in use; `take` is for the rest.

    Args:
        folder: the project's.

    Raises:
        UsageError: there is no such commit or branch, git is missing, or files cannot be written.
        Failed: it cannot be fetched within the limits.
        InvalidFile: the file of pins is damaged.
    """
    fixed, taken = registry.fixed, known.last_taken(registry, folder)
    here = _cached(registry, fixed)
    if here is not None:
        found, rewritten = _current(registry, here), False
    else:
        found, rewritten = _fetch_registry(registry, taken)
    before = _cached(registry, taken)
    same = found.revision == taken and before is not None
    changes = Changes() if same else Changes.between(before, found)
    if fixed and found.revision != taken:
        known.pin(registry, found.revision, folder)
    return Update(registry, taken, found, changes, rewritten, bool(fixed) or same)


def _fetch_registry(registry: Registry, taken: str | None) -> tuple[Index, bool]:
    """Fetch what the file names, or the branch; and whether that one was rewritten."""
    chosen = Chosen(registry)
    if registry.sha256:
        files = archived(registry, chosen)
        return snapshot.store(registry, registry.sha256, files, chosen.skipped), False
    with fetched(registry, registry.commit) as repository:
        moves = taken is not None and registry.commit is None
        rewritten = moves and not repository.has_in_history(taken or "")
        if taken is not None and moves and not rewritten:
            _keep(registry, repository, taken)
        here = _cached(registry, repository.commit)
        if here is not None:
            return _current(registry, here), rewritten
        files = repository.files(chosen)
    return snapshot.store(registry, repository.commit, files, chosen.skipped), rewritten


def _keep(registry: Registry, repository: Git, taken: str) -> None:
    """Put the commit in use into the cache where it is not (another machine, an emptied cache), so
    that it can be used without agreeing to what the branch has now."""
    if _cached(registry, taken) is None:
        chosen = Chosen(registry)
        snapshot.store(registry, taken, repository.files(chosen, taken), chosen.skipped)


def _cached(registry: Registry, revision: str | None) -> Index | None:
    """The list of a snapshot; a damaged one counts as none, so that an update makes it anew."""
    with contextlib.suppress(InvalidFile):
        return known.index_of(registry, revision) if revision else None
    return None


def _current(registry: Registry, index: Index) -> Index:
    """The list as this version of the program makes it."""
    return index if index.made_by == __version__ else snapshot.again(registry, index)
