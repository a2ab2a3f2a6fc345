"""Texts that are taken for a secret, and texts that are not."""

from pathlib import Path

import pytest
from cases import cases

from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.config.secret import is_secret_setting, looks_secret, masked

CASES = cases(__file__, "secret_text.toml")


@pytest.mark.parametrize(("name", "value"), CASES["secrets"], ids=str)
def test_a_secret(name, value):
    assert is_secret_setting(name, value)


@pytest.mark.parametrize(("name", "value"), CASES["plain"], ids=str)
def test_no_secret(name, value):
    assert not is_secret_setting(name, value)


def test_nothing_that_ships_is_taken_for_one():
    project = Project(Path(__file__).parent)
    for name in project.list("recipes"):
        load_recipe(name, project)
    assert not looks_secret((project.shipped / "README.md").read_text())


@pytest.mark.parametrize(("text", "expected"), CASES["masked"])
def test_secrets_in_a_log_are_masked(text, expected):
    assert masked(text) == expected


@pytest.mark.parametrize("text", CASES["left"])
def test_other_text_stays(text):
    assert masked(text) == text
