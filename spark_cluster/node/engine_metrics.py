"""The engine's own figures from its `/metrics` page: requests, KV cache, tokens, acceptance.

The page is text in Prometheus' format (source: prometheus-format). A name that a version of the
engine does not have is None, never a fault.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from spark_cluster.node.http import ask

NAMES: Mapping[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "generation_tokens": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
    "drafts": ("vllm:spec_decode_num_drafts_total",),
    "draft_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
    "preemptions": ("vllm:num_preemptions_total",),
}
"""Field to its names, the newest first: older versions of vLLM say `gpu_cache_usage_perc`. It is a
share of 1, whatever the name says. Sources: vllm-source, sglang-docs-metrics. Of vLLM those of
0.32, v1/metrics/loggers.py and v1/spec_decode/metrics.py."""

WANTED = frozenset(name for names in NAMES.values() for name in names)
PREFIXES = tuple({f"{name.partition(':')[0]}:" for name in WANTED})
MOST = frozenset({"kv_usage"})
"""Of several engines (data parallel) the largest counts; of all other fields the sum."""

ASK_S = 3.0
"""Seconds for an answer, all of it."""

SILENT_S = 5.0
"""Seconds until a server that is not there, or does not answer, is asked again."""

FRESH_S = 3.0
"""Seconds for which an answer is the state of now."""


def samples(text: str) -> Iterator[tuple[str, float]]:
    r"""Yield name and value of the lines that are wanted; labels are left out.

    >>> list(samples('# TYPE x gauge\nvllm:num_requests_running{engine="0",m="a} b"} 4.0\n'))
    [('vllm:num_requests_running', 4.0)]
    """
    for line in text.split("\n"):
        if not line.startswith(PREFIXES):
            continue
        name, brace, tail = line.partition("{")
        if not brace:
            name, _, tail = line.partition(" ")
        if name not in WANTED:
            continue
        # After the labels, whose values may hold braces and spaces: a value, perhaps a time.
        words = (tail.rpartition("}")[2] if brace else tail).split()
        try:
            value = float(words[0])
        except (IndexError, ValueError):
            continue
        if math.isfinite(value):
            yield name, value


def figures(text: str) -> dict[str, float | None] | None:
    """Return each field of NAMES from a page; None when the page has none of them."""
    found: dict[str, list[float]] = {}
    for name, value in samples(text):
        found.setdefault(name, []).append(value)
    if not found:
        return None
    result: dict[str, float | None] = {}
    for field, names in NAMES.items():
        values = next((found[name] for name in names if name in found), None)
        total = None if values is None else max(values) if field in MOST else sum(values)
        result[field] = total
    return result


class EngineReader:
    """Asks a `/metrics` page in a thread of its own, so that no one waits for the server.

    Args:
        url: of the page; empty asks nothing.
        every: seconds between two questions.
    """

    def __init__(self, url: str, every: float) -> None:
        self._url = url
        self._every = every
        self._narrow = True
        self._names: tuple[str, ...] = ()
        self._state: tuple[float, dict[str, float | None] | None, str] = (0.0, None, "")
        if url:
            threading.Thread(target=self._read, name="metrics", daemon=True).start()

    def now(self) -> tuple[dict[str, float | None] | None, str]:
        """Return the figures of now, and why there are none (empty where no server listens)."""
        at, found, why = self._state
        if found is not None and time.monotonic() - at > FRESH_S + self._every:
            return None, why
        return found, why

    def _read(self) -> None:
        while True:
            began = time.monotonic()
            found, why = self.ask()
            self._state = (time.monotonic(), found, why)
            wait = self._every if found is not None else max(self._every, SILENT_S)
            time.sleep(max(0.05, wait - (time.monotonic() - began)))

    def ask(self) -> tuple[dict[str, float | None] | None, str]:
        """Ask once: for the whole page at first, then only for the names that it has.

        A page of a few names is a tenth of the work for the server. Where it then is empty (vLLM
        with `--api-server-count`: that registry does not know names), the whole is asked for.
        """
        for names in (self._names, ()) if self._names else ((),):
            query = urlencode([("name[]", name) for name in names])
            url = f"{self._url}?{query}" if query else self._url
            reply: dict[str, Any] = ask({"url": url, "timeout": ASK_S})
            if reply.get("status") != 200:
                return None, _why(reply)
            page = str(reply.get("body", ""))
            found = figures(page)
            if found is not None:
                if self._names and not names:  # the page of names was empty
                    self._narrow, self._names = False, ()
                elif self._narrow:
                    self._names = tuple(sorted({name for name, _ in samples(page)}))
                return found, ""
        return None, "its /metrics page has no figures of vLLM or SGLang"


def _why(reply: Mapping[str, Any]) -> str:
    status, reason = reply.get("status"), str(reply.get("reason", ""))
    if status:
        return f"/metrics answers with status {status}"
    return "" if "refused" in reason.lower() else f"/metrics: {reason[:200]}"
