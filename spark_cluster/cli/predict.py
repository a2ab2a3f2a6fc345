"""`predict`: what a model needs and how fast it will be, from its shape alone."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import mark, painted, plain_table
from spark_cluster.cli.options import DeclaredCommand, DeclaredGroup, Finite, Offline, Positive, hub
from spark_cluster.cli.predictions import (
    PredictedSpeed,
    calibration,
    evidence_of,
    served_by,
    too_large,
)
from spark_cluster.config.launch import Launch
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.schema import Document, Flat
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.models.lookup import Hub, find
from spark_cluster.models.shape import Geometry
from spark_cluster.plan import kv
from spark_cluster.plan.estimate import WIDER, Constants, Estimate, load_constants
from spark_cluster.plan.evidence import said
from spark_cluster.plan.kv import KvCache
from spark_cluster.plan.kv_layout import DrafterLayers, KvLayout, drafter_layers
from spark_cluster.plan.prefill import prefill
from spark_cluster.plan.serving import ServingSetup
from spark_cluster.plan.speed import Speculative, decode, speculative

GB = 1e9
ANSWER = 1024
"""Tokens of an answer when --context is not given; half of it is in the cache on average."""

DRAFTS_BY = "mtp"
"""Method of a drafter when nothing says it: the one that most models have themselves."""

Quantization = Annotated[str | None, "(Q): Quantization of --model (default: as its config says)."]
KvDtype = Annotated[str | None, "(D): Type of the KV cache of --model."]


class AskedDrafter(NamedTuple):
    """What the options say of a drafter."""

    tokens: int | None
    method: str | None
    rates: list[float]
    share: float | None


@click.group(cls=DeclaredGroup, later={"kv": "predict:kv_command"}, invoke_without_command=True)
def predict(
    ctx: click.Context,
    app: App,
    *,
    results: tuple[Path, ...],
    recipe: str | None,
    model: str | None,
    quantization: Quantization,
    kv_dtype: KvDtype,
    tp: Positive | None,
    output: Annotated[Path, click.Path(path_type=Path, dir_okay=False)] | None,
    as_json: bool,
) -> None:
    """Predict speed and KV cache from a model's shape alone.

    With --calibrate RESULTS it fits the constants of the speed formulas to your own runs instead.
    RESULTS is what `llama-benchy --save-result FILE --format json` wrote (give with --recipe or
    --model, and --tp, what was run), or a CSV of points with the columns metric (decode_tok_s of
    one request, or ttfr_ms), value, prompt, context, concurrency, and tp, model, quantization,
    kv_dtype where they differ. A fabric.json of `bench fabric` (or its folder) replaces the assumed
    all-reduce between two nodes by the measured one, and a server's start-up log (*.log) with
    vLLM's line "Actual usage is ..." the memory that plans reserve beside weights and KV cache;
    each alone, or together with runs.

    Args:
        results (--calibrate RESULTS): Fit the constants to your runs (llama-benchy's JSON, or
            points), or take the link's from the fabric.json of `bench fabric`; repeatable.
        recipe (NAME): Recipe that was run.
        model (NAME|DIR): Model that was run.
        tp: Tensor-parallel size (default: 1).
        output (FILE): File to write (default: calibration.json in the project, which predictions
            read).
        as_json (--json): Print one JSON document on standard output.
    """
    app.as_json = app.as_json or as_json
    given = {"recipe": recipe, "model": model, "quantization": quantization, "kv_dtype": kv_dtype}
    if ctx.invoked_subcommand is not None:
        if results or output or tp or any(given.values()):
            raise UsageError(
                f"give options after '{ctx.invoked_subcommand}'; --calibrate takes no subcommand"
            )
        return
    if not results:
        click.echo(ctx.get_help())
        ctx.exit(2)

    calibration(app, results, {**given, "tp": str(tp or 1)}, output)


@predict.command()
def speed(
    app: App,
    *,
    recipe: str | None,
    model: str | None,
    quantization: Quantization,
    kv_dtype: KvDtype,
    mxfp4_layers: str | None,
    tp: Positive = 1,
    prompt: Positive = 512,
    cached: Annotated[int, click.IntRange(min=0)] = 0,
    context: Annotated[int, click.IntRange(min=0)] | None,
    concurrency: Positive = 1,
    draft_tokens: Annotated[int, click.IntRange(1, 32)] | None,
    draft_method: str | None,
    acceptance: str | None,
    accepted_share: Annotated[float, Finite(0, 1)] | None,
    offline: Offline,
) -> None:
    """Predict tokens/s and the time to the first response, with ranges.

    The roofline is what the memory's 273 GB/s alone would give; nothing reaches it. Without
    a measured acceptance a drafter's range is wide. The constants are those of calibration.json in
    the project folder, where there is one.

    Args:
        recipe (NAME): Recipe to predict, with its drafter.
        model (NAME|DIR): Model to predict.
        mxfp4_layers (LAYERS): What an image with this option quantizes to MXFP4 when it loads
            --model: some of moe,qkv,o,lm_head.
        tp: Nodes. [default]
        prompt: Tokens of the prompt. [default]
        cached: Tokens before the prompt that are in the cache already.
        context: Tokens in the cache while decoding (default: cached, prompt, half an answer of
            1024).
        concurrency: Concurrent requests. [default]
        draft_tokens: Tokens that the drafter proposes in a step.
        draft_method (METHOD): Kind of the drafter as vLLM calls it, such as mtp, dflash or eagle3,
            which says how much is usually accepted; default: mtp, or the recipe's.
        acceptance (A,B,..): Share that is accepted at each drafted position, given the ones
            before: 0.91,0.90,0.89.
        accepted_share: Share of all drafted tokens that is accepted, as vLLM's metrics report it;
            instead of --acceptance.
    """

    given = {"recipe": recipe, "model": model, "quantization": quantization, "kv_dtype": kv_dtype}
    drafts_by = (draft_method or DRAFTS_BY) if draft_tokens else None
    given |= {"mxfp4_layers": mxfp4_layers, "draft_method": drafts_by}
    known, serving = served_by(app, {**given, "tp": str(tp)}, hub(offline=offline))
    constants = load_constants(app.project)
    seen = cached + prompt + ANSWER // 2 if context is None else context
    plain = decode(serving, seen, concurrency, constants)
    first = prefill(serving, prompt, cached, constants)
    asked = AskedDrafter(draft_tokens, draft_method, _rates(acceptance), accepted_share)
    drafted = _drafted(known, serving, seen, concurrency, constants, asked)
    drafts = (draft_tokens or (known.drafter.tokens if known and known.drafter else 0)) or 0
    found = PredictedSpeed(
        recipe=known.name if known else None,
        model=serving.geometry.name,
        quantization=serving.quantization,
        kv_dtype=serving.kv_dtype,
        tp=tp,
        prompt=prompt,
        cached=cached,
        context=seen,
        concurrency=concurrency,
        plain=plain,
        first=first,
        drafted=drafted,
        evidence=evidence_of(app, known, serving, many=concurrency, context=seen, drafts=drafts),
        too_large=too_large(serving),
    )
    app.show(found, _show)


def _rates(text: str | None) -> list[float]:
    """Raises:
    UsageError: these are no numbers.
    """
    try:
        return [float(word) for word in text.split(",")] if text is not None else []
    except ValueError:
        raise UsageError(
            f"--acceptance: found '{text}', expected numbers such as 0.91,0.90,0.89"
        ) from None


def _drafted(
    recipe: Recipe | None,
    serving: ServingSetup,
    context: int,
    concurrency: int,
    constants: Constants,
    asked: AskedDrafter,
) -> Speculative | None:
    """Return the speed with the drafter that the options or the recipe name."""
    tokens, method, rates, share = asked
    drafter = recipe.drafter if recipe else None
    if tokens is None and drafter is None:
        if rates or share is not None or method:
            raise UsageError(
                "--draft-method, --acceptance and --accepted-share need a drafter",
                hint="give --draft-tokens N, or a recipe with a drafter",
            )
        return None
    if rates and share is not None:
        raise UsageError("found both --acceptance and --accepted-share; give one of them")
    if not rates and share is None and drafter is not None:
        rates = drafter.acceptance
    return speculative(
        serving,
        context,
        tokens or (drafter.tokens if drafter else 1),
        rates,
        concurrency=concurrency,
        constants=constants,
        accepted_share=share,
        method=method or (drafter.method if drafter else DRAFTS_BY),
    )


def _show(app: App, found: PredictedSpeed) -> None:
    if found.too_large:
        app.console.say("[red]does not fit[/]: {}", found.too_large)
        return
    plain, first, drafted = found.plain, found.first, found.drafted
    many, prompt = found.concurrency, found.prompt
    titles = ("expected", "low", "high", "roofline")
    table = plain_table("", *titles, right=titles, wide=True)

    def row(title: str, estimate: Estimate, digits: int = 1) -> None:
        values = (estimate.expected, estimate.low, estimate.high, estimate.roofline)
        table.add_row(title, *(f"{value:,.{digits}f}" for value in values))

    row("decode, one request, tok/s", plain.request)
    if many > 1:
        row(f"decode, all {many}, tok/s", plain.total)
    if drafted is not None:
        row("  with the drafter, one, tok/s", drafted.request)
        if many > 1:
            row(f"  with the drafter, all {many}, tok/s", drafted.total)
    row(f"prefill of {prompt:,}, tok/s", first.tokens_s, 0)
    alone = " (alone)" if many > 1 else ""
    row(f"first response{alone}, ms", first.seconds.times(1e3), 0)
    kv = "unquantized" if found.kv_dtype == "auto" else found.kv_dtype
    app.console.print(painted(found.recipe or found.model, "bold"))
    app.console.print(
        f"{found.quantization} weights, {kv} KV cache, TP {found.tp}, "
        f"{found.context:,} tokens of context"
    )
    app.console.print(table)
    app.console.print(f"{_size(plain.bytes_per_token)} read for a token")
    if drafted is not None:
        app.console.print(
            f"{drafted.tokens_per_step:.2f} tokens a step with the drafter, "
            f"{drafted.gain:.2f} times as fast"
        )
    _show_basis(app, found)
    if found.evidence:
        app.console.print(said(found.evidence, (drafted or plain).request))


def _show_basis(app: App, found: PredictedSpeed) -> None:
    """Print what all figures rest on, and for each why its range is wider."""
    bases = {what: basis.partition(WIDER) for what, basis in found.basis.items()}
    for first in dict.fromkeys(first for first, _, _ in bases.values()):
        app.console.print(painted(first, "dim"))
    for what, (_, _, reasons) in bases.items():
        if reasons:
            app.console.print(painted(f"{what}: wider for {reasons}", "dim"))


def _size(count: float) -> str:
    return f"{count / GB:.2f} GB" if count >= GB / 10 else f"{count / 1e6:.2f} MB"


@dataclass(frozen=True)
class KvOnBoth(Document):
    """The cache of vLLM on a CPU, and that on a Spark."""

    on_a_cpu: Flat[KvCache]
    on_a_spark: KvCache


ROWS = {
    "max_concurrency": ("requests of that length at once", "{:,.2f}"),
    "gib_per_request": ("GiB a request", "{:,.2f}"),
    "tokens": ('tokens, the log\'s "KV cache size"', "{:,}"),
    "blocks": ("blocks", "{:,}"),
    "blocks_per_request": ("blocks per request", "{:,}"),
    "max_model_len": ("tokens of the longest request that fits", "{:,}"),
}


@click.command(name="kv", cls=DeclaredCommand, output=KvOnBoth)
def kv_command(
    app: App,
    *,
    model: str,
    kv_dtype: str = "auto",
    kv_gib: Annotated[float, Finite(min=0, min_open=True)],
    max_model_len: int | None,
    max_num_batched_tokens: int = 2048,
    tp: int = 1,
    vllm_version: str | None,
    speculative_config: str | None,
    block_size: int | None,
    prefix_caching: bool | None,
    gdn_prefill: Literal["flashinfer", "triton"] | None,
    device: Literal["cpu", "gpu"] | None,
    offline: Offline,
) -> None:
    """Compute how many requests and tokens a KV cache of a given size holds.

    The arithmetic is that of the vLLM version asked for; it gives the figures that its log prints.

    Args:
        model (NAME|DIR): Model on the hub, or its folder.
        kv_dtype: As --kv-cache-dtype. [default]
        kv_gib (G): Size of the cache on each GPU, GiB.
        max_model_len (L): Tokens of the longest request; default: the model's.
        max_num_batched_tokens (B): Tokens of one step of the engine, prompts included. [default]
        tp (N): GPUs. [default]
        vllm_version (V): Version such as 0.19.0; default: the newest rule.
        speculative_config (JSON): Drafter, as vLLM's option of that name: its layers take a part of
            the cache.
        block_size (TOKENS): Tokens of a block, as vLLM's --block-size; default 16.
        prefix_caching (--prefix-caching/--no-prefix-caching): Prefix caching, which matters for
            recurrent layers; default: the version's.
        gdn_prefill: Kernel of the prefill of gated delta nets, as the log names it; default: what
            vLLM takes on a Spark by its source, flashinfer.
        device: For --json. cpu: one batch at a time, as vLLM on a CPU, which the rules are tested
            against; gpu: two batches in flight, as on a Spark since vLLM 0.26. Default: cpu, and
            next to it `on_a_spark`.
    """

    geometry = find(model, app.project.folder, hub=hub(offline=offline))
    launch = _launch(model, speculative_config)
    drafter = _layers_of_drafter(app, launch, geometry, hub(offline=offline))
    length = max_model_len if max_model_len is not None else geometry.max_positions
    if not length:
        raise UsageError(f"{model} does not state its context length; give --max-model-len")
    layout = KvLayout(
        geometry,
        kv_dtype=kv_dtype,
        max_num_batched_tokens=max_num_batched_tokens,
        tp=tp,
        vllm=vllm_version,
        drafted_tokens=launch.drafted_tokens,
        drafter=drafter,
        block_size=block_size,
        prefix_caching=prefix_caching,
        gdn_prefill=gdn_prefill,
    )
    size = int(kv_gib * kv.GIB)
    spark = kv.cache(layout, size, length)
    single = kv.cache(replace(layout, device="cpu"), size, length)
    if app.as_json:
        asked = {"gpu": spark, "cpu": single, None: KvOnBoth(single, spark)}
        app.print_json(asked[device])
        return
    _show_kv(
        app, geometry, spark, single, title=f"{kv_gib:g} GiB a GPU, {length:,} tokens a request"
    )
    if not drafter.known:
        text = "the drafter's own layers are not counted, its shape is not known: fewer tokens fit"
        app.console.say("{} {}", mark("warning"), text)
    if spark.max_concurrency < 1:
        longest = spark.max_model_len
        would = f"--max-model-len {longest} would" if longest else "no length would"
        why = f"one request of {length:,} tokens does not fit, {would}"
        app.console.say("{} vLLM does not start: {}", mark("fail"), why)


def _launch(model: str, speculative_config: str | None) -> Launch:
    """Return the launch of a model with a drafter, as far as its KV cache depends on it.

    Raises:
        UsageError: the drafter is not an object with a method, in JSON, or its tokens are no count.
    """
    if speculative_config is None:
        return Launch(model)
    launch = Launch(model, args={"speculative-config": speculative_config})
    given = launch.speculative
    uncounted = "num_speculative_tokens" in given and not launch.drafted_tokens
    if not given.get("method") or not isinstance(given["method"], str) or uncounted:
        raise UsageError(
            f"--speculative-config: found '{speculative_config}', expected a JSON object with a "
            "method, and 1 or more num_speculative_tokens",
            hint="""such as '{"method": "mtp", "num_speculative_tokens": 2}'""",
        )
    return launch


def _layers_of_drafter(
    app: App, launch: Launch, geometry: Geometry, source: Hub | None
) -> DrafterLayers:
    """Return the layers of a drafter that keep a cache; not known where its shape is not."""
    name = launch.speculative.get("model")
    if isinstance(name, str) and name != launch.model:
        with contextlib.suppress(UsageError, InvalidFile):
            geometry = replace(geometry, drafter=find(name, app.project.folder, hub=source))
    return drafter_layers(geometry, launch.speculative, launch.model)


def _show_kv(app: App, geometry: Geometry, spark: KvCache, single: KvCache, *, title: str) -> None:

    app.console.say("[bold]{}[/]  {}", geometry.name, title)
    differ = spark != single
    where = ("on a Spark", "on a CPU")[: 2 if differ else 1]
    table = plain_table(*where, "", right=where, header=differ)
    for field, (meaning, style) in ROWS.items():
        found = [style.format(getattr(each, field)) for each in (spark, single)]
        table.add_row(painted(found[0], "bold"), *found[1 : len(where)], meaning)
    app.console.print(table)
    if differ:
        text = (
            "a Spark has two batches in flight (async scheduling), a CPU one; the figures of "
            "a CPU are those that the rules are tested against"
        )
        app.console.print(painted(text, "dim"))
    app.console.print(painted(spark.rule, "dim"))
    if not geometry.known:
        family = f"the family {geometry.model_type!r} is not known"
        app.console.print(painted(f"{family}; its layers were read by their keys alone", "yellow"))
