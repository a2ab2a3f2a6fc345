"""What `up`, `swap`, `down`, `ray` and `tunnel` take from the command line in the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

sized = click.option(
    "--tp",
    type=int,
    metavar="N",
    help="Number of nodes to split each layer over (default: the recipe's, else the largest power "
    "of two that there are nodes for).",
)

forced = click.option(
    "--force", is_flag=True, help="Launch even if the plan says that the configuration cannot work."
)

adopting = click.option(
    "--adopt",
    is_flag=True,
    help="Take a model over that root or the login user has in a hub cache on a node, by a checked "
    "copy, instead of downloading it (a terminal is asked without this).",
)

ending_jobs = click.option(
    "--end-jobs", is_flag=True, help="Go on although jobs are running on Ray, and end them."
)

unloading = click.option(
    "--unload",
    type=click.Choice(["ollama"]),
    multiple=True,
    help="Also unload the models of this program, through its own interface; repeatable.",
)


def local_port(default: str) -> Callable[[Any], Any]:
    """Take `--port`, where a tunnel begins on this machine.

    Args:
        default: in words.
    """
    return click.option(
        "--port",
        type=click.IntRange(1, 65535),
        metavar="PORT",
        help=f"Port of this machine (default: {default}).",
    )
