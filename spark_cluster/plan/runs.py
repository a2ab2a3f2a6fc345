"""The user's own measurements: llama-benchy's JSON, or points in a CSV or JSON file.

Points are rows (CSV with a header, or JSON as `{"points": [{...}, ...]}`) with

- `metric`: `decode_tok_s`, tokens/s of one request, or `ttfr_ms`, ms to the first response of a
  request that is alone;
- `value`: what was measured;
- `prompt`, `context`: tokens of the prompt, and in the cache (for `decode_tok_s` in the middle of
  the answer; for `ttfr_ms` those before the prompt);
- `concurrency`: requests at a time (1);
- `tp`, `model`, `quantization`, `kv_dtype`: what was run, where it is not what the command line
  says.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeGuard

from spark_cluster.config.yamlfile import did_you_mean, read_foreign, shown
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.issues.startup import MemoryAccount
from spark_cluster.plan.calibrate import Calibration, Point, calibrate
from spark_cluster.plan.estimate import LIMITS, Constants
from spark_cluster.plan.room import for_batch_gib
from spark_cluster.plan.serving import BATCHED_TOKENS, ServingSetup

MAX_BYTES = 64 << 20
"""A result with all its time series stays far below this."""

Ask = Callable[[Mapping[str, str]], ServingSetup]
"""What was run, from the columns `tp`, `model`, `quantization` and `kv_dtype` of a row."""

_METRICS: tuple[Literal["decode_tok_s", "ttfr_ms"], ...] = ("decode_tok_s", "ttfr_ms")
_OF_RUN = ("tp", "model", "quantization", "kv_dtype")
_COLUMNS = ("metric", "value", "prompt", "context", "concurrency", *_OF_RUN)


@dataclass
class OwnRuns:
    """The contents of a file of runs.

    Attributes:
        left_out: measurements that are no use, each with the reason.
    """

    points: list[Point] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def read_runs(path: Path, ask: Ask, *, decoding: bool = True) -> OwnRuns:
    """The measurements in a file.

    Args:
        ask: gives what was run.
        decoding: whether decode figures count; with a drafter they depend on how much of its drafts
            was accepted, which a result does not tell.

    Raises:
        InvalidFile: it cannot be read, or is not what is expected; with the row.
        UsageError: what a row says was run is not known.
    """
    text = _text(path)
    runs = OwnRuns()
    if path.suffix == ".csv":
        _points(path, _csv_rows(path, text), ask, runs)
    else:
        data = _json(path, text)
        if isinstance(data, dict) and isinstance(data.get("benchmarks"), list):
            _benchy(path, data, ask({}), runs)
        elif isinstance(data, dict) and isinstance(data.get("points"), list):
            _points(path, data["points"], ask, runs)
        else:
            raise _invalid(path, 'expected llama-benchy\'s JSON, or {"points": [...]}')
    if not decoding:
        kept = [point for point in runs.points if point.metric != "decode_tok_s"]
        runs.left_out += [
            f"{p.label}: decoded with a drafter, and the result does not contain the acceptance"
            for p in runs.points
            if p.metric == "decode_tok_s"
        ]
        runs.points = kept
    return runs


def _text(path: Path) -> str:
    try:
        return read_foreign(path, MAX_BYTES, "a result file").decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _invalid(path, "found a binary file, expected JSON or CSV") from None
    except OSError as error:
        raise _invalid(path, f"cannot be read: {error.strerror}") from None


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _invalid(path, f"is not JSON: {error}") from None
    except RecursionError:
        raise _invalid(path, "nested too deeply") from None


def _invalid(path: Path, message: str, hint: str = "") -> InvalidFile:
    usual = "`llama-benchy --save-result FILE --format json` writes one"
    return InvalidFile(message, where=shown(path), hint=hint or usual)


def _benchy(path: Path, data: dict[str, Any], serving: ServingSetup, runs: OwnRuns) -> None:
    """Its status is 0 even when every request failed, and then the figures are null."""
    cached = bool(data.get("prefix_caching_enabled"))
    for number, entry in enumerate(data["benchmarks"], 1):
        where = f"{path.name}: benchmark {number}"
        if not isinstance(entry, dict):
            raise _invalid(path, f"benchmark {number}: expected an object")
        names = ("concurrency", "context_size", "prompt_size", "response_size")
        try:
            concurrency, depth, prompt, answer = (int(entry[name]) for name in names)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise _invalid(
                path, f"benchmark {number}: expected numbers: {', '.join(names)}"
            ) from None
        what = f"{where} (pp{prompt} tg{answer} d{depth} c{concurrency})"
        if entry.get("is_context_prefill_phase"):
            runs.left_out.append(f"{what}: it fills the cache for the next one")
            continue
        if min(concurrency, prompt, answer) < 1 or depth < 0:
            runs.left_out.append(f"{what}: no tokens")
            continue
        speed, ttfr = _middle(entry.get("tg_req_throughput")), _middle(entry.get("ttfr"))
        context = depth + prompt + answer / 2
        if speed is None:
            runs.left_out.append(f"{what}: no decode figure; its requests failed")
        else:
            label = f"{what}: decode"
            runs.points.append(
                Point(serving, "decode_tok_s", speed, context, 0, concurrency, label)
            )
        if ttfr is not None and concurrency == 1:
            before, new = (depth, prompt) if cached else (0, depth + prompt)
            runs.points.append(Point(serving, "ttfr_ms", ttfr, before, new, 1, f"{what}: TTFR"))


def _middle(figure: Any) -> float | None:
    """The median of a figure's values, or its mean; None when it has neither."""
    if not isinstance(figure, dict):
        return None
    listed = figure.get("values")
    values = [v for v in listed if _is_number(v)] if isinstance(listed, list) else []
    found = statistics.median(values) if values else figure.get("mean")
    return float(found) if _is_number(found) and found > 0 else None


def _is_number(value: Any) -> TypeGuard[float]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _csv_rows(path: Path, text: str) -> list[Any]:
    try:
        rows: list[Any] = list(csv.DictReader(text.splitlines(), strict=True))
    except csv.Error as error:
        raise _invalid(path, f"is not CSV: {error}") from None
    if rows and "test_name" in rows[0]:
        raise _invalid(
            path,
            "llama-benchy's CSV does not contain the prompt of a decode figure",
            "run it with --format json, or write points (metric,value,prompt,context,...)",
        )
    return rows


def _points(path: Path, rows: list[Any], ask: Ask, runs: OwnRuns) -> None:
    for number, row in enumerate(rows, 1):
        where = f"point {number}"
        if not isinstance(row, dict):
            raise _invalid(path, f"{where}: expected an object, found {row!r}")
        unknown = [name for name in row if name not in _COLUMNS]
        if unknown:
            hint = did_you_mean(str(unknown[0]), _COLUMNS, "columns")
            raise _invalid(path, f"{where}: unknown column '{unknown[0]}'", hint)
        metric = next((m for m in _METRICS if m == row.get("metric")), None)
        if metric is None:
            message = f"{where}: metric: found {row.get('metric')!r}"
            raise _invalid(path, message, f"metrics: {', '.join(_METRICS)}")
        value = _number(path, where, row, "value", least=None)
        context = _number(path, where, row, "context", 0)
        prompt = _number(path, where, row, "prompt", 0)
        if metric == "ttfr_ms" and prompt < 1:
            raise _invalid(path, f"{where}: ttfr_ms needs the tokens of its prompt")
        if metric == "decode_tok_s" and not context:
            context = prompt
        many = int(_number(path, where, row, "concurrency", 1))
        if metric == "ttfr_ms" and many > 1:
            runs.left_out.append(f"{path.name}: {where}: several requests share a prefill")
            continue
        said = {name: str(row[name]) for name in _OF_RUN if row.get(name) not in (None, "")}
        label = f"{path.name}: {where}"
        runs.points.append(Point(ask(said), metric, value, context, int(prompt), many, label))


def _number(path: Path, where: str, row: Mapping[str, Any], name: str, least: int | None) -> float:
    """A column's number; `least` when it is empty and may be, and the smallest it can be."""
    found = row.get(name)
    if found in (None, "") and least is not None:
        return float(least)
    try:
        value = float(found)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = math.nan
    fine = math.isfinite(value) and (value > 0 if least is None else value >= least)
    if not fine:
        wanted = "a number above 0" if least is None else f"a number from {least}"
        raise _invalid(path, f"{where}: {name}: found {found!r}, expected {wanted}")
    return value


# The link's constants as they were measured, instead of those that were fitted to others' runs.
#
# A measured all-reduce is a step's without what the engine adds to it, so the slowest one of the
# range stays what was seen of others at least. Where runs over several nodes are given as well, the
# fit starts from the measured one and has the last word.


@dataclass(frozen=True)
class MeasuredLink:
    """All-reduces of a model's own message sizes.

    Attributes:
        latency_us: of one of a token's size; `low_us` and `high_us` the fastest and the slowest.
        bytes_s: that one of a prefill's size does: its bytes over its time, bytes/s.
    """

    latency_us: float
    low_us: float
    high_us: float
    bytes_s: float

    def constants(self) -> dict[str, float]:
        """Return the constants by name.

        Raises:
            UsageError: one of them cannot be.
        """
        usual = Constants()
        found = {
            "allreduce_us": self.latency_us,
            "allreduce_low_us": self.low_us,
            "allreduce_high_us": max(self.high_us, usual.allreduce_high_us),
            "link": self.bytes_s,
        }
        limits = {**LIMITS, "link": (usual.link / 100, usual.link * 100)}
        for name, value in found.items():
            low, high = limits[name]
            if not math.isfinite(value) or not low <= value <= high:
                raise UsageError(f"{name}: measured {value:g}, expected {low:g} to {high:g}")
        return found


def fitted(points: Sequence[Point], link: MeasuredLink | None) -> Calibration:
    """Fit the constants to runs, with those of the link as they were measured.

    Args:
        points: none, where only the link was measured.

    Raises:
        UsageError: there are too few points, or what was measured cannot be.
        Failed: no sensible constants describe the points.
    """
    if link is None:
        return calibrate(points, Constants())
    measured = link.constants()
    start = replace(Constants(), **measured)  # type: ignore[arg-type]
    if not points:
        return Calibration(start, (), {}, 0, 0.0, 0.0, None, measured=tuple(measured))
    found = calibrate(points, start)
    own = ("allreduce_us", "allreduce_low_us", "allreduce_high_us")
    decided = set(own) if "allreduce_us" in found.fitted else set()
    return replace(found, measured=tuple(name for name in measured if name not in decided))


# A server's memory beside weights and cache, as own starts logged it.

UNFITTED = Calibration(Constants(), (), {}, 0, 0.0, 0.0, None)
"""Where only memory was measured."""

NAME = "runtime_gib"
"""Of the constant."""


def runtime_gib(account: MemoryAccount) -> float:
    """Return what was logged, less what a larger batch adds, GiB."""
    batch = account.batched_tokens or BATCHED_TOKENS
    return round(account.runtime_gib - for_batch_gib(batch), 3)


def implausible(account: MemoryAccount) -> str:
    """Return why an account tells nothing of a Spark; empty where it does.

    A tiny model for tests takes next to nothing, and plans of others would reserve too little.
    """
    found, (low, high) = runtime_gib(account), LIMITS[NAME]
    if low <= found <= high:
        return ""
    return f"{NAME}: logged {found:g} GiB, expected {low:g} to {high:g}"


def with_runtime(found: Calibration, accounts: Sequence[MemoryAccount]) -> Calibration:
    """Return a calibration with the largest runtime of these starts; as it is without any."""
    if not accounts:
        return found
    largest = max(runtime_gib(account) for account in accounts)
    constants = replace(found.constants, runtime_gib=largest)
    return replace(found, constants=constants, measured=(*found.measured, NAME))
