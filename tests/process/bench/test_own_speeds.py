"""The project's own runs as evidence next to predictions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench_records import dual_record, write_run
from factories import put

from spark_cluster.bench.references import own_evidence
from spark_cluster.config.launch import Launch
from spark_cluster.config.project import Project


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


@pytest.fixture
def launch(project):
    """What was served by TP=2 in a run of the project."""
    write_run(project.folder / "runs" / "first", dual_record((0,), (1, 2)))
    return Launch("google/gemma-4-31B-it", tp=2, engine="vllm")


def test_a_run_in_the_project_is_found(project, launch):
    found = own_evidence(project, launch, 1, 1024)
    assert found is not None
    assert found.own
    assert 0 < found.low <= found.high
    assert [source.key for source in found.sources] == ["first"]


@pytest.mark.parametrize(
    "changed", [{"model": "somebody/else"}, {"tp": 4}, {"engine": "sglang"}, {}]
)
def test_other_launches_are_not_it(project, launch, changed):
    users = 1 if changed else 77
    assert own_evidence(project, replace(launch, **changed), users, 1024) is None


def test_records_that_cannot_be_read_say_nothing(project):
    put(project.folder / "runs/torn/run.json", '{"format": ')
    assert own_evidence(project, Launch("a/b"), 1, 1024) is None
