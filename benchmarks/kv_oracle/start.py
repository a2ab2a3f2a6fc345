"""Asks real vLLM in the lab's environment, which is entered as a container and left as it was."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.kv_oracle.questions import Question
from spark_cluster.errors import Failed
from spark_cluster_lab.prepare import Prepared
from spark_cluster_lab.shell import run
from spark_cluster_lab.vllm_env import INSIDE, VLLM

HERE = Path(__file__).parent
SEEN = Path("/srv")
"""Where files lie inside; the image has this folder, and it is empty."""

__all__ = ["VLLM", "ask", "older"]


def ask(prepared: Prepared, question: Question) -> dict[str, Any]:
    """Ask vLLM a question, which takes about 15 seconds.

    Raises:
        Failed: the engine did not start; its last words are in the message.
    """
    given = {
        "ask.py": (HERE / "ask.py").read_text(),
        "question.json": json.dumps(question.to_dict()),
    }
    found: dict[str, Any] = _run(prepared, given, ["ask.py", "question.json", "answer.json"])
    return found


def older(prepared: Prepared, sources: Path) -> list[list[Any]]:
    """Ask the functions of the vLLM in a folder of sources, see `older.rows`.

    Raises:
        Failed: they could not be asked.
    """
    given = {"older.py": (HERE / "older.py").read_text()}
    found: list[list[Any]] = _run(
        prepared, given, ["older.py", "sources", "answer.json"], {sources: "sources"}
    )
    return found


def _run(
    prepared: Prepared,
    given: dict[str, str],
    words: list[str],
    shown: dict[Path, str] | None = None,
) -> Any:
    """Run a Python script inside; its last word is the file with the answer."""
    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder)
        inside.chmod(0o755)
        for name, text in given.items():
            (inside / name).write_text(text)
        argv = ["systemd-nspawn", "--quiet", f"--directory={prepared.image_tree.path}"]
        argv += ["--read-only", "--register=no", "--keep-unit", "--as-pid2", "--timezone=off"]
        argv += ["--resolv-conf=off", f"--bind={folder}:{SEEN}", "--setenv=HOME=/tmp"]
        argv += [f"--bind-ro={prepared.vllm.path}:{INSIDE}", f"--machine=kv-oracle-{os.getpid()}"]
        for path, name in (shown or {}).items():
            (inside / name).mkdir()
            argv += [f"--bind-ro={path.resolve()}:{SEEN / name}"]
        argv += [f"{INSIDE}/bin/python", *(str(SEEN / word) for word in words)]
        done = run(argv, check=False, env={**os.environ, "SYSTEMD_SECCOMP": "0"})
        answer = inside / words[-1]
        if done.returncode or not answer.exists():
            said = "\n  ".join((done.stdout + done.stderr).strip().splitlines()[-8:])
            raise Failed(f"vLLM did not answer to {' '.join(words)}:\n  {said}")
        return json.loads(answer.read_text())
