"""`completion`: the script that completes commands and options in a shell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from spark_cluster.cli.app import App
from spark_cluster.cli.options import Command
from spark_cluster.cli.visible import visible

PROGRAM = "spark-cluster"
VARIABLE = "_SPARK_CLUSTER_COMPLETE"
"""The variable in which click looks for a shell's request, derived from the program's name."""

SHELLS: dict[str, type[ShellComplete]] = {
    "bash": BashComplete,
    "zsh": ZshComplete,
    "fish": FishComplete,
}


@dataclass(frozen=True)
class Completion:
    """The completion script of one shell."""

    shell: str
    script: str


@click.command(cls=Command)
def command(
    ctx: click.Context, app: App, *, shell: Annotated[str, click.Choice(list(SHELLS))]
) -> None:
    """Print the completion script for SHELL, to be loaded by its start-up file.

    \b
    echo 'eval "$(spark-cluster completion bash)"' >> ~/.bashrc
    echo 'eval "$(spark-cluster completion zsh)"' >> ~/.zshrc
    spark-cluster completion fish > ~/.config/fish/completions/spark-cluster.fish

    bash must be 4.4 or newer.
    """
    script = SHELLS[shell](ctx.find_root().command, {}, PROGRAM, VARIABLE).source()
    if app.as_json:
        app.print_json(Completion(shell, script))
    else:
        click.echo(visible(script))
