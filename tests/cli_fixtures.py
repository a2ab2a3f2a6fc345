"""The program's own main, in a scratch project, on real agents over pipes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from free_ports import free_port
from piped_cluster import PipedNodes


@pytest.fixture
def project(tmp_path: Path, piped_nodes: PipedNodes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the project; its nodes are folders in it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`run("vram") -> (status, stdout, stderr)` in the project."""
    from spark_cluster.cli import main

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["spark-cluster", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return ended.value.code, said.out, said.err

    return call


@pytest.fixture
def closed_port() -> int:
    """A port of the loopback where nothing listens."""
    return free_port()
