"""What engines compile for a GPU: `caches`, kept for the next start; `tune`, its kernels tuned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import click
from rich.table import Table

from spark_cluster.cli.app import App
from spark_cluster.cli.console import mark, painted, plain_table
from spark_cluster.cli.display import tell
from spark_cluster.cli.options import (
    Allowing,
    Changing,
    DeclaredCommand,
    DeclaredGroup,
    Finite,
    Overriding,
    Sized,
)
from spark_cluster.cli.serving import recipe_to_serve, size_on
from spark_cluster.config.folders import PRUNED_KINDS
from spark_cluster.engine import cache_parts
from spark_cluster.engine.cache_parts import CachePart, copy_caches
from spark_cluster.engine.deployment import root_on
from spark_cluster.engine.tuning import SIZES, Tuning
from spark_cluster.errors import UsageError, worst
from spark_cluster.node.output import gigabytes
from spark_cluster.runner.play import Play

DEFAULT_H = 24.0
"""Hours that tuning may take."""


@click.group(cls=DeclaredGroup)
def caches() -> None:
    """List, prune and copy what engines keep on the nodes for the next start: compiled code."""


@caches.command("list")
def list_(app: App) -> int:
    """List the parts of the caches by node: size, recipes, and how long they have not been used.

    The least recently used part comes first. Where a node is not reached, those of the others are
    shown, with exit status 3.
    """
    with app.cluster.play("caches list", app.nodes, change=False, gather_facts=False) as run:
        play = run.open(fail_fast=False)
        found = _parts(app, play)
    app.show({"parts": found}, lambda app, _: _show_parts(app, found))
    return worst(play.out.values())


@caches.command()
def prune(
    app: App,
    *,
    days: Annotated[float, Finite(0, 36500)] = 30.0,
    kinds: tuple[Annotated[str, click.Choice(PRUNED_KINDS)], ...],
    recipe: str | None,
    act: bool,
) -> None:
    """Remove parts of the caches that were not used lately, the oldest first.

    Parts that a server uses and compiled code of the inventory's recipe are kept. The next start
    that needs a removed part compiles it again, which takes time.

    Args:
        days (--older-than DAYS): Only parts not used for this many days (default 30).
        kinds (--kind): Only parts of this kind (default: compile and flashinfer).
        recipe (NAME): Only compiled code that no other recipe used.
        act (--apply): Remove it; without this it is only listed.
    """
    with app.cluster.play("caches prune", app.nodes, change=act, gather_facts=False) as run:
        play = run.open()
        found = _parts(app, play)
        chosen = cache_parts.prunable(
            found, days=days, kinds=kinds or cache_parts.USUAL, recipe=recipe
        )
        if act:
            removed = cache_parts.remove(play.sessions, _folders(app), chosen)
            chosen = [part for part in chosen if part.path in removed[part.node]]
    total = sum(part.bytes for part in chosen)
    document = {"applied": act, "bytes": total, "parts": chosen}
    app.show(document, lambda app, _: _show_pruned(app, chosen, total, act=act))
    if recipe and not any(recipe in part.recipes for part in found):
        text = f"no part of the caches is known to be of {recipe}"
        tell(app.to_paste(f"{text}; `spark-cluster caches list` shows the recipes"))


@caches.command()
def copy(app: App, *, source: str, targets: tuple[str, ...], no_encrypt: bool) -> None:
    """Copy compiled code and kernels to nodes with the same GPU, over the fabric if possible.

    The caches of vLLM's compiler, Inductor, Triton and FlashInfer. Only files that are missing or
    differ are moved. Compiled code of `--tp 1` is valid on any node, that of `--tp 2` on the node
    of the same rank.

    Args:
        source (--from NODE): Node to copy from.
        targets (--to NODE): Node to copy to; repeatable (default: all others).
        no_encrypt: Do not encrypt, as in `models copy`.
    """
    with app.cluster.play("caches copy", app.nodes) as run:
        done = copy_caches(run.open(), source, targets, encrypt=not no_encrypt)
    lines = (f"{one.kind}: {one.copied}" for one in done)
    app.show(run.document(copies=done), "\n".join(lines))


def _folders(app: App) -> dict[str, str]:
    return {node.name: root_on(node) for node in app.nodes}


def _parts(app: App, play: Play) -> list[CachePart]:
    return cache_parts.parts(play.sessions, _folders(app), app.inventory.serve.recipe_names)


def table(found: Iterable[CachePart]) -> Table:
    """Return the table of parts; a key is shown by its beginning."""
    result = plain_table(
        *("node", "kind", "part", "size", "idle", "used by", "kept because"),
        right=("size", "idle"),
        whole=("node", "kind", "size", "idle"),
    )
    for part in found:
        more = "" if part.whole else "+"
        cells = (part.node, part.kind, _name(part), f"{gigabytes(part.bytes)}{more}", _idle(part))
        result.add_row(*cells, ", ".join(part.recipes), part.kept)
    return result


def _name(part: CachePart) -> str:
    name = part.path.rpartition("/")[2]
    return name[:10] if part.kind == "compile" else name


def _idle(part: CachePart) -> str:
    return f"{part.idle_days:.0f} d" if part.idle_days >= 1 else "today"


def _show_parts(app: App, found: Sequence[CachePart]) -> None:
    app.console.print(table(found))
    sums: dict[str, int] = {}
    for part in found:
        sums[part.kind] = sums.get(part.kind, 0) + part.bytes
    listed = ", ".join(f"{kind} {gigabytes(size)}" for kind, size in sorted(sums.items()))
    app.console.print(f"by kind: {listed}" if listed else "the caches are empty")


def _show_pruned(app: App, chosen: Sequence[CachePart], total: int, *, act: bool) -> None:
    if not chosen:
        app.console.print("there is nothing to remove")
        return
    app.console.print(table(chosen))
    verb = "removed" if act else "would be removed; --apply removes it"
    app.console.print(f"{gigabytes(total)} {verb}")


# -- `tune`: the engine's own tuner for the kernels of a recipe, on this GPU -----------------------


@click.command(cls=DeclaredCommand)
def tune(
    app: App,
    *,
    recipe_name: Annotated[str, {"metavar": "RECIPE"}],
    tp: Sized,
    batch_sizes: str | None,
    hours: Annotated[
        Annotated[float, Finite(0.01, 168)],
        f"(H): Time limit; what was tuned by then is kept (default {DEFAULT_H:g}).",
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
        again: Also tune what has been tuned before.
    """
    sizes = SIZES if batch_sizes is None else _batch_sizes(batch_sizes)
    recipe = recipe_to_serve(app.cluster, recipe_name, changes, allow)
    size = size_on(app.cluster, recipe, tp)
    with app.cluster.play(f"tune {recipe.name} --tp {size}", app.nodes, options) as run:
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
    app.show_run(run, None if done is None else {"tuned": done}, done, _show_tuned)


def _batch_sizes(text: str) -> tuple[int, ...]:
    """Raises:
    UsageError: it is no list of numbers of tokens.
    """
    found = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 0 < int(word) <= 65536 for word in found):
        raise UsageError(
            f"--batch-sizes {text}: expected comma-separated numbers of tokens, 1 to 65536",
            hint="for example --batch-sizes 1,2,4,8",
        )
    return tuple(sorted({int(word) for word in found}))


def _show_tuned(app: App, done: Tuning) -> None:

    what = "tuned" if done.changed else "tuned already"
    sizes = ", ".join(map(str, done.sizes))
    app.console.say("{} {}: [bold]{}[/]", mark("ok"), what, done.file)
    app.console.print(painted(f"batch sizes {sizes}; on {', '.join(done.nodes)}", "dim"))
    use, compare = f"up --recipe {done.recipe} --tp {done.tp}", "bench run tuned-kernels"
    text = f"{app.command(use)} uses it; {app.command(compare)} compares"
    app.console.print(painted(text, "dim"))
