"""Advice for a purpose: one Spark, TP=2 or two replicas."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.config.launch import Launch
from spark_cluster.errors import UsageError
from spark_cluster.models import find
from spark_cluster.models.memory import GIB
from spark_cluster.models.weights import memory_bytes
from spark_cluster.planning.evidence import of_own
from spark_cluster.planning.purpose import Users, advise, replica_gain
from spark_cluster.planning.room import assumed
from spark_cluster.planning.speed.constants import Constants

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"


def advice(purpose, users=1, model=LLAMA, quantization="fp8", available=None, sizes=(1, 2)):
    geometry = find(model)
    launch = Launch(model, quantization=quantization, args={"max-model-len": 8192})
    return advise(
        purpose,
        Users(users, 1024, 2048),
        launch,
        geometry,
        assumed(2, available),
        weights_gib=memory_bytes(geometry, quantization) / GIB,
        constants=Constants(),
        sizes=sizes,
    )


def test_what_the_best_one_also_needs():
    geometry = find(LLAMA)
    args = {"max-model-len": 8192, "max-num-seqs": 4, "gpu-memory-utilization": 0.5}
    launch = Launch(LLAMA, quantization="fp8", args=args)

    def needs(users, purpose="throughput"):
        about = {
            "weights_gib": memory_bytes(geometry, "fp8") / GIB,
            "constants": Constants(),
        }
        asked = Users(users, 1024, 2048)
        found = advise(purpose, asked, launch, geometry, assumed(2), **about)
        return found.best.name, found.needs

    assert needs(1) == ("tp2", ("--gpu-memory-utilization 0.80",))
    assert needs(16, "capacity") == (
        "tp2",
        ("--gpu-memory-utilization 0.80", "--max-num-seqs 16 (it has 4)"),
    )


def test_latency_is_for_both_together():
    found = advice("latency")
    assert found.best is not None
    assert found.best.name == "tp2"
    one, both, replicas = found.topologies
    assert both.tok_s_user > 1.5 * one.tok_s_user
    assert both.ttfr_s < one.ttfr_s
    assert replicas.tok_s_user == one.tok_s_user, "one user fills one replica"


def test_no_advice_where_the_ranges_overlap():
    found = advice("throughput", 32)
    assert found.best is None
    assert {topology.name for topology in found.undecided} >= {"tp2", "replicas"}
    assert "not decidable: the ranges overlap" in found.why
    assert "bench run" in found.why
    assert found.to_dict()["decidable"] is False
    assert advice("throughput", 1).best.name == "tp2"


def test_what_others_measured_decides():
    """38.7 and 57.9 tokens/s of the 26B in FP8 (source: kubis-models); predictions overlap."""
    found = advice("latency", model="google/gemma-4-26B-A4B-it", quantization="fp8")
    one, both, _ = found.topologies
    assert both.evidence is not None
    assert both.user_range == pytest.approx((0.9 * 57.93, 1.1 * 57.93), rel=0.01)
    assert one.evidence is not None
    assert found.best is both
    assert "measured by others" in both.evidence.text


def test_own_measurements_come_first():
    own = of_own([(20.0, "a run"), (21.0, "another")])
    assert own is not None
    geometry = find("google/gemma-4-26B-A4B-it")
    found = advise(
        "latency",
        Users(1, 1024, 2048),
        Launch("google/gemma-4-26B-A4B-it", quantization="fp8", args={"max-model-len": 8192}),
        geometry,
        assumed(2),
        weights_gib=memory_bytes(geometry, "fp8") / GIB,
        constants=Constants(),
        own={2: own},
    )
    assert found.topologies[1].tok_s_user == pytest.approx(20.5)
    assert found.best is found.topologies[0], "two Sparks were slower here than one elsewhere"
    assert "measured here: 20 to 21 tok/s (2 runs)" in found.topologies[1].evidence.text


def test_capacity_is_for_both_together_as_the_weights_lie_there_once():
    found = advice("capacity")
    one, both, replicas = found.topologies
    assert found.best is both
    assert both.requests > replicas.requests == 2 * one.requests


def test_what_fits_one_way_only():
    found = advice("throughput", 32, available=60)
    assert found.best is not None
    assert found.best.name == "tp2"
    assert found.why.endswith("nothing else fits")
    assert found.topologies[2].why_not, "a replica has to fit one Spark"
    assert advice("latency", sizes=(1, 1)).best.name == "one"
    none = advice("latency", available=20)
    assert none.best is None
    assert none.why == "it fits neither one Spark nor two"


def test_no_one_asks():
    with pytest.raises(UsageError, match="--users: found 0"):
        advice("latency", 0)


@pytest.mark.parametrize(("users", "gain"), [(1, 1.0), (8, 1.30), (16, 1.75), (32, 1.91)])
def test_the_gain_of_replicas_as_measured(users, gain):
    assert replica_gain(users) == pytest.approx(gain)


@given(st.integers(1, 200))
def test_the_gain_never_falls_and_never_exceeds_two(users):
    gains = [replica_gain(n) for n in range(1, users + 2)]
    assert all(a <= b <= 2 for a, b in pairwise(gains))
