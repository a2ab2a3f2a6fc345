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


class Models(Group):
    """A group whose commands are loaded when they are called."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _MODULES and cmd_name not in self.commands:
            from importlib import import_module

            from spark_cluster.cli import take_globals

            module = import_module(f"spark_cluster.cli.{_MODULES[cmd_name]}")
            take_globals(module.command)
            self.add_command(module.command, cmd_name)
        return super().get_command(ctx, cmd_name)


@click.group(cls=Models)
def command() -> None:
    """Look after the models on the nodes: what is there, whole, used, pinned; pull, verify."""
