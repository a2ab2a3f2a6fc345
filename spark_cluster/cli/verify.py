"""`verify`: whether what serves gives right answers, in depth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import joined, mark, painted, plain_table, styled
from spark_cluster.cli.options import Command

if TYPE_CHECKING:
    from spark_cluster.engine.verify import CheckVerdict, ComparedSize, Verification

MARKS = {"ok": "ok", "failed": "fail", "not applicable": "info", "not run": "warn"}


class Given(TypedDict):
    """What is handed on to `Cluster.verify`."""

    only: tuple[str, ...]
    skip: tuple[str, ...]
    timeout_s: Annotated[float, click.FloatRange(min=1.0)] | None
    context: Annotated[int, click.IntRange(min=1024)] | None
    model: str | None


@click.command(cls=Command)
def command(ctx: click.Context, app: App, **given: Unpack[Given]) -> None:
    """Ask the running server what users will ask it, and judge the answers.

    Short answers, coherence, tool calls in eight ways, reasoning, pictures, and more; embeddings,
    scores or a transcript where that is the model's kind. What the server cannot do by its launch
    or by its own answer is not applicable, unless its recipe promises it.

    Exit status 5 when a check fails.

    Args:
        only (CHECK): Run only this check, or the checks of this rung; repeatable.
        skip (CHECK): Leave out this check, or the checks of this rung; repeatable.
        timeout_s (--timeout SECONDS): Longest time that one answer may take (default: 900).
        context (TOKENS): Longest prompt of the context check, and its answer (default: what the
            server states).
        model (NAME): Model to verify, where the endpoint has several.
    """
    found = app.cluster.verify(**given)
    app.show(found, _show)
    ctx.exit(5 if found.failed else 0)


def _show(app: App, found: Verification) -> None:
    short = ("test", "streamed", "s")
    table = plain_table(
        "", *short, "result", whole=short, right=("s",), fold=("result",), wide=True
    )
    for verdict in found.verdicts:
        ran = verdict.status != "not run"
        table.add_row(
            mark(MARKS[verdict.status]),
            verdict.title,
            "yes" if verdict.streamed else "no",
            f"{verdict.seconds:.1f}" if ran else "",
            _result(verdict),
        )
    console = app.console
    console.print(_summary(found), soft_wrap=True)
    console.print(table)
    for size in found.other_sizes:
        console.print(styled("{} {}", mark("warn" if size.different else "ok"), _compared(size)))
        for one in size.different:
            where = (one.id, found.tp, one.now, size.tp, one.before)
            console.print(styled("  {}: tp {}: {}; tp {}: {}", *where), soft_wrap=True)
    if found.under_load:
        held = ", ".join(f"{one.name} {one.used_mib:,} MiB" for one in found.under_load)
        console.print(painted(f"GPU memory under load, at most: {held}", "dim"), soft_wrap=True)
    for verdict in found.failed:
        console.print(styled("\n{} [bold]{}[/]", mark("fail"), verdict.id))
        rows = ("asked", verdict.request), ("expected", verdict.expected), ("found", verdict.found)
        for name, text in rows:
            console.print(styled("  [dim]{}[/] {}", f"{name:8}", text), soft_wrap=True)
        console.print(painted(f"  {verdict.fix}", "cyan"), soft_wrap=True)


def _compared(size: ComparedSize) -> str:
    count = len(size.same) + len(size.different)
    if not size.different:
        return f"short answers: all {count} are those of tp {size.tp} ({size.at})"
    return f"short answers: {len(size.different)} of {count} differ from tp {size.tp} ({size.at})"


def _result(verdict: CheckVerdict) -> str:
    if verdict.status == "ok":
        return verdict.found
    if verdict.status == "failed":
        return "failed"
    return f"{verdict.status}: {verdict.found}"


def _summary(found: Verification) -> object:

    styles = {"failed": "red", "not applicable": "dim", "not run": "yellow", "ok": "green"}
    counts = {status: found.count(status) for status in ("failed", "not run", "ok")}
    counts["not applicable"] = found.count("not applicable")
    parts = [painted(f"{n} {s}", styles[s]) for s, n in counts.items() if n or s == "ok"]
    where = (found.model, found.endpoint, found.tp, found.recipe)
    about = styled("  [bold]{}[/] at {}  [dim]tp {}, recipe {}[/]", *where)
    return joined(parts, ", ") + about
