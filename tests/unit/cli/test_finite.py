"""Numbers of the command line: what is none is a usage error, not a traceback."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from spark_cluster.cli import cli

KV = ("predict", "kv", "--model", "google/gemma-4-31B-it", "--kv-gib")
PLAN = ("plan", "gemma4-31b-fp8", "--offline", "--available")
SPEED = ("predict", "speed", "--recipe", "gemma4-26b-a4b-fp8-mtp", "--accepted-share")


@pytest.mark.parametrize("words", [KV, PLAN, SPEED], ids=lambda words: words[-1])
@pytest.mark.parametrize("number", ["nan", "NaN", "inf", "-inf", "-1", "much"])
def test_no_number(words, number):
    result = CliRunner().invoke(cli, [*words, number])
    assert result.exit_code == 2
    assert f"Invalid value for '{words[-1]}'" in result.output


def test_a_number():
    assert CliRunner().invoke(cli, [*KV, "8"]).exit_code == 0
