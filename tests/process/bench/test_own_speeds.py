"""The project's own runs as evidence next to predictions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench_records import dual_record, write_run

from spark_cluster.bench.references import own_evidence
from spark_cluster.config.launch import Launch
from spark_cluster.config.project import Project


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


@pytest.fixture
def record(project):
    made = dual_record((0,), (1, 2))
    write_run(project.folder / "runs" / "first", made)
    return made


def launch_of(record, tp):
    setup = next(each for each in record.setups if each.tp == tp and each.replicas == 1)
    drafting = {"speculative-config": '{"method": "mtp", "num_speculative_tokens": 2}'}
    drafts = any(flag.startswith("--speculative") for flag in setup.flags)
    return Launch(setup.model, tp=tp, engine=setup.engine, args=drafting if drafts else {})


def test_a_run_in_the_project_is_found(project, record):
    launch = launch_of(record, 2)
    found = own_evidence(project, launch, 1, 1024)
    assert found is not None
    assert found.own
    assert 0 < found.low <= found.high
    assert [source.key for source in found.sources] == ["first"]


def test_other_launches_are_not_it(project, record):
    launch = launch_of(record, 2)
    for other in (
        replace(launch, model="somebody/else"),
        replace(launch, tp=4),
        replace(launch, engine="sglang"),
    ):
        assert own_evidence(project, other, 1, 1024) is None
    assert own_evidence(project, launch, 77, 1024) is None, "other users"


def test_records_that_cannot_be_read_say_nothing(project):
    folder = project.folder / "runs" / "torn"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"format": ')
    assert own_evidence(project, Launch("a/b"), 1, 1024) is None
