"""What vLLM logs of memory while it starts, read without any of the project's code."""

import re
from dataclasses import dataclass

BEGINNING = "non-default args"
"""In the first line of a start that says anything of it."""

PATTERNS = {
    "weights_gib": r"Model loading took ([\d.]+) GiB",
    "kv_gib": r"Available KV cache memory: ([\d.]+) GiB",
    "kv_tokens": r"GPU KV cache size: ([\d,]+) tokens",
    "concurrency": r"Maximum concurrency for [\d,]+ tokens per request: ([\d.,]+)x",
    "share": r"'gpu_memory_utilization': ([\d.]+)",
}


@dataclass(frozen=True)
class Logged:
    """The figures of a start; GiB.

    Attributes:
        kv_gib: of the cache, rounded to two decimals; None where it was given in bytes.
        share: --gpu-memory-utilization, where it was given.
    """

    weights_gib: float
    kv_gib: float | None
    kv_tokens: int
    concurrency: float
    share: float | None


def logged(text: str) -> Logged:
    """Return the figures of the last start in a log."""
    assert BEGINNING in text, "no start"
    text = text[text.rindex(BEGINNING) :]
    found = {name: re.findall(pattern, text) for name, pattern in PATTERNS.items()}
    last = {name: float(all_[-1].replace(",", "")) for name, all_ in found.items() if all_}
    missing = {"weights_gib", "kv_tokens", "concurrency"} - last.keys()
    assert not missing, f"not logged: {', '.join(sorted(missing))}"
    return Logged(
        last["weights_gib"],
        last.get("kv_gib"),
        int(last["kv_tokens"]),
        last["concurrency"],
        last.get("share"),
    )
