"""A question to real vLLM, and what all of them share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

GIB = 1024**3
TINY = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 64, "dtype": "bfloat16"}
"""Widths that the cache does not depend on."""

CPU_BLOCK = 32
"""Tokens; what vLLM's attention for CPUs can do since 0.29. Models with sliding windows start with
16 too, because their blocks are made longer anyway."""

EXPERTS = {"moe_intermediate_size": 64}

SIZES = (
    (8 * GIB, 32768, 2048),
    (67 * GIB, 32768, 2048),
    (20 * GIB, 65536, 8192),
    (3 * GIB, 4096, 512),
    (50 * GIB, 131072, 4096),
    (GIB // 2, 4096, 2048),  # too little for most
    (7 * GIB + 123_456_789, 30_001, 1999),  # and what divides nothing
    (991 * GIB // 100, 12_345, 333),
)
"""Bytes of cache, tokens of a request, tokens of a batch."""


@dataclass(frozen=True)
class Question:
    """A start of the engine.

    Attributes:
        name: of the case.
        like: which model has this shape.
        config: its config.json.
        engine: further arguments of the engine.
        longest_possible: tokens that the model was made for.
    """

    name: str
    like: str
    config: dict[str, Any]
    engine: dict[str, Any] = field(default_factory=dict)

    @property
    def longest_possible(self) -> int:
        """Tokens that the model was made for."""
        return int(self.config["max_position_embeddings"])

    def to_dict(self) -> dict[str, Any]:
        """As `ask.py` reads it."""
        start = {
            "kv_cache_memory_bytes": 2 * GIB,
            "max_model_len": 2048,
            "max_num_batched_tokens": 256,
            "block_size": CPU_BLOCK,
        }
        return {
            "config": self.config,
            "engine": {**start, **self.engine},
            "more": [
                {
                    "kv_bytes": size,
                    "max_model_len": length,
                    "max_num_batched_tokens": batch,
                    "longest_possible": self.longest_possible,
                }
                for size, length, batch in SIZES
                if length <= self.longest_possible
            ],
        }
