"""A user account (never its password)."""

from __future__ import annotations

import grp
import pwd
from dataclasses import dataclass, field

from spark_cluster.node.host import Host
from spark_cluster.node.values import Missing, ResourceError
from spark_cluster.resources.base import PRESENCE, Resource, State, absolute, checks, given
from spark_cluster.resources.group import account_name, account_number, found_by


@dataclass(frozen=True)
class User(Resource):
    """A user account, made with a locked password.

    Args:
        user: login name.
        uid: its number; None takes a free one.
        groups: supplementary groups that it is in; others stay unless `exact_groups`.
        exact_groups: it is in `groups` and in no other.
        shell: login shell, absolute.
        home: home folder, absolute; when it changes, what is in the old one is moved.
        system: a number below 1000 and no home folder (only when it is made).
        state: `present` or `absent` (`absent` leaves the home folder).

    Raises:
        Missing: there is no such group.

    Example:
        User("nvidia", groups=("docker",), shell="/bin/bash")
    """

    valid = checks(
        user=account_name,
        uid=account_number,
        groups=account_name,
        shell=absolute,
        home=absolute,
        state=PRESENCE,
    )

    user: str
    uid: int | None = field(default=None, kw_only=True)
    groups: tuple[str, ...] = field(default=(), kw_only=True)
    exact_groups: bool = field(default=False, kw_only=True)
    shell: str | None = field(default=None, kw_only=True)
    home: str | None = field(default=None, kw_only=True)
    system: bool = field(default=False, kw_only=True)
    state: str = field(default="present", kw_only=True)

    def validate(self) -> None:
        self.must((self.user, self.state) != ("root", "absent"), "root is never removed")

    def provides(self) -> tuple[str, ...]:
        if self.state == "absent":
            return ()
        home = () if self.system else (f"path:{self.home or '/home/' + self.user}",)
        return (f"user:{self.user}", f"group:{self.user}", *home)

    def desired(self) -> State:
        if self.state == "absent":
            return {"exists": False}
        groups = sorted(set(self.groups)) if self.groups or self.exact_groups else None
        return given(exists=True, uid=self.uid, shell=self.shell, home=self.home, groups=groups)

    def observe(self, host: Host) -> State:
        if self.state == "present":
            self._need_groups()
        entry = found_by(pwd.getpwnam, self.user)
        if entry is None:
            return {"exists": False}
        members = sorted(g.gr_name for g in grp.getgrall() if self.user in g.gr_mem)
        return {
            "exists": True,
            "uid": entry.pw_uid,
            "shell": entry.pw_shell,
            "home": entry.pw_dir,
            "groups": [g for g in members if self.exact_groups or g in self.groups],
        }

    def converge(self, host: Host, actual: State) -> None:
        if self.state == "absent":
            argv: tuple[str, ...] = ("userdel", self.user)
        elif actual["exists"]:
            argv = ("usermod", *self._options(actual), self.user)
        else:
            argv = ("useradd", *self._options(actual), *self._new(), self.user)
        if self.shell and self.shell != actual.get("shell") and not host.path(self.shell).exists():
            raise ResourceError(
                f"user {self.user}: the shell {self.shell} does not exist: no one could log in",
                "declare its package first",
            )
        host.run(argv, must_finish=True).check(f"user {self.user}")

    def _need_groups(self) -> None:
        for group in self.groups:
            if found_by(grp.getgrnam, group) is None:
                raise Missing(
                    f"group:{group}",
                    f"user {self.user}: there is no group {group!r}",
                    "declare a Group, or the package that makes it, before the user",
                )

    def _options(self, actual: State) -> tuple[str, ...]:
        """Return the options that useradd and usermod share, as far as they differ."""
        argv: list[str] = []
        if self.uid is not None and self.uid != actual.get("uid"):
            argv += ["--uid", str(self.uid)]
        if self.shell is not None and self.shell != actual.get("shell"):
            argv += ["--shell", self.shell]
        if self.home is not None and self.home != actual.get("home"):
            argv += ["-d", self.home, *(("-m",) if actual["exists"] else ())]
        wanted = sorted(set(self.groups))
        if wanted != actual.get("groups", []):
            append = actual["exists"] and not self.exact_groups
            argv += [*(("--append",) if append else ()), "--groups", ",".join(wanted)]
        return tuple(argv)

    def _new(self) -> tuple[str, ...]:
        argv = ["--system"] if self.system else ["--create-home"]
        own = found_by(grp.getgrnam, self.user) is not None
        return (*argv, *(("--gid", self.user) if own else ("--user-group",)))
