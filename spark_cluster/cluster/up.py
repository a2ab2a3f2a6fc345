"""Bring the nodes from any state to a verified endpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spark_cluster.cluster.recipes import recipe_to_serve, size_on
from spark_cluster.cluster.result import RunSummary
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from spark_cluster.cluster.opened import Opened
    from spark_cluster.cluster.overrides import Changes
    from spark_cluster.config.allowances import Allowances
    from spark_cluster.engine.memory_phases import MemoryOfNode
    from spark_cluster.engine.result import Served
    from spark_cluster.runner.options import Options


@dataclass(frozen=True)
class UpResult:
    """The result of `up`.

    Attributes:
        run: how the run went.
        served: the verified endpoint; None where nothing was verified (check mode, a selection of
            roles).
        memory: the GPU memory of each node by phase, next to what the plan predicted.
        memory_plot: file of this machine with its course; None where nothing was started, or
            without the extra `bench`.
    """

    run: RunSummary
    served: Served | None
    memory: tuple[MemoryOfNode, ...]
    memory_plot: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as `up --json` prints it."""
        found = self.served.to_dict() if self.served is not None else {}
        plot = str(self.memory_plot) if self.memory_plot is not None else None
        memory = [asdict(node) for node in self.memory]
        return self.run.to_dict(**found, memory=memory, memory_plot=plot)


def up(
    opened: Opened,
    recipe_name: str | None,
    *,
    tp: int | None,
    replicas: int,
    force: bool,
    offline: bool,
    end_jobs: bool,
    changes: Changes,
    allow: Allowances,
    options: Options,
) -> UpResult:
    """Serve a recipe; see `Cluster.up`."""
    from spark_cluster.cluster.memory_plot import keep_plot
    from spark_cluster.config.overrides import text
    from spark_cluster.engine.memory_phases import MemoryPhases
    from spark_cluster.engine.nodes import groups

    name = recipe_name or opened.inventory.serve.recipe
    if name is None and opened.inventory.serve.recipes:
        raise UsageError(
            "the inventory serves several models",
            hint="name one of its recipes, or take `up_models`",
        )
    if name is None:
        raise UsageError(
            "no recipe is given",
            hint="give --recipe NAME, or `serve: {recipe: NAME}` in the inventory",
        )
    recipe = recipe_to_serve(opened, name, changes, allow)
    size = size_on(opened, recipe, _size(tp, replicas))
    if replicas > 1:
        groups([node.name for node in opened.nodes], 1, replicas)
    port = "" if opened.port is None else f"--port {opened.port}"
    how = f"--tp {size}" if replicas == 1 else f"--replicas {replicas}"
    title = " ".join(filter(None, ["up", how, text(recipe.overrides), port]))
    memory = MemoryPhases()
    with opened.play(title, opened.nodes, options) as run:
        run.bus.add(memory)
        playbook = opened.project.load_playbook("up")
        play = run.open()
        several = {"count": replicas} if replicas > 1 else {}
        served: Served | None = playbook.function(
            play,
            recipe=recipe,
            tp=size,
            force=force,
            offline=offline,
            end_jobs=end_jobs,
            **several,
        )
        plot = keep_plot(run, memory)
        run.finish()
        return UpResult(RunSummary.of(run), served, tuple(memory.nodes.values()), plot)


def _size(tp: int | None, replicas: int) -> int | None:
    """Return the tensor-parallel size that is asked for; None for the recipe's.

    Raises:
        UsageError: replicas of several nodes each.
    """
    if replicas == 1:
        return tp
    if tp not in (None, 1):
        raise UsageError(
            f"--replicas {replicas} with --tp {tp}: each replica is on one node",
            hint="leave --tp out; `spark-cluster plan RECIPE --for throughput` compares the two",
        )
    return 1
