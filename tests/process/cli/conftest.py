"""The fixtures of cli, for tests with and without processes."""

from pathlib import Path

import pytest
from cli_fixtures import closed_port, project, run
from program import Program


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """The command line in a project and a home of its own."""
    return Program(tmp_path, monkeypatch)
