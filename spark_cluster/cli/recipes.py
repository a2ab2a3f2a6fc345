"""`recipes`: what can be served, and what is known of it; `list`, `search` and `show`."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import starmap
from typing import Annotated, Any

import click
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from spark_cluster.cli.app import App
from spark_cluster.cli.console import joined, labelled, mark, painted, plain_table, styled
from spark_cluster.cli.options import DeclaredCommand, DeclaredGroup, Positive
from spark_cluster.cli.predictions import too_large
from spark_cluster.cli.terminal import Console
from spark_cluster.config.launch import of_recipe as launched
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import CHECKS_OF_KIND, Measured
from spark_cluster.config.recipes import (
    FoundRecipe,
    RecipeFile,
    load_recipe,
    recipe_files,
    search_recipes,
)
from spark_cluster.errors import SparkClusterError
from spark_cluster.plan.estimate import SMALLEST, Estimate, load_constants
from spark_cluster.plan.evidence import Evidence, by_others, said
from spark_cluster.plan.planner import Planner
from spark_cluster.plan.proposal import SizeVerdict, verdicts
from spark_cluster.plan.serving import serving_of
from spark_cluster.plan.speed import CONTEXT, request_speed

_COMMANDS = {
    "list": "recipes:list_",
    "show": "recipes:show",
    "search": "recipes:search",
    "import": "recipes_import:import_",
    "save": "recipes_import:save",
    "update": "recipes_import:update",
}
"""The commands in the order of --help; their modules are loaded when they are called."""

WIDE = 100
"""Columns of a terminal from which on a model's name fits in the list."""


@click.group(cls=DeclaredGroup, later=_COMMANDS)
def recipes() -> None:
    """List, show, search, import and save recipes: shipped ones, your own in recipes/, others'."""


@click.command("list", cls=DeclaredCommand)
def list_(app: App) -> None:
    """List what can be served, with expected and measured tokens/s.

    Figures are for one request; expected ones are a range. An invalid file is listed with the
    reason. Your own recipes take precedence over shipped ones of the same name.
    """
    rows = [(entry, figures(entry.recipe, app.project)) for entry in recipe_files(app.project)]
    app.show({"recipes": list(starmap(document, rows))}, lambda app, _: _show_list(app, rows))


def _show_list(app: App, rows: list[tuple[RecipeFile, Figures]]) -> None:
    sources: dict[str, int] = {}
    app.console.print(_table(rows, sources, wide=app.console.width >= WIDE))
    for source, number in sources.items():
        app.console.print(painted(f"[{number}] {source}", "dim"))
    for entry, _ in rows:
        if entry.error is not None:
            app.console.say("{} {}", mark("fail"), entry.error)


@click.command(cls=DeclaredCommand)
def search(
    app: App,
    *,
    words: Annotated[tuple[str, ...], {"metavar": "[WORD]..."}],
    most: Annotated[int, click.IntRange(1, 1000)] = 20,
) -> None:
    """Find recipes by name, model, description, quantization and tags: shipped ones, your own, and
    those of your registries as last fetched.

    All words must occur; the best match comes first. For each: whether it works on one and on two
    idle Sparks, and the expected tokens/s of one request.

    Args:
        most (--limit): Recipes to show at most (default 20).
    """
    found = search_recipes(words, app.project)
    rows = [(one, _verdicts(app, one)) for one in found[:most]]
    told = {"found": len(found), "recipes": list(starmap(found_document, rows))}
    app.show(told, lambda app, _: _show_found(app, rows, len(found)))


def headlines(recipe: Recipe) -> list[Measured]:
    """The decode speed of one request: each source's first figure for each size."""
    found: dict[tuple[int, str], Measured] = {}
    for measured in recipe.measured:
        if measured.decode_tok_s is not None and measured.concurrency == 1 and not measured.depth:
            found.setdefault((measured.tp, measured.source), measured)
    return sorted(found.values(), key=lambda m: m.tp)


@dataclass(frozen=True)
class Figures:
    """The decode speed of one request of a recipe by size: predicted, and as others measured it."""

    expected: dict[int, Estimate] = field(default_factory=dict)
    measured: dict[int, Evidence] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the keys of its JSON."""
        known = self.measured.items()
        return {
            "expected_tok_s": {tp: speed.rounded() for tp, speed in self.expected.items()},
            "measured_by_others": {tp: one.beside(self.expected[tp]) for tp, one in known},
        }


def figures(recipe: Recipe | None, project: Project) -> Figures:
    """Return the speeds at the usual sizes whose weights fit; without what cannot be predicted,
    such as the speed of the lab's tiny model, which nothing here was fitted to.

    Raises:
        InvalidFile: the project's own calibration is wrong.
    """
    found = Figures()
    if recipe is None or recipe.kind != "chat":  # it generates nothing
        return found
    constants = load_constants(project)
    for tp in recipe.tensor_parallel.usual:
        with contextlib.suppress(SparkClusterError):
            serving = serving_of(recipe, tp, project.folder)
            if too_large(serving) or serving.weights.step_bytes() < SMALLEST:
                continue
            found.expected[tp] = request_speed(recipe, serving, constants=constants)
            launch = launched(recipe, tp)
            drafted = launch.drafted_tokens or 0
            if measured := by_others(launch, serving, users=1, context=CONTEXT, drafted=drafted):
                found.measured[tp] = measured
    return found


def document(entry: RecipeFile, known: Figures) -> dict[str, Any]:
    """Return it as `recipes list --json` prints it."""
    about: dict[str, Any] = {"name": entry.name, "path": str(entry.path), "own": entry.own}
    if entry.recipe is None:
        return {**about, "valid": False, "error": entry.error.to_dict() if entry.error else None}
    recipe = entry.recipe
    return {
        **about,
        "valid": True,
        "description": recipe.description,
        "model": recipe.model.name,
        "kind": recipe.kind,
        "base": recipe.model.base,
        "quantization": recipe.model.quantization,
        "tensor_parallel": recipe.tensor_parallel.model_dump(exclude_none=True),
        **known.to_dict(),
        "measured_tok_s": [
            {"tp": m.tp, "decode_tok_s": m.decode_tok_s, "source": m.source, "note": m.note}
            for m in headlines(recipe)
        ],
    }


def found_document(one: FoundRecipe, answers: list[SizeVerdict]) -> dict[str, Any]:
    """Return it as `recipes search --json` prints it."""
    fields = one.fields
    return {
        "recipe": one.reference,
        "origin": one.origin,
        "model": fields.get("model", ""),
        "base": fields.get("base", ""),
        "description": fields.get("description", ""),
        "quantization": fields.get("quantization", ""),
        "tags": fields.get("tags", "").split(),
        "verdicts": {str(verdict.tp): verdict for verdict in answers},
    }


def _verdicts(app: App, one: FoundRecipe) -> list[SizeVerdict]:
    try:
        recipe = load_recipe(one.reference, app.project)
    except SparkClusterError as error:
        return [SizeVerdict(1, None, error.message)]
    return list(verdicts(recipe, Planner(app.project)))


def _show_found(app: App, rows: list[tuple[FoundRecipe, list[SizeVerdict]]], count: int) -> None:
    """Show two lines a recipe: a name of a registry is too long for a column of a table.

    Args:
        count: of all that were found.
    """
    if not count:
        update = f"`{app.command('recipes update')}` for registries"
        app.console.print(f"no recipe has all these words; try fewer, or {update}")
    for one, answers in rows:
        own = " (yours)" if one.origin == "yours" else ""
        about = filter(None, map(one.fields.get, ("model", "quantization")))
        model = painted(" ".join(about), "dim")
        app.console.say("[cyan]{}[/]{}  {}", one.reference, own, model)
        lines = [_answer(verdict) for verdict in answers] or [painted("3 Sparks or more", "dim")]
        app.console.say("  {}", joined(lines, "\n  "))
    if count > len(rows):
        app.console.print(painted(f"{count - len(rows)} more: --limit {count}", "dim"))


def _answer(verdict: SizeVerdict) -> Text:
    sparks = "one Spark" if verdict.tp == 1 else "two Sparks"
    if verdict.feasible is None:
        return styled("{}: [dim]not known ({})[/]", sparks, verdict.reason)
    if not verdict.feasible:
        return styled("{}: [red]no[/] [dim]({})[/]", sparks, verdict.reason)
    if verdict.decode is None:
        return styled("{}: [green]yes[/]", sparks)
    speed = f"{verdict.decode.low:.0f} to {verdict.decode.high:.0f}"
    return styled("{}: [green]yes[/], {} tok/s", sparks, speed)


def _table(rows: list[tuple[RecipeFile, Figures]], sources: dict[str, int], *, wide: bool) -> Table:
    """Return the list; a wide one has each recipe's model below its name, and its sizes."""
    titles = ("weights", *(["TP"] if wide else []), "expected\ntok/s", "measured\ntok/s")
    table = plain_table("recipe", *titles, whole=("recipe",), wide=True)
    for entry, known in rows:
        name = styled("{}[cyan]{}[/]", entry.name, " (yours)" if entry.own else "")
        if entry.recipe is None:
            table.add_row(name, painted("invalid", "red"))
            continue
        recipe = entry.recipe
        sizes = str(recipe.tensor_parallel).replace(" to ", "-").replace(" or more", "+")
        table.add_row(
            joined([name, painted(recipe.model.name, "dim")]) if wide else name,
            recipe.model.quantization or "",
            *([sizes] if wide else []),
            _speeds(known.expected),
            _measured(recipe, sources),
        )
    return table


def _speeds(speeds: dict[int, Estimate]) -> Text:
    lines = [_sized(tp, painted(_span(one))) for tp, one in speeds.items()]
    return joined(lines or [painted("not predicted", "dim")])


def _span(speed: Estimate) -> str:
    """A range in few characters: it stands in a table of 80 columns."""
    digits = 0 if speed.low >= 10 else 1
    return f"{speed.low:.{digits}f}-{speed.high:.{digits}f}"


def _measured(recipe: Recipe, sources: dict[str, int]) -> Text:
    def one(measured: Measured) -> Text:
        number = sources.setdefault(measured.source, len(sources) + 1)
        figure = styled("{:.1f} [dim]{}[/]", measured.decode_tok_s, f"[{number}]")
        return _sized(measured.tp, figure)

    return joined(one(measured) for measured in headlines(recipe))


def _sized(tp: int, text: Text) -> Text:
    return text if tp == 1 else styled("[dim]TP={}[/] {}", tp, text)


# -- `show`: all of a recipe, and the command line that it becomes ---------------------------------


@click.command(cls=DeclaredCommand)
def show(app: App, *, name: str, tp: Positive | None) -> None:
    """Show a whole recipe and the command line that it becomes.

    NAME is the name of a recipe, a file, or @REGISTRY/RECIPE.

    Args:
        tp: Tensor-parallel size (default: the smallest the recipe allows).
    """
    recipe = load_recipe(name, app.project)
    size = tp or recipe.tensor_parallel.min
    args = recipe.args_for(size)
    known = figures(recipe, app.project)
    whole = recipe.model_dump(mode="json", exclude_none=True)
    line = list(recipe.dialect.command(recipe.model.node_path, tuple(args)))
    app.show(
        {"recipe": whole, "tp": size, "command": line, **known.to_dict()},
        lambda app, _: _show_recipe(app.console, recipe, size, args, known),
    )


def _show_recipe(
    console: Console, recipe: Recipe, tp: int, args: list[str], figures: Figures
) -> None:
    """Show the recipe, the command line for `tp` nodes, and what is known of it."""
    console.say("[bold]{}[/]  {}", recipe.name, recipe.description)
    speeds, others = figures.expected, figures.measured
    known = [("", f"TP={tp} {said(one, speeds[tp])}") for tp, one in others.items()]
    console.print(labelled((*_facts(recipe, speeds), *known)))
    console.say("\n[bold]Command line[/] [dim]TP={}, the same on every rank[/]", tp)
    for line in _command(recipe, args):
        console.print(f"  {line}", soft_wrap=True)
    console.print(Padding(painted(_added(recipe, tp, args), "dim"), (0, 0, 0, 2)))
    sources = list(dict.fromkeys([*recipe.sources, *(m.source for m in recipe.measured)]))
    if recipe.measured:
        console.say("\n[bold]Measured[/] [dim]tokens/s[/]")
        _measured_rows(console, recipe.measured, sources)
    if sources:
        console.say("\n[bold]Sources[/]")
    for number, source in enumerate(sources, start=1):
        console.say("  [dim]{}[/] {}", f"[{number}]", source)


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


def _measured_rows(console: Console, rows: list[Measured], sources: list[str]) -> None:
    titles = ("TP", "requests", "prompt", "depth", "decode", "together", "prefill", "ms to first")
    table = plain_table(*titles, "source", "", right=titles, whole=("source",), wide=True)
    for row in rows:
        figures = (row.decode_tok_s, row.total_tok_s, row.prefill_tok_s, row.ttfr_ms)
        held = f"; {', '.join(map(str, row.vram_mib))} MiB held" if row.vram_mib else ""
        table.add_row(
            str(row.tp),
            str(row.concurrency),
            str(row.prompt_tokens or ""),
            str(row.depth or ""),
            *(
                "" if figure is None else f"{figure:,.{digits}f}"
                for figure, digits in zip(figures, (2, 2, 0, 0), strict=True)
            ),
            f"[{sources.index(row.source) + 1}]",
            row.note + held,
        )
    console.print(Padding(table, (0, 0, 0, 2)))
