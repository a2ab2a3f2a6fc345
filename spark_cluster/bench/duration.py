"""The duration of a suite, estimated from planned speeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from spark_cluster.bench.expansion import Expansion, PlannedCell, PlannedSetup, Step
from spark_cluster.bench.suite import MeasurementSettings
from spark_cluster.config.schema import Rounded

STARTUP_S = 240.0
"""Seconds until a server is ready, where nothing is known of it: a start with compilation took 3
to 5 minutes (source: forum-gemma4-31b-fp8, muninn-gemma4-31b)."""

STOP_S = 30.0
"""Seconds until it is down and its memory is free."""

CELL_S = 12.0
"""Seconds of a cell beyond its requests: the load generator starts, reads the tokenizer and the
book, warms up, asks its question and measures the latency."""

ANSWERS_S = 60.0
"""Seconds of a run of questions (vision, tool calls): eight answers of 50 tokens at 7 tok/s."""

CHECKED_TOKENS = 4000
"""Tokens of the answers to all checks of a server: about 40 requests of 100 tokens."""

SLOWER_PER_REQUEST = 0.05
"""Share by which a request decodes slower for each other one: with four at once the published runs
kept 0.83 to 1.0 of the speed of one (source: forum-gemma4-31b-fp8)."""

ASSUMPTIONS = (
    "each cell warms up once and then repeats its runs",
    "prefills of requests at once take turns; each decodes 5 % slower for each other request",
    "speeds are the plan's, for the cell's depth",
    f"a start takes {STARTUP_S:.0f} s where no other time is known, a stop {STOP_S:.0f} s",
)


@dataclass(frozen=True)
class Speed:
    """The planned speed of one request that is alone.

    Attributes:
        prefill_tok_s, decode_tok_s: tokens/s.
    """

    prefill_tok_s: float
    decode_tok_s: float


@dataclass(frozen=True)
class Duration:
    """The time that a suite takes.

    Attributes:
        seconds: of all steps whose speeds are known.
        steps: seconds of each step; None where no speed is known.
        unknown: setups without a planned speed.
    """

    seconds: Annotated[float, Rounded()]
    steps: tuple[Annotated[float | None, Rounded()], ...]
    unknown: tuple[str, ...]
    assumptions: tuple[str, ...] = ASSUMPTIONS


Speeds = Callable[[PlannedSetup, int], Speed | None]
"""Setup and tokens in the context to its planned speed; None where it is not known."""


def estimate(
    expansion: Expansion,
    speeds: Speeds,
    settings: MeasurementSettings,
    startup_s: float = STARTUP_S,
    *,
    verify: bool = False,
) -> Duration:
    """Return how long the steps take.

    Args:
        startup_s: seconds until a server is ready.
        verify: each server's answers are checked first.
    """
    checked = CHECKED_TOKENS if verify else 0
    seconds = [_step(step, speeds, settings, startup_s, checked) for step in expansion.steps]
    unknown = {
        step.setup.id: None
        for step, known in zip(expansion.steps, seconds, strict=True)
        if known is None
    }
    known_s = sum(s for s in seconds if s is not None)
    checks = (f"the checks of a server's answers are {checked:,} tokens",) if verify else ()
    return Duration(known_s, tuple(seconds), tuple(unknown), (*ASSUMPTIONS, *checks))


def _step(
    step: Step, speeds: Speeds, settings: MeasurementSettings, startup_s: float, checked: int
) -> float | None:
    total = 0.0
    speed = speeds(step.setup, 0) if checked and step.setup.replicas == 1 else None
    if speed is not None:
        total += checked / speed.decode_tok_s
    for cell in step.cells:
        if cell.skip:
            continue
        seconds = _cell(step.setup, cell, speeds, settings)
        if seconds is None:
            return None
        total += seconds
    measured = any(not cell.skip for cell in step.cells)
    return total + startup_s + STOP_S if measured else 0.0


def _cell(
    setup: PlannedSetup, cell: PlannedCell, speeds: Speeds, settings: MeasurementSettings
) -> float | None:
    key = cell.key
    if key.kind != "load":
        return CELL_S + cell.runs * ANSWERS_S
    speed = speeds(setup, key.depth + key.prompt)
    if speed is None:
        return None
    each = max(1, -(-key.concurrency // setup.replicas))
    answer = key.output / speed.decode_tok_s * (1 + SLOWER_PER_REQUEST * (each - 1))
    prefill = (key.prompt + key.depth) / speed.prefill_tok_s
    if cell.requests is not None:
        if key.request_rate is not None:
            one = cell.requests / key.request_rate + prefill + answer
        else:
            one = cell.requests / max(key.concurrency, 1) * (each * prefill + answer)
        return cell.runs * (one + CELL_S)
    one = each * prefill + answer
    if settings.prefix_caching and key.depth:
        one += answer  # llama-benchy lets the context's own request answer too
    return CELL_S + (cell.runs + 1) * one
