"""Measured speeds next to predicted ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench_records import dual_record, write_run
from factories import put

from spark_cluster.bench.references import own_evidence
from spark_cluster.config.launch import Launch
from spark_cluster.config.project import Project
from spark_cluster.models.lookup import find
from spark_cluster.plan.estimate import Estimate
from spark_cluster.plan.evidence import by_others, of_own, said
from spark_cluster.plan.serving import ServingSetup
from spark_cluster.plan.speed import decode

OSS = "openai/gpt-oss-120b"


def measured(name=OSS, quantization="mxfp4", users=1, context=1024.0, drafted=0, **served):
    serving = ServingSetup(find(name), quantization, **served)
    return by_others(Launch(name), serving, users=users, context=context, drafted=drafted)


def test_only_what_is_alike():
    found = measured(mxfp4_layers=("moe", "qkv", "o", "lm_head"), kv_dtype="fp8")
    assert (found.low, found.high) == (57.5, 59.5)
    eight = measured(users=8, mxfp4_layers=("moe", "qkv", "o", "lm_head"))
    assert eight.low == pytest.approx(153.5 / 8), "of one user"
    assert measured(users=7) is None
    of_all = ("moe", "qkv", "o", "lm_head")
    assert measured(tp=2).high < measured(tp=2, mxfp4_layers=of_all).low, "fewer layers in MXFP4"
    assert measured(drafted=3) is None
    assert measured(engine="sglang") is None
    assert measured(context=200_000.0) is None


def test_a_base_model_stands_for_its_builds():
    found = measured("Qwen/Qwen3-30B-A3B", "fp8")
    assert found.low == 50.5


def test_excluded_runs_are_no_evidence():
    found = measured("Qwen/Qwen3.6-35B-A3B-FP8", "fp8")
    assert found.low > 33, "28 to 33 come without image and flags"


def test_own_runs():
    own = of_own([(30.0, "runs/one"), (31.0, "runs/one")])
    assert own.text == "measured here: 30 to 31 tok/s (1 run)"
    assert of_own([]) is None


def test_what_others_measured_and_a_contradiction_are_said():
    found = measured()
    assert (found.low, found.high) == (33, 36)
    assert found.text == "measured by others: 33 to 36 tok/s (2 sources)"
    assert all(source.link.startswith("https://") for source in found.sources)
    near = decode(ServingSetup(find(OSS), "mxfp4"), 1024).request
    assert said(found, near) == found.text
    assert found.beside(near).contradicts_prediction is False
    far = Estimate(80.0, 70.0, 90.0, 100.0)
    assert said(found, far).endswith("which contradicts the prediction: trust the measurement")
    assert found.beside(far).contradicts_prediction is True


# --- the project's own runs -----------------------------------------------------------------------


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
