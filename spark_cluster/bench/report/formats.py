"""The form of figures and texts of a run: the same on the page, in the tables and in the plots."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from spark_cluster.bench.record import CellKey, Metric, MetricName


def number(value: float) -> str:
    """A figure with as many digits as it deserves.

    >>> number(6.93), number(1466.99), number(0.7612), number(22669.4)
    ('6.93', '1,467', '0.76', '22,669')
    """
    size = abs(value)
    if size >= 1e9:
        return f"{value:.3g}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.1f}" if size >= 100 else f"{value:.2f}"


def spread(metric: Metric | None) -> str:
    """Mean and standard deviation, as llama-benchy prints them; empty for none."""
    if metric is None:
        return ""
    return f"{metric.mean:.2f}" + ("" if metric.std is None else f" ± {metric.std:.2f}")


def figure(metric: Metric) -> str:
    """Mean and standard deviation with as many decimals as the mean deserves."""
    mean = number(metric.mean)
    if metric.std is None or abs(metric.mean) >= 1e9:
        return mean
    return f"{mean} ± {metric.std:,.{len(mean.partition('.')[2])}f}"


def amount(name: MetricName, metric: Metric) -> str:
    """A figure, or a time to wait where the metric is one."""
    return duration(metric.mean) if name.endswith("_ms") else figure(metric)


def duration(milliseconds: float) -> str:
    """A time to wait, in ms below ten seconds.

    >>> duration(906.2), duration(22669)
    ('906 ms', '22.7 s')
    """
    return f"{milliseconds:,.0f} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:,.1f} s"


def elapsed(seconds: float) -> str:
    """A long time.

    >>> elapsed(75), elapsed(5025)
    ('1 min 15 s', '1 h 23 min')
    """
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def factor(value: float) -> str:
    """A ratio, such as 1.72×."""
    return f"{value:.2f}×"


def gib(mib: float) -> str:
    """Memory in GiB."""
    return f"{mib / 1024:.1f} GiB"


def tokens(count: int) -> str:
    """A length of context on an axis.

    >>> tokens(0), tokens(4096), tokens(65535), tokens(100000), tokens(500)
    ('0', '4k', '64k', '98k', '500')
    """
    return str(count) if count < 1024 else f"{count / 1024:.0f}k"


def moment(time: datetime | None) -> str:
    """Date and time in UTC; empty for none."""
    if time is None:
        return ""
    zoned = time if time.tzinfo else time.replace(tzinfo=UTC)
    return zoned.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def prefill_name(key: CellKey, *, concurrency: bool) -> str:
    """The name of a cell's prefill in llama-benchy's tables, such as `pp2048 @ d4096 (c2)`."""
    return ("ctx_pp" if key.context_prefill else f"pp{key.prompt}") + _suffix(key, concurrency)


def decode_name(key: CellKey, *, concurrency: bool) -> str:
    """The name of a cell's decoding in llama-benchy's tables, such as `tg128 @ d4096 (c2)`."""
    return ("ctx_tg" if key.context_prefill else f"tg{key.output}") + _suffix(key, concurrency)


def shape(key: CellKey) -> str:
    """The whole shape of a load in words of the field."""
    load = f"{key.request_rate:g} req/s" if key.request_rate is not None else f"c={key.concurrency}"
    if key.kind != "load":
        return f"{key.kind.replace('_', ' ')} questions"
    prefill = "ctx " if key.context_prefill else ""
    return f"{prefill}pp{key.prompt} tg{key.output} d={key.depth} {load}"


def predicted(metric: MetricName, key: CellKey) -> str:
    """The name of a predicted figure, such as `decode 8k c=2`."""
    name = {"tg_tps": "decode", "pp_tps": "prefill", "ttfr_ms": "ttfr"}.get(metric, metric)
    depth = f" {tokens(key.depth)}" if key.depth else ""
    return f"{name}{depth}" + (f" c={key.concurrency}" if key.concurrency > 1 else "")


def file_name(text: str) -> str:
    """A part of a path made of foreign text: it names one file in one folder, on any system.

    >>> file_name("../../etc/passwd"), file_name("tp1")
    ('etc-passwd', 'tp1')
    """
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", text).strip(".-")[:80] or "unnamed"


def _suffix(key: CellKey, concurrency: bool) -> str:
    depth = f" @ d{key.depth}" if key.depth or key.context_prefill else ""
    return depth + (f" (c{key.concurrency})" if concurrency else "")


def short(text: str, limit: int = 200) -> str:
    """The text on one line, cut where it is too long for a table."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[: limit - 1]}…"
