"""Advice for a purpose: one Spark, TP=2 or two replicas."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.config.launch import Launch
from spark_cluster.config.project import Project
from spark_cluster.plan.evidence import of_own
from spark_cluster.plan.planner import PlannedLoad, Planner, Subject
from spark_cluster.plan.proposal import advise, replica_gain
from spark_cluster.plan.room import assumed

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"


@pytest.fixture
def advice(tmp_path):
    """Return what serves a purpose; `measured` is what the user's own runs gave, by size."""

    def ask(purpose, users=1, model=LLAMA, available=None, sizes=(1, 2), measured=(), **args):
        flags = {"max-model-len": 8192, **args}
        subject = Subject(model, Launch(model, quantization="fp8", args=flags), sizes)
        own = dict(measured)
        planner = Planner(Project(tmp_path), measured=lambda launch, *_: own.get(launch.tp))
        return advise(
            planner, subject, assumed(2, available), PlannedLoad(1024, 2048, users), purpose
        )

    return ask


def test_what_the_best_one_also_needs(advice):
    def needs(users, purpose="throughput"):
        given = {"max-num-seqs": 4, "gpu-memory-utilization": 0.5}
        found = advice(purpose, users, **given)
        return found.best.name, found.needs

    assert needs(1) == ("tp2", ("--gpu-memory-utilization 0.80",))
    assert needs(16, "capacity") == (
        "tp2",
        ("--gpu-memory-utilization 0.80", "--max-num-seqs 16 (it has 4)"),
    )


def test_latency_is_for_both_together(advice):
    found = advice("latency")
    assert found.best.name == "tp2"
    one, both, replicas = found.topologies
    assert both.tok_s_user > 1.5 * one.tok_s_user
    assert both.ttfr_s < one.ttfr_s
    assert replicas.tok_s_user == one.tok_s_user, "one user fills one replica"


def test_no_advice_where_the_ranges_overlap(advice):
    found = advice("throughput", 32)
    assert found.best is None
    assert {topology.name for topology in found.undecided} >= {"tp2", "replicas"}
    assert "not decidable: the ranges overlap" in found.why
    assert "bench run" in found.why
    assert found.to_dict()["decidable"] is False
    assert advice("throughput", 1).best.name == "tp2"


def test_what_others_measured_decides(advice):
    """38.7 and 57.9 tokens/s of the 26B in FP8 (source: kubis-models); predictions overlap."""
    found = advice("latency", model="google/gemma-4-26B-A4B-it")
    one, both, _ = found.topologies
    assert both.user_range == pytest.approx((0.9 * 57.93, 1.1 * 57.93), rel=0.01)
    assert one.evidence is not None
    assert found.best is both
    assert "measured by others" in both.evidence.text


def test_own_measurements_come_first(advice):
    own = of_own([(20.0, "a run"), (21.0, "another")])
    assert own is not None
    found = advice("latency", model="google/gemma-4-26B-A4B-it", measured={2: own})
    assert found.topologies[1].tok_s_user == pytest.approx(20.5)
    assert found.best is found.topologies[0], "two Sparks were slower here than one elsewhere"
    assert "measured here: 20 to 21 tok/s (2 runs)" in found.topologies[1].evidence.text


def test_capacity_is_for_both_together_as_the_weights_lie_there_once(advice):
    found = advice("capacity")
    one, both, replicas = found.topologies
    assert found.best is both
    assert both.requests > replicas.requests == 2 * one.requests


def test_what_fits_one_way_only(advice):
    found = advice("throughput", 32, available=66)
    assert found.best.name == "tp2"
    assert found.why.endswith("nothing else fits")
    assert found.topologies[2].why_not, "a replica has to fit one Spark"
    assert advice("latency", sizes=(1, 1)).best.name == "one"
    none = advice("latency", available=20)
    assert none.best is None
    assert none.why == "it fits on neither one Spark nor two"


@pytest.mark.parametrize(("users", "gain"), [(1, 1.0), (8, 1.30), (16, 1.75), (32, 1.91)])
def test_the_gain_of_replicas_as_measured(users, gain):
    assert replica_gain(users) == pytest.approx(gain)


@given(st.integers(1, 200))
def test_the_gain_never_falls_and_never_exceeds_two(users):
    gains = [replica_gain(n) for n in range(1, users + 2)]
    assert all(a <= b <= 2 for a, b in pairwise(gains))
