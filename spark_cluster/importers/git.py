"""The files of a git repository at a commit, fetched without a work tree.

Nothing of the repository is checked out and nothing in it is run: no hooks, no submodules, no
filters. What is fetched lies in a temporary bare repository, and single files are read from it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from spark_cluster.errors import Failed, UsageError
from spark_cluster.importers.snapshot import LARGEST_FILE, Chosen, SourceFile
from spark_cluster.loader.registries import GIT_SCHEMES, Registry

TIMEOUT_S = 120.0
"""Seconds for everything that is fetched of one registry."""

LARGEST_PACK = 256 << 20
"""Bytes of any file that git may write."""

LARGEST_LISTING = 32 << 20
"""Bytes of the list of files, some 400,000 of them. A small pack can list the same folder over and
over, and each entry takes a multiple of its length while it is read."""

HISTORY = 200
"""Commits of a branch that are fetched, to see whether the taken one is still among them."""

_REGULAR = ("100644", "100755", "100664")
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
def fetched(registry: Registry, revision: str | None) -> Iterator[Git]:
    """Fetch a commit, or the newest one of the branch: `Git.commit`.

    Raises:
        UsageError: git is not installed, or the repository has no such commit or branch.
        Failed: it cannot be fetched, or not within the limits of time and size.
    """
    with tempfile.TemporaryDirectory(prefix="spark-cluster-registry-") as folder:
        git = Git(registry, Path(folder), time.monotonic() + TIMEOUT_S)
        git.output("init", "--quiet", "--bare", "--template=", "--", str(git.folder))
        # A branch or a tag by its name; a commit needs no history.
        wanted = revision or registry.branch
        depth = 1 if revision else HISTORY
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
        data = self.output("ls-tree", "-rlz", commit or self.commit, "--")
        if len(data) > LARGEST_LISTING:
            raise Failed(
                f"the registry '{self.registry.name}' lists more files than can be looked at",
                where=self.registry.url,
            )
        taken = [
            (path, number)
            for mode, number, size, path in _entries(data)
            if chosen.takes(path, size, regular=mode in _REGULAR)
        ]
        numbers = [number for _, number in taken]
        data = self.output("cat-file", "--batch", stdin="\n".join(numbers).encode() + b"\n")
        contents = _batch(data, numbers) if numbers else iter(())
        return [
            SourceFile(path, content) for (path, _), content in zip(taken, contents, strict=True)
        ]

    def has_in_history(self, commit: str) -> bool:
        """Return whether an older commit is among the last ones of the branch."""
        known = self.output("rev-list", f"--max-count={HISTORY}", self.commit, "--")
        return commit in known.decode("ascii", "replace").split()

    def output(self, *words: str, stdin: bytes = b"") -> bytes:
        """Return what a command prints.

        Raises:
            UsageError: git is not installed, or the repository has no such commit or branch.
            Failed: it ended with another error, or not in time.
        """
        settings = [word for one in _SETTINGS for word in ("-c", one)]
        where = [] if words[0] == "init" else [f"--git-dir={self.folder}"]
        argv = ["git", *settings, *where, *words]
        with (
            tempfile.TemporaryFile(dir=self.scratch) as out,
            tempfile.TemporaryFile(dir=self.scratch) as err,
            tempfile.TemporaryFile(dir=self.scratch) as given,
        ):
            given.write(stdin)
            given.seek(0)
            status = self._run(argv, given.fileno(), out.fileno(), err.fileno())
            out.seek(0)
            err.seek(0)
            if status != 0:
                raise self._failed(words[0], status, err.read(64 << 10))
            return out.read()

    def _run(self, argv: list[str], given: int, out: int, err: int) -> int:
        """Run it in a session of its own, which is killed at the limit.

        A shell sets the limit of what it writes: with a `preexec_fn` Python would fork, which
        copies the tables of all its memory, where it can vfork.
        """
        if shutil.which("git") is None:
            raise UsageError(
                "git is not installed on this machine, which a registry that is a repository needs",
                hint="install git, or name an archive with its sha256",
            )
        limited = ["/bin/sh", "-c", _LIMITED, "sh", str(LARGEST_PACK // _ULIMIT_UNIT), *argv]
        process = subprocess.Popen(
            limited,
            stdin=given,
            stdout=out,
            stderr=err,
            env=_environment(),
            start_new_session=True,
        )
        try:
            return process.wait(max(0.0, self.until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Failed(
                f"the registry '{self.registry.name}' was not fetched within {TIMEOUT_S:g} s",
                where=self.registry.url,
                hint="try again; what was taken before remains in use",
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
                f"the registry '{self.registry.name}' has no such commit or branch",
                where=self.registry.url,
                hint=f"asked for: {wanted}",
            )
        if status == -signal.SIGXFSZ or _TOO_LARGE.search(text):
            return Failed(
                f"the registry '{self.registry.name}' is larger than {LARGEST_PACK >> 20} MiB",
                where=self.registry.url,
            )
        return Failed(
            f"git {command} of the registry '{self.registry.name}' failed: {'; '.join(last)}",
            where=self.registry.url,
            hint="what was taken before remains in use",
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


def _entries(data: bytes) -> Iterator[tuple[str, str, int, str]]:
    """Yield mode, object, size and path of each entry of `ls-tree -rlz`."""
    for entry in filter(None, data.split(b"\0")):
        head, _, name = entry.partition(b"\t")
        mode, _, number, size = head.decode("ascii", "replace").split()
        yield mode, number, int(size) if size.isdigit() else 0, name.decode("utf-8", "replace")


def _batch(data: bytes, numbers: Sequence[str]) -> Iterator[bytes]:
    """Yield the contents that `cat-file --batch` printed."""
    at = 0
    for number in numbers:
        end = data.find(b"\n", at)
        words = data[at:end].decode("ascii", "replace").split()
        if end < 0 or len(words) != 3 or words[0] != number or words[1] != "blob":
            raise Failed(f"git has no file {number}")
        size = int(words[2])
        if size > LARGEST_FILE:
            raise Failed(f"git says another size of the file {number} than before")
        yield data[end + 1 : end + 1 + size]
        at = end + 1 + size + 1
