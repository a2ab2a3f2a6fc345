"""The program's own main, in a scratch project, on real agents over pipes."""

from collections.abc import Callable
from pathlib import Path

import program
import pytest
from free_ports import free_port
from piped_cluster import PipedNodes

FILES = """\
from spark_cluster.resources import Directory, File

def main(play):
    with play.stage("files"):
        files = [Directory("/srv"), File("/srv/a", content="1", tags=("small",))]
        play.apply(play.nodes, files, fail_fast=False)
    return [node.name for node in play.nodes]
"""
"""A playbook of a project's own."""


@pytest.fixture
def project(tmp_path: Path, piped_nodes: PipedNodes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the project; its nodes are folders in it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(project: Path) -> Callable[..., tuple[int, str, str]]:
    """`run("vram") -> (status, stdout, stderr)` in the project."""

    def call(*args: str) -> tuple[int, str, str]:
        done = program.run(*args, cwd=project)
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.fixture
def closed_port() -> int:
    """A port of the loopback where nothing listens."""
    return free_port()
