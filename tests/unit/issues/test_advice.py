"""`explain` advises the engine and the model that wrote the log, and quotes whole errors."""

from __future__ import annotations

import re

import pytest
from factories import log_of

from spark_cluster.issues.entries import catalogue
from spark_cluster.issues.explain import SHOWN, Explanation, explain, known_in
from spark_cluster.issues.startup import SGLANG

VLLM_WORDS = re.compile(r"vLLM|VLLM_|vllm/|--(?:moe-backend|enforce-eager|gpu-memory-utilization)")
SCALE = "KeyError: 'model.layers.0.mlp.experts.w13_weight_scale'\n"


def of(text: str) -> Explanation:
    return explain([log_of(text, "x.log")])


def started(model: str) -> str:
    return (
        f"INFO 06-01 10:00:00 [core.py:1] Initializing a V1 LLM engine (v0.28.0), model='{model}'\n"
    )


def test_flags_of_vllm_become_those_of_sglang():
    said = SGLANG.in_its_words("--enforce-eager, a lower --max-num-seqs-x, --max-num-seqs 4, vLLM")
    assert (
        said == "--disable-cuda-graph, a lower --max-num-seqs-x, --max-running-requests 4, SGLang"
    )


def test_a_log_of_sglang_gets_no_flag_of_vllm():
    memory = "RuntimeError: CUDA error: out of memory. Tried to allocate 2.00 GiB.\n"
    for begin, flag in (
        ("", "--gpu-memory-utilization"),
        ("[2026-08-27 10:02:16 TP0] sglang is using nccl==2.28.3\n", "--mem-fraction-static"),
    ):
        cause = of(begin + memory.replace("CUDA error: out", "CUDA out")).cause
        assert flag in cause.finding.fix
    assert not VLLM_WORDS.search(cause.finding.fix)


def test_what_is_known_of_an_error_is_said_for_the_engine_of_its_log():
    """`status` and `up` name it so."""
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    begin = "[2026-08-27 10:02:16 TP0] sglang is using nccl==2.28.3\n"
    assert "--gpu-memory-utilization" in known_in(error, error).fix
    assert not VLLM_WORDS.search(known_in(begin + error, error).fix)
    assert known_in(begin, "all is well") is None


@pytest.mark.parametrize("id", sorted(i.id for i in catalogue().values() if "sglang" in i.fixes))
def test_a_fix_of_sglang_is_one(id):
    assert not VLLM_WORDS.search(SGLANG.in_its_words(catalogue()[id].fix_for([], "sglang")))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("bg-digitalservices/Gemma-4-26B-A4B-it-NVFP4", True),
        ("deepseek-ai/DeepSeek-V4-Flash", False),
    ],
)
def test_advice_for_a_model_is_given_for_that_model(model, said):
    finding = of(started(model) + SCALE).cause.finding
    assert finding.id == "nvfp4-moe-scale-keys"
    assert ("gemma4_patched.py" in finding.fix) is said


def test_the_weights_of_a_drafter_are_told_from_the_experts():
    trace = '  File "/x/vllm/models/deepseek_v4/nvidia/dspark.py", line 388, in load_weights\n'
    assert of(trace + SCALE).cause.finding.id == "drafter-does-not-fit"


def test_a_long_error_is_quoted_with_its_end():
    """Its end says what to do; no word is broken."""
    words = " ".join(f"word{n}" for n in range(200))
    quote = of(f"ValueError: {words}; set --max-model-len 4096\n").cause.finding.found
    assert len(quote) <= SHOWN + 3
    assert quote.startswith("ValueError: word0 word1 ")
    assert quote.endswith(" set --max-model-len 4096")
    assert set(quote.removeprefix("ValueError: ").split(" … ")[0].split()) <= set(words.split())


def test_what_the_container_runtime_refuses_is_in_the_quote():
    """It stands in the line after the one that looks like an error."""
    first = "docker: Error response from daemon: stderr: Using requested mode 'csv'\n"
    quote = of(first + "mode csv needs a Jetson: unknown\n").cause.finding.found
    assert quote.endswith("Using requested mode 'csv': mode csv needs a Jetson: unknown")


def test_what_pydantic_says_of_a_flag_is_in_the_quote_of_a_known_issue():
    """A launcher's words that the image's entry point took for flags (sparkrun 279)."""
    found = of(
        "vllm serve: error: argument --compilation-config/-cc: 1 validation error for "
        "CompilationConfig\n  Invalid JSON: expected value at line 1 column 1\n"
    )
    assert found.cause.finding.id == "json-flag-value"
    assert found.cause.finding.found.endswith("Invalid JSON: expected value at line 1 column 1")


def test_the_watchdog_of_sglang_is_no_lack_of_memory():
    killed = "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9).\n"
    watchdog = "[2026-08-27 10:07:17] Scheduler hit watchdog timeout.\n"
    assert of(killed).cause.finding.id == "killed-by-signal"
    found = of(watchdog + killed)
    assert found.cause.finding.id == "sglang-ranks-wait"
    assert "killed-by-signal" not in {seen.finding.id for seen in found.problems}


@pytest.mark.parametrize(
    ("line", "id", "step"),
    [
        ("Rank 0 scheduler died (exit code: -9)", "killed-by-signal", "SGLANG_HOST_IP"),
        (
            "TimeoutError: RPC call to sample_tokens timed out.",
            "worker-stopped-answering",
            "scheduled_spec_decode_tokens",
        ),
        (
            "AssertionError: Error in memory profiling. Initial free memory 27.09 GiB,",
            "memory-changed-while-profiling",
            "drop_caches",
        ),
        (
            "TypeError: DecoderLayer.__init__() got an unexpected keyword argument 'aux_stream'",
            "call-does-not-fit",
            "--speculative-config",
        ),
    ],
)
def test_the_step_that_worked_in_an_unseen_case_is_in_the_advice(line, id, step):
    """Answers that led elsewhere when the set fresh-2 was judged."""
    said = of(line + "\n").cause.finding
    assert (said.id, step in said.fix) == (id, True)


def test_a_shape_without_a_kernel_gets_no_advice_to_change_the_backend():
    """The set fresh-2, vLLM 56837."""
    said = of(
        '  File "/x/flashinfer/mla/_sparse_mla_sm120.py", line 394, in _paged_attention\n'
        "ValueError: SM120 sparse-MLA has no decode kernel for this shape: num_heads=64\n"
    ).cause
    assert said.finding.id == "sparse-mla-shape"
    assert said.certain


USAGE = (
    "Exception in thread Thread-1 (_report_usage_worker):\n"
    "Traceback (most recent call last):\n"
    '  File "/x/vllm/usage/usage_lib.py", line 173, in _report_usage_worker\n'
    "    self._report_usage_once(model_architecture, usage_context, extra_kvs)\n"
    "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n"
)


def test_a_report_of_use_that_fails_is_not_blamed_for_a_later_error():
    """The set fresh-3: the traceback came first, and the advice was to fetch the model again."""
    alone = of(USAGE)
    assert {seen.finding.id for seen in alone.problems} == {"usage-report-failed"}
    later = of(USAGE + "RuntimeError: No compiled nvfp4 quantization kernel\n")
    assert later.cause.finding.id == "no-code-for-gpu"
    model = "ValueError: Expecting value: line 1 column 1 (char 0) in /models/m/config.json\n"
    assert of(USAGE + model).cause.finding.id == "model-file-not-json"


def test_a_build_without_a_gpu_is_not_explained_by_the_missing_driver():
    """The set fresh-3: vLLM warns when it is imported, and pip fails for another reason."""
    warning = (
        "WARNING 05-10 02:50:17 [interface.py:243] Failed to import from vllm._C: "
        "ImportError('libcuda.so.1: cannot open shared object file: No such file or directory')\n"
    )
    build = (
        "  Preparing metadata (pyproject.toml): started\n"
        '  File "/x/pyproject_hooks/_in_process/_in_process.py", line 77, in _build_backend\n'
        "ModuleNotFoundError: No module named 'scikit_build_core'\n"
    )
    start = "RuntimeError: Failed to infer device type, please set the environment variable\n"
    assert of(warning + build).cause.finding.id == "build-backend-missing"
    assert of(warning + start).cause.finding.id == "driver-not-in-container"
    installed = "  Preparing metadata (pyproject.toml): finished with status 'done'\n"
    toolkit = 'docker: could not select device driver "" with capabilities: [[gpu]].\n'
    assert of(installed + toolkit).cause.finding.id == "driver-not-in-container"
    assert of(warning + build + start).cause.finding.id != "device-not-found"


def test_a_library_that_engines_share_does_not_make_it_sglang():
    """The set fresh-3: tvm_ffi below FlashInfer and TileLang, in logs of vLLM."""
    shared = (
        '  File "/x/tvm_ffi/cython/function.pxi", line 929, in tvm_ffi.core.Function.__call__\n'
    )
    own = '  File "/x/sglang/jit_kernel/utils.py", line 7, in f\n'
    error = "RuntimeError: Check failed: something\n"
    named = [seen.finding.id for seen in of(shared + error).problems]
    assert "sglang-kernel-compiled" not in named
    assert of(own + shared + error).cause.finding.id == "sglang-kernel-compiled"


@pytest.mark.parametrize(
    ("log", "id", "step"),
    [
        (
            "triton.compiler.errors.CompilationError: at 57:18:\n"
            "    acc = tl.load(bias_ptr + feat)\n"
            "AttributeError(\"'NoneType' object has no attribute 'type'\")\n",
            "triton-code-refused",
            "patch",
        ),
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms\n",
            "head-not-reachable",
            "ip -br address",
        ),
    ],
)
def test_what_misled_in_the_newest_unseen_set_leads_on(log, id, step):
    """The set fresh-3."""
    said = of(log).cause.finding
    assert (said.id, step in said.fix) == (id, True)


def test_tiles_that_the_autotuner_skips_are_no_failure():
    """The set fresh-3: only warnings, and the advice was to change the backend."""
    found = of(
        "WARNING - autotuner.py:485 - [Autotuner]: Skipping tactic 15, due to failure while "
        "profiling: [TensorRT-LLM][ERROR] Failed to initialize cutlass TMA WS grouped gemm.\n"
    )
    assert [(s.finding.id, s.finding.severity) for s in found.problems] == [
        ("autotuner-skips-tiles", "info")
    ]
