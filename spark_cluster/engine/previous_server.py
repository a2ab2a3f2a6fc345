"""What served before a swap: as its container's labels name it, and how it is started again."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spark_cluster.config import overrides
from spark_cluster.config.caches import state_folder
from spark_cluster.config.document import Document
from spark_cluster.config.recipe import Recipe
from spark_cluster.engine import runtime
from spark_cluster.engine.deployment import Deployment
from spark_cluster.engine.names import PROGRAMS
from spark_cluster.engine.resolve import resolve
from spark_cluster.errors import Refused, SparkClusterError
from spark_cluster.node import durable
from spark_cluster.node.containers import OVERRIDES, RECIPE, TP, ContainerState
from spark_cluster.runner.play import Play

_OPTION = re.compile(r"(?:^| )-o (?=[a-z0-9][a-z0-9-]*=)")


@dataclass(frozen=True)
class PreviousServer(Document):
    """A server that ran before another one took its place.

    Attributes:
        recipe: its name.
        tp: tensor-parallel size.
        overrides: engine arguments in place of the recipe's, as options of a command line.
    """

    recipe: str
    tp: int
    overrides: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, [f"{self.recipe} (tp {self.tp})", self.overrides]))

    @property
    def command(self) -> str:
        """The command that starts it again."""
        options = [word for change in self.changes for word in ("-o", change)]
        return shlex.join(
            ["spark-cluster", "up", "--recipe", self.recipe, "--tp", str(self.tp), *options]
        )

    @property
    def changes(self) -> tuple[str, ...]:
        """The overrides as KEY=VALUE.

        >>> PreviousServer("r", 1, '-o compilation-config={"level": 3} -o max-num-seqs=2').changes
        ('compilation-config={"level": 3}', 'max-num-seqs=2')
        """
        return tuple(part for part in _OPTION.split(self.overrides) if part)


Load = Callable[[PreviousServer], "Recipe"]
"""Returns the recipe of a previous server, with its overrides."""


def previous_server_of(running: ContainerState) -> PreviousServer | None:
    """Return what a container's labels name; None where they name no recipe and size."""
    recipe, tp = running.label(RECIPE), running.number(TP, 0)
    return PreviousServer(recipe, tp, running.label(OVERRIDES)) if recipe and tp else None


def plan_again(
    play: Play, previous: PreviousServer, load: Load, running: ContainerState
) -> Deployment:
    """Resolve a previous server again, while it still serves, and say where it would differ.

    Raises:
        Refused: it could not be started again: its recipe, a variable or a key is missing.
    """
    try:
        recipe = load(previous)
        again = resolve(recipe, play.inventory, play.nodes, previous.tp)
    except SparkClusterError as error:
        raise Refused(
            f"{previous} serves now and could not be started again: {error.message}",
            where=error.where,
            hint="--no-restore swaps without a way back",
        ) from error
    if overrides.text(recipe.overrides) != previous.overrides:
        raise Refused(
            f"{previous} serves now, and its options cannot be read back from its labels",
            hint="--no-restore swaps without a way back",
        )
    if not set(again.first.args) <= set(running.command):
        play.note(
            f"recipe {previous.recipe} has been changed since its server was started: if it has to "
            "be started again, it is as the recipe is now",
            warning=True,
        )
    return again


LINES = 5000
"""Lines of each log that are kept."""

KEPT = 20
"""Files of failed servers that are kept."""


def keep_logs(play: Play) -> Path | None:
    """Write the end of all logs into one file that only the user reads; None without any.

    It is a help for a failure that has its own message: what goes wrong here is only noted.
    """
    try:
        found = [
            f"==> {node.name} {program}\n{text}\n"
            for node in play.nodes
            for program in PROGRAMS
            if (text := runtime.read_log(play.session(node), program, lines=LINES))
        ]
        return _write("".join(found)) if found else None
    except (SparkClusterError, OSError) as error:
        play.note(f"the log of the failed server could not be kept: {error}", warning=True)
        return None


def _write(text: str) -> Path:
    folder = state_folder() / "failed"
    durable.make_folder(folder)
    path = folder / time.strftime("%Y%m%dT%H%M%SZ.log", time.gmtime())
    durable.write_file(path, text.encode(errors="replace"))
    for old in sorted(folder.glob("*.log"))[:-KEPT]:
        old.unlink(missing_ok=True)
    return path
