"""The lines that engines log when they start, and those by which a log's engine is known.

vLLM's are of versions 0.19 to 0.32; SGLang's are in the issues that docs/sources.md names
(source: sglang-4848, sglang-8741).
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Pattern:
    """A line of the start: its name for people, a literal of it, what to read from it.

    Attributes:
        provisional: another pattern of the same name goes before it, although its line is later.
    """

    name: str
    has: str
    pattern: re.Pattern[str]
    shown: str = "{0}"
    provisional: bool = False


def pattern(
    name: str, has: str, expression: str, shown: str = "{0}", *, provisional: bool = False
) -> Pattern:
    """Return a pattern from the text of its regular expression."""
    return Pattern(name, has, re.compile(expression), shown, provisional)


@dataclass(frozen=True)
class EngineLog:
    """The log of an inference engine.

    Attributes:
        name: of the engine, as people write it.
        patterns: the lines of its start, in their order.
        first: name of the fact that its first lines tell.
        up: literal of its log when it takes requests.
        end: literal of its log when it was asked to stop; empty where that is not known.
        signs: literals that no other engine logs.
    """

    name: str
    patterns: tuple[Pattern, ...]
    first: str
    up: str
    signs: tuple[str, ...]
    end: str = ""


_LINKS = (
    pattern("link", "NET/IB : Using", r"NET/IB : Using (\[0\].*?)(?:;|$)"),
    pattern("link", " via NET/", r" via (NET/(?:IB|Socket))", "{0}, between hosts"),
    # Hosts with several GPUs: what joins the hosts is in other lines.
    pattern("link", " via P2P/", r"-> \S+ via (P2P)/", "{0}, within one host", provisional=True),
)
REQUESTS = pattern(
    "requests", '"POST /v1/', r'"POST (/v1/\S+) HTTP/[\d.]+" 200', "{0} was answered"
)

_VLLM_UP = "Application startup complete"
_VLLM_END = "[shutdown] API server: shutdown"
_SGLANG_UP = "The server is fired up and ready to roll"

VLLM = EngineLog(
    "vLLM",
    (
        pattern("vLLM", "Initializing a V", r"engine \(v([^)\s]+)\)"),
        pattern("vLLM", "vLLM API server version", r"vLLM API server version (\S+)"),
        pattern("vLLM", "Launching vLLM (", r"Launching vLLM \(v([^)\s]+)\)"),
        pattern("model", "Initializing a V", r"model='([^']+)'"),
        pattern("tensor parallel", "Initializing a V", r"tensor_parallel_size=(\d{1,9})"),
        # Of an engine that ends: what a log without its start tells of the number of ranks.
        pattern("tensor parallel", "Dumping input data", r"tensor_parallel_size=(\d{1,9})"),
        pattern("architecture", "Resolved architecture", r"Resolved architecture: (\S+)"),
        pattern("attention", "AttentionBackendEnum.", r"Using AttentionBackendEnum\.(\w+) backend"),
        pattern("attention", "orcing TRITON_ATTN", r"[Ff]orcing (TRITON_ATTN)", "{0}, forced"),
        pattern("attention", "_ATTN backend", r"Using (\w+_ATTN) backend"),
        pattern("attention", " attention backend", r"Using (\w+) attention backend"),
        pattern("GDN prefill", " GDN prefill kernel", r"Using ([\w/ ]+) GDN prefill kernel"),
        pattern("experts", "MoE backend", r"Using '?(\w+)'? (\w+) MoE backend", "{0} ({1})"),
        pattern("FP4 products", "NvFp4LinearBackend.", r"NvFp4LinearBackend\.(\w+) for"),
        pattern("FP4 products", "NvFp4LinearKernel", r"Using (\w+)NvFp4LinearKernel"),
        pattern("checkpoint", "Checkpoint size:", r"Checkpoint size: ([\d.]+ GiB)"),
        pattern("weights", "Model loading took", r"Model loading took ([\d.]+) GiB", "{0} GiB"),
        pattern(
            "loading", "Loading weights took", r"Loading weights took ([\d.]+) seconds", "{0} s"
        ),
        pattern("CUDA graphs", "CUDA graph memory:", r"CUDA graph memory: ([\d.]+ GiB)"),
        pattern(
            "CUDA graphs", "Graph capturing finished", r"in (\d+) secs?, took ([\d.]+ GiB)", "{1}"
        ),
        pattern(
            "KV cache", "Available KV cache memory:", r"cache memory: (\d[\d.]*) GiB", "{0} GiB"
        ),
        pattern("KV cache", "memory for KV Cache", r"reserved ([\d.]+ GiB) memory for KV Cache"),
        # From 0.27 on both are in one line; the CPU build says CPU from 0.30 on.
        pattern("KV tokens", "KV cache size:", r"KV cache size: ([\d,]+) tokens"),
        pattern(
            "concurrency",
            "Maximum concurrency for",
            r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x",
            "{1} requests of {0} tokens",
        ),
        *_LINKS,
        pattern("ranks", "in world size", r"rank \d+ in world size (\d{1,9})"),
        pattern("up", _VLLM_UP, f"({_VLLM_UP})"),
        REQUESTS,
        pattern(
            "end",
            _VLLM_END,
            r"(shutdown triggered)",
            "it was asked to stop",
        ),
    ),
    first="vLLM",
    up=_VLLM_UP,
    signs=("Initializing a V", "vLLM API server version", "Launching vLLM (", "vllm/v1/"),
    end=_VLLM_END,
)

SGLANG = EngineLog(
    "SGLang",
    (
        pattern("model", "server_args=", r"model_path='([^']+)'"),
        pattern("tensor parallel", "server_args=", r"tp_size=(\d{1,9})"),
        pattern("weights", "Load weight end.", r"mem usage=([\d.]+) GB", "{0} GB"),
        pattern("KV tokens", "max_total_num_tokens=", r"max_total_num_tokens=(\d+)"),
        *_LINKS,
        pattern("up", _SGLANG_UP, f"({_SGLANG_UP})"),
        REQUESTS,
    ),
    first="model",
    up=_SGLANG_UP,
    signs=(
        *("server_args=ServerArgs(", "sglang.launch_server", "sglang/srt/", "usage: launch_server"),
        *("launch_server.py: error:", _SGLANG_UP, "Received sigquit from a child proces"),
    ),
)

ENGINES = (VLLM, SGLANG)
