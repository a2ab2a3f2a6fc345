"""Plans for GPUs with memory of their own, against what vLLM logged on H200s (`gpu_runs.py`)."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from factories import make_node
from gpu_runs import GpuRun, runs

from spark_cluster.config import fact_gathering
from spark_cluster.config.facts import Facts, Gpu, GpuProcess, Memory
from spark_cluster.config.launch import Launch
from spark_cluster.engine.survey import without_ours
from spark_cluster.issues.rules import lint
from spark_cluster.models.lookup import find
from spark_cluster.models.memory_share import GIB, GIB_KIB, utilization
from spark_cluster.models.weights import memory_bytes, must_be_known
from spark_cluster.plan.fit import Fit, fit
from spark_cluster.plan.room import NodeMemory, assumed, of_facts

H200 = fact_gathering.gpu("NVIDIA H200, 9.0, 580.159.04, 37, 131.09, 1980, 0, 143156\n")
MOE = find("google/gemma-4-26B-A4B-it")
DESIRED = re.compile(r"Desired GPU memory utilization is \(([\d.]+), ")
MEASURED = {
    run.name: (run, float(found[1]))
    for run in runs()
    if (found := DESIRED.search(run.log)) and run.geometry.name != "paris"
}
KV_TOLERANCE = 0.01
"""Of the cache's GiB. Of `plan/runtime.py` only the newer sampler's 6 bytes and the weights' margin
came from these starts."""


def own(total_gib: float = 79.0, held_gib: float = 0.0, gpu: str = "NVIDIA H100") -> NodeMemory:
    total = round(total_gib * GIB_KIB)
    memory = Memory(total, total - round(held_gib * GIB_KIB), of_gpu=True)
    held = (GpuProcess(4711, "python3", round(held_gib * 1024)),) if held_gib else ()
    return NodeMemory("gpu1", memory, held, gpu=gpu)


def planned(room: NodeMemory, **args: object) -> Fit:
    flags = {name.replace("_", "-"): value for name, value in args.items()}
    launch = Launch("m", vllm="0.26.0", args={"max-model-len": 65536, **flags})
    return fit(launch, MOE, [room], memory_bytes(MOE, "bf16") / GIB)


def test_cuda_has_what_nvidia_smi_calls_used_and_free():
    """139.80 GiB, as vLLM printed it; `memory.total` said 140.4."""
    assert H200.memory.total_kib / GIB_KIB == pytest.approx(139.80, abs=0.005)
    held = fact_gathering.gpu("NVIDIA H200, 9.0, 580.159.04, 37, 131.09, 1980, 62059, 81098\n")
    assert held.memory.total_kib / GIB_KIB == pytest.approx(139.80, abs=0.005)
    assert held.memory.available_kib == 81098 * 1024


@pytest.mark.parametrize("cells", ["", ", [N/A], [N/A]", ", 0", f", {'9' * 400}, 1"])
def test_a_spark_has_no_memory_of_its_gpu(cells: str):
    gpu = fact_gathering.gpu(f"NVIDIA GB10, 12.1, 580.95.05, 45, 11.17, 208{cells}\n")
    assert gpu == Gpu("NVIDIA GB10", "12.1", "580.95.05", 45.0, 11.17, 208.0)
    facts = Facts(memory=Memory(127_600_748, 123_731_900), gpu=gpu)
    assert facts.gpu_memory == facts.memory
    assert of_facts("a", facts, (), has_model=False).memory == facts.memory


@pytest.mark.parametrize("name", MEASURED)
def test_the_cache_of_a_share_is_what_was_logged(name: str):
    run, share = MEASURED[name]
    found = fitted(run, share)
    assert found.kv_gib == pytest.approx(run.kv_gib, rel=KV_TOLERANCE)
    assert found.kv_low_gib <= run.kv_gib <= found.kv_high_gib + 0.005
    assert not found.reasons


def fitted(run: GpuRun, share: float) -> Fit:
    args = {
        "gpu-memory-utilization": share,
        "max-model-len": run.max_model_len,
        "max-num-batched-tokens": run.options["max_num_batched_tokens"],
    }
    args |= started_with(run)
    if "auto-len" in run.name:
        args["max-model-len"] = "auto"
    launch = Launch(run.name, quantization=run.quantization, tp=run.tp, vllm=run.vllm, args=args)
    whole = memory_bytes(run.geometry, must_be_known(run.quantization)) / GIB
    whole += run.tp * run.geometry.tables_bytes / GIB
    facts = Facts(memory=Memory(1, 1), gpu=H200)
    rooms = [of_facts(f"gpu{n}", facts, (), has_model=True) for n in range(run.tp)]
    return fit(launch, run.geometry, rooms, whole)


def started_with(run: GpuRun) -> dict[str, object]:
    """The flags of a run that `options` does not keep, from its log."""
    args: dict[str, object] = {} if "compile" in run.name else {"enforce-eager": True}
    if "gptoss" not in run.name and "auto-len" not in run.name:
        args["max-num-seqs"] = 4
    return args


@pytest.mark.parametrize(
    ("room", "args", "batch"),
    [
        (own(), {}, 8192),
        (own(), {"max_num_batched_tokens": 2048}, 2048),
        (own(gpu="NVIDIA A100-SXM4-80GB"), {}, None),
        (own(60), {}, None),
        (own(178, gpu="NVIDIA B200"), {}, 16384),
        (assumed(1)[0], {}, None),
    ],
)
def test_the_batch_that_vllm_takes_when_it_is_told_none(room, args, batch):
    assert planned(room, **args).launch.number("max-num-batched-tokens") == batch


def test_the_share_is_of_the_gpus_own_memory():
    assert utilization(own().memory) == 0.90
    assert utilization(own(held_gib=60).memory) == 0.21, "(79 - 60 - 2) / 79"
    found = planned(own())
    assert found.share == 0.90
    told = "memory is that of NVIDIA H100; the speeds are those of a Spark's GPU"
    assert told in found.remarks
    (remark,) = [r for r in planned(own(held_gib=10)).remarks if "kv-cache-memory-bytes" in r]
    assert remark


def test_what_others_hold_is_no_room():
    reason = planned(own(held_gib=60)).reasons[0]
    assert reason.endswith("and 19.0 are available; 60.0 GiB are held by python3 (pid 4711)")
    (reason,) = planned(own(), gpu_memory_utilization=0.995).reasons
    assert "vLLM would see 78.5 free" in reason
    (reason,) = planned(own(), gpu_memory_utilization=0.98).reasons
    assert reason.endswith("and 2 that vLLM takes in addition, are 0.4 too much")


def test_our_own_server_gives_its_memory_back():
    room = replace(own(held_gib=60), held=(GpuProcess(4711, "VLLM::EngineCore", 60 * 1024),))
    free = without_ours(room, {4711})
    assert (free.memory, free.held) == (own().memory, ())
    facts = Facts(memory=Memory(5, 5), gpu=replace(H200, memory=room.memory))
    assert facts.with_gpu_memory(free.memory).gpu_memory == free.memory
    assert facts.with_gpu_memory(free.memory).memory == Memory(5, 5)
    spark = Facts(memory=Memory(5, 1))
    assert spark.with_gpu_memory(Memory(5, 4)).memory == Memory(5, 4)


@pytest.mark.parametrize(
    ("share", "held", "found"), [(0.85, 0, None), (0.85, 40, "error"), (None, 0, None)]
)
def test_the_lint_of_a_share(share, held, found):
    args = {"gpu-memory-utilization": share} if share else {}
    launch = Launch("m", origin="command", args=args)
    facts = replace(make_node("gpu1").facts, gpu=replace(H200, memory=own(held_gib=held).memory))
    memory = [i.severity for i in lint(launch, MOE, [facts]) if i.id.startswith("share-")]
    assert memory == ([found] if found else [])
