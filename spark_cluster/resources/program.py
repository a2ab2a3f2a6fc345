"""What a Container and a Unit have in common: a program's declaration, its secrets, its life."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from spark_cluster.node import paths
from spark_cluster.node.host import Host
from spark_cluster.node.values import Missing, ResourceError, Secret
from spark_cluster.resources.base import Resource, State, absolute

SECRETS = paths.SECRETS

LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class Program(Resource):
    """Base of what runs a program as declared, and makes it again when anything changes.

    The fields are explained where they are declared for users: in Container and Unit.
    """

    kind: ClassVar[str]
    """What it is, in messages."""
    shown_by: ClassVar[str]
    """The command that would show a secret given in any text but those of secret files."""
    variable: ClassVar[str] = r"[A-Za-z_][A-Za-z0-9_]*"
    """Pattern of the names of variables."""
    sources: ClassVar[str]
    """What to declare before it, for a path that is missing."""

    env: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    secret_files: Mapping[str, Secret] = field(default_factory=dict, kw_only=True)
    mounts: tuple[str, ...] = field(default=(), kw_only=True)
    devices: tuple[str, ...] = field(default=(), kw_only=True)
    labels: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    stop_timeout_s: int = field(default=10, kw_only=True)
    restart_when: tuple[Resource | str, ...] = field(default=(), kw_only=True)
    state: str = field(default="running", kw_only=True)

    @property
    def command(self) -> tuple[str, ...]:
        """The program and its arguments."""
        raise NotImplementedError

    @property
    def spec(self) -> str:
        """Digest of all that makes this program what it is (secrets are compared on the node)."""
        raise NotImplementedError

    def validate(self) -> None:
        for where, value in self._texts():
            self.must(
                not isinstance(value, Secret),
                f"{where} is a secret, which `{self.shown_by}` would show; give it in "
                "secret_files and let the program read that file",
            )
            text = isinstance(value, str)
            self.must(text, f"{where} is {value!r}; write it as text: '{value}'")
            self.must("\0" not in str(value), f"{where} is {value!r}, which has a NUL character")
        for name in self.env:
            self.must(re.fullmatch(self.variable, name), f"{name!r} is not the name of a variable")
        for mount in self.mounts:
            source, target, mode = split_mount(mount)
            known = mode in ("", "ro", "rw")
            self.must(known, f"mount {mount!r} is not SOURCE:TARGET or SOURCE:TARGET:ro")
            for what, path in (("source", source), ("target", target)):
                fault = absolute(path)
                self.must(not fault, f"{what} of mount {mount!r}: {fault}")
        for path, secret in self.secret_files.items():
            self.must(not absolute(path), f"secret_files: {absolute(path)}")
            told = isinstance(secret, Secret)
            self.must(told, f"secret_files {path}: wrap the value in Secret(...)")

    def desired(self) -> State:
        if self.state == "absent":
            return {"state": "absent", "secrets": "none"}
        secrets = "as declared" if self.secret_files else "none"
        return {"state": self.state, "spec": self.spec[:12], **self.also, "secrets": secrets}

    def converge(self, host: Host, actual: State) -> None:
        present = self.state != "absent"
        if present:
            self.need_sources(host)
        if actual["state"] != "absent":
            self.end(host)
        # Only now, with no program left: one that still ran would have read the old secret while
        # the file has the new one, and a run that dies in between would leave it so.
        if present or not self.shares_secrets(host):
            self._write_secrets(host, self.secret_files if present else {})
        if present:
            self.start(host)
        else:
            self.forget(host)

    # -- what differs --------------------------------------------------------------------------

    @property
    def also(self) -> State:
        """What else is desired of one that is there."""
        return {}

    @property
    def needs(self) -> Iterable[str]:
        """Paths that must be on the node, besides the sources of the mounts."""
        return ()

    def shares_secrets(self, host: Host) -> bool:
        """Return whether the secrets of this name are those of another program, which may run."""
        return False

    def end(self, host: Host) -> None:
        """End the program that is there, whoever made it."""
        raise NotImplementedError

    def start(self, host: Host) -> None:
        """Make and start it; the one before it is gone."""
        raise NotImplementedError

    def forget(self, host: Host) -> None:
        """Remove what is left of one that has been ended."""

    # -- node ----------------------------------------------------------------------------------

    def need_sources(self, host: Host) -> None:
        """Raise Missing for a path that is not on the node and that no earlier resource will make:
        what runs the program would only fail later."""
        for path in (*(split_mount(mount)[0] for mount in self.mounts), *self.needs):
            if not host.path(path).exists() and not host.will_provide(f"path:{path}"):
                driver = "its driver makes it; see `spark-cluster doctor`"
                raise Missing(
                    f"path:{path}",
                    f"{self.kind} {self.name}: {path} does not exist on the node",
                    driver if path.startswith("/dev/") else self.sources,
                )

    def secrets(self, host: Host) -> str:
        """Return whether the files on the node are those declared: `as declared`, `others`,
        `none`."""
        folder = host.path(f"{SECRETS}/{self.name}")
        if not folder.is_dir():
            return "none"
        found = {p.name: p.read_bytes() for p in folder.iterdir()}
        declared = {_file(path): value.encode() for path, value in self.secret_files.items()}
        return "as declared" if found == declared and declared else "others"

    def _write_secrets(self, host: Host, files: Mapping[str, Secret]) -> None:
        """Replace the program's files, in a folder that only root enters; without files it goes.

        Not through `host.write`: the journal would keep the old ones.
        """
        folder = host.path(f"{SECRETS}/{self.name}")
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
        if not files:
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.parent.chmod(0o700)
        folder.mkdir(mode=0o700)
        for path, value in files.items():
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(folder / _file(path), flags, 0o600), "wb") as out:
                out.write(value.encode())
                out.flush()
                os.fsync(out.fileno())

    def _texts(self) -> Iterable[tuple[str, object]]:
        for number, word in enumerate(self.command):
            yield f"command[{number}]", word
        yield from ((f"env {name}", value) for name, value in self.env.items())
        yield from ((f"label {name}", value) for name, value in self.labels.items())


def secret_path(program: str, path: str) -> str:
    """Return where the node keeps the secret file that a program sees as `path`."""
    return f"{SECRETS}/{program}/{_file(path)}"


def _file(path: str) -> str:
    """The name on the node of the file that a program sees as `path`."""
    return f"{path.rsplit('/', 1)[1]}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def split_mount(mount: str) -> tuple[str, str, str]:
    """Return source, target and mode (empty when none is given) of `SOURCE:TARGET[:MODE]`."""
    source, _, rest = mount.partition(":")
    target, _, mode = rest.partition(":")
    return source, target, mode


def must_stay(fault: Callable[[], ResourceError | None], for_s: float) -> None:
    """Look at a program that was started, once at least; raise what one of the looks finds.

    Args:
        for_s: seconds.
    """
    until = time.monotonic() + for_s
    while True:
        time.sleep(LOOK_EVERY_S)
        if error := fault():
            raise error
        if time.monotonic() >= until:
            return


def end_of(log: Iterable[str], otherwise: str = " (nothing)") -> str:
    """Return the last lines of a log as they stand below a message."""
    return "".join(f"\n    {line}" for line in log) or otherwise
