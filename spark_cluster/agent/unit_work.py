"""Programs of ours (`node/own_program.py`) in transient units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_cluster.node import units
from spark_cluster.node.host import Host
from spark_cluster.node.own_program import answer_of


def result_of(
    host: Host, key: str, argv: Sequence[str], *, stdin: bytes = b"", timeout: float
) -> dict[str, Any]:
    """Run it, or join the one that runs, and return its result; lines before it are progress.

    Raises:
        ResourceError: it failed, with its own words, or ended without a result.
    """
    done = units.run(
        host,
        key,
        argv,
        stdin=stdin,
        timeout=timeout,
        on_output=lambda line: None if line.startswith("{") else host.progress(line),
    ).check(key)
    return answer_of(done.stdout, done.stderr, key)
