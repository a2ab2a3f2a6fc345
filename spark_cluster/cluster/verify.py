"""Verify the answers of what serves, in depth."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from spark_cluster.cluster.recipes import api_key, head_must_be_selected
from spark_cluster.errors import SparkClusterError

if TYPE_CHECKING:
    from spark_cluster.cluster.opened import Opened
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.engine.verify import Verification


def verify(
    opened: Opened,
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    timeout_s: float | None = None,
    context: int | None = None,
    model: str | None = None,
) -> Verification:
    """Ask the running server what users will ask it, and judge the answers.

    Args:
        only, skip: ids of checks, or of rungs with all their checks.
        timeout_s: longest time that one answer may take, seconds; by default `client.PATIENCE_S`.
        context: longest prompt of the context check with its answer, tokens.
        model: to verify, where the endpoint has several.

    Raises:
        UsageError: there is no such check, or the head is not selected.
        SparkClusterError: nothing serves, or the head is not reached.
    """
    from spark_cluster.config.caches import state_folder
    from spark_cluster.engine import verify as in_depth
    from spark_cluster.engine.client import PATIENCE_S
    from spark_cluster.runner.options import Options

    selection = in_depth.Selection(tuple(only), tuple(skip))
    selection.must_be_known()
    key = api_key(opened)
    head_must_be_selected(opened)
    with opened.play("verify", opened.nodes, Options(), change=False) as run:
        play = run.open(fail_fast=False)
        server = in_depth.running_server(play, key, model)
        recipe = _recipe(opened, server.recipe)
        limit = timeout_s if timeout_s is not None else PATIENCE_S
        checks = partial(in_depth.verify, patience_s=limit, context=context)
        found = in_depth.with_memory(play, partial(checks, play, server, recipe, selection))
        return in_depth.with_other_sizes(found, server, recipe, state_folder() / "verify")


def _recipe(opened: Opened, name: str) -> Recipe:
    """The recipe that the server was started with.

    Raises:
        SparkClusterError: it is not there any more, or wrong; with what it is needed for.
    """
    from spark_cluster.loader.recipes import load_recipe

    try:
        return load_recipe(name, opened.project)
    except SparkClusterError as error:
        raise type(error)(
            f"the server was started with recipe {name or 'without a name'}, which cannot be read: "
            f"{error.message}",
            where=error.where,
            hint=error.hint or "run it in the project folder that `up` was run in",
        ) from None
