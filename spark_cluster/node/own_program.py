"""Programs of ours as processes of their own: a module's `main`, with the code that runs here.

This is the only way in which our Python is started on a node: `python3 CODE MODULE:main WORD ...`,
where CODE is `spark_cluster/node` (its `__main__.py`) in a folder or an archive of this package.
A program is a module with `main`, or `MODULE:FUNCTION` where a module has several.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_cluster.node.replies import decoded
from spark_cluster.node.values import ResourceError, explain

HERE = str(Path(__file__).resolve().parents[2])
"""The folder or archive of the package."""

STARTER = "spark_cluster/node"
"""In a folder or archive: the package whose `__main__.py` starts a program."""

UNITS = "spark-cluster*.service"
"""Names of the files of our own units, which may run programs of ours."""


def bytecode() -> list[str]:
    """Return the interpreter's options for compiled modules: an agent's are kept, so that they are
    compiled once in a boot (agent/bootstrap.py); elsewhere none are written."""
    prefix = sys.pycache_prefix
    return ["-X", f"pycache_prefix={prefix}"] if prefix else ["-B"]


def argv(program: str, *words: str) -> list[str]:
    """Return the command that calls a program with these words and this interpreter.

    Packages of the machine are left out; `in_environment` has those of a virtual environment.
    """
    return [sys.executable, "-I", "-S", *bytecode(), *entry(HERE, program), *words]


def in_environment(folder: str, module: str, *words: str) -> list[str]:
    """Return the same for the interpreter and the packages of a virtual environment."""
    return [f"{folder}/bin/python", "-I", "-B", *entry(HERE, module), *words]


def entry(code: str, program: str) -> tuple[str, str]:
    """Return the words after Python's options that call a program.

    Args:
        code: a folder or an archive with the package.
        program: a module with `main`, or `MODULE:FUNCTION`.
    """
    return f"{code}/{STARTER}", program if ":" in program else f"{program}:main"


def in_unit(name: str, argv: Sequence[str], properties: Mapping[str, str]) -> list[str]:
    """Return the command that runs `argv` in a transient unit, of which nothing stays at its end.

    Args:
        name: of the unit, with `.service`.
        properties: of the unit. `KillMode` is its whole control group unless they name another.
            A line break in one is a blank: systemd keeps some as they are in the unit's file, in
            which the next line would be a setting.
    """
    settings = {"KillMode": "control-group", **properties}
    return [
        "systemd-run",
        *("--quiet", "--collect", "--no-ask-password", "--service-type=exec"),
        f"--unit={name}",
        *(f"--property={name}={' '.join(v.splitlines())}" for name, v in settings.items()),
        "--",
        *argv,
    ]


def printed(argv: Sequence[str], limit_s: float, *, missing: str | None = None) -> str | None:
    """Return what a command prints; None where it fails, or has not ended in `limit_s` seconds.

    Args:
        missing: what is returned where there is no such command.
    """
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False
        )
    except FileNotFoundError:
        return missing
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def print_answer(job: Callable[[], Mapping[str, Any]]) -> None:
    """Do the work, and print its result as a line of JSON; or `error` and `hint`.

    Lines that it printed before are progress.
    """
    try:
        answer = job()
    except ResourceError as error:
        answer = {"error": error.message, "hint": error.hint}
    except OSError as error:
        answer = {"error": explain(error, Path("/")), "hint": ""}
    print(json.dumps(answer), flush=True)


def answer_of(stdout: str, stderr: str, what: str) -> dict[str, Any]:
    """Return the result that such a program has printed last.

    Args:
        what: the work, for the message.

    Raises:
        ResourceError: it failed, with its own words, or ended without a result.
    """
    last = stdout.strip().rpartition("\n")[2]
    answer = decoded(last)
    if not isinstance(answer, dict):
        end = stderr.strip().rpartition("\n")[2][:300]
        raise ResourceError(f"{what} ended without a result: {end or last[:300]}")
    if "error" in answer:
        raise ResourceError(str(answer["error"]), str(answer.get("hint", "")))
    return answer
