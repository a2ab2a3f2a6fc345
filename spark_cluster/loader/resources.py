"""The resources of a user's project: checked, importable as ours are, and sent to the nodes.

Each `resources/NAME.py` of the project folder is the module `spark_cluster_project.resources.NAME`,
on the laptop and on the node. Roles and playbooks import its class as they import ours:
`from spark_cluster.resources import File, Mount`. On the laptop the names stand for the modules of
the project in use (`loader/project.py`), so that a process can have several open.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spark_cluster.errors import InvalidFile
from spark_cluster.node.project_code import PROJECT_PACKAGE, PROJECT_RESOURCES

FOLDER = "resources"

LARGEST = 1024 * 1024
"""Bytes of all files together: they are sent over slow links."""


def load_resources(
    folder: Path, package: str, must_be_own: Callable[[Path, str], None]
) -> tuple[tuple[str, bytes], ...]:
    """Check a project's own resources, import them, and return the code that nodes get of them.

    A folder `resources/` in which no file mentions `spark_cluster` is someone else's and left
    alone.

    Args:
        folder: of the project, which is in use.
        package: that the project's modules belong to.
        must_be_own: raises Refused when others can write a path.

    Raises:
        Refused: others can write them.
        InvalidFile: one of them is wrong, with the line.
    """
    found = _read(folder / FOLDER)
    if not any(b"spark_cluster" in data for data in found.values()):
        return ()
    must_be_own(folder / FOLDER, f"{FOLDER}/ of the project")
    from spark_cluster.loader import resource_modules
    from spark_cluster.loader.resource_source import ResourceSource, check

    _must_fit(found)
    sources = [ResourceSource(path, data) for path, data in found.items()]
    for source in sources:
        check(source, {one.name for one in sources})
    resource_modules.install(sources, package)
    packages = (PROJECT_PACKAGE, PROJECT_RESOURCES)
    return (
        *((f"{name.replace('.', '/')}/__init__.py", b"") for name in packages),
        *((f"{source.module.replace('.', '/')}.py", source.data) for source in sources),
    )


def _read(folder: Path) -> dict[Path, bytes]:
    if not folder.is_dir():
        return {}
    paths = (p for p in sorted(folder.glob("*.py")) if not p.name.startswith((".", "__init__")))
    try:
        return {path: path.read_bytes() for path in paths}
    except OSError as error:
        from spark_cluster.config.yamlfile import shown

        text = f"cannot be read: {error.strerror}"
        raise InvalidFile(text, where=shown(Path(error.filename))) from None


def _must_fit(found: dict[Path, bytes]) -> None:
    size = sum(map(len, found.values()))
    if size > LARGEST:
        from spark_cluster.config.yamlfile import shown

        raise InvalidFile(
            f"{FOLDER}/ of the project: found {size} bytes of Python, expected at most {LARGEST}",
            where=shown(next(iter(found)).parent),
            hint="all of it is sent to each node: what is not code belongs elsewhere",
        )
