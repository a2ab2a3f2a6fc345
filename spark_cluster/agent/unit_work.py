"""Work of ours in a transient unit whose last line of output is its result, as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from spark_cluster.node import units
from spark_cluster.node.host import Host
from spark_cluster.node.values import ResourceError


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
    try:
        answer = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        raise ResourceError(f"{key}: it ended without a result") from None
    if "error" in answer:
        raise ResourceError(str(answer["error"]), str(answer.get("hint", "")))
    result: dict[str, Any] = answer["result"]
    return result
