"""The options that change a recipe or the endpoint's port for one run, without editing a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from spark_cluster.cli.app import App, with_options
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from spark_cluster.config.overrides import Changes

F = TypeVar("F", bound=Callable[..., Any])

NAMED = (
    "max-model-len",
    "max-num-seqs",
    "gpu-memory-utilization",
    "quantization",
    "kv-cache-dtype",
    "data-parallel-size",
)
"""Flags that have an option of their own; the others are given as -o KEY=VALUE."""


def overriding(function: F) -> F:
    """The options of commands that serve or plan a recipe, given to them as `changes`."""

    def collect(ctx: click.Context, /, **given: Any) -> Any:
        return ctx.invoke(function, changes=_changes(given), **given)

    return with_options(collect, function, _OPTIONS)


def with_port(function: F) -> F:
    """The option of commands for which the endpoint may have another port than the inventory's."""

    def collect(ctx: click.Context, /, port: int | None, **given: Any) -> Any:
        if port is not None and (app := ctx.find_object(App)) is not None:
            app.cluster.port = port
        return ctx.invoke(function, **given)

    return with_options(collect, function, (_PORT,))


def _changes(given: dict[str, Any]) -> Changes:
    """Take the options out of what a command was given, as KEY=VALUE texts; later ones win."""
    changes = list(given.pop("options_given"))
    variables, image = given.pop("env_given"), given.pop("image")
    if variables or image is not None:  # otherwise nothing needs pydantic yet
        from spark_cluster.config.overrides import ENV, IMAGE

        for text in variables:
            if "=" not in text:
                hint = "for example -e NCCL_DEBUG=INFO"
                raise UsageError(f"-e {text}: expected NAME=VALUE", hint=hint)
            changes.append(f"{ENV}{text}")
        changes += [] if image is None else [f"{IMAGE}={image}"]
    named = [(flag, given.pop(flag.replace("-", "_"))) for flag in NAMED]
    return (*changes, *(f"{flag}={value}" for flag, value in named if value is not None))


_PORT = click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Port of the endpoint instead of the inventory's.",
)


_OPTIONS = (
    click.option(
        "--max-model-len",
        metavar="TOKENS",
        help="Longest request instead of the recipe's, tokens; also such as 32k, or auto.",
    ),
    click.option("--max-num-seqs", metavar="N", help="Requests at a time instead of the recipe's."),
    click.option(
        "--gpu-memory-utilization",
        metavar="SHARE",
        help="Share of the memory instead of the recipe's, 0.05 to 0.95, or auto.",
    ),
    click.option(
        "--quantization", metavar="Q", help="The engine's --quantization instead of the recipe's."
    ),
    click.option(
        "--kv-cache-dtype", metavar="TYPE", help="Type of the KV cache instead of the recipe's."
    ),
    click.option(
        "--data-parallel",
        "data_parallel_size",
        metavar="N",
        help="Number of nodes that each run a rank of one server with the whole model (vLLM's data "
        "parallel mode over Ray); experts are divided among them.",
    ),
    click.option(
        "-o",
        "--option",
        "options_given",
        multiple=True,
        metavar="KEY=VALUE",
        help="Engine argument instead of the recipe's; false or nothing takes it away; repeatable.",
    ),
    click.option(
        "-e",
        "--env",
        "env_given",
        multiple=True,
        metavar="NAME=VALUE",
        help="Variable of the containers instead of the recipe's; nothing takes it away; "
        "repeatable. Never a secret.",
    ),
    click.option("--image", metavar="REF", help="Container image instead of the recipe's."),
)
