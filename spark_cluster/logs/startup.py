"""The facts of a start that went well, and those that a log should have had."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Pattern:
    """A line of the start: its name for people, a literal of it, what to read from it."""

    name: str
    has: str
    pattern: re.Pattern[str]
    shown: str = "{0}"


def told(name: str, has: str, pattern: str, shown: str = "{0}") -> Pattern:
    """Return a pattern from the text of its regular expression."""
    return Pattern(name, has, re.compile(pattern), shown)


UP = "Application startup complete"
"""What a server says when it takes requests."""

TOLD = (
    told("vLLM", "Initializing a V", r"engine \(v([^)\s]+)\)"),
    told("vLLM", "vLLM API server version", r"vLLM API server version (\S+)"),
    told("vLLM", "Launching vLLM (", r"Launching vLLM \(v([^)\s]+)\)"),
    told("model", "Initializing a V", r"model='([^']+)'"),
    told("tensor parallel", "Initializing a V", r"tensor_parallel_size=(\d{1,9})"),
    told("architecture", "Resolved architecture", r"Resolved architecture: (\S+)"),
    told("attention", "AttentionBackendEnum.", r"Using AttentionBackendEnum\.(\w+) backend"),
    told("attention", "Forcing TRITON_ATTN", r"Forcing (TRITON_ATTN)", "{0}, forced"),
    told("attention", "_ATTN backend", r"Using (\w+_ATTN) backend"),
    told("experts", "MoE backend", r"Using '?(\w+)'? (\w+) MoE backend", "{0} ({1})"),
    told("FP4 products", "NvFp4LinearBackend.", r"NvFp4LinearBackend\.(\w+) for"),
    told("FP4 products", "NvFp4LinearKernel", r"Using (\w+)NvFp4LinearKernel"),
    told("checkpoint", "Checkpoint size:", r"Checkpoint size: ([\d.]+ GiB)"),
    told("weights", "Model loading took", r"Model loading took ([\d.]+) GiB", "{0} GiB"),
    told("loading", "Loading weights took", r"Loading weights took ([\d.]+) seconds", "{0} s"),
    told("CUDA graphs", "CUDA graph memory:", r"CUDA graph memory: ([\d.]+ GiB)"),
    told("CUDA graphs", "Graph capturing finished", r"in (\d+) secs?, took ([\d.]+ GiB)", "{1}"),
    told("KV cache", "Available KV cache memory:", r"cache memory: (\d[\d.]*) GiB", "{0} GiB"),
    # From 0.27 on both are in one line; the CPU build says CPU from 0.30 on.
    told("KV tokens", "KV cache size:", r"KV cache size: ([\d,]+) tokens"),
    told(
        "concurrency",
        "Maximum concurrency for",
        r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x",
        "{1} requests of {0} tokens",
    ),
    told("link", "NET/IB : Using", r"NET/IB : Using (\[0\].*?)(?:;|$)"),
    told("ranks", "in world size", r"rank \d+ in world size (\d{1,9})"),
    told("up", UP, f"({UP})"),
    told("requests", '"POST /v1/', r'"POST (/v1/\S+) HTTP/[\d.]+" 200', "{0} was answered"),
    told("end", "[shutdown] API server: shutdown", r"(shutdown triggered)", "it was asked to stop"),
)

_BY_LITERAL = tuple((told.has, told) for told in TOLD)

ANCHORS = tuple(dict.fromkeys(told.has for told in TOLD))

RAY = "Ray"
"""Among the speakers: Ray passes on what the ranks say."""


@dataclass
class Start:
    """The start-up facts of one or several logs of a launch.

    Attributes:
        facts: name to what was logged first.
        cpu: it is the CPU build, which logs less.
    """

    facts: dict[str, str] = field(default_factory=dict)
    cpu: bool = False

    def take(self, text: str) -> list[str]:
        """Read a line; return the literals that are not needed any more."""
        here = [told for has, told in _BY_LITERAL if has in text]
        if not here:
            return []
        for told in here:
            self.cpu = self.cpu or "CPU KV cache" in text
            match = told.pattern.search(text)
            if match:
                self.facts.setdefault(told.name, told.shown.format(*match.groups()))
        return [a for a in ANCHORS if a in text and self._all_known(a)]

    def _all_known(self, anchor: str) -> bool:
        return all(told.name in self.facts for told in TOLD if told.has == anchor)

    def in_order(self) -> dict[str, str]:
        """Return the facts in the order of a start, whatever log they came from."""
        names = dict.fromkeys(told.name for told in TOLD)
        return {name: self.facts[name] for name in names if name in self.facts}

    @property
    def size(self) -> int:
        """The number of ranks, as far as the logs tell."""
        found = [int(self.facts.get(name, "1")) for name in ("tensor parallel", "ranks")]
        return max(found)

    def missing(self, speakers: Mapping[str, int]) -> list[str]:
        """Return what a healthy start would have logged besides.

        Args:
            speakers: who spoke in these logs, for whether every rank is among them.
        """
        if "vLLM" not in self.facts:
            later = "up" in self.facts or "requests" in self.facts
            return ["the server's start: the log begins later"] if later else []
        said = []
        follows = self._is_of_others(speakers)
        if "KV tokens" not in self.facts and not follows:
            said.append("the size of the KV cache: the engine was not set up")
        if "up" not in self.facts and not follows:
            said.append("`Application startup complete`: the server never took requests")
        if self.size > 1:
            said += self._of_several(speakers)
        return said

    def _is_of_others(self, speakers: Mapping[str, int]) -> bool:
        """Only later ranks speak: the first one logs the cache, and serves."""
        ranks = {name for name in speakers if name.startswith("rank ")}
        return self.size > 1 and bool(ranks) and "rank 0" not in ranks and RAY not in speakers

    def _of_several(self, speakers: Mapping[str, int]) -> list[str]:
        said = []
        if "link" not in self.facts and not self.cpu:
            said.append("the transport of NCCL between the nodes (NCCL_DEBUG=INFO shows it)")
        ranks = {name for name in speakers if name.startswith("rank ")}
        if 0 < len(ranks) < self.size and RAY not in speakers:  # Ray shows all ranks in the head's
            said.append(
                f"the log of {self.size - len(ranks)} of {self.size} ranks: give all ranks' logs"
            )
        return said
