"""One reading of the version of vLLM in a plan: without one, the newest that was read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_cluster.config.launch import Launch
from spark_cluster.errors import UsageError
from spark_cluster.models.lookup import find
from spark_cluster.plan.kv import NEWEST_READ, KvLayout, for_version, vllm_version
from spark_cluster.plan.room import assumed, sequences, with_default_batch
from spark_cluster.plan.runtime import runtime
from spark_cluster.plan.serving import of_launch

MODEL = "Qwen/Qwen3-8B"
NONE_GIVEN = (None, "", "latest", "Nightly", " nightly ", "0.1.dev20073+g8e685d198")


@pytest.mark.parametrize("text", NONE_GIVEN)
def test_none_given_is_the_newest(text: str | None) -> None:
    assert str(vllm_version(text)) == NEWEST_READ
    rule, words = for_version(text)
    assert rule == for_version(NEWEST_READ)[0]
    assert "newest" in words


@pytest.mark.parametrize("text", NONE_GIVEN)
def test_every_part_of_a_plan_takes_it_for_the_same(text: str | None) -> None:
    rooms, geometry = assumed(1), find(MODEL)
    none, newest = (Launch(MODEL, vllm=each) for each in (text, NEWEST_READ))
    assert sequences(none, rooms) == sequences(newest, rooms)
    batches = (with_default_batch(one, rooms).args for one in (none, newest))
    assert next(batches) == next(batches)
    parts = [runtime(one, of_launch(one, geometry), rooms) for one in (none, newest)]
    assert parts[0] == parts[1]
    layouts = [KvLayout(geometry, vllm=one.vllm) for one in (none, newest)]
    assert layouts[0].rule == layouts[1].rule


@pytest.mark.parametrize("text", ["newest", "0.x", "main@abc"])
def test_what_is_no_version_is_refused_everywhere(text: str) -> None:
    wrong, rooms, geometry = Launch(MODEL, vllm=text), assumed(1), find(MODEL)
    for ask in (
        lambda: vllm_version(text),
        lambda: for_version(text),
        lambda: sequences(wrong, rooms),
        lambda: runtime(wrong, of_launch(replace(wrong, vllm=None), geometry), rooms),
    ):
        with pytest.raises(UsageError, match="is not a version of vLLM"):
            ask()
