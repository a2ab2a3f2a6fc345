"""`predict --calibrate`: the constants of predictions from the user's own runs, link and logs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from spark_cluster.bench.fabric_run import FabricRecord, is_fabric, load_fabric
from spark_cluster.bench.references import own_evidence
from spark_cluster.cli.app import App
from spark_cluster.cli.console import painted, plain_table, styled
from spark_cluster.config.launch import Launch, of_recipe
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipes import load_recipe
from spark_cluster.config.schema import Document, Hidden, Rounded, derived, printed
from spark_cluster.config.yamlfile import shown
from spark_cluster.errors import Failed, UsageError, naming
from spark_cluster.issues.log_reading import Reader, of_file
from spark_cluster.issues.startup import ACCOUNT_ANCHORS, MemoryAccount, account_in
from spark_cluster.models.lookup import Hub, find
from spark_cluster.models.memory_share import GIB, RESERVE_GIB
from spark_cluster.models.weights import checkpoint_kv_dtype, checkpoint_quantization, must_be_known
from spark_cluster.node.durable import write_file
from spark_cluster.plan.acceptance import AT_ONCE, kind_of
from spark_cluster.plan.calibrate import Calibration, Point, is_read_bound
from spark_cluster.plan.estimate import CALIBRATION, Constants, Estimate, carried, exchanges
from spark_cluster.plan.evidence import ComparedEvidence, Evidence, by_others
from spark_cluster.plan.prefill import Prefill
from spark_cluster.plan.room import assumed
from spark_cluster.plan.runs import (
    UNFITTED,
    MeasuredLink,
    fitted,
    implausible,
    read_runs,
    with_runtime,
)
from spark_cluster.plan.serving import MXFP4_LAYERS, ServingSetup, serving_of
from spark_cluster.plan.speed import Decode, Speculative

# The document of `predict speed`.

MS = 1e3


@dataclass(frozen=True)
class PredictedSpeed(Document):
    """The question, and the predicted speeds.

    Attributes:
        evidence: what was measured of it.
        too_large: why it does not fit; empty when it does, as far as its weights say.
    """

    recipe: str | None
    model: str
    quantization: str
    kv_dtype: str
    tp: int
    prompt: int
    cached: int
    context: int
    concurrency: int
    plain: Hidden[Decode]
    first: Hidden[Prefill]
    drafted: Hidden[Speculative | None]
    evidence: Hidden[Evidence | None] = None
    too_large: Annotated[str, Field(serialization_alias="why_not")] = ""
    bytes_per_token = derived(Annotated[float, Rounded()], "plain.bytes_per_token")
    fits = derived(bool, lambda found: not found.too_large)

    decode_tok_s = derived(Estimate | None, lambda one: one.known(one.plain.request))
    total_tok_s = derived(Estimate | None, lambda one: one.known(one.plain.total))
    prefill_tok_s = derived(Estimate | None, lambda one: one.known(one.first.tokens_s, 0))
    ttfr_ms = derived(Estimate | None, lambda one: one.known(one.first.seconds.times(MS), 0))
    speculative = derived(Speculative | None, lambda one: None if one.too_large else one.drafted)

    def known(self, found: Estimate, digits: int = 2) -> Estimate | None:
        """Return a figure as it is printed; None where the model does not fit."""
        return None if self.too_large else found.rounded(digits)

    @printed
    def measured(self) -> ComparedEvidence | None:
        """What was measured, next to the prediction."""
        if self.evidence is None or self.too_large:
            return None
        return self.evidence.beside((self.drafted or self.plain).request)

    @printed
    def basis(self) -> dict[str, str]:
        """Return what each figure is based on."""
        found = {"decode": self.plain.basis, "prefill": self.first.basis}
        drafted = {} if self.drafted is None else {"speculative": self.drafted.basis}
        return {**found, **drafted}


# The options of `predict` that say what is served.


def served_by(
    app: App, given: Mapping[str, str | None], hub: Hub | None = None
) -> tuple[Recipe | None, ServingSetup]:
    """Return the recipe, if one is named, and what is served by the options.

    Args:
        hub: where the model is looked up; None: what is kept on this machine.

    Raises:
        UsageError: they contradict each other, or name what is not known.
    """

    recipe, model, tp = given.get("recipe"), given.get("model"), int(given["tp"] or 1)
    asked, kv_dtype = given.get("quantization"), given.get("kv_dtype")
    if (recipe is None) == (model is None):
        raise UsageError(
            "found both --recipe and --model" if recipe else "give --model or --recipe",
            hint="--recipe NAME is a recipe; --model NAME|DIR a model on the hub or in a folder",
        )
    if recipe is not None:
        if asked or kv_dtype or given.get("mxfp4_layers"):
            flags = "--quantization, --kv-dtype and --mxfp4-layers"
            raise UsageError(f"{flags} need --model; a recipe sets its own")
        known = load_recipe(recipe, app.project)
        return known, serving_of(known, tp, app.project.folder, hub=hub)
    geometry = find(str(model), app.project.folder, hub=hub)
    quantization = must_be_known(asked) if asked else checkpoint_quantization(geometry)
    kv_dtype = kv_dtype or checkpoint_kv_dtype(str(model), quantization, geometry)
    layers = mxfp4_layers(given.get("mxfp4_layers"))
    # The model's own MTP layers; those of Gemma 4 are a model of their own.
    drafts_by = kind_of(given.get("draft_method") or "")
    itself = drafts_by == "mtp" and not geometry.model_type.startswith("gemma4")
    return None, ServingSetup(
        geometry, quantization, kv_dtype, tp,
        mxfp4_layers=layers, own_head=itself, drafts_at_once=drafts_by in AT_ONCE,
    )  # fmt: skip


def mxfp4_layers(text: str | None) -> tuple[str, ...]:
    """Return the words of `--mxfp4-layers`.

    Raises:
        UsageError: one of them is not known.
    """
    words = tuple(word.strip() for word in (text or "").split(",") if word.strip())
    known = ("moe", *MXFP4_LAYERS)
    if unknown := [word for word in words if word not in known]:
        expected = ", ".join(known)
        raise UsageError(f"--mxfp4-layers: found '{unknown[0]}', expected some of {expected}")
    return words


def evidence_of(
    app: App,
    recipe: Recipe | None,
    serving: ServingSetup,
    *,
    many: int,
    context: float,
    drafts: int,
) -> Evidence | None:
    """Return what was measured of it, by the user's own runs first.

    Args:
        many: requests at a time.
        drafts: tokens drafted in a step.
    """

    own = None
    launch = of_recipe(recipe, serving.tp) if recipe else Launch(serving.geometry.name)
    if recipe or not drafts:
        plain = replace(launch, tp=serving.tp, quantization=serving.quantization)
        own = own_evidence(app.project, launch if recipe else plain, many, context)
    return own or by_others(launch, serving, users=many, context=context, drafted=drafts)


def too_large(serving: ServingSetup) -> str:
    """Return why the weights do not fit an idle Spark; empty when they do."""

    (room,) = assumed(1)
    size = serving.weights.memory_bytes(serving.tp) / GIB
    if size + RESERVE_GIB <= room.available_gib:
        return ""
    each = " a node" if serving.tp > 1 else ""
    return (
        f"the weights take {size:.0f} GiB{each}, and an idle Spark has {room.available_gib:.0f} "
        f"available, of which the system keeps {RESERVE_GIB:g}"
    )


UNITS = {
    "allreduce_us": "us",
    "allreduce_low_us": "us",
    "allreduce_high_us": "us",
    "step_ms": "ms",
    "link": "bytes/s",
    "runtime_gib": "GiB",
}
"""Of constants that are times; the others are shares of the bandwidth, or 10^12 operations/s."""

ENDINGS = (".log", ".log.gz")


def calibration(
    app: App, results: tuple[Path, ...], given: Mapping[str, str | None], output: Path | None
) -> None:
    """Fits, writes, and says what came of it.

    Args:
        given: `recipe`, `model`, `quantization`, `kv_dtype` and `tp` of the command line.
        output: where to write, instead of the project folder.

    Raises:
        UsageError: there is nothing to fit, or it cannot be what it is said to be.
        InvalidFile: a file of results is wrong.
        Failed: no sensible constants describe the runs, or the file cannot be written.
    """
    logs = [path for path in results if path.name.endswith(ENDINGS)]
    links = [path for path in results if path not in logs and is_fabric(path)]
    runs = [path for path in results if path not in (*logs, *links)]
    for path in filter(Path.is_dir, runs):
        raise UsageError(
            f"{path} is a folder without a fabric.json",
            hint="of a benchmark run give the load generator's results: RUN/raw/*/raw/*.json",
        )
    measured, unused = measured_link(links)
    points, left_out = _points(app, runs, given)
    accounts, silent = memory_accounts(logs)
    left_out = [*unused, *silent, *left_out]
    if not points and measured is None and not accounts:
        why = "\n".join(f"  {reason}" for reason in left_out) or "  they contain none"
        raise UsageError(f"no usable figures in {', '.join(map(shown, results))}:\n{why}")
    fit = fitted(points, measured) if points or measured is not None else UNFITTED
    found = with_runtime(fit, accounts)
    path = output or app.project.folder / CALIBRATION
    document = {**found.to_dict(), "files": [result.name for result in results]}
    with naming(Failed, "cannot write", where=shown(path)):
        write_file(path, f"{json.dumps(document, indent=2)}\n".encode(), 0o644)
    if app.as_json:
        app.print_json({**document, "file": str(path), "left_out": left_out})
    else:
        show_fit(app, found, left_out)
        app.console.print(f"written to {shown(path)}")


def _points(
    app: App, results: Sequence[Path], given: Mapping[str, str | None]
) -> tuple[list[Point], list[str]]:
    """Return the usable points, and those that are not, with reasons."""
    recipe = given.get("recipe")
    has_drafter = recipe is not None and load_recipe(recipe, app.project).drafter is not None

    def ask(row: Mapping[str, str]) -> ServingSetup:
        """Return the serving configuration of a row, else that of the command line."""
        tp = row.get("tp", "1")
        if not tp.isdecimal() or tp == "0":
            raise UsageError(f"tp: found '{tp}', expected a number such as 2")
        other = {"recipe": None} if "model" in row else {}
        return served_by(app, {**given, **other, **row})[1]

    points: list[Point] = []
    left_out: list[str] = []
    for path in results:
        runs = read_runs(path, ask, decoding=not has_drafter)
        left_out += runs.left_out
        for point in runs.points:
            if is_read_bound(point):
                left_out.append(f"{point.label}: the prompt is too short to show the speed")
            else:
                points.append(point)
    return points, left_out


def show_fit(app: App, found: Calibration, left_out: Sequence[str]) -> None:
    """Print the constants, the errors before and after, and what does not fit."""
    table = plain_table("constant", "was", "is", "", right=("was", "is"), wide=True)
    before, after = Constants().figures(), found.constants.figures()
    for how, names in (("", found.fitted), ("measured", found.measured)):
        for name in names:
            was, now = f"{before[name]:.3g}", f"{after[name]:.3g}"
            unit = " ".join(filter(None, (UNITS.get(name, ""), how)))
            table.add_row(name, was, painted(now, "bold"), unit)
    for name, why in found.kept.items():
        stays = painted(f"stays: {why}", "dim")
        table.add_row(painted(name, "dim"), f"{before[name]:.3g}", "", stays)
    app.console.print(table)
    if found.points:
        _show_errors(app, found)
    for reason in left_out:
        app.console.say("[yellow]left out[/] {}", reason)


def _show_errors(app: App, found: Calibration) -> None:
    """Show how well the fit describes the runs."""

    left = "" if found.left_out is None else f" ({found.left_out:.1%} of a point left out)"
    errors = styled("{:.1%} before, [bold]{:.1%}[/] after{}", found.before, found.after, left)
    app.console.say("mean error over {} points: {}", found.points, errors)
    if found.left_out is not None and found.left_out >= found.before:
        app.console.say(
            "[yellow]the shipped constants predict these runs as well[/]; more runs, "
            "and more varied ones, may change that"
        )
    for point in found.far_off:
        app.console.say("[yellow]far off[/] {}", point)
    if found.far_off:
        app.console.print(
            "a point far off was run with other settings, or is a measurement error: look "
            "at it before you rely on the fit",
        )


def measured_link(paths: Sequence[Path]) -> tuple[MeasuredLink | None, list[str]]:
    """Return the link of the last result that tells of one, and why others do not.

    Raises:
        UsageError: there is no such file.
        InvalidFile: a file is no result of `bench fabric`.
    """
    found, left_out = None, []
    for path in paths:
        record = load_fabric(path)
        if record.backend != "nccl":
            left_out.append(f"{shown(path)}: measured with gloo on CPUs")
        elif (link := _link(record)) is None:
            left_out.append(f"{shown(path)}: the message sizes of its model were not measured")
        else:
            found = link
    return found, left_out


def _link(record: FabricRecord) -> MeasuredLink | None:
    """Return a record's link as that of two nodes, however many it was measured between."""
    token, chunk = record.of_use("one token"), record.of_use("prefill chunk")
    if token is None or chunk is None:
        return None
    nodes = len(record.nodes)
    one = exchanges(nodes)
    return MeasuredLink(
        latency_us=token.latency_us / one,
        low_us=min(token.values_us, default=token.latency_us) / one,
        high_us=max(token.values_us, default=token.latency_us) / one,
        bytes_s=carried(nodes) * chunk.bytes / chunk.latency_us * 1e6,
    )


def memory_accounts(paths: Sequence[Path]) -> tuple[list[MemoryAccount], list[str]]:
    """Return what servers logged of their memory, and why others tell nothing.

    Raises:
        InvalidFile: a log cannot be read, or is no text.
    """
    found, left_out = [], []
    for path in paths:
        reader = Reader(of_file(str(path)), ACCOUNT_ANCHORS)
        account = account_in(candidate.text for candidate in reader.candidates())
        if account is None:
            left_out.append(
                f'{shown(path)}: no line "Actual usage is ..."; vLLM logs none where the cache is '
                "given in bytes"
            )
        elif why := implausible(account):
            left_out.append(f"{shown(path)}: {why}")
        else:
            found.append(account)
    return found, left_out
