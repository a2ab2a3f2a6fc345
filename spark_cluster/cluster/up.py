"""Bring the nodes from any state to a verified endpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spark_cluster.cluster.recipes import recipe_to_serve, size_on
from spark_cluster.cluster.result import RunSummary
from spark_cluster.cluster.served_models import (
    OVERRIDE,
    models_to_serve,
    must_be_for_all,
    serves_several,
)
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from spark_cluster.cluster.opened import Opened
    from spark_cluster.cluster.overrides import Changes
    from spark_cluster.config.allowances import Allowances
    from spark_cluster.engine.deployment import Deployment
    from spark_cluster.engine.memory_phases import MemoryOfNode
    from spark_cluster.engine.models import ServedModel
    from spark_cluster.engine.result import Served
    from spark_cluster.runner.options import Options
    from spark_cluster.runner.play import Play

    Resolve = Callable[[Play], Deployment]
    """Resolves what is served, once the nodes' facts are known."""


@dataclass(frozen=True)
class UpResult:
    """The result of `up`.

    Attributes:
        run: how the run went.
        served: the verified endpoint; None where nothing was verified (check mode, a selection of
            roles).
        memory: the GPU memory of each node by phase, next to what the plan predicted.
        memory_plot: file of this machine with its course; None where nothing was started, without
            the extra `bench`, or of several models.
        several: several models are served.
    """

    run: RunSummary
    served: Served | None
    memory: tuple[MemoryOfNode, ...]
    memory_plot: Path | None = None
    several: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return it as `up --json` prints it."""
        found = self.served.to_dict() if self.served is not None else {}
        memory = [asdict(node) for node in self.memory]
        plot = str(self.memory_plot) if self.memory_plot is not None else None
        more = {} if self.several else {"memory_plot": plot}
        return self.run.to_dict(**found, memory=memory, **more)


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
    """Serve a recipe, or the inventory's; see `Cluster.up`."""
    from spark_cluster.cluster.memory_plot import keep_plot
    from spark_cluster.engine.memory_phases import MemoryPhases

    several = recipe_name is None and serves_several(opened)
    if several:
        given = {"--tp": tp not in (None, 1), "--replicas": replicas > 1, OVERRIDE: changes}
        must_be_for_all(given)
        models = models_to_serve(opened, allow)
        what, resolve = ", ".join(model.recipe.name for model in models), _models(models)
    else:
        what, resolve = _recipe(
            opened, recipe_name, tp=tp, replicas=replicas, changes=changes, allow=allow
        )
    port = "" if opened.port is None else f"--port {opened.port}"
    memory = MemoryPhases()
    title = " ".join(filter(None, ["up", what, port]))
    with opened.play(title, opened.nodes, options) as run:
        run.bus.add(memory)
        playbook = opened.project.load_playbook("up")
        play = run.open()
        served: Served | None = playbook.function(
            play, deployment=resolve(play), force=force, offline=offline, end_jobs=end_jobs
        )
        plot = None if several else keep_plot(run, memory)
        run.finish()
        found = tuple(memory.nodes.values())
        return UpResult(RunSummary.of(run), served, found, plot, several)


def _models(models: Sequence[ServedModel]) -> Resolve:
    from spark_cluster.engine.resolve import resolve_models

    return lambda play: resolve_models(models, play.inventory, play.nodes)


def _recipe(
    opened: Opened,
    name: str | None,
    *,
    tp: int | None,
    replicas: int,
    changes: Changes,
    allow: Allowances,
) -> tuple[str, Resolve]:
    """Return how a recipe is served, in words, and what resolves it; no node is asked.

    Raises:
        UsageError: no recipe is given, or replicas of several nodes each are asked for.
        SparkClusterError: the recipe or the number of nodes does not do this.
    """
    from spark_cluster.config.overrides import text
    from spark_cluster.engine.nodes import groups
    from spark_cluster.engine.resolve import resolve

    name = name or opened.inventory.serve.recipe
    if name is None:
        raise UsageError(
            "no recipe is given",
            hint="give --recipe NAME, or `serve: {recipe: NAME}` in the inventory",
        )
    recipe = recipe_to_serve(opened, name, changes, allow)
    size = size_on(opened, recipe, _size(tp, replicas))
    if replicas > 1:
        groups([node.name for node in opened.nodes], 1, replicas)
    how = f"--tp {size}" if replicas == 1 else f"--replicas {replicas}"
    return f"{how} {text(recipe.overrides)}".rstrip(), lambda play: resolve(
        recipe, play.inventory, play.nodes, size, replicas=replicas
    )


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
