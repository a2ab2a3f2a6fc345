"""Code of the user's project that runs on a node, and where in it an exception came from."""

from __future__ import annotations

PROJECT_PACKAGE = "spark_cluster_project"
"""The package that a project's own code is imported as, on the laptop and on the node; its
resources are in `resources` below it. agent/bootstrap.py has the name again."""

PROJECT_RESOURCES = f"{PROJECT_PACKAGE}.resources"


def project_place(error: BaseException) -> str:
    """Return `resources/mount.py:12`, the innermost line of the project's code in a traceback.

    Returns:
        `""` when no line of it was involved.
    """
    import traceback  # late: the laptop wants only the names above, at once

    if isinstance(error, SyntaxError) and f"/{PROJECT_PACKAGE}/" in (error.filename or ""):
        return f"{_within(str(error.filename))}:{error.lineno or 1}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if f"/{PROJECT_PACKAGE}/" in frame.filename:
            return f"{_within(frame.filename)}:{frame.lineno}"
    return ""


def _within(filename: str) -> str:
    """A file's path as in the project's folder."""
    return filename.rpartition(f"/{PROJECT_PACKAGE}/")[2]
