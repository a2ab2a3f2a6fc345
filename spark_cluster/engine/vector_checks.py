"""Vectors and scores out of a server's reply, judged without knowing the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from spark_cluster.node import replies

UNIT = 0.01
"""Largest deviation of a normalised vector's length from 1: BF16 keeps eight bits of each number,
whose errors cancel out over hundreds of them."""

SAME = 0.99
"""Least cosine of two embeddings of one text: other texts in the batch change rounding only."""

DISTINCT = 0.9999
"""Cosine above which embeddings of two unrelated sentences are one and the same."""

Vector = Sequence[float]


class NotVectors(ValueError):
    """A reply without the numbers that were asked for; its text says what came instead."""


def vectors(document: Any, count: int) -> list[Vector]:
    """Return the embeddings of an OpenAI reply, in the order of what was asked.

    Raises:
        NotVectors: there are fewer or more, or one is no list of finite numbers.
    """
    rows = replies.at(document, "data")
    if not isinstance(rows, list) or len(rows) != count:
        came = f"{len(rows)} embeddings" if isinstance(rows, list) else "no list of embeddings"
        raise NotVectors(f"{came} came, expected {count}")
    found: dict[int, Vector] = {}
    for place, row in enumerate(rows):
        index = replies.at(row, "index")
        at = index if isinstance(index, int) and 0 <= index < count else place
        found[at] = _vector(replies.at(row, "embedding"))
    if len(found) != count:
        raise NotVectors(f"indexes repeat: {count} embeddings came for {len(found)} texts")
    return [found[at] for at in range(count)]


def scores(document: Any, count: int) -> list[float]:
    """Return the scores of a rerank or score reply, in the order of the documents.

    vLLM answers `results` with `relevance_score` (/rerank) or `data` with `score` (/score), SGLang
    a list with `score`.

    Raises:
        NotVectors: a document has no score, or one that is no finite number.
    """
    rows = document if isinstance(document, list) else None
    rows = rows if rows is not None else replies.at(document, "results")
    rows = rows if rows is not None else replies.at(document, "data")
    if not isinstance(rows, list):
        raise NotVectors("no list of results came")
    found: dict[int, float] = {}
    for row in rows:
        index, score = replies.at(row, "index"), replies.at(row, "relevance_score")
        score = score if score is not None else replies.at(row, "score")
        if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < count:
            found[index] = _number(score, "score")
    if len(found) != count:
        raise NotVectors(f"{len(found)} of {count} documents have a score")
    return [found[at] for at in range(count)]


def length(vector: Vector) -> float:
    """Return the Euclidean length."""
    return math.sqrt(sum(number * number for number in vector))


def cosine(one: Vector, other: Vector) -> float:
    """Return the cosine of the angle; 0 where one is all zeros or the lengths differ."""
    product = length(one) * length(other)
    if not product or not math.isfinite(product) or len(one) != len(other):
        return 0.0
    return sum(a * b for a, b in zip(one, other, strict=True)) / product


def _vector(value: Any) -> Vector:
    if not isinstance(value, list) or not value:
        raise NotVectors("an embedding is no list of numbers")
    return [_number(number, "embedding") for number in value]


def _number(value: Any, what: str) -> float:
    """A finite number; JSON has no NaN, so servers write null or NaN for it."""
    usual = isinstance(value, int | float) and not isinstance(value, bool)
    if not usual or not abs(value) < 1e30:
        raise NotVectors(f"the {what} holds {replies.short(str(value))}, expected finite numbers")
    return float(value)
