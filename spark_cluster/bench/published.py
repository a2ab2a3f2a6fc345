"""Figures that others published, from the articles and tables of docs/sources.md.

`published.json` has every figure with its source and line. Those that say which load they were
measured with are also a `CellKey` and a `Metric`, so that a run can be compared with them.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from spark_cluster.bench.record import CellKey, Metric, MetricName

DATA = Path(__file__).with_name("published.json")

FORMAT = "spark-cluster.published.v1"

ANY_OUTPUT = 0
"""Output of a `CellKey` whose source does not say it: of a prefill, which does not depend on it."""

_NAMES: dict[str, MetricName] = {
    "pp_tps": "pp_tps",
    "pp_tps_total": "pp_tps",
    "pp_tps_per_request": "pp_tps_request",
    "tg_tps": "tg_tps",
    "tg_tps_total": "tg_tps",
    "tg_tps_per_request": "tg_tps_request",
    "peak_tps": "peak_tps",
    "peak_tps_total": "peak_tps",
    "peak_tps_per_request": "peak_tps_request",
    "ttfr": "ttfr_ms",
    "est_ppt": "est_ppt_ms",
    "e2e_ttft": "e2e_ttft_ms",
}
_PREFILL = {"pp_tps", "ttfr_ms", "est_ppt_ms", "e2e_ttft_ms"}
_IN_NAME = re.compile(r"pp(\d+)_prefill_t_s|ttft_pp(\d+)_ms")
"""Of a table that names the prompt in the row: prefill tokens/s, ms to the first response."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Configuration(_Part):
    """A configuration that a source says it served.

    Attributes:
        quantization: as recipes name it; `quantization_text` is as the source does.
        eager: without CUDA graphs.
        tool: load generator with its version; empty for a script of the author's.
    """

    id: str
    source: str
    model: str
    quantization: str = ""
    quantization_text: str = ""
    kv_cache_dtype: str = ""
    tp: int | None = None
    nodes: int | None = None
    engine: str = ""
    tool: str = ""
    latency_mode: str = ""
    method: str = ""
    eager: bool = False


class Figure(_Part):
    """A figure as a source prints it.

    Attributes:
        line: of the source's text.
        config: id of its `Configuration`; None for a figure about something else.
        kind: measured, summary (the author's rounding), cited, log, theoretical, stated, claim,
            quality (passed or failed), derived_by_author, spec or measured_elsewhere.
        row: the row of the table that it stands in.
        recomputed, derived: what follows from the other figures of the row.
    """

    id: str
    source: str
    line: int
    metric: str
    value: int | float | str | list[float]
    unit: str = ""
    kind: str
    config: str | None = None
    pp: int | None = None
    tg: int | None = None
    depth: int | None = None
    concurrency: int | None = None
    std: float | None = None
    n: int | None = None
    tool: str = ""
    run: int | None = None
    gen_tokens: int | None = None
    num_speculative_tokens: int | None = None
    speedup_printed: float | None = None
    speedup_recomputed: float | None = None
    recomputed: float | None = None
    delta_printed: str = ""
    delta_recomputed: str = ""
    derived: dict[str, float] = Field(default_factory=dict)
    basis: str = ""
    content: str = ""
    prompt: str = ""
    stat: str = ""
    node: str = ""
    streaming: bool | None = None
    result: str = ""
    note: str = ""
    row: str = ""

    @property
    def name(self) -> MetricName | None:
        """The metric as records name it; None where they have none."""
        found = _IN_NAME.fullmatch(self.metric)
        if found:
            return "pp_tps" if found[1] else "ttfr_ms"
        return _NAMES.get(self.metric)

    @property
    def cell(self) -> tuple[CellKey, MetricName, Metric] | None:
        """The load and the figure; None where the source does not say the load."""
        name = self.name
        if name is None or not isinstance(self.value, int | float):
            return None
        in_name = _IN_NAME.fullmatch(self.metric)
        prompt = int(in_name[1] or in_name[2]) if in_name else self.pp
        output = self.tg if self.tg is not None else ANY_OUTPUT
        if prompt is None or self.concurrency is None:
            return None
        if output == ANY_OUTPUT and name not in _PREFILL:
            return None
        key = CellKey(
            prompt=prompt, output=output, depth=self.depth or 0, concurrency=self.concurrency
        )
        return key, name, Metric(mean=self.value, std=self.std)

    @property
    def shown(self) -> str:
        """The figure with its unit, as a table shows it."""
        value = self.value
        text = " to ".join(f"{v:g}" for v in value) if isinstance(value, list) else f"{value}"
        spread = f" ± {self.std:g}" if self.std is not None else ""
        return f"{text}{spread} {self.unit}".strip()

    def to_dict(self) -> dict[str, Any]:
        """As in `--json`: the figure, and its load and metric where it has them."""
        found = self.cell
        load = {"key": found[0].model_dump(mode="json"), "name": found[1]} if found else {}
        return {**self.model_dump(mode="json", exclude_defaults=True), **load}


class Published(_Part):
    """All of them."""

    format: str
    configs: tuple[Configuration, ...]
    figures: tuple[Figure, ...]

    def configuration(self, figure: Figure) -> Configuration | None:
        """Return what a figure was measured on."""
        return next((c for c in self.configs if c.id == figure.config), None)

    def cells(self) -> list[Figure]:
        """Return the figures that a run can be compared with."""
        return [figure for figure in self.figures if figure.cell is not None]


@cache
def published() -> Published:
    """Return the published figures."""
    return Published.model_validate(json.loads(DATA.read_text(encoding="utf-8")))
