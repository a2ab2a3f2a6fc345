"""Folders of a node that no recipe may reach into: with them a container is root on the node.

What is only read is judged by what is known to be secret, and what is written by where data may
be: there are more ways to root than a list could name. Both judge the path as it is written; what
a link on the node leads to cannot be seen from the laptop.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    "/var/lib/cloud": "settings of the first boot: passwords, and commands that root runs",
    "/var/lib/kubelet": "the secrets of Kubernetes",
    "/var/lib/NetworkManager": "keys of networks",
    "/var/lib/systemd": "what systemd keeps, credentials too",
    "/var/backups": "copies of the node's accounts",
    "/var/spool/cron": "commands that root runs",
}
"""Folders that are refused with all in them, and what they hold."""

_PROGRAMS = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/var/lib/dpkg", "/var/lib/apt", "/var/cache/apt", "/var/lib/snapd", "/snap"),
    *("/opt/cni", "/opt/containerd"),
)
"""Folders of programs, and of what installs them: to be read only."""

_PLACES = {
    "/srv": 0,
    "/data": 0,
    "/ai": 0,
    "/models": 0,
    "/scratch": 0,
    "/workspace": 0,
    "/var/lib/models": 0,
    "/mnt": 1,
    "/media": 1,
    "/opt": 1,
    "/tmp": 1,  # noqa: S108  (of the node, looked for)
    "/var/tmp": 1,  # noqa: S108
    "/var/cache": 1,
    "/root": 1,
    "/home": 2,
}
"""Where data may be, and how many names must follow: `/mnt/NAME`, `/home/USER/NAME`."""

EXAMPLES = "/srv, /data, /models, /mnt/NAME, /opt/NAME or /home/USER/NAME"

_OF_THE_SYSTEM = {
    "/opt": {"bin", "cni", "containerd", "google", "nvidia", "sbin"},
    "/var/cache": {
        *("PackageKit", "adduser", "apparmor", "apt", "cracklib", "cups", "debconf"),
        *("dictionaries-common", "fontconfig", "fwupd", "ldconfig", "man", "private"),
        *("samba", "snapd", "swcatalog"),
    },
    "/home": {"bin", "snap"},
    "/root": {"bin", "snap"},
}
"""Names among those that are the system's own, or programs."""

_OF_PROGRAMS = {"pip", "uv", "pypoetry", "pipx", "pre-commit"}
"""Of ~/.cache: what its user runs later."""

_OF_DOCKER = {"docker", "docker-data", "docker_data", "containerd"}
"""Docker's folder, called so, can be anywhere."""

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
    """Return why a container may not have this path of the node; empty when it may.

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


def why_no_data(path: str, named: Iterable[str] = ()) -> str:
    """Return why a recipe may not write to this path of the node; empty when it may.

    Args:
        path: as `why_refused` takes it.
        named: folders that the user allows, with all in them.
    """
    pure = _normal(path)
    if ".." in pure.parts:
        return "it has '..' in it"
    if any(pure.is_relative_to(_normal(folder)) for folder in named):
        return ""
    return "" if str(pure) in _HARMLESS else _among_places(pure)


def _among_places(path: PurePosixPath) -> str:
    for place, names in _PLACES.items():
        if not path.is_relative_to(place):
            continue
        inside = path.relative_to(place).parts[max(names - 1, 0) :] if names else ()
        cached = inside[1:2] if inside[:1] == (".cache",) else None
        if len(path.relative_to(place).parts) < names or cached == ():
            return f"{path} holds more than data"
        if inside and inside[0] in _OF_THE_SYSTEM.get(place, ()):
            return f"{inside[0]} in {place} is not for data"
        if cached and cached[0] in _OF_PROGRAMS:
            return f"{cached[0]} in a cache holds programs"
        return _among_names(path)
    return f"it is below none of the folders for data: {EXAMPLES}"


def _among_names(path: PurePosixPath) -> str:
    for name in path.parts:
        if name.startswith(".") and name != ".cache":
            return f"{name} is hidden, as keys and settings are"
        if name in _OF_DOCKER:
            return f"{name} may be where Docker keeps images and containers"
    return ""


def _normal(path: str) -> PurePosixPath:
    for home in ("~", "$HOME", "${HOME}"):
        if path == home or path.startswith(f"{home}/"):
            path = f"/home/user{path[len(home) :]}"
    return PurePosixPath("/", *(part for part in path.split("/") if part not in ("", ".")))


def _system(path: PurePosixPath, *, read_only: bool) -> str:
    text = str(path)
    for folder, holds in _SYSTEM.items():
        if _is_in(text, folder):
            return f"{folder} holds {holds}"
        if _is_in(folder, text):
            return f"{folder} is in it: {holds}"
    if path.name == "docker.sock":
        return "who may use Docker's socket is root on the node"
    if not read_only and any(_is_in(text, f) or _is_in(f, text) for f in _PROGRAMS):
        return "the node's programs are there, and it could change them"
    return ""


def _is_in(path: str, folder: str) -> bool:
    """Return whether a normalised path is the folder or below it; neither is `/`."""
    return path == folder or path.startswith(f"{folder}/")


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
