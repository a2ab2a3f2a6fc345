"""Fit in memory: published figures, each reason against it, the nearest that fits, the share."""

from __future__ import annotations

from dataclasses import replace

import kv_figures
import pytest
from cases import each_row
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.cli.plan_picture import before
from spark_cluster.config.facts import GpuProcess, Memory
from spark_cluster.config.launch import Launch
from spark_cluster.errors import UsageError
from spark_cluster.models.lookup import find
from spark_cluster.models.memory_share import (
    GIB,
    GIB_KIB,
    HIGHEST,
    OUTSIDE_GIB,
    RESERVE_GIB,
    least,
    share_of,
    utilization,
)
from spark_cluster.models.weights import memory_bytes
from spark_cluster.plan.fit import fit, kv_bytes_given, kv_knob_bytes
from spark_cluster.plan.plan import nearest, times
from spark_cluster.plan.room import NodeMemory, assumed
from spark_cluster.plan.serving import of_launch
from spark_cluster.plan.speed import decode

DENSE = find("google/gemma-4-31B-it")


def launch(**args: object) -> Launch:
    """NVIDIA's NVFP4 of the 31B as DGX Spark part 9 ran it."""
    flags = {"max-model-len": 32768, "kv-cache-dtype": "fp8", **args}
    kept = {flag.replace("_", "-"): value for flag, value in flags.items() if value is not None}
    return Launch("nvidia/Gemma-4-31B-IT-NVFP4", quantization="nvfp4", vllm="0.19.0", args=kept)


def weights(one: Launch, geometry=DENSE) -> float:
    return memory_bytes(geometry, one.quantization or "bf16") / GIB


def fitted(one: Launch, rooms=None, geometry=DENSE):
    rooms = rooms or assumed(one.tp)
    return fit(one, geometry, rooms, weights(one, geometry))


def test_part_9_as_its_log_has_it():
    found = fitted(launch(gpu_memory_utilization=0.85))
    assert found.fits
    assert found.kv_gib == pytest.approx(66.95, rel=0.02)
    assert found.cache.max_concurrency == pytest.approx(27.57, rel=0.02)
    assert found.reserved_gib * 1024 == pytest.approx(105_919, rel=0.001), "as two nodes held it"


def test_the_share_is_what_is_asked_for_or_all_that_is_safe():
    free = fitted(launch())
    assert free.share == free.highest == 0.80
    few = fitted(launch(max_num_seqs=4))
    assert few.share == few.needed == 0.41
    assert few.cache.max_concurrency >= 4
    many = fitted(launch(max_num_seqs=1000))
    assert many.share == many.highest
    given = fitted(launch(kv_cache_memory_bytes=8 * GIB))
    assert (given.share, given.kv_gib) == (None, 8.0)


@pytest.mark.parametrize(
    ("value", "size"),
    [(1024, 1024), ("1024", 1024), ("8G", 8 * GIB), ("8g", 8e9), ("1.5M", 1.5 * 1024**2)],
)
def test_sizes_as_vllm_reads_them(value, size):
    assert kv_bytes_given(launch(kv_cache_memory_bytes=value)) == size
    assert kv_bytes_given(launch()) is None


def busy(gib: float) -> list[NodeMemory]:
    memory = Memory(127_600_748, round(gib * GIB_KIB))
    return [NodeMemory("spark1", memory, (GpuProcess(4711, "VLLM::EngineCore", 60_000),))]


def test_reasons_name_the_node_the_figure_and_who_holds_it():
    (reason,) = fitted(launch(gpu_memory_utilization=0.85), busy(60)).reasons
    assert reason.startswith("spark1: 103.4 GiB are requested and vLLM would see 57.3 free")
    assert "VLLM::EngineCore (pid 4711)" in reason
    (reason,) = fitted(launch(gpu_memory_utilization=0.85), busy(108)).reasons
    assert "would leave 0.0 for everything else" in reason
    (reason,) = fitted(replace(launch(), quantization="fp8-online"), busy(60)).reasons
    assert "58.8 GiB while loading" in reason


HYBRID = find("Qwen/Qwen3.6-35B-A3B")


@each_row(__file__, "fit.json", "the_cache_is_that_of_the_flags")
@pytest.mark.parametrize("geometry", [HYBRID, DENSE], ids=["hybrid", "sliding"])
def test_the_cache_is_that_of_the_flags(geometry, args, more):
    shared = {"max-model-len": 32768, "kv-cache-memory-bytes": 8 * GIB}
    one = Launch(geometry.name, quantization="fp8", vllm="0.32.0", args={**shared, **args})
    found = fit(one, geometry, assumed(1), 20.0)
    assert found.cache == kv_figures.cache(
        geometry, kv_gib=8, max_model_len=32768, vllm="0.32.0", **more
    )


@pytest.mark.parametrize("auto", ["auto", -1])
def test_a_context_as_long_as_fits(auto):
    found = fitted(launch(max_model_len=auto, kv_cache_memory_bytes=8 * GIB))
    assert found.fits
    assert found.cache.max_concurrency >= 1
    assert 32_768 < found.max_model_len < 262_144
    roomy = fitted(launch(max_model_len=auto))
    assert roomy.max_model_len == 262_144, "the model's own"


@pytest.mark.parametrize(
    ("flag", "value"), [("max_num_seqs", 0), ("max_num_batched_tokens", 0), ("max_model_len", -5)]
)
def test_counts_that_vllm_refuses(flag, value):
    reasons = fitted(launch(**{flag: value})).reasons
    assert f"--{flag.replace('_', '-')} {value}: vLLM needs 1 or more" in reasons


def test_the_cpu_build_is_no_spark():
    one = replace(launch(), env={"VLLM_CPU_OMP_THREADS_BIND": "nobind"})
    assert any("CPU build" in remark for remark in fitted(one).remarks)


@pytest.mark.parametrize(("kind", "said"), [("fp8", True), ("bfloat16", False)])
def test_layers_that_stay_in_16_bits_are_said_not_to_be_counted(kind, said):
    one = launch(kv_cache_dtype=kind, kv_cache_dtype_skip_layers="0 1")
    assert any("skip-layers" in remark for remark in fitted(one).remarks) is said


def test_shapes_that_cannot_be_divided():
    with pytest.raises(UsageError, match=r"32 attention heads of .* cannot be divided over 3"):
        fitted(replace(launch(), tp=3, nodes=3), assumed(3))
    (reason,) = fitted(replace(launch(), tp=2, nodes=2), assumed(1)).reasons
    assert reason == "tensor-parallel size 2 needs 2 nodes, one GPU each"
    (reason,) = fitted(launch(max_model_len=300_000)).reasons
    assert "more than the 262144 tokens" in reason


def test_a_disk_that_is_too_small():
    room = replace(assumed(1)[0], disk_free_gib=20.0)
    (reason,) = fitted(launch(), [room]).reasons
    assert reason == "spark1: 31 GiB must be downloaded and 20 GiB are free on its disk"
    assert fitted(launch(), [replace(room, has_model=True)]).fits


def test_dummy_weights_need_no_disk_and_no_download():
    found = fitted(launch(load_format="dummy"), [replace(assumed(1)[0], disk_free_gib=1.0)])
    assert found.fits
    assert times(found) == {"download": 0, "load_low": 0, "load_high": 0}


def test_what_the_nodes_have_is_not_downloaded_again():
    rooms = [replace(room, has_model=True) for room in assumed(2)]
    two = replace(launch(), tp=2, nodes=2)
    assert times(fitted(two, rooms))["download"] == times(fitted(two, rooms))["copy"] == 0
    one_has_it = times(fitted(two, [rooms[0], assumed(2)[1]]))
    assert one_has_it["download"] == 0 < one_has_it["copy"]
    words = before(fitted(two, [rooms[0], assumed(2)[1]])).split(", ")
    assert words[0] == "nothing to download"
    assert words[1].endswith("to copy to the next node")
    assert times(fitted(two))["download"] > 0


@each_row(__file__, "fit.json", "where_a_models_files_come_from")
def test_where_a_models_files_come_from(there, flags, directory, words):
    one = replace(launch(**flags), directory=directory)
    found = fitted(one, [replace(room, has_model=there) for room in assumed(1)])
    assert before(found).split(", ")[0] == words


def test_other_programs_make_the_cache_size_the_better_knob():
    found = fitted(launch(max_num_seqs=1), busy(70))
    assert found.fits
    (remark,) = found.remarks
    assert f"--kv-cache-memory-bytes {kv_knob_bytes(found)}" in remark
    assert kv_knob_bytes(found) <= found.kv_gib * GIB
    assert not fitted(launch(max_num_seqs=1)).remarks
    too_much = fitted(launch(max_num_seqs=1, gpu_memory_utilization=0.5), busy(40))
    assert not any("--kv-cache-memory-bytes" in r for r in too_much.remarks), "it would not help"


@each_row(__file__, "fit.json", "a_drafter_with_layers_of_its_own_takes_some_of_the_cache")
def test_a_drafter_with_layers_of_its_own_takes_some_of_the_cache(method, model, counted):
    config = {"method": method, "model": model, "num_speculative_tokens": 3}
    remarks = fitted(launch(speculative_config=config)).remarks
    assert any("drafter's own layers" in remark for remark in remarks) is not counted


def changes(one: Launch, rooms, largest_tp=2) -> list[str]:
    found = fitted(one, rooms[: one.tp])
    assert not found.fits
    return [near.change for near in nearest(found, DENSE, rooms, largest_tp)]


def test_what_would_work():
    too_long = launch(max_model_len=1_000_000)
    assert f"--max-model-len {DENSE.max_positions}" in changes(too_long, assumed(1))
    assert changes(launch(gpu_memory_utilization=0.95), assumed(2)) == [
        "gpu_memory_utilization: auto"
    ]
    allowed = replace(launch(max_model_len=262_145), env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"})
    assert fitted(allowed).fits, "vLLM warns, and takes it"
    short = launch(kv_cache_memory_bytes=GIB)
    (reason,) = fitted(short).reasons
    assert "a request of 32,768 tokens needs 2." in reason
    assert "the longest that fits has" in reason
    (change,) = changes(short, assumed(1))
    length = int(change.removeprefix("--max-model-len "))
    assert length % 1024 == 0
    assert fitted(launch(kv_cache_memory_bytes=GIB, max_model_len=length)).fits
    online = replace(launch(max_num_seqs=1), quantization="fp8-online")
    rooms = [busy(60)[0], busy(60)[0]]
    assert changes(online, rooms) == ["--tp 2"]
    assert changes(online, rooms, largest_tp=1) == []
    assert changes(replace(launch(), quantization="bf16"), busy(20)) == []
    # Neither a safe share nor a second node by itself: both together.
    both = launch(gpu_memory_utilization=0.5, max_num_seqs=4)
    rooms = [busy(40)[0], busy(40)[0]]
    assert changes(both, rooms) == ["gpu_memory_utilization: auto and --tp 2"]
    assert changes(both, rooms, largest_tp=1) == []


@given(
    st.floats(1.0, 121.0),
    st.integers(1, 2),
    st.one_of(st.none(), st.integers(1, 64)),
    st.sampled_from([2048, 32768, 262144]),
)
def test_what_fits_starts_and_leaves_the_node_alive(available, tp, seqs, length):
    one = replace(launch(max_num_seqs=seqs, max_model_len=length), tp=tp, nodes=tp)
    found = fitted(one, assumed(tp, available))
    if not found.fits:
        assert found.reasons
        return
    assert found.share is not None
    for room in found.rooms:
        assert found.share * room.total_gib <= room.available_gib - 2.7
        assert room.available_gib - found.share * room.total_gib >= 4 + 5.6 - 1e-6
    assert found.cache.max_concurrency >= 1


# --- plans: the share of the memory, and the nodes that serve ------------------------------------


SPARK_KIB = 127_600_748
"""MemTotal of a Spark, KiB."""


memories = st.integers(1, 4 * SPARK_KIB).flatmap(
    lambda total: st.tuples(st.just(total), st.integers(0, total))
)


@given(memories)
def test_the_share_is_the_largest_with_which_vllm_starts(memory):
    """And no larger than is safe; a hundredth more would not leave what others need."""
    total, available = memory
    share = utilization(Memory(total, available))
    free = available - (OUTSIDE_GIB + RESERVE_GIB) * GIB_KIB
    assert 0.0 <= share <= HIGHEST
    assert share == round(share, 2)
    assert share == 0 or free - share * total >= -1
    assert share == HIGHEST or (share + 0.01) * total > free - 1


# --- plans and rules of another engine than the one that they are made for -----------------------


VLLM = Launch("google/gemma-4-31B-it", args={"max-model-len": 8192, "kv-cache-dtype": "fp8"})
SGLANG = replace(VLLM, engine="sglang")
SPARK_ROOM = NodeMemory("spark1", Memory(121 * GIB_KIB, 118 * GIB_KIB))


def test_the_range_of_speeds_is_wider_and_says_why() -> None:
    geometry = find(VLLM.model)
    ours, other = (decode(of_launch(launch, geometry), 1024) for launch in (VLLM, SGLANG))
    assert other.request.expected == ours.request.expected
    assert other.request.low < ours.request.low
    assert other.request.high >= ours.request.high  # both may end at what the memory allows
    assert "another engine (SGLang)" in other.basis


def test_the_plan_says_that_it_is_computed_as_for_vllm() -> None:
    geometry = find(VLLM.model)
    ours, other = (fit(launch, geometry, [SPARK_ROOM], 58.0) for launch in (VLLM, SGLANG))
    assert not any("SGLang" in remark for remark in ours.remarks)
    assert any("SGLang is experimental here" in remark for remark in other.remarks)


# --- shares of a node's memory --------------------------------------------------------------------


def test_a_share_holds_what_is_needed_and_no_more_than_there_is() -> None:
    assert (least(50.0, 120.0), share_of(50.0, 120.0)) == (0.42, 0.41)
    assert (least(60.0, 120.0), share_of(60.0, 120.0)) == (0.5, 0.5)


def test_a_node_that_tells_no_memory_has_no_share() -> None:
    assert (least(1.0, 0.0), share_of(1.0, 0.0), utilization(Memory())) == (0.0, 0.0, 0.0)
