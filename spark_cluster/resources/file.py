"""A regular file with exactly this content."""

from __future__ import annotations

import difflib
import grp
import hashlib
import pwd
import re
import stat
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from spark_cluster.node.host import Host
from spark_cluster.node.processes import Completed
from spark_cluster.node.values import (
    Blob,
    LaptopFile,
    Missing,
    ResourceError,
    Secret,
    Unknown,
)
from spark_cluster.resources.base import (
    PRESENCE,
    Resource,
    State,
    absolute,
    checks,
    given,
    lines_of,
    permissions,
)
from spark_cluster.resources.group import found_by

DIFF_INPUT_LIMIT = 4 * 1024 * 1024
"""Bytes of a file, before and after, up to which a diff is made: it takes memory many times over.
Of a larger one only the sizes are shown."""

NOT_RUN = (126, 127)
"""Status of `env` and of shells when the program cannot be run or is not there."""

_SAID = {"special": "device, socket or pipe"}


@dataclass(frozen=True)
class File(Resource):
    """A regular file.

    Args:
        path: where, absolute.
        content: all of it, or `LaptopFile(path)`; a Secret is shown in no diff. None with
            `state="absent"`.
        mode: permission bits.
        owner, group: names; None leaves them (a new file is the agent's).
        state: `present` or `absent`.
        validate_with: a command that must end with status 0 on the new file before it takes the old
            one's place; `{}` stands for the new file's path, e.g. `("visudo", "-cf", "{}")`. It
            must only look: check mode runs it too, on a copy.

    Example:
        File("/etc/motd", content="Welcome\\n", mode=0o644)
    """

    reverts = ""
    valid = checks(path=absolute, mode=permissions, state=PRESENCE)

    path: str
    content: str | bytes | Blob | LaptopFile | None = field(default=None, kw_only=True)
    mode: int = field(default=0o644, kw_only=True)
    owner: str | None = field(default=None, kw_only=True)
    group: str | None = field(default=None, kw_only=True)
    state: str = field(default="present", kw_only=True)
    validate_with: tuple[str, ...] = field(default=(), kw_only=True)

    def validate(self) -> None:
        present = self.state == "present"
        told = (self.content is not None) == present
        self.must(told, "content is required with state present, and only there")
        named = not self.validate_with or "{}" in self.validate_with
        self.must(named, "validate_with has no {} for the new file")

    def provides(self) -> tuple[str, ...]:
        return (f"path:{self.path}",) if self.state == "present" else ()

    def desired(self) -> State:
        if self.state == "absent":
            return {"kind": "absent"}
        access = access_of(self.mode, self.owner, self.group)
        return {"kind": "file", "sha256": self._digest(), **access}

    def observe(self, host: Host) -> State:
        state = observe_path(host, self.path, needs_parent=self.state == "present")
        expect_kind("file", self.path, state, replaces=("link",))
        return state

    def permit(self, host: Host, changes: Mapping[str, tuple[Any, Any]]) -> str:
        """In check mode, ask `validate_with` about a copy: the real run asks before it writes.

        Raises:
            ResourceError: the new file is not valid.
            Unknown: its content, or the command, is not on the node yet; or it is not valid now,
                and what this run changes before it may make it so.
        """
        content = self._content
        if not host.check or not self.validate_with or content is None:
            return ""
        if isinstance(content, Blob):
            raise Unknown("its content is not known yet, so it cannot be validated")
        if host.which(self.validate_with[0]) is None:
            raise Unknown(f"there is no {self.validate_with[0]} yet, which validates it")
        with tempfile.TemporaryDirectory(prefix="spark-cluster-") as scratch:
            copy = Path(scratch) / self.path.rsplit("/", 1)[1]
            copy.touch(mode=0o600)
            copy.write_bytes(host.content(content))
            found = self._asked(host, copy)
        earlier = host.overlay.claims or host.overlay.files or host.overlay.opaque
        if found.status and (earlier or found.status in NOT_RUN):
            raise Unknown("it can be validated only after what this run changes before it")
        self._must_be_valid(found)
        return ""

    def _asked(self, host: Host, new: Path) -> Completed:
        return host.run([str(new) if a == "{}" else a for a in self.validate_with])

    def _must_be_valid(self, found: Completed) -> None:
        found.check(f"the new {self.path} is not valid, the old one stays")

    def _validate(self, host: Host, new: Path) -> None:
        self._must_be_valid(self._asked(host, new))

    def converge(self, host: Host, actual: State) -> None:
        if self.state == "absent":
            host.remove(self.path)
            return
        content = self._content
        assert content is not None  # noqa: S101  (validate says so)
        uid, gid = owner_ids(self.owner, self.group)
        same = actual.get("sha256") == self._digest()
        data = host.pieces(self.path) if same else host.contents(content)
        host.write(
            self.path,
            data,
            mode=self.mode,
            uid=uid,
            gid=gid,
            secret=isinstance(self.content, Secret),
            validate=partial(self._validate, host) if self.validate_with else None,
        )

    def plan(self, host: Host, actual: State) -> None:
        if self.state == "absent":
            host.overlay.files[self.path] = None
        elif isinstance(self._content, Blob):
            host.overlay.opaque[self.path] = self.id
        elif self._content is not None:
            host.overlay.files[self.path] = host.content(self._content)

    def diff(self, host: Host, actual: State) -> str:
        if isinstance(self.content, Secret):
            return f"{self.path}: secret content, not shown\n"
        content = self._content
        old = host.size(self.path) if actual["kind"] == "file" else 0
        if isinstance(content, Blob):
            return sizes(self.path, old, content.size)
        after = b"" if content is None else host.content(content)
        if max(old, len(after)) > DIFF_INPUT_LIMIT:
            return sizes(self.path, old, len(after))
        before = b"" if actual["kind"] != "file" else host.read(self.path) or b""
        return unified(self.path, before, after)

    @property
    def _content(self) -> str | bytes | Blob | None:
        """As a node gets it."""
        return self.content.blob() if isinstance(self.content, LaptopFile) else self.content

    def _digest(self) -> str:
        content = self._content
        if isinstance(content, Blob):
            return content.sha256
        data = content.encode() if isinstance(content, str) else content
        return sha256(data or b"")


@dataclass(frozen=True)
class EditedFile(Resource):
    """Base of resources that edit a text file which others own, too."""

    edits: ClassVar[str] = ""
    """Path of the file, where it is the same for all; otherwise the field `path` has it."""

    @property
    def edited(self) -> str:
        """The file's path."""
        return self.edits or str(getattr(self, "path"))  # noqa: B009  (of a subclass)

    def text_after(self, host: Host) -> bytes | None:
        """Return the file's content after the change; None for no file."""
        raise NotImplementedError

    @property
    def is_secret(self) -> bool:
        """True if what it writes is a secret: it is not shown, and what it replaces is not kept."""
        return False

    def lines(self, host: Host) -> list[str] | None:
        """Return the file's lines as they are now; None without the file."""
        content = host.read(self.edited)
        return None if content is None else lines_of(content.decode(errors="surrogateescape"))

    def converge(self, host: Host, actual: State) -> None:
        content = self.text_after(host)
        if content is None:
            host.remove(self.edited)
        else:
            host.write(self.edited, content)

    def plan(self, host: Host, actual: State) -> None:
        host.overlay.files[self.edited] = self.text_after(host)

    def diff(self, host: Host, actual: State) -> str:
        if self.is_secret:
            return f"{self.edited}: secret content, not shown\n"
        return unified(self.edited, host.read(self.edited) or b"", self.text_after(host) or b"")


def joined(lines: Iterable[str]) -> bytes:
    """Return the content of a file with these lines, as `EditedFile.lines` reads them."""
    return "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")


def need_folder(host: Host, path: str) -> None:
    """Raise Missing when the folder of a path does not exist and nothing earlier makes it."""
    parent = path.rsplit("/", 1)[0] or "/"
    if not host.path(parent).is_dir() and not host.will_provide(f"path:{parent}"):
        raise Missing(
            f"path:{parent}",
            f"the folder {parent} does not exist",
            "declare a Directory for it",
        ) from None


def observe_path(host: Host, path: str, *, needs_parent: bool) -> State:
    """Kind, owner, group, mode and (of a file) digest of what is at `path` now.

    Raises:
        Missing: the folder it would be in does not exist and nothing earlier makes it.
    """
    if host.check and path in host.overlay.files and host.overlay.files[path] is None:
        return {"kind": "absent"}
    try:
        status = host.look(path)
    except (FileNotFoundError, NotADirectoryError):
        parent = path.rsplit("/", 1)[0] or "/"
        if host.path(parent).is_file():
            raise ResourceError(f"{parent} is a file, so there is no {path} in it") from None
        if needs_parent:
            need_folder(host, path)
        digest = host.digest(path)
        return {"kind": "absent"} if digest is None else {"kind": "file", "sha256": digest}
    state: State = {
        "kind": _kind(status.st_mode),
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        "owner": user_name(status.st_uid),
        "group": _group_name(status.st_gid),
    }
    if state["kind"] == "file":
        state["sha256"] = host.digest(path) or sha256(b"")
    return state


def expect_kind(wanted: str, path: str, state: State, *, replaces: Collection[str] = ()) -> None:
    """Check that nothing of another kind is in the way at `path`.

    Args:
        state: as `observe_path` returned it.
        replaces: other kinds that the resource replaces.

    Raises:
        ResourceError: something is, which is never removed.
    """
    kind = state["kind"]
    if kind not in ("absent", wanted, *replaces):
        raise ResourceError(
            f"{path} is a {_SAID.get(kind, kind)}, not a {wanted}",
            "move it away first; it is not removed",
        )


def access_of(mode: int | None, owner: str | None, group: str | None) -> State:
    """Return what is declared of mode, owner and group, as `observe_path` shows them."""
    return given(mode=None if mode is None else f"{mode:04o}", owner=owner, group=group)


def owner_ids(owner: str | None, group: str | None) -> tuple[int, int]:
    """uid and gid of names (-1 for None).

    Raises:
        Missing: there is no such user or group.
    """
    user = None if owner is None else found_by(pwd.getpwnam, owner)
    if owner is not None and user is None:
        raise Missing(f"user:{owner}", f"there is no user {owner!r}")
    members = None if group is None else found_by(grp.getgrnam, group)
    if group is not None and members is None:
        raise Missing(f"group:{group}", f"there is no group {group!r}")
    return user.pw_uid if user else -1, members.gr_gid if members else -1


def sha256(data: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(data).hexdigest()


def sizes(path: str, before: int, after: int, what: str = "") -> str:
    """Describe a change of which no diff is shown; sizes in bytes."""
    return f"{path}: {what}{before} bytes become {after} bytes\n"


def unified(path: str, before: bytes, after: bytes) -> str:
    """A unified diff of two texts, or one line of sizes when either is not text."""
    try:
        old, new = before.decode(), after.decode()
    except UnicodeDecodeError:
        return sizes(path, len(before), len(after), "binary, ")
    lines = difflib.unified_diff(
        re.findall(r"[^\n]*\n|[^\n]+", old),
        re.findall(r"[^\n]*\n|[^\n]+", new),
        f"{path} (now)",
        f"{path} (then)",
    )
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "link" if stat.S_ISLNK(mode) else "special"


def user_name(uid: int) -> str:
    """Return the name of a user, or the number where it has none."""
    entry = found_by(pwd.getpwuid, uid)
    return entry.pw_name if entry else str(uid)


def _group_name(gid: int) -> str:
    entry = found_by(grp.getgrgid, gid)
    return entry.gr_name if entry else str(gid)
