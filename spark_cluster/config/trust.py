"""The check whether others could have written what is about to be run.

Roles and playbooks are code, and a recipe names the image that runs as root on the nodes. So they
are used only from folders that no one but their user (and root) can write.
"""

from __future__ import annotations

import os
import shlex
import stat
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from spark_cluster.config.yamlfile import shown

_ACLS = {
    "system.posix_acl_access": "lets {} write by its ACL",
    "system.posix_acl_default": "lets {} write new files in it by its default ACL",
}
"""Extended attributes of Linux with POSIX ACLs, and what an entry in them means. acl(5)"""
_WRITE = 2
_USER, _GROUP, _MASK = 2, 8, 0x10
"""Tags of entries: a named user, a named group, and the most that either of them gets."""


def foreign(path: Path, top: Path, program: Path | None = None) -> tuple[str, str] | None:
    """Return what is wrong with a file (or a folder and everything in it), or with the folders
    above it up to `top`, and what to do; None when no one else can write any of them.

    Args:
        program: what runs already: its owner and group may write, too.
    """
    for part in _parts(path, top):
        problem = why_foreign(part, program)
        if problem is not None:
            found, advice = problem
            return f"{shown(part)} {found}", advice
    return None


def why_foreign(path: Path, program: Path | None = None) -> tuple[str, str] | None:
    """Return what is wrong with a file or folder, and what to do; None when it belongs to the user,
    or to the owner of `program`.
    """
    try:
        about = path.stat()
    except OSError:
        return None  # it is not there, or whoever opens it says why not
    name = shlex.quote(str(path))
    runs = program.stat() if program is not None else None
    users, groups = _own(os.getuid(), "SUDO_UID"), _own(os.getgid(), "SUDO_GID")
    if runs is not None:
        users, groups = users | {runs.st_uid}, groups | {runs.st_gid}
    if about.st_uid not in users:
        return (
            f"belongs to another user (number {about.st_uid})",
            f"check its content; then: sudo chown {os.getuid()} {name}",
        )
    # In a folder like /tmp no one replaces what is not theirs, and that is looked at by itself.
    shared = stat.S_ISDIR(about.st_mode) and about.st_mode & stat.S_ISVTX
    if about.st_mode & stat.S_IWOTH and not shared:
        return "is writable by everyone", f"check its content; then: chmod o-w {name}"
    if about.st_mode & stat.S_IWGRP and about.st_gid not in groups and not shared:
        return (
            f"is writable by another group (number {about.st_gid})",
            f"check its content; then: chmod g-w {name}",
        )
    if not shared and (found := _foreign_acl(path, users, groups)):
        return found, f"check its content; then: setfacl -b {name}"
    return None


def _foreign_acl(path: Path, users: set[int], groups: set[int]) -> str | None:
    """Return whom but these users and groups an ACL lets write; None where there is none.

    macOS keeps its ACLs elsewhere: there the mode alone is looked at.
    """
    if sys.platform != "linux":
        return None
    for attribute, meaning in _ACLS.items():
        try:
            acl = os.getxattr(path, attribute)
        except OSError:
            continue  # none, or a file system without ACLs
        entries = list(struct.iter_unpack("<HHI", acl[4:]))  # after the version
        mask = next((rights for tag, rights, _ in entries if tag == _MASK), _WRITE)
        for tag, rights, number in entries:
            kind, own = ("user", users) if tag == _USER else ("group", groups)
            if tag in (_USER, _GROUP) and rights & mask & _WRITE and number not in own:
                return meaning.format(f"{kind} {number}")
    return None


def _own(number: int, of_sudo: str) -> set[int]:
    """Root's, the user's, and that of who became root with sudo: Ubuntu's users have a group of
    their own, which may write what they make.

    Args:
        number: of the user, or of their group.
        of_sudo: the variable in which sudo says it.
    """
    sudo = os.environ.get(of_sudo, "")
    return {0, number} | ({int(sudo)} if os.getuid() == 0 and sudo.isdigit() else set())


def _parts(path: Path, top: Path) -> Iterator[Path]:
    """Yield the folders from the top down, then what is in a folder; targets of links included."""
    path, top = path.absolute(), top.absolute()
    above = [folder for folder in path.parents if folder.is_relative_to(top)]
    yield from reversed(above or [path.parent])
    if path.resolve() != path:
        yield path.resolve().parent
    yield path
    if path.is_dir():
        yield from sorted(path.rglob("*"))
