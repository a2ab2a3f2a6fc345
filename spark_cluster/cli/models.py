"""`models`: the models in the hub caches of the nodes."""

from __future__ import annotations

import click

from spark_cluster.cli.groups import Group

_MODULES = {
    "list": "models_list",
    "size": "models_size",
    "pull": "models_pull",
    "copy": "models_copy",
    "verify": "models_verify",
    "repair": "models_repair",
    "prune": "models_prune",
    "pin": "models_pin",
    "unpin": "models_unpin",
}
"""Commands, which are loaded when they are called, and their modules."""


@click.group(cls=Group, later=_MODULES)
def command() -> None:
    """Look after the models on the nodes: what is there, whole, used, pinned; pull, verify."""
