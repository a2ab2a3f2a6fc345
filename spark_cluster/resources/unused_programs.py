"""Programs of units, of earlier versions, that no unit runs any more."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from spark_cluster.node import own_program, paths
from spark_cluster.node.host import Host
from spark_cluster.node.values import ResourceError
from spark_cluster.resources.base import Resource, State, absolute, checks

ARCHIVE = re.compile(r"[0-9a-f]{64}\.pyz")
FORMER = "start.py"
"""A program as it was before it was an archive: this file, and the folder `spark_cluster`."""


@dataclass(frozen=True)
class UnusedPrograms(Resource):
    """No program in a folder but those that units run, an earlier one that still runs among them.

    It stands after the Service whose program may be another one now.

    Args:
        folder: of programs of our own, archives that are named by their hash.

    Example:
        UnusedPrograms("/var/lib/spark-cluster/supervise")
    """

    reverts = ""
    valid = checks(folder=absolute)

    folder: str

    def desired(self) -> State:
        return {"unused": []}

    def observe(self, host: Host) -> State:
        return {"unused": sorted(self._unused(host))}

    def converge(self, host: Host, actual: State) -> None:
        for name in actual["unused"]:
            host.remove(f"{self.folder}/{name}")

    def _unused(self, host: Host) -> Iterator[str]:
        folder = host.path(self.folder)
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        archives = {name for name in names if ARCHIVE.fullmatch(name)}
        former = names & {FORMER, "spark_cluster"}
        if not archives and not former:
            return
        units = "".join(_own_units(host))
        yield from (name for name in archives if f"{self.folder}/{name}" not in units)
        if f"{self.folder}/{FORMER}" not in units:
            yield from former


def _own_units(host: Host) -> Iterator[str]:
    """Yield the texts of the files of our units; a masked unit runs nothing."""
    for folder in (paths.SYSTEMD_UNITS, paths.TRANSIENT_UNITS):
        for path in sorted(host.path(folder).glob(own_program.UNITS)):
            with contextlib.suppress(ResourceError):
                yield (host.read(f"{folder}/{path.name}") or b"").decode(errors="replace")
