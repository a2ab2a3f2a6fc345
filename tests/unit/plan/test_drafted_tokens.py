"""Acceptance of drafted tokens: its definition, and what was published by kind of drafter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_cluster.errors import UsageError
from spark_cluster.models.naming import table
from spark_cluster.plan.acceptance import ENOUGH, KINDS, gained, kind_of, tokens_per_step
from spark_cluster.plan.acceptance import usual_acceptance as usual

DATA = table("acceptance", "plan")


def test_tokens_of_a_step() -> None:
    assert tokens_per_step((0.91, 0.90, 0.89, 0.85), 4) == pytest.approx(4.08, abs=0.01)
    assert tokens_per_step([0.5], 3) == pytest.approx(1.875)
    for wrong in ((), (1.2,), (-0.1,), (float("nan"),)):
        with pytest.raises(UsageError, match="acceptance"):
            tokens_per_step(wrong, 2)
    with pytest.raises(UsageError, match="drafted"):
        tokens_per_step((0.5,), 0)


def test_what_was_measured_has_no_range() -> None:
    assert gained(4, [0.9], None) == (tokens_per_step([0.9], 4),) * 3
    assert gained(4, [], 0.5, "mtp") == (3.0, 3.0, 3.0)


def test_without_a_measurement_the_published_ones_of_the_kind_say_the_range() -> None:
    expected, least, most = gained(4, [], None, "mtp")
    for row in DATA["rows"]:
        if row["kind"] == "mtp" and row["drafted"] == 4:
            tokens = 1 + (sum(row["at"]) if "at" in row else 4 * row["share"])
            assert least - 0.01 <= tokens <= most + 0.01, row
    assert least < expected < most


def test_a_kind_of_which_little_is_published_varies_as_all_do() -> None:
    assert sum(row["kind"] == "dspark" for row in DATA["rows"]) < ENOUGH
    assert usual("dspark")[0] < usual("mtp")[0]
    assert usual("dspark")[1:] == usual("")[1:]
    assert usual("dspark")[1] <= usual("mtp")[1]


@pytest.mark.parametrize(
    ("method", "kind"),
    [("mtp", "mtp"), ("qwen3_next_mtp", "mtp"), ("dflash2", "dflash"), ("DSpark", "dspark")],
)
def test_kinds(method: str, kind: str) -> None:
    assert kind_of(method) == kind
    assert kind_of("ngram") == kind_of("") == ""


def test_every_row_has_a_source() -> None:
    runs = json.loads((Path(__file__).parents[3] / RUNS).read_text())["sources"]
    sources = {**runs, **DATA["sources"]}
    for row in DATA["rows"]:
        assert row["kind"] in KINDS
        assert row["source"] in sources, row
        assert len(row.get("at", ())) in (0, row["drafted"]), row
    assert all(source["link"].startswith("https://") for source in DATA["sources"].values())
    assert DATA["sources"].keys() <= {row["source"] for row in DATA["rows"]}


RUNS = "spark_cluster/plan/data/measurements.json"
