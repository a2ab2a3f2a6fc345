"""`predict --calibrate` with what `bench fabric` measured."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fabric_results import save
from json_schema import document as fits

from spark_cluster.bench.fabric_run import all_reduce
from spark_cluster.errors import UsageError
from spark_cluster.plan.estimate import Constants, read_constants


def speed(ask, tp: str) -> dict[str, Any]:
    words = ("predict", "speed", "--recipe", "gemma4-31b-fp8", "--tp", tp)
    # The group's own --json stands before the subcommand.
    found: dict[str, Any] = json.loads(ask("--json", *words).stdout)
    return found


def test_the_measured_link_replaces_the_assumed_one(ask, tmp_path):
    before = {tp: speed(ask, tp) for tp in ("1", "2")}
    folder = save(tmp_path / "fabric")
    said = ask("predict", "--calibrate", folder).stdout
    assert "allreduce_us" in said
    assert "measured" in said
    assert max(map(len, said.splitlines()[:-1])) <= 80
    after = {tp: speed(ask, tp) for tp in ("1", "2")}
    decode = [told["2"]["decode_tok_s"]["expected"] for told in (before, after)]
    prefill = [told["2"]["ttfr_ms"]["expected"] for told in (before, after)]
    assert decode[1] > decode[0]
    assert prefill[1] < prefill[0]
    assert after["1"]["decode_tok_s"] == before["1"]["decode_tok_s"], "one node has no link"
    constants = read_constants(tmp_path / "calibration.json")
    assert constants.allreduce_us == 40
    assert constants.allreduce_low_us == 36
    assert constants.allreduce_high_us == Constants().allreduce_high_us
    assert constants.link == pytest.approx(22e9, rel=1e-3)
    assert "your own link as measured" in constants.basis
    assert "fitted to published runs" in constants.basis


def test_a_link_that_was_measured_between_four_nodes(ask, tmp_path):
    """What a small all-reduce takes is divided by its exchanges; a large one has 1.5 times more."""
    ask("predict", "--calibrate", save(tmp_path / "fabric", token_s=100e-6, count=4))
    constants = read_constants(tmp_path / "calibration.json")
    assert constants.allreduce_us == pytest.approx(50)
    assert constants.link == pytest.approx(22e9, rel=1e-3)


def test_as_json(ask, tmp_path):
    out = ask("predict", "--calibrate", save(tmp_path / "f") + "/fabric.json", "--json").stdout
    found = fits("predict-calibrate", out)
    assert found["measured"] == ["allreduce_us", "allreduce_low_us", "allreduce_high_us", "link"]
    assert found["points"] == 0


def test_figures_of_cpus_are_left_out(ask, tmp_path):
    with pytest.raises(UsageError, match="measured with gloo on CPUs"):
        ask("predict", "--calibrate", save(tmp_path / "f", backend="gloo"))
    assert not (tmp_path / "calibration.json").exists()


def test_a_model_that_is_not_known(ask, tmp_path):
    rows = (all_reduce(8, (4e-5,), 2),)
    with pytest.raises(UsageError, match="message sizes of its model"):
        ask("predict", "--calibrate", save(tmp_path / "f", allreduce=rows))


def test_a_link_that_cannot_be(ask, tmp_path):
    with pytest.raises(UsageError, match="allreduce_us: measured 50000, expected 0 to 2000"):
        ask("predict", "--calibrate", save(tmp_path / "f", token_s=0.05))
