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
    assert "allreduce_us" in ask("predict", "--calibrate", folder).stdout
    out = ask("predict", "--calibrate", f"{folder}/fabric.json", "--json").stdout
    found = fits("predict-calibrate", out)
    assert found["measured"] == ["allreduce_us", "allreduce_low_us", "allreduce_high_us", "link"]
    assert found["points"] == 0
    after = {tp: speed(ask, tp) for tp in ("1", "2")}
    assert after["2"]["decode_tok_s"]["expected"] > before["2"]["decode_tok_s"]["expected"]
    assert after["2"]["ttfr_ms"]["expected"] < before["2"]["ttfr_ms"]["expected"]
    assert after["1"]["decode_tok_s"] == before["1"]["decode_tok_s"], "one node has no link"
    constants = read_constants(tmp_path / "calibration.json")
    assert (constants.allreduce_us, constants.allreduce_low_us) == (40, 36)
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


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        ({"backend": "gloo"}, "measured with gloo on CPUs"),
        ({"allreduce": (all_reduce(8, (4e-5,), 2),)}, "message sizes of its model"),
    ],
)
def test_figures_that_say_nothing_of_the_link_are_refused(ask, tmp_path, measured, said):
    with pytest.raises(UsageError, match=said):
        ask("predict", "--calibrate", save(tmp_path / "f", **measured))
    assert not (tmp_path / "calibration.json").exists()
