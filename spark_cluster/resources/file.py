"""A regular file with exactly this content."""

from __future__ import annotations

import difflib
import grp
import hashlib
import pwd
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster.resources.base import (
    Blob,
    InvalidResource,
    Missing,
    Resource,
    ResourceError,
    Secret,
    State,
    absolute,
    valid_mode,
)

if TYPE_CHECKING:
    from spark_cluster.agent.host import Host


_SAID = {"directory": "directory", "special": "device, socket or pipe"}


@dataclass(frozen=True)
class File(Resource):
    """A regular file.

    Args:
        path: where, absolute.
        content: all of it; a Secret is shown in no diff. None with `state="absent"`.
        mode: permission bits.
        owner, group: names; None leaves them (a new file is the agent's).
        state: `present` or `absent`.
        validate_with: a command that must end with status 0 on the new file before it takes the old
            one's place; `{}` stands for the new file's path, e.g. `("visudo", "-cf", "{}")`.

    Example:
        File("/etc/motd", content="Welcome\\n", mode=0o644)
    """

    reverts = ""

    path: str
    content: str | bytes | Blob | None = field(default=None, kw_only=True)
    mode: int = field(default=0o644, kw_only=True)
    owner: str | None = field(default=None, kw_only=True)
    group: str | None = field(default=None, kw_only=True)
    state: str = field(default="present", kw_only=True)
    validate_with: tuple[str, ...] = field(default=(), kw_only=True)

    def validate(self) -> None:
        absolute(self.path, "File")
        valid_mode(self.mode, f"File {self.path}")
        if self.state not in ("present", "absent"):
            raise InvalidResource(
                f"File {self.path}: state {self.state!r} is not present or absent"
            )
        if (self.content is None) == (self.state == "present"):
            raise InvalidResource(
                f"File {self.path}: content goes with state present, and only there"
            )
        if self.validate_with and "{}" not in self.validate_with:
            raise InvalidResource(f"File {self.path}: validate_with has no {{}} for the new file")

    def provides(self) -> tuple[str, ...]:
        return (f"path:{self.path}",) if self.state == "present" else ()

    def desired(self) -> State:
        if self.state == "absent":
            return {"kind": "absent"}
        wanted: State = {"kind": "file", "sha256": self._digest(), "mode": f"{self.mode:04o}"}
        if self.owner is not None:
            wanted["owner"] = self.owner
        if self.group is not None:
            wanted["group"] = self.group
        return wanted

    def observe(self, host: Host) -> State:
        state = observe_path(host, self.path, needs_parent=self.state == "present")
        if state["kind"] in ("directory", "special"):
            raise ResourceError(
                f"{self.path} is a {_SAID[state['kind']]}, not a file",
                "move it away first; it is not removed",
            )
        return state

    def converge(self, host: Host, actual: State) -> None:
        if self.state == "absent":
            host.remove(self.path)
            return
        assert self.content is not None  # noqa: S101  (validate says so)
        uid, gid = owner_ids(self.owner, self.group)
        if actual.get("sha256") == self._digest():
            data = host.read(self.path) or b""
        else:
            data = host.content(self.content)

        def check(beside: Path) -> None:
            argv = [str(beside) if a == "{}" else a for a in self.validate_with]
            host.run(argv).check(f"the new {self.path} is not valid, the old one stays")

        host.write(
            self.path,
            data,
            mode=self.mode,
            uid=uid,
            gid=gid,
            secret=isinstance(self.content, Secret),
            validate=check if self.validate_with else None,
        )

    def plan(self, host: Host, actual: State) -> None:
        if self.state == "absent":
            host.overlay.files[self.path] = None
        elif isinstance(self.content, Blob):
            host.overlay.opaque[self.path] = self.id
        elif self.content is not None:
            host.overlay.files[self.path] = host.content(self.content)

    def diff(self, host: Host, actual: State) -> str:
        if isinstance(self.content, Secret):
            return f"{self.path}: secret content, not shown\n"
        before = b"" if actual["kind"] != "file" else host.read(self.path) or b""
        if isinstance(self.content, Blob):
            return f"{self.path}: {len(before)} bytes become {self.content.size} bytes\n"
        after = b"" if self.content is None else host.content(self.content)
        return unified(self.path, before, after)

    def _digest(self) -> str:
        if isinstance(self.content, Blob):
            return self.content.sha256
        data = self.content.encode() if isinstance(self.content, str) else self.content
        return sha256(data or b"")


def observe_path(host: Host, path: str, *, needs_parent: bool) -> State:
    """Kind, owner, group, mode and (of a file) digest of what is at `path` now.

    Raises:
        Missing: the folder it would be in does not exist and nothing earlier makes it.
    """
    if host.check and path in host.overlay.files and host.overlay.files[path] is None:
        return {"kind": "absent"}
    target = host.path(path)
    try:
        status = target.lstat()
    except (FileNotFoundError, NotADirectoryError):
        parent = path.rsplit("/", 1)[0] or "/"
        if host.path(parent).is_file():
            raise ResourceError(f"{parent} is a file, so there is no {path} in it") from None
        if needs_parent and not host.path(parent).is_dir() and not host.pending(f"path:{parent}"):
            raise Missing(
                f"path:{parent}",
                f"the folder {parent} does not exist",
                "declare a Directory for it",
            ) from None
        content = host.read(path)
        if content is None:
            return {"kind": "absent"}
        return {"kind": "file", "sha256": sha256(content)}
    state: State = {
        "kind": _kind(status.st_mode),
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        "owner": _user_name(status.st_uid),
        "group": _group_name(status.st_gid),
    }
    if state["kind"] == "file":
        state["sha256"] = sha256(host.read(path) or b"")
    return state


def owner_ids(owner: str | None, group: str | None) -> tuple[int, int]:
    """uid and gid of names (-1 for None).

    Raises:
        Missing: there is no such user or group.
    """
    try:
        uid = -1 if owner is None else pwd.getpwnam(owner).pw_uid
    except KeyError:
        raise Missing(f"user:{owner}", f"there is no user {owner!r}") from None
    try:
        gid = -1 if group is None else grp.getgrnam(group).gr_gid
    except KeyError:
        raise Missing(f"group:{group}", f"there is no group {group!r}") from None
    return uid, gid


def sha256(data: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(data).hexdigest()


def unified(path: str, before: bytes, after: bytes) -> str:
    """A unified diff of two texts, or one line of sizes when either is not text."""
    try:
        old, new = before.decode(), after.decode()
    except UnicodeDecodeError:
        return f"{path}: binary, {len(before)} bytes become {len(after)} bytes\n"
    lines = difflib.unified_diff(
        old.splitlines(keepends=True),
        new.splitlines(keepends=True),
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


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
