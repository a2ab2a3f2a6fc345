"""Programs of ours that run on nodes without an agent: archives that units start."""

from __future__ import annotations

import ast
import hashlib
import io
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_cluster.resources.file import File

PACKAGE = Path(__file__).resolve().parent.parent


def program(folder: str, *modules: str) -> File:
    """Return the file by which programs (`own_program`) run without the agent, in units.

    It is an archive that is named by its hash, so that it is another file when,
    and only when, the program is another one. `own_program.entry` starts it; `UnusedPrograms`
    removes the one before.

    Args:
        folder: on the node; only root may write there.
    """
    from spark_cluster.resources.file import File  # late, as is zipfile: few commands want them

    content = archive(*modules)
    return File(f"{folder}/{hashlib.sha256(content).hexdigest()}.pyz", content=content)


@cache
def archive(*modules: str) -> bytes:
    """Return an archive of programs, and all that they import."""
    files = imported(*modules, "spark_cluster.node.__main__")
    files["spark_cluster/__init__.py"] = b""  # or a new version alone would be another program
    # Not compressed: the same files are the same archive, whatever zlib this machine has.
    return packed(files.items(), compressed=False)


def imported(*modules: str) -> dict[str, bytes]:
    """Return the files of modules with all that they need of this package, by path.

    They need what they import (but for types), and the modules of `node` whose names stand in them
    as texts: programs that they start.
    """
    found: dict[str, bytes] = {}
    left = [module.partition(":")[0] for module in modules]
    while left:
        name = left.pop()
        path = _file_of(name)
        if path is None or str(path.relative_to(PACKAGE.parent)) in found:
            continue
        source = path.read_bytes()
        found[str(path.relative_to(PACKAGE.parent))] = source
        left += [*_named(ast.parse(source)), name.rpartition(".")[0]]
    return dict(sorted(found.items()))


def _named(node: ast.AST) -> Iterator[str]:
    """Yield what a syntax tree imports, and the texts that are names of modules of `node`."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from re.findall(r"^(spark_cluster\.node\.[\w.]+)(?::\w+)?$", node.value)
    for below in ast.iter_child_nodes(node):
        yield from _named(below)


def _file_of(module: str) -> Path | None:
    """Return the file of a module of this package; None where there is none of that name."""
    if re.fullmatch(r"spark_cluster(\.\w+)*", module) is None:
        return None
    path = PACKAGE.parent / module.replace(".", "/")
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def packed(files: Iterable[tuple[str, bytes]], *, compressed: bool) -> bytes:
    """Return a zip of files, by path; the same one for the same files."""
    import zipfile

    compression = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files:
            archive.writestr(zipfile.ZipInfo(name), data, compression, 9)
    return buffer.getvalue()
