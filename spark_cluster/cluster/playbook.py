"""Run any playbook."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spark_cluster.cluster.result import NodeErrors, RunSummary
from spark_cluster.errors import Failed, SparkClusterError, UsageError

if TYPE_CHECKING:
    from spark_cluster.cluster.opened import Opened
    from spark_cluster.loader.playbook import Playbook
    from spark_cluster.runner.options import Options
    from spark_cluster.runner.play import Play


@dataclass(frozen=True)
class PlaybookError:
    """The error of the first node that dropped out of the run."""

    message: str
    where: str
    hint: str


@dataclass(frozen=True)
class PlayedNode:
    """The resources of a node by verdict."""

    ok: int
    change: int
    unknown: int
    failed: int
    skipped: int


@dataclass(frozen=True)
class PlaybookResult(NodeErrors):
    """The result of a playbook. A node may drop out of it without ending it.

    Attributes:
        run: how the run went; not ok when a node dropped out.
        result: what the playbook's function returned.
        nodes: by name.
        errors: the error of each node that dropped out, by name.
    """

    run: RunSummary
    result: Any
    nodes: Mapping[str, PlayedNode]
    errors: Mapping[str, SparkClusterError]

    def to_dict(self) -> dict[str, Any]:
        """Return it as `playbook --json` prints it."""
        first = next(iter(self.errors.values()), None)
        return self.run.to_dict(
            error=None if first is None else asdict(PlaybookError(**first.to_dict())),
            result=self.result,
            nodes={name: asdict(node) for name, node in self.nodes.items()},
        )


def playbook(opened: Opened, file: str, *, options: Options) -> PlaybookResult:
    """Run a playbook; see `Cluster.playbook`."""
    name = opened.project.resolve("playbooks", file).stem
    with opened.play(f"playbook {name}", opened.nodes, options, gather_facts=False) as run:
        loaded = _load(opened, file)  # while the connections are being made
        play = run.open(fail_fast=False)
        result = _run(loaded, play)
        run.finish(str(next(iter(play.out.values()), "")))
        nodes = {
            name: PlayedNode(t.ok, t.change, t.unknown, t.failed, t.skipped)
            for name, t in run.recap.nodes.items()
        }
        return PlaybookResult(RunSummary.of(run, ok=not play.out), result, nodes, dict(play.out))


def _load(opened: Opened, file: str) -> Playbook:
    playbook = opened.project.load_playbook(file)
    needed = [
        p.name
        for p in list(inspect.signature(playbook.function).parameters.values())[1:]
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise UsageError(
            f"the playbook {playbook.name} has a command of its own (it needs {', '.join(needed)})",
            hint=f"spark-cluster {playbook.name} --help",
        )
    return playbook


def _run(playbook: Playbook, play: Play) -> object:
    try:
        return playbook.function(play)
    except SparkClusterError:
        raise
    except Exception as error:
        from spark_cluster.loader.extension import where_raised

        raise Failed(
            f"the playbook raised {type(error).__name__}: {error}",
            where=where_raised(error, playbook.path) or str(playbook.path),
            hint="what was applied before it stays; fix the playbook and run it again",
        ) from error
