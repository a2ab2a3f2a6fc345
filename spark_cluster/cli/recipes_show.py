"""`recipes show`: all of a recipe, and the command line that it becomes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from spark_cluster.cli.app import App
from spark_cluster.cli.console import labelled, painted, styled
from spark_cluster.cli.options import Command, Positive
from spark_cluster.cli.recipes import evidence, expected
from spark_cluster.cli.terminal import Console
from spark_cluster.config.model_kind import CHECKS_OF_KIND
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import Measured
from spark_cluster.config.recipes import load_recipe
from spark_cluster.plan.estimate import Estimate
from spark_cluster.plan.evidence import Evidence, said


@click.command(cls=Command)
def command(app: App, *, name: str, tp: Positive | None) -> None:
    """Show all of a recipe and the command line that it becomes.

    NAME is the name of a recipe, a file, or @REGISTRY/RECIPE.

    Args:
        tp: Tensor-parallel size (default: fewest).
    """
    recipe = load_recipe(name, app.project)
    size = tp or recipe.tensor_parallel.min
    args = recipe.args_for(size)
    speeds = expected(recipe, app.project)
    others = evidence(recipe, app.project)
    if app.as_json:
        whole = recipe.model_dump(mode="json", exclude_none=True)
        line = list(recipe.dialect.command(recipe.model.node_path, tuple(args)))
        shown = {n: speed.rounded() for n, speed in speeds.items()}
        found = {n: one.beside(speeds[n]) for n, one in others.items() if n in speeds}
        about = {"expected_tok_s": shown, "measured_by_others": found}
        app.print_json({"recipe": whole, "tp": size, "command": line, **about})
    else:
        _show(app.console, recipe, size, args, speeds, others)


def _show(
    console: Console,
    recipe: Recipe,
    tp: int,
    args: list[str],
    speeds: dict[int, Estimate],
    others: dict[int, Evidence],
) -> None:
    """Show the recipe, the command line for `tp` nodes, and what is known of it."""
    console.print(styled("[bold]{}[/]  {}", recipe.name, recipe.description), soft_wrap=True)
    console.print(labelled((*_facts(recipe, speeds), *_evidence(speeds, others))))
    console.print(styled("\n[bold]Command line[/] [dim]TP={}, the same on every rank[/]", tp))
    for line in _command(recipe, args):
        console.print(f"  {line}", soft_wrap=True)
    console.print(Padding(painted(_added(recipe, tp, args), "dim"), (0, 0, 0, 2)))
    sources = list(dict.fromkeys([*recipe.sources, *(m.source for m in recipe.measured)]))
    if recipe.measured:
        console.print(styled("\n[bold]Measured[/] [dim]tokens/s[/]"))
        _measured(console, recipe.measured, sources)
    if sources:
        console.print(styled("\n[bold]Sources[/]"))
    for number, source in enumerate(sources, start=1):
        console.print(styled("  [dim]{}[/] {}", f"[{number}]", source), soft_wrap=True)


def _facts(recipe: Recipe, speeds: dict[int, Estimate]) -> Iterator[tuple[str, str | Text]]:
    yield from _model(recipe)
    if not recipe.dialect.planned:
        yield "engine", f"{recipe.dialect.title} (experimental)"
    if recipe.venv is not None:
        made_of = ", ".join(recipe.venv.requirements) or "as it is there"
        yield "venv", f"{recipe.venv.path} ({made_of})"
    else:
        yield "image", recipe.image.reference
    yield from _build(recipe)
    if recipe.image.archive:
        yield "", f"loaded from {recipe.image.archive} on the node"
    for patch in recipe.patches:
        whose = "of the model" if patch.origin == "model" else "next to the recipe"
        yield "patch", f"{patch.file} ({whose}): {patch.why}"
        yield "", f"over {patch.target}"
    yield from _drafter(recipe)
    sizes = recipe.tensor_parallel
    joined = {"ray": "Ray", "mp": f"{recipe.dialect.title} itself (mp)"}[recipe.executor]
    alone = sizes.max == recipe.nodes_for(1) == 1
    yield "nodes", "1" if alone else f"{sizes}, joined by {joined}"
    if recipe.pipeline_parallel > 1:
        yield "", f"each layer over so many, in {recipe.pipeline_parallel} stages of layers"
    for entry in recipe.not_carried_over:
        yield "left out" if entry == recipe.not_carried_over[0] else "", str(entry)
    share = recipe.gpu_memory_utilization
    given = "kv-cache-memory-bytes" in recipe.engine_args
    auto = "the KV cache is given" if given else "auto: computed from what the nodes have"
    yield "memory", auto if share is None else f"{share:g} of the node's"
    for key, value in sorted(recipe.plain_env.items()):
        yield "environment", f"{key}={value}"
    for key, reference in sorted(recipe.secret_env.items()):
        yield "environment", f"{key} (a secret: the laptop's variable {reference.env})"
    yield from _ready(recipe)
    yield from _versions(recipe)
    for tp, speed in speeds.items():
        span = f"{speed.low:.1f} to {speed.high:.1f}, bandwidth alone {speed.roofline:.1f}"
        figure = styled("{:.1f} tok/s at TP={} [dim]({})[/]", speed.expected, tp, span)
        yield "expected", figure


def _evidence(
    speeds: dict[int, Estimate], others: dict[int, Evidence]
) -> Iterator[tuple[str, str | Text]]:
    for tp, one in others.items():
        if tp in speeds:
            yield "", f"TP={tp} {said(one, speeds[tp])}"


def _model(recipe: Recipe) -> Iterator[tuple[str, str]]:
    model = recipe.model
    where = "" if model.revision == "main" else f", {model.revision}"
    yield "model", f"{model.name}{where}, served as {model.served_name}"
    weights: str = model.quantization or "as its config says"
    if model.weights_gib:
        weights += f", {model.weights_gib:g} GiB in memory"
    if model.base and model.base != model.name:
        weights += f", of {model.base}"
    yield "weights", weights


def _build(recipe: Recipe) -> Iterator[tuple[str, str]]:
    build = recipe.image.build
    if build is None:
        return
    yield "", f"built on the nodes from {build.text.split()[1]}: {build.why}"
    for step in build.steps:
        reach = "reaches the network" if build.network else "without a network"
        yield "mod", f"{step.shown}: {step.script} as root in the build, {reach}"


def _drafter(recipe: Recipe) -> Iterator[tuple[str, str]]:
    drafter = recipe.drafter
    if drafter is None:
        return
    name = f" with {drafter.name}" if drafter.name else ""
    yield "drafter", f"{drafter.method}{name}, {drafter.tokens} tokens a step"
    if drafter.acceptance:
        yield (
            "",
            "accepted, position by position: " + ", ".join(f"{a:g}" for a in drafter.acceptance),
        )


def _ready(recipe: Recipe) -> Iterator[tuple[str, str]]:
    if recipe.kind != "chat":
        left_out = "" if recipe.kind in CHECKS_OF_KIND else " (known, and not served)"
        yield "kind", recipe.kind + left_out
    if recipe.kind not in CHECKS_OF_KIND:
        return
    yield "ready when", ", ".join(rung.replace("_", " ") for rung in recipe.readiness.rungs)
    for pattern in recipe.readiness.log_expect:
        yield "", f"the log says {pattern}"
    for pattern in recipe.readiness.log_forbid:
        yield "", f"the log does not say {pattern}"


def _versions(recipe: Recipe) -> Iterator[tuple[str, str]]:
    vllm = recipe.vllm
    parts = [
        f"{vllm.version} in the image" if vllm.version else "",
        f"works with {vllm.supported}" if vllm.supported else "",
        f"was served by {', '.join(vllm.tested)}" if vllm.tested else "",
    ]
    if any(parts):
        yield "vLLM", "; ".join(part for part in parts if part)


def _command(recipe: Recipe, args: list[str]) -> Iterator[str]:
    """Yield the command with one flag on each line, so that it can be copied into a shell."""
    lines = [shlex.join(recipe.dialect.command(recipe.model.node_path, ()))]
    for word in args:
        if word.startswith("--"):
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {shlex.quote(word)}"
    yield from (line + " \\" for line in lines[:-1])
    yield lines[-1]


def _added(recipe: Recipe, tp: int, args: list[str]) -> str:
    added = []
    share = f"--{recipe.dialect.own('gpu-memory-utilization')}"
    if share not in args and "kv-cache-memory-bytes" not in recipe.engine_args:
        added.append(f"the computed {share}")
    added.append("--host and --port of the inventory")
    if tp > 1 and recipe.executor == "ray":
        added.append("--distributed-executor-backend")
    if tp > 1 and recipe.engine == "sglang":
        added.append("--nnodes, --node-rank, --dist-init-addr and --nccl-port")
    elif tp > 1 and recipe.executor == "mp":
        added.append("--nnodes, --node-rank, --master-addr and --master-port")
    return f"up adds {', '.join(added)}"


def _measured(console: Console, rows: list[Measured], sources: list[str]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    titles = ("TP", "requests", "prompt", "depth", "decode", "together", "prefill", "ms to first")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in rows:
        figures = (row.decode_tok_s, row.total_tok_s, row.prefill_tok_s, row.ttfr_ms)
        held = f"; {', '.join(map(str, row.vram_mib))} MiB held" if row.vram_mib else ""
        table.add_row(
            str(row.tp),
            str(row.concurrency),
            str(row.prompt_tokens or ""),
            str(row.depth or ""),
            *("" if figure is None else f"{figure:,.7g}" for figure in figures),
            f"[{sources.index(row.source) + 1}]",
            row.note + held,
        )
    console.print(Padding(table, (0, 0, 0, 2)))
