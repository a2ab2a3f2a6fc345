"""The command line through its own entry point, in this process: as a shell sees it, but quick."""

import contextlib
import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result
from factories import put

from spark_cluster.cli import cli, main

CHECKOUT = Path(__file__).parents[1]


@dataclass
class Done:
    """A command's end as a shell sees it."""

    returncode: int
    stdout: str
    stderr: str


def run(*args: str, cwd: Path) -> Done:
    """`spark-cluster ARGS` in this folder."""
    out, err = io.StringIO(), io.StringIO()
    argv = mock.patch.object(sys, "argv", ["spark-cluster", *args])
    outputs = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with contextlib.chdir(cwd), argv, outputs[0], outputs[1], pytest.raises(SystemExit) as ended:
        main()
    assert "Traceback" not in err.getvalue()
    return Done(ended.value.code, out.getvalue(), err.getvalue())


def invoke(
    *words: str, project: Path | None = None, stdin: str = "", columns: str = "100", **options: Any
) -> Result:
    """`spark-cluster WORDS` by click's own runner: what it raises is in `exception`.

    Args:
        options: of `CliRunner.invoke`; `catch_exceptions=False` to have it raised.
    """
    folder = ["--project", str(project)] if project else []
    env = {"COLUMNS": columns}
    return CliRunner().invoke(cli, [*folder, *words], input=stdin, env=env, **options)


def on_path(home: Path) -> dict[str, str]:
    """Return an environment in which a shell finds `spark-cluster`, and `python` is the tests'."""
    script = put(
        home / "bin/spark-cluster", f"#!{sys.executable}\nimport sys\n"
        f"sys.path.insert(0, {str(CHECKOUT)!r})\nfrom spark_cluster.cli import main\nmain()\n",
        0o755,
    )  # fmt: skip
    path = f"{script.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(home), "TERM": "dumb"}


class Program:
    """`spark-cluster` in a scratch project and home."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        (folder / "home").mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("HOME", str(folder / "home"))
        for name in ("XDG_STATE_HOME", "SSH_AUTH_SOCK"):
            monkeypatch.delenv(name, raising=False)

    def __call__(self, *args: str) -> Done:
        return run(*args, cwd=self.folder)

    def put(self, name: str, text: str) -> None:
        put(self.folder / name, text)
