"""A directory with an owner and a mode."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_cluster.node.host import Host
from spark_cluster.node.values import ResourceError, Unknown
from spark_cluster.resources.base import PRESENCE, Resource, State, absolute, checks, permissions
from spark_cluster.resources.file import access_of, expect_kind, observe_path, owner_ids


@dataclass(frozen=True)
class Directory(Resource):
    """A directory; missing ones above it are made too (mode 755, the agent's user).

    Args:
        path: where, absolute.
        mode: permission bits; None leaves them (a new one gets 755).
        owner, group: names; None leaves them.
        state: `present` or `absent` (`absent` removes all that is in it).
        keep: with `absent`, keep what is removed in the journal, so that it can be reverted; unset
            for a program's runtime data.

        below: a folder above it, from which on no link may lead to it: containers write there, and
            are root, so that who owns a link says nothing. Empty: links are judged by their owners.

    Example:
        Directory("/srv/models", mode=0o755, owner="nvidia")
    """

    reverts = ""
    valid = checks(path=absolute, mode=permissions, state=PRESENCE)

    path: str
    mode: int | None = field(default=None, kw_only=True)
    owner: str | None = field(default=None, kw_only=True)
    group: str | None = field(default=None, kw_only=True)
    state: str = field(default="present", kw_only=True)
    keep: bool = field(default=True, kw_only=True)
    below: str = field(default="", kw_only=True)

    def validate(self) -> None:
        top = self.state == "absent" and self.path.count("/") < 2
        self.must(not top, "a top-level directory is never removed")

    def provides(self) -> tuple[str, ...]:
        if self.state == "absent":
            return ()
        parts = self.path.strip("/").split("/")
        return tuple("path:/" + "/".join(parts[: i + 1]) for i in range(len(parts)))

    def desired(self) -> State:
        if self.state == "absent":
            return {"kind": "absent"}
        return {"kind": "directory", **access_of(self.mode, self.owner, self.group)}

    def observe(self, host: Host) -> State:
        if self.below:
            self._must_be_in_place(host)
        state = observe_path(host, self.path, needs_parent=False)
        maker = host.will_provide(f"path:{self.path}")
        if state["kind"] == "absent" and self.state == "present" and maker is not None:
            raise Unknown(f"after: {maker}")  # it makes it, with a mode of its own
        expect_kind("directory", self.path, state)
        return state

    def _must_be_in_place(self, host: Host) -> None:
        real, above = (os.path.realpath(host.path(path)) for path in (self.path, self.below))
        if real != f"{above}{self.path.removeprefix(os.path.normpath(self.below))}":
            raise ResourceError(
                f"{self.path} leads to {real} by a link below {self.below}",
                "a container may have left it there: remove it; another disk can be mounted there",
            )

    def permit(self, host: Host, changes: Mapping[str, tuple[Any, Any]]) -> str:
        """Warn before it is removed that it cannot be restored."""
        from spark_cluster.node.journal import why_not_kept  # only known on the node

        why = why_not_kept(host.path(self.path)) if self.state == "absent" and self.keep else ""
        note = f"{self.path} is removed permanently, revert cannot restore it: {why}" if why else ""
        if host.check or not note:
            return note
        host.note(note)
        return ""

    def converge(self, host: Host, actual: State) -> None:
        if self.state == "absent":
            host.remove(self.path, keep=self.keep)
            return
        uid, gid = owner_ids(self.owner, self.group)
        host.directory(self.path, mode=self.mode, uid=uid, gid=gid)

    def plan(self, host: Host, actual: State) -> None:
        """Record what is absent for later resources, and what exists again after a removal."""
        if self.state == "present":
            host.overlay.files.pop(self.path, None)
            return
        host.overlay.files[self.path] = None
        # Nothing else is declared in a program's runtime data, which may have any depth.
        for found in host.path(self.path).rglob("*") if self.keep else ():
            host.overlay.files["/" + str(found.relative_to(host.root))] = None
