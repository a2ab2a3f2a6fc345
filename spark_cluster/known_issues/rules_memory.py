"""Rules on memory, which GPU and system of a Spark share."""

from __future__ import annotations

from spark_cluster.facts.model import Facts
from spark_cluster.known_issues.case import Case
from spark_cluster.known_issues.match import Edit
from spark_cluster.known_issues.rules import RuleContext, RuleResult, rule
from spark_cluster.models.memory import (
    GIB,
    GIB_KIB,
    HIGHEST,
    gate_gib,
    margins,
    utilization,
)
from spark_cluster.models.weights import load_peak_bytes

IMPOSSIBLE = 0.97
"""No Spark has so much free: of 121.7 GiB an idle one without a desktop has about 117 available
(source: measured-on-gb10). Less than that has served somewhere, so that it is a warning; safe is
`memory.HIGHEST`."""

DEFAULT = 0.92
"""What vLLM takes when it is told nothing (older ones 0.90)."""

TOTAL_GIB = 121.69
"""Of a Spark on current firmware; nodes that can be asked tell their own."""


@rule("share-too-high")
def share_too_high(about: RuleContext, case: Case) -> RuleResult:
    share = case.launch.number("gpu-memory-utilization")
    if share is None or not case.on_gpu:
        return None
    for facts in case.facts:
        if facts.gpu_memory.total_kib and share > utilization(facts.gpu_memory):
            return _more_than_there_is(about, share, facts)
    if share <= HIGHEST or any(facts.gpu_memory.of_gpu for facts in case.facts):
        return None
    wanted = share * TOTAL_GIB
    found = f"--gpu-memory-utilization {share:g} is {wanted:.1f} of {TOTAL_GIB:.1f} GiB"
    return about.found(
        found,
        severity="warning" if share < IMPOSSIBLE else "error",
        edit=Edit("flag", "gpu-memory-utilization", HIGHEST),
    )


def _more_than_there_is(about: RuleContext, share: float, facts: Facts) -> RuleResult:
    """Compare a share with the memory of the nodes that were asked."""
    memory = facts.gpu_memory
    can = utilization(memory)
    total, available = memory.total_kib / GIB_KIB, memory.available_kib / GIB_KIB
    refused = share * total > gate_gib(memory)
    fix = f"--gpu-memory-utilization {can:g}, with which the node still answers when it is loaded"
    return about.found(
        f"--gpu-memory-utilization {share:g} wants {share * total:.1f} GiB, "
        f"{facts.hostname or 'the node'} has {available:.1f} available",
        severity="error" if refused else "warning",
        edit=Edit("flag", "gpu-memory-utilization", can) if can else None,
        fix=fix if can else "stop what holds the memory: spark-cluster vram names it",
    )


@rule("share-not-given")
def share_not_given(about: RuleContext, case: Case) -> RuleResult:
    if not case.is_command or "gpu-memory-utilization" in case.flags or not case.on_gpu:
        return None
    for facts in case.facts:
        memory = facts.gpu_memory
        total, free = memory.total_kib / GIB_KIB, memory.available_kib / GIB_KIB
        if total and DEFAULT * total > gate_gib(memory):
            name = facts.hostname or "the node"
            found = f"{DEFAULT:g} of {total:.1f} GiB, {name} has {free:.1f} available"
            return about.found(found, severity="error")
    if any(facts.gpu_memory.of_gpu for facts in case.facts):
        return None
    return about.found("no --gpu-memory-utilization")


@rule("online-fp8-load-peak")
def online_fp8_load_peak(about: RuleContext, case: Case) -> RuleResult:
    if case.quantization != "fp8-online":
        return None
    if case.geometry is None:
        return about.found(f"--quantization {case.launch.text('quantization') or 'fp8'}")
    part = load_peak_bytes(case.geometry, "fp8-online") / GIB / case.launch.tp
    found = f"{part:.1f} GiB of BF16 weights on each node while loading"
    for facts in case.facts:
        memory = facts.gpu_memory
        available = memory.available_kib / GIB_KIB
        if memory.total_kib and part + margins(memory).reserve_gib > available:
            name = facts.hostname or "the node"
            return about.found(f"{found}, {name} has {available:.1f} available", severity="error")
    return about.found(found)


@rule("ray-memory-monitor")
def ray_memory_monitor(about: RuleContext, case: Case) -> RuleResult:
    by_ray = case.launch.text("distributed-executor-backend") == "ray"
    if not (case.in_docker and by_ray and case.several_nodes):
        return None
    value = case.launch.env.get("RAY_memory_monitor_refresh_ms")
    if value == "0":
        return None
    said = "no RAY_memory_monitor_refresh_ms" if value is None else f"it is {value}"
    return about.found(f"{said}, two nodes by Ray", severity="warning")
