"""A plan on the screen: each node's memory as a bar, the figures, the issues, the verdict."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from spark_cluster.cli.app import App
from spark_cluster.cli.console import joined, labelled, mark, painted, plain_table, styled
from spark_cluster.cli.terminal import Console
from spark_cluster.config.engines import dialect
from spark_cluster.config.launch import options_text
from spark_cluster.node.output import duration
from spark_cluster.plan.estimate import SHOWN_FROM, Estimate, range_text
from spark_cluster.plan.evidence import said
from spark_cluster.plan.fit import Fit
from spark_cluster.plan.plan import Plan, Speed, times
from spark_cluster.plan.planner import NodeTogether, PlanTogether
from spark_cluster.plan.proposal import Advice, Topology
from spark_cluster.plan.room import NodeMemory

WIDTH = 48
BRICKS = {"in use now": "■", "weights": "█", "KV cache": "▒", "runtime": "▓", "left": "░"}
"""Told apart without colours, too: in a file, a pipe, a black-and-white terminal."""


ALIKE = 0.9
"""Share of the tokens that fit, below which vLLM's own figure is another one: it counts windows and
states as if they kept all tokens."""


def show(console: Console, plan: Plan) -> None:
    """Show the whole plan."""
    launch = plan.fit.launch
    nodes = "1 node" if launch.ranks == 1 else f"{launch.ranks} nodes"
    names = [room.name for room in plan.fit.rooms if room.assumed]
    is_none_asked = len(names) == len(plan.fit.rooms)
    whose = "idle Sparks, no node was asked" if is_none_asked else f"{', '.join(names)} idle"
    assumed = f" (assumed: {whose})" if names else ""
    title = styled("  [bold]{}[/]  --tp {}, {}", plan.title, launch.tp, nodes)
    console.print(_verdict(feasible=plan.feasible) + title + painted(assumed, "dim"))
    if plan.overrides:
        console.say("  changed: [cyan]{}[/]", options_text(plan.overrides))
    _reasons(console, plan)
    console.say("[dim]{}, {}[/]\n", launch.model, plan.fit.serving.quantization)
    for room in plan.fit.rooms:
        _bar(console, plan.fit, room)
    console.print(_legend(plan.fit))
    console.print()
    console.print(labelled(_figures(plan)))
    console.print(painted(_basis(plan), "dim"))
    _issues(console, plan)
    if plan.fit.remarks:
        console.print()
    for remark in plan.fit.remarks:
        console.print(painted(remark, "dim"))


def _verdict(*, feasible: bool) -> Text:
    if feasible:
        return styled("{} [bold green]fits[/]", mark("ok"))
    return styled("{} [bold red]cannot work[/]", mark("fail"))


def _parts(fit: Fit, room: NodeMemory) -> list[tuple[str, str, float]]:
    """Label, style and GiB of each part of a node's memory."""
    taken = fit.weights_gib + fit.kv_gib + fit.runtime_gib
    used = max(room.total_gib - room.available_gib, 0.0)
    return [
        ("in use now", "bright_black", used),
        ("weights", "blue", fit.weights_gib),
        ("KV cache", "cyan", fit.kv_gib),
        ("runtime", "magenta", fit.runtime_gib),
        ("left", "green", max(room.total_gib - used - taken, 0.0)),
    ]


def _bar(console: Console, fit: Fit, room: NodeMemory) -> None:
    parts = _parts(fit, room)
    scale = WIDTH / max(room.total_gib, sum(gib for *_, gib in parts))
    line, drawn, gone = Text(), 0, 0.0
    for label, style, gib in parts:
        gone += gib
        cells = round(gone * scale) - drawn
        drawn += cells
        line.append(BRICKS[label] * cells, style=style)
    name = painted(f"{room.name:<10} {room.total_gib:6.1f} GiB  ")
    over = sum(gib for *_, gib in parts) - room.total_gib
    if over > 0.05:
        line.append(f"  {over:.1f} GiB too much", style="bold red")
    console.print(name + line)


def _legend(fit: Fit) -> Text:
    line = Text(" " * 2)
    for label, style, gib in _parts(fit, fit.rooms[0]):
        line.append(f"{BRICKS[label]} ", style=style)
        line.append(f"{label} {gib:.1f}  ")
    line.rstrip()
    return line


def _figures(plan: Plan) -> Iterator[tuple[str, Text | str]]:
    fit, speed = plan.fit, plan.speed
    yield "memory", _share(fit)
    yield "KV cache", _cache(fit)
    yield "runtime", _runtime(fit)
    if fit.reasons:
        yield "decode", painted("does not fit: no speed", "red")
    else:
        yield from (
            _speeds(speed)
            if fit.launch.kind == "chat"
            else [("decode", painted(f"none: kind {fit.launch.kind}", "dim"))]
        )
        first = speed.prefill
        yield (
            "prefill",
            f"{first.tokens_s.expected:,.0f} tok/s, first response after "
            f"{first.seconds.expected:.2f} s ({first.seconds.low:.2f} to {first.seconds.high:.2f}) "
            f"for {speed.prompt:,} tokens",
        )
    yield "before", before(plan.fit)


def _speeds(speed: Speed) -> Iterator[tuple[str, Text | str]]:
    """Yield the rows of decoding, and of what was measured."""
    best = speed.best
    each = f" for each of {speed.concurrency}" if speed.concurrency > 1 else ""
    at = f"{each}, at {speed.context:,} tokens of context"
    yield "decode", styled("{} tok/s{}", _range(best.request), at)
    if speed.concurrency > 1:
        yield "", styled("{} tok/s in all", _range(best.total))
    if speed.drafted is not None:
        plain = f"without drafter {speed.decode.request.expected:.1f} tok/s"
        yield "", f"{speed.drafted.tokens_per_step:.2f} tokens a step; {plain}"
    if speed.evidence:
        contradicts = speed.evidence.contradicts(best.request)
        line = said(speed.evidence, best.request)
        yield "", painted(line, "yellow" if contradicts else "green")
    roofline = speed.decode.request.roofline
    most = "under 0.1" if roofline < SHOWN_FROM else f"{roofline:,.1f}"
    read = f"{speed.decode.bytes_per_token / 1e9:.2f} GB read for a token"
    yield "", painted(f"{read}; 273 GB/s by itself would give {most}", "dim")


def _share(fit: Fit) -> str | Text:
    if fit.share is None:
        return f"--kv-cache-memory-bytes as given: {fit.kv_gib:.2f} GiB"
    why = f"highest safe value: {fit.highest:.2f}"
    if abs(fit.share - fit.needed) > 0.005:
        asked = "enough for this request"
        if fit.needed > fit.share:
            asked = "needed for all requests at full length at once"
        why += f", {asked}: {fit.needed:.2f}"
    flag = dialect(fit.launch.engine).own("gpu-memory-utilization")
    return styled("[bold]--{} {:.2f}[/]  [dim]({})[/]", flag, fit.share, why)


def _runtime(fit: Fit) -> str:
    """What is neither weights nor cache, with its range and parts."""
    total, parts = fit.runtime.total, fit.runtime
    if fit.measured_gib is not None:
        return f"{total.expected:.1f} GiB a node, as your own servers logged it"
    graphs = f", CUDA graphs {parts.graphs.expected:.1f}" if parts.graphs.expected else ""
    low = max(0.0, total.low)
    return (
        f"{total.expected:.1f} GiB a node ({low:.1f} to {total.high:.1f}): activations "
        f"{parts.activations.expected:.1f}{graphs}, outside PyTorch {parts.outside.expected:.1f}"
    )


def _cache(fit: Fit) -> Text:
    cache = fit.cache
    if cache is None:
        return painted("no room", "red")
    requests = f"{cache.max_concurrency:.1f} requests"
    at_a_time = fit.launch.number("max-num-seqs")
    fewer = at_a_time is not None and at_a_time < int(cache.max_concurrency)
    flag = dialect(fit.launch.engine).own("max-num-seqs")
    limit = f"; --{flag} lets {at_a_time:g} run" if fewer else ""
    kind = "unquantized" if fit.serving.kv_dtype == "auto" else fit.serving.kv_dtype
    ends = f" ({fit.kv_low_gib:.1f} to {fit.kv_high_gib:.1f})" if fit.share is not None else ""
    size = (
        f"{fit.kv_gib:.2f} GiB a node{ends}, {kind}: {requests} of {fit.max_model_len:,} tokens "
        f"at a time{limit}"
    )
    prints = "vLLM prints" if dialect(fit.launch.engine).planned else "vLLM would print"
    fewer = cache.tokens < ALIKE * cache.max_concurrency * fit.max_model_len
    why = "; it counts each layer as one that keeps all tokens" if fewer else ""
    return styled("{}  [dim]({} {:,} tokens{})[/]", size, prints, cache.tokens, why)


def before(fit: Fit) -> str:
    """Return what happens before it serves: where the files come from, and how long all takes."""
    found = times(fit)
    low, high = duration(found["load_low"]), duration(found["load_high"])
    alike = low.rpartition(" ")[2] == high.rpartition(" ")[2]
    load = low if low == high else f"{low.rpartition(' ')[0] if alike else low} to {high}"
    copy = f", {duration(found['copy'])} to copy to the next node" if found.get("copy") else ""
    how = "send" if fit.launch.directory else "download"
    if not found["download"]:
        return f"nothing to {how}{copy}, {load} to load"
    where = " from this machine" if fit.launch.directory else ""
    span = f" ({duration(found['download'])} at 100 MB/s)"
    size = f"{fit.disk_gib:.1f}" if fit.disk_gib >= 0.1 else "under 0.1"
    return f"{size} GiB to {how}{where}{span}{copy}, {load} to load"


def _range(estimate: Estimate) -> Text:
    if estimate.high < SHOWN_FROM:
        return styled("[bold]{}[/]", range_text(estimate.low, estimate.high))
    figures = (estimate.expected, estimate.low, estimate.high)
    return styled("[bold]{:.1f}[/] ({:.1f} to {:.1f})", *figures)


def _basis(plan: Plan) -> str:
    best = plan.speed.drafted or plan.speed.decode
    rule = f"; KV rule: {plan.fit.cache.rule}" if plan.fit.cache else ""
    return f"speeds: {best.basis}{rule}"


def _issues(console: Console, plan: Plan) -> None:
    if not plan.issues:
        return
    whole = ("sign", "id")
    table = plain_table(*whole, "text", whole=whole, header=False, wide=True)
    for issue in plan.issues:
        text = joined([painted(issue.found), painted(issue.fix, "cyan")])
        table.add_row(mark(issue.severity), issue.id, text)
    console.print()
    console.print(table)


def _reasons(console: Console, plan: Plan) -> None:
    """Say why it cannot work, and what would; nothing when it can."""
    if plan.feasible:
        return
    for reason in (*plan.reasons, *plan.obstacles):
        console.say("  {}", reason)
    errors = [issue.id for issue in plan.issues if issue.severity == "error"]
    if errors:
        console.say("  known issues that prevent it: {}", ", ".join(errors))
    for near in plan.nearest:
        console.say("  would work: [cyan]{}[/] ({})", near.change, near.why)
    if plan.fit.reasons and not plan.nearest:
        console.print(
            "  no configuration near it would work: free memory or disk, or serve a smaller model"
        )


def _user_figures(one: Topology, users: int) -> tuple[str, str, str]:
    """Return tokens/s of a user and of all with their ranges, and the time to the first response;
    nothing for what does not fit."""
    if one.fit.reasons:
        return "", "", ""
    low, high = one.user_range
    star = "*" if one.evidence else ""
    return (
        f"{range_text(low, high)}{star}",
        f"{low * users:.0f} to {high * users:.0f}{star}",
        f"{one.ttfr_s:.2f} s",
    )


def show_advice(app: App, title: str, advice: Advice, *, is_recipe: bool) -> None:
    """Show one Spark, TP=2 and replicas side by side.

    Args:
        is_recipe: whether the title is a recipe's name, which `up` takes.
    """
    console = app.console
    users = "1 user" if advice.users == 1 else f"{advice.users} users at a time"
    console.say("[bold]{}[/] for {}, {}\n", title, advice.purpose, users)
    console.print(_topologies(advice))
    for one in advice.topologies:
        for reason in one.why_not:
            console.say("{} {}: {}", mark("fail"), one.title, reason)
    console.print()
    for one in advice.topologies:
        if one.evidence and one.name != "replicas" and not one.fit.reasons:
            console.print(painted(f"* {one.title}: {one.evidence.text}", "dim"))
    if advice.undecided:
        console.say("{} {}", mark("warning"), app.to_paste(advice.why))
    elif advice.best is None:
        console.say("{} {}", mark("fail"), advice.why)
    else:
        console.say("[bold]{}[/]: {}", advice.best.title, advice.why)
        if advice.needs:
            console.print(painted(f"with {' and '.join(advice.needs)}", "dim"))
    for one in filter(None, (advice.best, *advice.undecided)):
        if is_recipe:
            command = app.to_paste(f"spark-cluster up --recipe {title} {one.up_option}")
            console.print(painted(f"{one.title}: {command}", "cyan"), soft_wrap=True)


def _topologies(advice: Advice) -> Table:
    """Return the figures of one Spark, TP=2 and replicas, the best one in bold."""
    names = ("tok/s each", "tok/s in all", "first response", "full-length requests")
    table = plain_table("", *names, "", right=names, whole=("",), wide=True)
    for one in advice.topologies:
        best = one is advice.best
        table.add_row(
            styled("{} {}", mark("ok") if best else " ", one.title),
            *_user_figures(one, advice.users),
            f"{one.requests:.1f}",
            painted("no" if one.why_not else "", "red"),
            style="bold" if best else "dim" if one.why_not else None,
        )
    return table


def show_together(console: Console, plan: PlanTogether) -> None:
    """Show the sum of each node, then each model's own plan."""

    names = ", ".join(one.title for one in plan.plans)
    title = styled("  [bold]{} models next to each other[/]: {}", len(plan.plans), names)
    console.print(_verdict(feasible=plan.feasible) + title)
    for reason in (*plan.reasons, *plan.obstacles):
        console.say("  {}", reason)
    for node in plan.nodes:
        console.print()
        _show_node(console, node)
    if plan.on_request:
        each = ", ".join(f"{one.title} {one.reserved_gib:.1f} GiB" for one in plan.on_request)
        largest = "; the largest of them is above" if len(plan.on_request) > 1 else ""
        console.print(f"loaded on request: {each}{largest}")
    for one in plan.plans:
        console.print(painted("\n" + "─" * 78, "dim"))
        show(console, one)


def _show_node(console: Console, node: NodeTogether) -> None:
    name, gib = (node.room.name,), ("GiB",)
    table = plain_table(*name, *gib, right=gib, whole=gib, wide=True)
    table.add_row("available", f"{node.room.available_gib:.1f}")
    for one in node.models:
        table.add_row(one.title, f"-{one.reserved_gib:.1f}")
    kept, count = node.margins, len(node.models)
    in_addition = f"taken by {count} servers in addition, {kept.outside_gib:g} each"
    table.add_row(in_addition, f"-{kept.outside_gib * count:.1f}")
    style = "green" if not node.reason else "red"
    table.add_row(
        painted(f"left (the system keeps {kept.reserve_gib:g})", style),
        painted(f"{node.left_gib:.1f}", style),
    )
    console.print(table)
