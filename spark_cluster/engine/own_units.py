"""Units of our own programs on a node: they run without an agent, and after the laptop has gone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_cluster.loader import programs
from spark_cluster.loader.template import render
from spark_cluster.node import own_program, paths
from spark_cluster.resources import Directory, File, Resource, Service, UnusedPrograms


@dataclass(frozen=True)
class OwnUnit:
    """A unit that runs a program of ours.

    Attributes:
        name: of the unit, without `.service`.
        program: its module, which has a `main`.
        folder: of the program, which only root opens.
        config: file with its settings, in that folder or in one for settings.
        mode: of that file.
    """

    name: str
    program: str
    folder: str
    config: str
    mode: int = 0o644

    @property
    def unit_file(self) -> str:
        """The file of the unit."""
        return f"{paths.SYSTEMD_UNITS}/{self.name}.service"

    def present(
        self, template: Path, settings: Mapping[str, Any], *, enabled: bool = True, **values: str
    ) -> Iterator[Resource]:
        """Yield the program, its settings and the unit, which is started again for new ones.

        Args:
            template: of the unit, with `program` and `config`.
            settings: what the program is told.
            enabled: it is started at boot.
            values: more of the template.
        """
        program = programs.program(self.folder, self.program)
        yield Directory(self.folder, mode=0o700)
        yield program
        above = str(Path(self.config).parent)
        if above != self.folder:
            yield Directory(above, mode=0o755)
        told = json.dumps(settings, indent=2) + "\n"
        config = File(self.config, content=told, mode=self.mode)
        command = " ".join(own_program.entry(program.path, self.program))
        values = {**values, "program": command, "config": self.config}
        unit = File(self.unit_file, content=render(template.parent, template.name, **values))
        yield config
        yield unit
        yield Service(self.name, enabled=enabled, restart_when=(config, unit, program))
        yield UnusedPrograms(self.folder)

    def absent(self) -> Iterator[Resource]:
        """Yield the removal of all of it, with what the program keeps in its folder."""
        yield Service(self.name, running=False, enabled=False)
        yield File(self.unit_file, state="absent")
        if str(Path(self.config).parent) != self.folder:
            yield File(self.config, state="absent")
        yield Directory(self.folder, state="absent", keep=False)
