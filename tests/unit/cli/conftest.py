"""The fixtures of cli, for tests with and without processes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_fixtures import closed_port, project, run
from click.testing import Result
from program import invoke


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., Result]:
    """`ask("bench", "suites")`: the end of a command in a project; raises what it raises."""

    def call(*words: str, **options: str) -> Result:
        raising = {"catch_exceptions": False, "standalone_mode": False}
        return invoke(*words, project=tmp_path, **{"columns": "80", **raising, **options})

    return call
