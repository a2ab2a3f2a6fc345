"""A group of users."""

from __future__ import annotations

import grp
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from spark_cluster.node.host import Host
from spark_cluster.resources.base import PRESENCE, Resource, State, checks, given

K = TypeVar("K")
T = TypeVar("T")


def account_name(name: str) -> str:
    """Return the fault of a name that cannot be a user's or group's on any system.

    What may be made is up to useradd and groupadd there; one that exists, perhaps in a directory
    service (`Some.Body`, `who@example.org`, `domain users`), is taken as it is.
    """
    unfit = re.search(r"[:,/\x00-\x1f\x7f]|^[-+~ ]| $", name)
    if unfit or not name or len(name) > 256 or name in (".", "..") or name.isdigit():
        return (
            f"{name!r}: a name has 1 to 256 characters, none of them : , / or a control "
            "character, the first not - + ~ or a blank, and it is not a number"
        )
    return ""


def account_number(number: int) -> str:
    """Return the fault of a number that cannot be a uid or gid."""
    fits = not isinstance(number, bool) and 0 <= number < 2**32 - 1
    return "" if fits else f"{number!r} is not from 0 to 4294967294"


def found_by(find: Callable[[K], T], key: K) -> T | None:
    """Return the entry that pwd or grp finds; None where there is none."""
    try:
        return find(key)
    except KeyError:
        return None


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

    valid = checks(group=account_name, gid=account_number, state=PRESENCE)

    group: str
    gid: int | None = field(default=None, kw_only=True)
    system: bool = field(default=False, kw_only=True)
    state: str = field(default="present", kw_only=True)

    def provides(self) -> tuple[str, ...]:
        return (f"group:{self.group}",) if self.state == "present" else ()

    def desired(self) -> State:
        if self.state == "absent":
            return {"exists": False}
        return given(exists=True, gid=self.gid)

    def observe(self, host: Host) -> State:
        entry = found_by(grp.getgrnam, self.group)
        return {"exists": True, "gid": entry.gr_gid} if entry else {"exists": False}

    def converge(self, host: Host, actual: State) -> None:
        number = () if self.gid is None else ("--gid", str(self.gid))
        if self.state == "absent":
            argv: tuple[str, ...] = ("groupdel", self.group)
        elif actual["exists"]:
            argv = ("groupmod", *number, self.group)
        else:
            argv = ("groupadd", *(("--system",) if self.system else ()), *number, self.group)
        host.run(argv, must_finish=True).check(f"group {self.group}")
