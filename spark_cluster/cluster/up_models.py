"""Bring several models up next to each other, behind one endpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spark_cluster.cluster.result import RunSummary
from spark_cluster.cluster.served_models import models_to_serve

if TYPE_CHECKING:
    from spark_cluster.cluster.opened import Opened
    from spark_cluster.config.allowances import Allowances
    from spark_cluster.engine.memory_phases import MemoryOfNode
    from spark_cluster.engine.result import ServedTogether
    from spark_cluster.runner.options import Options


@dataclass(frozen=True)
class UpModelsResult:
    """The result of `up` with several models.

    Attributes:
        run: how the run went.
        served: the verified models; None where nothing was verified (check mode, a selection of
            roles).
        memory: the GPU memory of each node by phase.
    """

    run: RunSummary
    served: ServedTogether | None
    memory: tuple[MemoryOfNode, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as `up --json` prints it."""
        found = self.served.to_dict() if self.served is not None else {}
        return self.run.to_dict(**found, memory=[asdict(node) for node in self.memory])


def up_models(
    opened: Opened,
    *,
    force: bool,
    offline: bool,
    end_jobs: bool,
    allow: Allowances,
    options: Options,
) -> UpModelsResult:
    """Serve the inventory's models; see `Cluster.up_models`."""
    from spark_cluster.engine.memory_phases import MemoryPhases

    models = models_to_serve(opened, allow)
    port = "" if opened.port is None else f" --port {opened.port}"
    title = f"up {', '.join(model.recipe.name for model in models)}{port}"
    memory = MemoryPhases()
    with opened.play(title, opened.nodes, options) as run:
        run.bus.add(memory)
        playbook = opened.project.load_playbook("up_models")
        served: ServedTogether | None = playbook.function(
            run.open(), models=models, force=force, offline=offline, end_jobs=end_jobs
        )
        run.finish()
        return UpModelsResult(RunSummary.of(run), served, tuple(memory.nodes.values()))
