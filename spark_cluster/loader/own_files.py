"""A project's own files of a kind, for the catalogue of known issues and for `doctor`.

Commands say once which project it is (`use`); who wants its files asks here. There is one project a
process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_cluster.loader.project import Project

KNOWN_ISSUES, CHECKS = "known_issues", "checks"
"""Folders of a project."""

_provider: Callable[[], Project] | None = None
_found: dict[tuple[str, str], tuple[Path, ...]] = {}


def use(provider: Callable[[], Project] | None) -> None:
    """Say which project's files count from now on.

    Args:
        provider: gives the project; called when files are asked for first.
    """
    global _provider  # noqa: PLW0603  (one project a process)
    _provider = provider
    _found.clear()


def own_files(folder: str, suffix: str, mention: bytes = b"") -> tuple[Path, ...]:
    """Return the files of a folder of the project, sorted; none without a project.

    Args:
        folder: below the project folder.
        suffix: of the files, `.py`.
        mention: a text that at least one of them has; else the folder is another program's and is
            left alone.

    Raises:
        Refused: others can write them.
    """
    if _provider is None:
        return ()
    if (folder, suffix) not in _found:
        _found[folder, suffix] = _look(_provider(), folder, suffix, mention)
    return _found[folder, suffix]


def _look(project: Project, folder: str, suffix: str, mention: bytes) -> tuple[Path, ...]:
    top = project.folder / folder
    if not top.is_dir():
        return ()
    paths = [p for p in sorted(top.glob(f"*{suffix}")) if not p.name.startswith((".", "_"))]
    if not paths or not any(mention in path.read_bytes() for path in paths):
        return ()
    project.must_be_own(top, f"{folder}/ of the project")
    return tuple(paths)
