"""Several requests at once with mixed prompts: each gets its own right answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from spark_cluster.engine.checks import texts
from spark_cluster.engine.checks.filler import filler
from spark_cluster.engine.client import Check, Client, RequestFailed
from spark_cluster.errors import SparkClusterError, VerificationFailed
from spark_cluster.runner.parallel import in_parallel

LONG = 60
"""Sentences before the question of a long prompt."""

HINT = (
    "if the same answers are right one at a time: a kernel that fails at larger batches, or a KV "
    "cache that is overwritten; try --enforce-eager, a smaller --max-num-seqs, or no drafter"
)


def concurrency(client: Client) -> str:
    """Short, long, streamed and long-running requests at once are all answered rightly."""
    jobs: dict[str, Callable[[], str]] = {"story": partial(texts.coherence, client)}
    for number, (question, right) in enumerate(texts.SHORT):
        jobs[f"short {number}"] = partial(_short, client, question, right, stream=False)
        long = f"{filler(LONG)}\n{question}"
        jobs[f"long {number}"] = partial(_short, client, long, right, stream=number % 2 == 0)
    found = in_parallel(jobs)
    wrong = [one for one in found.values() if isinstance(one, SparkClusterError)]
    if not wrong:
        return f"{len(found)} requests at once, each with its own right answer"
    first = wrong[0]
    if not isinstance(first, VerificationFailed):
        raise first  # the connection to the node was lost
    message = f"concurrency: {len(wrong)} of {len(found)} requests at once failed; {first.message}"
    hint = f"{first.hint}\n  {HINT}"
    if isinstance(first, RequestFailed):
        raise RequestFailed(message, first.status, first.reason, where=client.where, hint=hint)
    raise client.wrong(message, hint)


def _short(client: Client, prompt: str, right: tuple[str, ...], *, stream: bool) -> str:
    found = texts.ask_short(client, "concurrency", prompt, stream=stream)
    if why := texts.wrong_answer(found, right):
        raise client.wrong(f"asked {prompt[-60:]!r}, {why}", texts.NONSENSE)
    return found.content


CHECKS = (
    Check("concurrency", "concurrency", "mixed prompts at once",
          "nine requests at once: short, long, streamed, and a story",
          "each its own right answer", concurrency),
)  # fmt: skip
