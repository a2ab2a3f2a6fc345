"""useradd and its kin on the scratch node's /etc/passwd and /etc/group."""

from pathlib import Path
from typing import Any

from common import Refuse, options

FLAGS = ("--system", "--create-home", "--user-group", "--append", "-m")
VALUED = ("--uid", "--gid", "--shell", "--groups", "-d")


def main(state: dict[str, Any], root: Path, command: str, argv: list[str]) -> None:
    found, (name,) = options(argv, FLAGS, VALUED)
    given = {k: v[-1] for k, v in found.items()}
    users, groups = Table(root / "etc/passwd"), Table(root / "etc/group")
    if state.get("busy") == name:
        raise Refuse(8, f"{command}: user {name} is currently used by process 4711")
    globals()[command](name, given, users, groups, root)
    users.save()
    groups.save()


class Table:
    def __init__(self, path: Path) -> None:
        self.path = path
        rows = (line.split(":") for line in path.read_text().splitlines())
        self.rows = {row[0]: row for row in rows}

    def save(self) -> None:
        self.path.write_text("".join(":".join(r) + "\n" for r in self.rows.values()))

    def free(self, system: bool) -> str:
        taken = {int(r[2]) for r in self.rows.values()}
        return str(next(n for n in range(100 if system else 1000, 60000) if n not in taken))


def useradd(name: str, given: dict[str, str], users: Table, groups: Table, root: Path) -> None:
    if name in users.rows:
        raise Refuse(9, f"useradd: user '{name}' already exists")
    uid = given.get("--uid") or users.free("--system" in given)
    if uid in (r[2] for r in users.rows.values()):
        raise Refuse(4, f"useradd: UID {uid} is not unique")
    if "--user-group" in given:
        groupadd(name, {k: v for k, v in given.items() if k == "--system"}, users, groups, root)
        gid = groups.rows[name][2]
    else:
        gid = groups.rows[given["--gid"]][2]
    home = given.get("-d", f"/home/{name}")
    users.rows[name] = [name, "x", uid, gid, "", home, given.get("--shell", "/bin/sh")]
    member(name, given.get("--groups", ""), groups)
    if "--create-home" in given:
        (root / home.lstrip("/")).mkdir(parents=True, exist_ok=True)


def usermod(name: str, given: dict[str, str], users: Table, groups: Table, root: Path) -> None:
    row = users.rows[name]
    row[2] = given.get("--uid", row[2])
    row[6] = given.get("--shell", row[6])
    if "-d" in given:
        old, new = (root / h.lstrip("/") for h in (row[5], given["-d"]))
        row[5] = given["-d"]
        if "-m" in given and old.exists():
            new.parent.mkdir(parents=True, exist_ok=True)
            old.rename(new)
    if "--groups" in given:
        if "--append" not in given:
            for group in groups.rows.values():
                group[3] = ",".join(m for m in group[3].split(",") if m and m != name)
        member(name, given["--groups"], groups)


def userdel(name: str, given: dict[str, str], users: Table, groups: Table, root: Path) -> None:
    del users.rows[name]
    groups.rows.pop(name, None)


def groupadd(name: str, given: dict[str, str], users: Table, groups: Table, root: Path) -> None:
    if name in groups.rows:
        raise Refuse(9, f"groupadd: group '{name}' already exists")
    gid = given.get("--gid") or groups.free("--system" in given)
    if gid in (r[2] for r in groups.rows.values()):
        raise Refuse(4, f"groupadd: GID '{gid}' already exists")
    groups.rows[name] = [name, "x", gid, ""]


def groupmod(name: str, given: dict[str, str], users: Table, groups: Table, root: Path) -> None:
    groups.rows[name][2] = given["--gid"]


def groupdel(name: str, given: dict[str, str], users: Table, groups: Table, root: Path) -> None:
    gid = groups.rows[name][2]
    if gid in (r[3] for r in users.rows.values()):
        raise Refuse(8, f"groupdel: cannot remove the primary group of user '{name}'")
    del groups.rows[name]


def member(name: str, wanted: str, groups: Table) -> None:
    for group in filter(None, wanted.split(",")):
        if group not in groups.rows:
            raise Refuse(6, f"group '{group}' does not exist")
        row = groups.rows[group]
        row[3] = ",".join(dict.fromkeys([*filter(None, row[3].split(",")), name]))
