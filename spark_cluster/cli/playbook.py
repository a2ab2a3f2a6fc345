"""`playbook`: run any playbook."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App, changing, leave_with
from spark_cluster.errors import Failed, SparkClusterError, UsageError

if TYPE_CHECKING:
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


@click.command()
@click.argument("file")
@changing
@click.pass_obj
def command(app: App, file: str, exit_code: bool, options: Options) -> None:
    """Run a playbook: a Python file with a function main(play), or the name of one in playbooks/.

    What main returns is in the JSON document as `result`.
    """
    app.connect_early()
    name = app.project.resolve("playbooks", file).stem
    with app.play(f"playbook {name}", app.nodes, options, gather_facts=False) as run:
        playbook = _load(app, file)  # while the connections are being made
        play = run.open(fail_fast=False)
        result = _run(playbook, play)
        left = next(iter(play.out.values()), None)
        run.finish(str(left or ""))
        if app.as_json:
            app.print_json(
                run.to_dict(
                    ok=left is None,
                    error=None if left is None else asdict(PlaybookError(**left.to_dict())),
                    result=result,
                    nodes={
                        name: asdict(PlayedNode(t.ok, t.change, t.unknown, t.failed, t.skipped))
                        for name, t in run.recap.nodes.items()
                    },
                )
            )
        else:
            run.show_recap()
    if left is not None:
        raise SystemExit(left.exit_code)
    leave_with(run, exit_code=exit_code)


def _load(app: App, file: str) -> Playbook:
    playbook = app.project.load_playbook(file)
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
