"""`predict kv`: how much context a KV cache of a given size holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import click
from rich.table import Table

from spark_cluster.cli.app import App
from spark_cluster.cli.console import mark, painted, styled
from spark_cluster.cli.options import Command, Finite, Offline, hub
from spark_cluster.document import Document, Flat
from spark_cluster.errors import UsageError
from spark_cluster.models.find import find
from spark_cluster.models.shape import Geometry
from spark_cluster.planning import kv
from spark_cluster.planning.kv import KvCache, Options


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


@click.command(name="kv", cls=Command)
def command(
    app: App,
    *,
    model: str,
    kv_dtype: str = "auto",
    kv_gib: Annotated[float, Finite(min=0, min_open=True)],
    max_model_len: int | None,
    max_num_batched_tokens: int = 2048,
    tp: int = 1,
    vllm_version: str | None,
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
    length = max_model_len if max_model_len is not None else geometry.max_positions
    if not length:
        raise UsageError(f"{model} does not state its context length; give --max-model-len")
    options: Options = {
        "kv_dtype": kv_dtype,
        "max_num_batched_tokens": max_num_batched_tokens,
        "tp": tp,
        "vllm": vllm_version,
        "block_size": block_size,
        "prefix_caching": prefix_caching,
        "gdn_prefill": gdn_prefill,
    }
    spark = kv.cache(geometry, kv_gib=kv_gib, max_model_len=length, **options)
    options["device"] = "cpu"
    single = kv.cache(geometry, kv_gib=kv_gib, max_model_len=length, **options)
    if app.as_json:
        asked = {"gpu": spark, "cpu": single, None: KvOnBoth(single, spark)}
        app.print_json(asked[device])
        return
    _show(app, geometry, spark, single, title=f"{kv_gib:g} GiB a GPU, {length:,} tokens a request")
    if spark.max_concurrency < 1:
        longest = spark.max_model_len
        would = f"--max-model-len {longest} would" if longest else "no length would"
        why = f"one request of {length:,} tokens does not fit, {would}"
        app.console.print(styled("{} vLLM does not start: {}", mark("fail"), why))


def _show(app: App, geometry: Geometry, spark: KvCache, single: KvCache, *, title: str) -> None:

    console = app.console
    console.print(styled("[bold]{}[/]  {}", geometry.name, title))
    differ = spark != single
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=differ)
    table.add_column("on a Spark", justify="right", style="bold")
    if differ:
        table.add_column("on a CPU", justify="right")
    table.add_column()
    for field, (meaning, style) in ROWS.items():
        found = [style.format(getattr(each, field)) for each in (spark, single)]
        table.add_row(*found[: 2 if differ else 1], meaning)
    console.print(table)
    if differ:
        text = (
            "a Spark has two batches in flight (async scheduling), a CPU one; the figures of "
            "a CPU are those that the rules are tested against"
        )
        console.print(painted(text, "dim"))
    console.print(painted(spark.rule, "dim"))
    if not geometry.known:
        family = f"the family {geometry.model_type!r} is not known"
        console.print(painted(f"{family}; its layers were read by their keys alone", "yellow"))
