"""Running the machine's own programs, with errors that quote what they said."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_cluster.errors import Failed

LAST_LINES = 12
LIMIT_S = 3600.0
"""Seconds that a program gets where nothing else is said: none is waited for for ever."""

QUICK_S = 120.0
"""Seconds for programs that ask or tell the kernel something, on a machine under load."""


def run(
    argv: Sequence[str | Path],
    *,
    check: bool = True,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end.

    Args:
        log: file that gets all its output, for long builds; quoted when it fails.
        timeout: seconds; by default `LIMIT_S`, and none for what has a log.

    Raises:
        Failed: it ended with another status than 0 and `check` is set, or ran out of time.
    """
    command = [str(word) for word in argv]
    if timeout is None and log is None:
        timeout = LIMIT_S
    keywords: dict[str, object] = {"text": True, "env": env, "input": stdin or ""}
    try:
        if log is None:
            done = subprocess.run(  # type: ignore[call-overload]
                command, capture_output=True, check=False, timeout=timeout, **keywords
            )
        else:
            with log.open("a") as out:
                done = subprocess.run(  # type: ignore[call-overload]
                    command, stdout=out, stderr=out, check=False, timeout=timeout, **keywords
                )
    except FileNotFoundError as error:
        raise Failed(f"no such program: {command[0]}") from error
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{' '.join(command[:6])} did not end within {timeout:g} s") from error
    if check and done.returncode:
        text = log.read_text(errors="replace") if log else done.stderr + done.stdout
        tail = "\n  ".join(text.strip().splitlines()[-LAST_LINES:])
        raise Failed(
            f"{' '.join(command[:6])} ended with status {done.returncode}:\n  {tail}",
            hint=f"all of its output: {log}" if log else "",
        )
    result: subprocess.CompletedProcess[str] = done
    return result


def output(argv: Sequence[str | Path], timeout: float | None = None) -> str:
    """Return what a program printed, without the trailing newline."""
    return run(argv, timeout=timeout).stdout.rstrip("\n")
