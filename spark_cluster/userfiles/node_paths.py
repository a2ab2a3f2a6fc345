"""Folders of a node that no recipe may reach into: with them a container is root on the node."""

from __future__ import annotations

from pathlib import PurePosixPath

_SYSTEM = {
    "/etc": "the node's configuration, with its accounts and keys",
    "/root": "root's home, with its keys",
    "/boot": "what the node boots",
    "/proc": "the kernel's own view of all processes",
    "/sys": "the kernel's devices",
    "/dev": "all devices, the disks too",
    "/run": "the sockets of Docker and systemd, and secrets",
    "/var/run": "the sockets of Docker and systemd, and secrets",
    "/var/lib/docker": "all images and containers",
    "/var/lib/containerd": "all images and containers",
    "/var/lib/spark-cluster": "what spark-cluster keeps on the node, secrets too",
    "/var/spool/cron": "commands that root runs",
}
"""Folders that are refused with all in them, and what they hold."""

_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Folders of programs: to be read only."""

_HARMLESS_READ_ONLY = {
    "/etc/localtime",
    "/etc/timezone",
    "/etc/hosts",
    "/etc/ssl/certs",
    "/etc/ca-certificates",
    "/etc/nccl.conf",
    "/sys/class/infiniband",
    "/sys/class/net",
}
_HARMLESS = {"/dev/shm", "/dev/infiniband"}  # noqa: S108  (of the node, looked for)


def why_refused(path: str, *, read_only: bool) -> str:
    """Why a container may not have this path of the node; empty when it may.

    Args:
        path: as written; `~` and `$HOME` may begin it in a command line.
        read_only: whether it could only be read.
    """
    pure = _normal(path)
    if str(pure) in _HARMLESS or (read_only and str(pure) in _HARMLESS_READ_ONLY):
        return ""
    if str(pure) == "/":
        return "it is the whole node"
    if ".." in pure.parts:
        return "it has '..' in it"
    home = _in_a_home(pure)
    return home if home is not None else _system(pure, read_only=read_only)


def _normal(path: str) -> PurePosixPath:
    for home in ("~", "$HOME", "${HOME}"):
        if path == home or path.startswith(f"{home}/"):
            path = f"/home/user{path[len(home) :]}"
    return PurePosixPath("/", *(part for part in path.split("/") if part not in ("", ".")))


def _system(path: PurePosixPath, *, read_only: bool) -> str:
    for folder, holds in _SYSTEM.items():
        if path.is_relative_to(folder):
            return f"{folder} holds {holds}"
        if PurePosixPath(folder).is_relative_to(path):
            return f"{folder} is in it: {holds}"
    if path.name == "docker.sock":
        return "who may use Docker's socket is root on the node"
    if not read_only and any(path.is_relative_to(folder) for folder in _PROGRAMS):
        return "the node's programs are there, and it could change them"
    return ""


def _in_a_home(path: PurePosixPath) -> str | None:
    """The verdict on what is in /home and in root's home; None for anything else."""
    parts = path.parts[1:]
    if parts[:1] == ("home",):
        inside = parts[2:]
    elif parts[:1] == ("root",):
        inside = parts[1:]
    else:
        return None
    if not inside:
        return "a whole home, with its keys and passwords, is in it"
    if inside[0].startswith(".") and inside[0] != ".cache":
        return f"{inside[0]} in a home is where keys and settings are"
    return ""
