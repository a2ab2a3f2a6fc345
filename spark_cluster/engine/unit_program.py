"""Programs of this package that units run on a node, with nothing else of the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spark_cluster.resources import Directory, File, Resource

_PACKAGE = Path(__file__).resolve().parents[1]
_START = """\
import sys

sys.path.insert(0, __file__.rpartition("/")[0])
from {main} import main

sys.exit(main(sys.argv[1]))
"""


@dataclass(frozen=True)
class UnitProgram:
    """A program and where it is installed.

    Attributes:
        folder: on the node; only root reads it.
        main: the module with `main(config)`.
        modules: paths below the package, without suffix, of all that it imports; a test runs it
            with nothing else.
    """

    folder: str
    main: str
    modules: tuple[str, ...]

    @property
    def start(self) -> str:
        """The file that Python runs."""
        return f"{self.folder}/start.py"

    def files(self) -> dict[str, str]:
        """Return path on the node to content."""
        found = {self.start: _START.format(main=self.main)}
        for module in self.modules:
            text = (_PACKAGE / f"{module}.py").read_text()
            found[f"{self.folder}/spark_cluster/{module}.py"] = text
        return found

    def resources(self) -> tuple[Resource, ...]:
        """Return the folders and the files that a role declares; a changed file restarts it."""
        files = [File(path, content=text) for path, text in self.files().items()]
        folders = sorted({str(Path(file.path).parent) for file in files} - {self.folder})
        return (Directory(self.folder, mode=0o700), *map(Directory, folders), *files)
