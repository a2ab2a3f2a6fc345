"""Logs of own starts among what is given to `predict --calibrate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spark_cluster.config.yamlfile import shown
from spark_cluster.logs.memory_account import ANCHORS, MemoryAccount, account_in
from spark_cluster.logs.reading import Reader, of_file
from spark_cluster.planning.runtime_memory import implausible

ENDINGS = (".log", ".log.gz")


def split_logs(results: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the logs, and the others."""
    logs = tuple(path for path in results if path.name.endswith(ENDINGS))
    return logs, tuple(path for path in results if path not in logs)


def memory_accounts(paths: Sequence[Path]) -> tuple[list[MemoryAccount], list[str]]:
    """Return what servers logged of their memory, and why others tell nothing.

    Raises:
        InvalidFile: a log cannot be read, or is no text.
    """
    found, left_out = [], []
    for path in paths:
        reader = Reader(of_file(str(path)), ANCHORS)
        account = account_in(candidate.text for candidate in reader.candidates())
        if account is None:
            left_out.append(
                f'{shown(path)}: no line "Actual usage is ..."; vLLM logs none where the cache is '
                "given in bytes"
            )
        elif why := implausible(account):
            left_out.append(f"{shown(path)}: {why}")
        else:
            found.append(account)
    return found, left_out
