"""Plans and rules of another engine than the one that they are made for."""

from __future__ import annotations

from dataclasses import replace

from spark_cluster.config.facts import Memory
from spark_cluster.config.launch import Launch
from spark_cluster.issues.rules import lint
from spark_cluster.models.lookup import find
from spark_cluster.models.memory_share import GIB_KIB
from spark_cluster.plan.fit import fit
from spark_cluster.plan.room import NodeMemory
from spark_cluster.plan.serving import of_launch
from spark_cluster.plan.speed import decode

VLLM = Launch("google/gemma-4-31B-it", args={"max-model-len": 8192, "kv-cache-dtype": "fp8"})
SGLANG = replace(VLLM, engine="sglang")
ROOM = NodeMemory("spark1", Memory(121 * GIB_KIB, 118 * GIB_KIB))


def test_the_range_of_speeds_is_wider_and_says_why() -> None:
    geometry = find(VLLM.model)
    ours, other = (decode(of_launch(launch, geometry), 1024) for launch in (VLLM, SGLANG))
    assert other.request.expected == ours.request.expected
    assert other.request.low < ours.request.low
    assert other.request.high >= ours.request.high  # both may end at what the memory allows
    assert "another engine (SGLang)" in other.basis


def test_the_plan_says_that_it_is_computed_as_for_vllm() -> None:
    geometry = find(VLLM.model)
    ours, other = (fit(launch, geometry, [ROOM], 58.0) for launch in (VLLM, SGLANG))
    assert not any("SGLang" in remark for remark in ours.remarks)
    assert any("SGLang is experimental here" in remark for remark in other.remarks)


def test_rules_that_name_flags_of_vllm_are_not_for_another_engine() -> None:
    pair = replace(VLLM, image="a/b:latest", tp=2, nodes=2, env={"NCCL_IB_GID_INDEX": "3"})
    found = {issue.id for issue in lint(replace(pair, engine="sglang"))}
    assert {"image-not-pinned", "gid-index-pinned"} <= found
    only_vllm = {issue.id for issue in lint(pair)} - found
    assert "gemma4-tools-off" in only_vllm
