"""A Ray cluster without a model, and the jobs on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_cluster.cluster.down import DownResult
from spark_cluster.cluster.recipes import head_must_be_selected, recipe_for_ray
from spark_cluster.cluster.result import RunSummary
from spark_cluster.runner.options import Options

if TYPE_CHECKING:
    from spark_cluster.cluster.opened import Opened
    from spark_cluster.config.allowances import Allowances
    from spark_cluster.engine.job_client import RayJobs
    from spark_cluster.engine.ray_cluster import RayStatus
    from spark_cluster.engine.vram import Stopped


@dataclass(frozen=True)
class RayUpResult:
    """The result of `ray up`.

    Attributes:
        run: how the run went.
        cluster: the Ray cluster; None in check mode and with a selection of roles.
    """

    run: RunSummary
    cluster: RayStatus | None

    def to_dict(self) -> dict[str, Any]:
        """Return it as `ray up --json` prints it."""
        cluster = self.cluster.to_dict() if self.cluster is not None else None
        return self.run.to_dict(cluster=cluster)


def ray_up(
    opened: Opened, recipe_name: str | None, *, end_jobs: bool, allow: Allowances, options: Options
) -> RayUpResult:
    """Start Ray without a model; see `Cluster.ray_up`."""
    recipe, size = recipe_for_ray(opened, recipe_name, "ray up", allow)
    with opened.play("ray up", opened.nodes, options) as run:
        playbook = opened.project.load_playbook("ray")
        cluster: RayStatus | None = playbook.function(
            run.open(), recipe=recipe, tp=size, end_jobs=end_jobs
        )
        run.finish()
        return RayUpResult(RunSummary.of(run), cluster)


def ray_status(opened: Opened) -> RayStatus:
    """Return the state of Ray; see `Cluster.ray_status`."""
    head_must_be_selected(opened)
    with opened.play("ray status", opened.nodes, Options(), change=False) as run:
        from spark_cluster.engine.ray_cluster import look

        found = look(run.open())
        run.finish()
        return found


@contextlib.contextmanager
def open_jobs(opened: Opened, command: str) -> Iterator[RayJobs]:
    """Return the jobs on the head's Ray; see `Cluster.ray_jobs`.

    Args:
        command: that wants them.
    """
    head = [opened.inventory.head]
    with opened.play(command, head, Options(), change=False, gather_facts=False) as run:
        from spark_cluster.engine.job_client import ray_jobs
        from spark_cluster.engine.ray_cluster import running_port

        play = run.open()
        with ray_jobs(play, running_port(play)) as jobs:
            run.finish()
            yield jobs


def ray_down(opened: Opened, *, options: Options) -> DownResult:
    """End a Ray without a model; see `Cluster.ray_down`."""
    with opened.play("ray down", opened.nodes, options, gather_facts=False) as run:
        from spark_cluster.engine.ray_cluster import must_serve_nothing

        play = run.open()
        must_serve_nothing(play, play.nodes, "ray down")
        playbook = opened.project.load_playbook("down")
        stopped: Stopped | None = playbook.function(play, end_jobs=True)
        run.finish()
        return DownResult(RunSummary.of(run), stopped)
