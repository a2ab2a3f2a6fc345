"""A group of users."""

from __future__ import annotations

import grp
import re
from dataclasses import dataclass, field

from spark_cluster.node.host import Host
from spark_cluster.node.values import InvalidResource
from spark_cluster.resources.base import Resource, State


def valid_name(kind: str, name: str) -> None:
    """Raise InvalidResource unless `name` can be a user or group on some system.

    What may be made is up to useradd and groupadd there; one that exists, perhaps in a directory
    service (`Some.Body`, `who@example.org`, `domain users`), is taken as it is.
    """
    unfit = re.search(r"[:,/\x00-\x1f\x7f]|^[-+~ ]| $", name)
    if unfit or not name or len(name) > 256 or name in (".", "..") or name.isdigit():
        raise InvalidResource(
            f"{kind} {name!r}: a name has 1 to 256 characters, none of them : , / or a control "
            "character, the first not - + ~ or a blank, and it is not a number"
        )


def valid_number(kind: str, name: str, what: str, number: int | None) -> None:
    """Raise InvalidResource unless `number` can be a uid or gid."""
    if number is not None and (isinstance(number, bool) or not 0 <= number < 2**32 - 1):
        raise InvalidResource(f"{kind} {name}: {what} {number!r} is not from 0 to 4294967294")


@dataclass(frozen=True)
class Group(Resource):
    """A group.

    Args:
        group: its name.
        gid: its number; None takes a free one.
        system: a number below 1000 (only when it is made).
        state: `present` or `absent`.

    Example:
        Group("docker", system=True)
    """

    group: str
    gid: int | None = field(default=None, kw_only=True)
    system: bool = field(default=False, kw_only=True)
    state: str = field(default="present", kw_only=True)

    def validate(self) -> None:
        valid_name("Group", self.group)
        valid_number("Group", self.group, "gid", self.gid)
        if self.state not in ("present", "absent"):
            raise InvalidResource(f"Group {self.group}: state {self.state!r} is unknown")

    def provides(self) -> tuple[str, ...]:
        return (f"group:{self.group}",) if self.state == "present" else ()

    def desired(self) -> State:
        if self.state == "absent":
            return {"exists": False}
        return {"exists": True, **({} if self.gid is None else {"gid": self.gid})}

    def observe(self, host: Host) -> State:
        try:
            return {"exists": True, "gid": grp.getgrnam(self.group).gr_gid}
        except KeyError:
            return {"exists": False}

    def converge(self, host: Host, actual: State) -> None:
        number = () if self.gid is None else ("--gid", str(self.gid))
        if self.state == "absent":
            argv: tuple[str, ...] = ("groupdel", self.group)
        elif actual["exists"]:
            argv = ("groupmod", *number, self.group)
        else:
            argv = ("groupadd", *(("--system",) if self.system else ()), *number, self.group)
        host.run(argv, must_finish=True).check(f"group {self.group}")
