"""The questions to real vLLM: one model of every family, small where its KV cache allows it."""

from __future__ import annotations

from benchmarks.kv_oracle.attention import dense, divided, latent, sliding
from benchmarks.kv_oracle.question import Question
from benchmarks.kv_oracle.recurrent import recurrent

__all__ = ["Question", "questions"]


def questions() -> list[Question]:
    """Return all questions."""
    return [*dense(), *sliding(), *recurrent(), *latent(), *divided()]
