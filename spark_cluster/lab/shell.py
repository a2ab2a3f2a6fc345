"""Running the machine's own programs, with errors that quote what they said."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_cluster.errors import Failed

LAST_LINES = 12


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

    Raises:
        Failed: it ended with another status than 0 and `check` is set, or ran out of time.
    """
    command = [str(word) for word in argv]
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


def output(argv: Sequence[str | Path]) -> str:
    """Return what a program printed, without the trailing newline."""
    return run(argv).stdout.rstrip("\n")
