"""Folders of a node that no recipe may reach into: with them a container is root on the node.

What is only read is judged by what is known to be secret. What is written the user names: there
are more ways to root than a list could name, and `/opt/NAME` or `/home/USER/NAME` are programs on
real machines. Both judge the path as it is written; what a link on the node leads to cannot be seen
from the laptop.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from spark_cluster.node import paths

_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_OWN = "what spark-cluster itself keeps and runs"

_READABLE = (paths.DROP_CACHES, paths.FORMER_ENVIRONMENTS)
"""Of our own paths those that are no reason against reading a folder above them."""

_PROGRAMS = (*_FILE["read_only"]["programs"], paths.MODELS_FOLDER)
"""Folders of programs, of what installs them, and of models: to be read only."""


def why_refused(path: str, *, read_only: bool) -> str:
    """Return why a container may not have this path of the node; empty when it may.

    Args:
        path: as written; `~` and `$HOME` may begin it in a command line.
        read_only: whether it could only be read.
    """
    pure = _normal(path)
    if _is_harmless(pure, "writable") or (read_only and _is_harmless(pure, "read_only")):
        return ""
    if str(pure) == "/":
        return "it is the whole node"
    if ".." in pure.parts:
        return "it has '..' in it"
    return _own(pure) or _by_place(pure, read_only=read_only) or _socket(pure)


def why_not_writable(path: str, named: Iterable[str] = ()) -> str:
    """Return why a recipe may not write to this path of the node; empty when it may.

    Args:
        path: as `why_refused` takes it.
        named: folders that the user allows, with all in them; no folder of our own opens by that.
    """
    pure = _normal(path)
    if ".." in pure.parts:
        return "it has '..' in it"
    if own := _own(pure):
        return own
    if _is_harmless(pure, "writable") or any(
        pure.is_relative_to(_normal(folder)) for folder in named
    ):
        return ""
    return "what a container writes there, others may run or follow"


def is_for_models(path: str) -> bool:
    """Return whether a path of a node is in the folder of models: root writes there, no container
    does."""
    pure, models = _normal(path), PurePosixPath(paths.MODELS_FOLDER)
    return ".." not in pure.parts and pure != models and pure.is_relative_to(models)


def is_in(path: str, folder: str) -> bool:
    """Return whether a path of a node is a folder, or is in it."""
    return _normal(path).is_relative_to(_normal(folder))


def overlap(path: str, folder: str) -> bool:
    """Return whether one of two paths of a node is in the other, or is the other."""
    return is_in(path, folder) or is_in(folder, path)


def _normal(path: str) -> PurePosixPath:
    for home in ("~", "$HOME", "${HOME}"):
        if path == home or path.startswith(f"{home}/"):
            path = f"/home/user{path[len(home) :]}"
    return PurePosixPath("/", *(part for part in path.split("/") if part not in ("", ".")))


def _is_harmless(path: PurePosixPath, to_be: str) -> bool:
    return str(path) in _FILE[to_be]["harmless"]


def _own(path: PurePosixPath) -> str:
    for folder in paths.OWN:
        if path.is_relative_to(folder):
            return f"{folder} holds {_OWN}"
    return ""


def _socket(path: PurePosixPath) -> str:
    if path.name.endswith((".sock", ".socket")):
        return "who reaches a socket of the node may be root by what answers there"
    return ""


def _by_place(path: PurePosixPath, *, read_only: bool) -> str:
    home = _in_a_home(path)
    return home if home is not None else _system(path, read_only=read_only)


def _system(path: PurePosixPath, *, read_only: bool) -> str:
    for folder, holds in _FILE["refused"].items():
        if path.is_relative_to(folder):
            return f"{folder} holds {holds}"
        if PurePosixPath(folder).is_relative_to(path):
            return f"{folder} is in it: {holds}"
    for folder in paths.OWN:
        if read_only and folder in _READABLE:
            continue
        if PurePosixPath(folder).is_relative_to(path):
            return f"{folder} is in it: {_OWN}"
    if not read_only and any(overlap(str(path), folder) for folder in _PROGRAMS):
        return "the node's programs or models are there, and it could change them"
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
