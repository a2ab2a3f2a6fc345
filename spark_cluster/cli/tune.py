"""`tune`: the engine's own tuner for the kernels of a recipe, on this GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import mark, painted, styled
from spark_cluster.cli.options import Allowing, Changing, Command, Finite, Overriding, Sized
from spark_cluster.cli.recipes_to_serve import recipe_to_serve, size_on
from spark_cluster.engine.tuning import SIZES, Tuning
from spark_cluster.errors import UsageError

DEFAULT_H = 24.0


@click.command(cls=Command)
def command(
    app: App,
    *,
    recipe_name: Annotated[str, {"metavar": "RECIPE"}],
    tp: Sized,
    batch_sizes: str | None,
    hours: Annotated[
        Annotated[float, Finite(0.01, 168)],
        f"(H): Limit; what was tuned by then is kept (default {DEFAULT_H:g}).",
    ] = DEFAULT_H,
    tuner: Annotated[Path, click.Path(exists=True, dir_okay=False, path_type=Path)] | None,
    again: bool,
    changes: Overriding,
    allow: Allowing,
    options: Changing,
) -> None:
    """Tune vLLM's Triton kernel for the experts of RECIPE's model, on the head's GPU.

    vLLM's own tuner runs in its image for the model's shapes, for hours; nothing may serve
    meanwhile. The result is kept beside the caches of the nodes, by image, GPU and shape, and the
    next `up` uses it. `bench run tuned-kernels` shows before and after.

    Args:
        batch_sizes (N,N): Batch sizes to tune, in tokens (default: 1 to 64, 256, 1024, 2048,
            4096).
        tuner (FILE): vLLM's benchmark_moe.py of the image's version, for an image that lacks it.
        again: Tune also what is tuned already.
    """
    sizes = SIZES if batch_sizes is None else _sizes(batch_sizes)
    recipe = recipe_to_serve(app.cluster, recipe_name, changes, allow)
    size = size_on(app.cluster, recipe, tp)
    with app.play(f"tune {recipe.name} --tp {size}", app.nodes, options) as run:
        playbook = app.project.load_playbook("tune")
        done = playbook.function(
            run.open(),
            recipe=recipe,
            tp=size,
            sizes=sizes,
            limit_s=hours * 3600,
            tuner=tuner,
            renew=again,
        )
    if app.as_json:
        app.print_json(run.document(**({"tuned": done} if done is not None else {})))
    else:
        app.show_recap()
        if done is not None:
            _show(app, done)


def _sizes(text: str) -> tuple[int, ...]:
    """Raises:
    UsageError: it is no list of numbers of tokens.
    """
    found = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 0 < int(word) <= 65536 for word in found):
        raise UsageError(
            f"--batch-sizes {text}: expected numbers of tokens from 1 to 65536, with commas",
            hint="for example --batch-sizes 1,2,4,8",
        )
    return tuple(sorted({int(word) for word in found}))


def _show(app: App, done: Tuning) -> None:

    console = app.console
    what = "tuned" if done.changed else "tuned already"
    sizes = ", ".join(map(str, done.sizes))
    console.print(styled("{} {}: [bold]{}[/]", mark("ok"), what, done.file), soft_wrap=True)
    console.print(painted(f"batch sizes {sizes}; on {', '.join(done.nodes)}", "dim"))
    use = f"spark-cluster up --recipe {done.recipe} --tp {done.tp} uses it"
    console.print(painted(f"{use}; spark-cluster bench run tuned-kernels compares", "dim"))
