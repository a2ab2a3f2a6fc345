"""Stop serving, and verify that the memory is free again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_cluster.cluster.result import RunSummary

if TYPE_CHECKING:
    from spark_cluster.cluster.opened import Opened
    from spark_cluster.engine.vram import Stopped
    from spark_cluster.runner.options import Options


@dataclass(frozen=True)
class DownResult:
    """The result of `down`.

    Attributes:
        run: how the run went.
        stopped: the memory held before and after; None in check mode.
    """

    run: RunSummary
    stopped: Stopped | None

    def to_dict(self) -> dict[str, Any]:
        """Return it as `down --json` prints it."""
        return self.run.to_dict(**(self.stopped.to_dict() if self.stopped is not None else {}))


def down(opened: Opened, *, unload: Sequence[str], end_jobs: bool, options: Options) -> DownResult:
    """Stop what serves; see `Cluster.down`."""
    with opened.play("down", opened.nodes, options, gather_facts=False) as run:
        playbook = opened.project.load_playbook("down")
        stopped: Stopped | None = playbook.function(
            run.open(), unload=tuple(unload), end_jobs=end_jobs
        )
        run.finish()
        return DownResult(RunSummary.of(run), stopped)
