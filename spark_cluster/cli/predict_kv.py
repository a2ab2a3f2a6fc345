"""`predict kv`: how much context a KV cache of a given size holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App

if TYPE_CHECKING:
    from spark_cluster.planning.geometry import Geometry
    from spark_cluster.planning.kv import KvCache, Options

FIELDS = (
    "blocks",
    "blocks_per_request",
    "tokens",
    "max_concurrency",
    "gib_per_request",
    "max_model_len",
    "rule",
)


@click.command(name="kv")
@click.option("--model", required=True, metavar="NAME|DIR", help="On the hub, or its folder.")
@click.option("--kv-dtype", default="auto", show_default=True, help="As --kv-cache-dtype.")
@click.option("--kv-gib", type=float, required=True, metavar="G", help="The cache, GiB a GPU.")
@click.option("--max-model-len", type=int, metavar="L", help="Tokens; default: the model's.")
@click.option("--max-num-batched-tokens", type=int, default=2048, show_default=True, metavar="B")
@click.option("--tp", type=int, default=1, show_default=True, metavar="N", help="GPUs.")
@click.option("--vllm-version", metavar="V", help="Such as 0.19.0; default: the newest rule.")
@click.option("--block-size", type=int, metavar="TOKENS", help="As --block-size; default 16.")
@click.option(
    "--prefix-caching/--no-prefix-caching",
    default=None,
    help="For models with recurrent layers; default: the version's.",
)
@click.option(
    "--async-scheduling",
    is_flag=True,
    help="Count two batches in flight, as vLLM 0.26 and newer do on GPUs.",
)
@click.pass_context
def command(
    ctx: click.Context,
    model: str,
    kv_dtype: str,
    kv_gib: float,
    max_model_len: int | None,
    max_num_batched_tokens: int,
    tp: int,
    vllm_version: str | None,
    block_size: int | None,
    prefix_caching: bool | None,
    async_scheduling: bool,
) -> None:
    """How many requests and tokens a KV cache of a given size holds.

    The arithmetic is that of the vLLM version that is asked for, and gives the figures that its
    log prints.
    """
    from spark_cluster.errors import UsageError
    from spark_cluster.planning import kv
    from spark_cluster.planning.geometry import find

    app: App = ctx.obj
    geometry = find(model, app.project.folder)
    length = max_model_len or geometry.max_positions
    if not length:
        raise UsageError(f"{model} does not say how long its context is; give --max-model-len")
    options: Options = {
        "kv_dtype": kv_dtype,
        "max_num_batched_tokens": max_num_batched_tokens,
        "tp": tp,
        "vllm": vllm_version,
        "block_size": block_size,
        "prefix_caching": prefix_caching,
    }
    if async_scheduling:
        options["batches_in_flight"] = kv.batches_in_flight(vllm_version)
    found = kv.cache(geometry, kv_gib=kv_gib, max_model_len=length, **options)
    if app.as_json:
        document = found.document()
        app.print_json({field: document[field] for field in FIELDS})
        return
    _show(app, geometry, found, length=length, kv_gib=kv_gib)


def _show(app: App, geometry: Geometry, found: KvCache, *, length: int, kv_gib: float) -> None:
    from rich.table import Table

    console = app.console
    console.print(f"[bold]{geometry.name}[/]  {kv_gib:g} GiB a GPU, {length:,} tokens a request")
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="right", style="bold")
    table.add_column()
    most = found.max_model_len
    held = (
        "the longest request that fits"
        if most < geometry.max_positions
        else "the longest request: all that the model was made for"
    )
    for figure, meaning in (
        (f"{found.max_concurrency:.2f}", "requests of that length at once"),
        (f"{found.gib_per_request:.2f}", "GiB a request"),
        (f"{found.tokens:,}", 'tokens, as the log\'s "KV cache size"'),
        (f"{found.blocks:,}", f"blocks, {found.blocks_per_request:,} a request"),
        (f"{most:,}", f"tokens, {held}"),
    ):
        table.add_row(figure, meaning)
    console.print(table)
    if found.max_concurrency < 1:
        console.print(f"[red]✘[/] vLLM does not start: a request of {length:,} tokens does not fit")
    console.print(f"[dim]{found.rule}[/]")
    if not geometry.known:
        console.print(
            f"[yellow]the family {geometry.model_type!r} is not known; "
            "its layout was guessed by its keys[/]"
        )
