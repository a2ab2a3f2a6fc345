"""The option of commands that look models up on the hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from spark_cluster.models.hub.lookup import Hub

F = TypeVar("F", bound=Callable[..., Any])

HELP = "Do not ask the hub for the model; use what is known on this machine."


def offline_option(function: F) -> F:
    """Add `--offline`, given to the command as `offline`."""
    decorated: F = click.option("--offline", is_flag=True, help=HELP)(function)
    return decorated


def hub(*, offline: bool) -> Hub:
    """Return where models are looked up: the hub, or with --offline what is kept of it here."""
    from spark_cluster.models.find import known_models
    from spark_cluster.models.hub.lookup import cached, online

    return cached() if offline else online(tuple(known_models()))
