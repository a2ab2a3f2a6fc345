"""`explain` on logs of whole launches: the cause first, effects last, healthy lines left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories import log_of

from spark_cluster.issues import explain as explain_module
from spark_cluster.issues import log_lines
from spark_cluster.issues.explain import Explanation
from spark_cluster.issues.log_reading import of_file

DATA = Path(__file__).parents[2] / "data"


def explain(*texts: str) -> Explanation:
    return explain_module.explain([log_of(text, f"log{n}") for n, text in enumerate(texts)])


def of_data(*names: str) -> Explanation:
    return explain_module.explain([of_file(str(DATA / name)) for name in names])


def shown(explanation: Explanation) -> list[tuple[str, bool]]:
    return [(p.finding.id or p.finding.found, p.follows) for p in explanation.problems]


def test_a_healthy_start():
    explanation = of_data("vllm_healthy.log")
    assert explanation.problems == []
    assert explanation.cause is None
    assert explanation.facts["vLLM"] == "0.32.0"
    assert any("KV cache" in said for said in explanation.missing), "it is cut there"


def test_the_first_request_ends_the_engine():
    """The worker's error is the cause, though the engine and the server speak before it."""
    explanation = of_data("vllm_no_compiler.log")
    cause = explanation.cause
    assert cause.finding.id == "no-compiler"
    assert cause.finding.found.startswith("torch._inductor.exc.InductorError: InvalidCxxCompiler")
    assert not cause.follows
    assert shown(explanation)[0] == ("no-compiler", False)
    assert all(follows for _, follows in shown(explanation)[1:])


def test_the_gpu_that_a_reload_took_is_the_cause_of_what_cuda_says():
    """P04: the line that names it stands last."""
    explanation = explain(
        "(EngineCore pid=300) ERROR 10-02 12:00:01 [core.py:900] EngineCore encountered a fatal "
        "error.\n"
        "(EngineCore pid=300) torch.AcceleratorError: CUDA error: unknown error\n"
        "(EngineCore pid=300) pynvml.NVMLError_Unknown: Unknown Error\n"
    )
    assert explanation.cause.finding.id == "gpu-taken-by-reload"
    assert "docker restart" in explanation.cause.finding.fix


def test_a_worker_that_was_killed_from_outside():
    """Requests were answered before it, and Ray shows all ranks: nothing else explains it."""
    explanation = of_data("vllm_worker_killed.log")
    assert explanation.cause.finding.id == "worker-died"
    assert not explanation.cause.follows
    assert explanation.cause.at == "11-20 14:14:29.000000"


def test_what_came_to_nothing_is_no_issue():
    """NCCL names sockets for its bootstrap; the channels say what carries the traffic."""
    socket = "spark1:1:1 [0] NCCL INFO NET/Socket : Using [0]enP7s7:192.168.1.11<0>"
    channel = "spark1:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0"
    assert shown(explain(socket)) == [("nccl-sockets", False)]
    assert shown(explain(f"{socket}\n{channel}")) == []
    assert shown(explain(f"{channel}\n{socket}")) == []


PTXAS = (
    "(EngineCore pid=60) ERROR 01-12 01:09:14 [core.py:708] ptxas fatal   : Value 'sm_121a' is not "
    "defined for option 'gpu-name'\n"
)
COMPILE = (
    "(EngineCore pid=60) ERROR 01-12 01:09:15 [core.py:708] torch._inductor.exc.InductorError: "
    "AssertionError: x\n"
)


def test_a_general_error_after_a_specific_one_is_its_effect():
    after = explain(PTXAS + COMPILE)
    assert shown(after) == [("ptxas-too-old", False), ("compile-failed", True)]
    before = explain(COMPILE.replace("09:15", "09:10") + PTXAS)
    assert shown(before) == [("ptxas-too-old", False), ("compile-failed", False)]
    assert shown(explain(COMPILE)) == [("compile-failed", False)]


def test_two_ranks_that_run_by_themselves():
    explanation = of_data("vllm_mp_rank0.log", "vllm_mp_rank1.log")
    assert explanation.problems == []
    assert explanation.missing == []
    assert explanation.facts["tensor parallel"] == "2"
    assert explanation.facts["KV tokens"] == "4,194,304"
    assert explanation.facts["up"] == "Application startup complete"
    later = of_data("vllm_mp_rank1.log").missing
    assert not any("never took requests" in said or "KV cache" in said for said in later)
    assert "the log of 1 of 2 ranks: give all ranks' logs" in later
    alone = of_data("vllm_mp_rank0.log")
    assert alone.missing == ["the log of 1 of 2 ranks: give all ranks' logs"]


DRIVER = """\
(EngineCore pid=1) INFO 11-20 14:00:00 [core.py:1] Initializing a V1 LLM engine (v0.28.0) with \
config: model='m', tensor_parallel_size=2
(EngineCore pid=1) ERROR 11-20 14:00:09 [core.py:2] RuntimeError: Engine core initialization failed.
(APIServer pid=2) ERROR 11-20 14:00:10 [a.py:2] ValueError: late
"""
WORKER = """\
(Worker_TP1 pid=5) INFO 11-20 14:00:01 [a.py:1] Loading weights took 371.35 seconds
(Worker_TP1 pid=5) ERROR 11-20 14:00:08 [a.py:1] Traceback (most recent call last):
(Worker_TP1 pid=5) ERROR 11-20 14:00:08 [a.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried
"""


@pytest.mark.parametrize("texts", [(DRIVER, WORKER), (WORKER, DRIVER)])
def test_the_earliest_over_all_ranks_whatever_the_order_of_files(texts):
    explanation = explain(*texts)
    assert shown(explanation) == [
        ("cuda-out-of-memory", False),
        ("ValueError: late", False),
        ("slow-loading", False),
        ("engine-dead", True),
    ]
    assert explanation.cause.finding.where == f"log{texts.index(WORKER)}"
    assert explanation.cause.number == 3


def test_without_times_the_order_of_files_decides():
    one, two = "KeyError: 'a'\n", "OSError: b\n"
    assert explain(one, two).cause.finding.found == "KeyError: 'a'"
    assert explain(two, one).cause.finding.found == "OSError: b"


@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=2) INFO 11-20 14:00:03 [logger.py:60] Received request chatcmpl-1: prompt: "
        "'why torch.OutOfMemoryError: CUDA out of memory?', params: x",
        "(APIServer pid=2) INFO 11-20 14:00:04 [logger.py:90] Generated response chatcmpl-1: "
        "output: 'jinja2.exceptions.TemplateError: x'",
        "    {{- raise_exception('No user query found in messages.') }}",
    ],
)
def test_what_a_user_wrote_or_a_template_says_is_no_error(line):
    assert explain(f"{line}\n").problems == []


def test_an_error_of_a_request_gives_way_to_one_of_the_engine():
    refused = "(APIServer pid=2) ValueError: This model's maximum context length is 8192 tokens.\n"
    assert explain(refused).cause.finding.id == "prompt-too-long"
    assert explain(refused).verdict == "cause"
    after = explain(f"{refused}(EngineCore pid=1) RuntimeError: strange\n")
    assert after.cause.finding.found == "RuntimeError: strange"


PLACE = """\
(EngineCore pid=1)   File "/x/vllm/v1/spec_decode/eagle.py", line 5, in propose
(EngineCore pid=1) {error}
"""


def test_where_an_error_was_raised_is_told_where_nothing_else_is_known():
    """Never as a certain cause, and not beside an issue that the line itself shows."""
    explanation = explain(PLACE.format(error="RuntimeError: strange"))
    assert explanation.cause.finding.id == "raised-by-drafter"
    assert explanation.verdict == "likely"
    known = explain(PLACE.format(error="RuntimeError: No CUDA GPUs are available"))
    assert shown(known) == [("gpu-dead", False)]
    echo = explain(PLACE.format(error="RuntimeError: Worker failed with error 'x'"))
    assert [p.finding.id for p in echo.problems] == [""]


def test_repeats_are_counted_once_told():
    line = "(W pid=1) ERROR 11-20 14:00:0{0} [a.py:1] RuntimeError: No CUDA GPUs are available\n"
    (seen,) = explain("".join(line.format(n) for n in range(5))).problems
    assert (seen.count, seen.number, seen.at) == (5, 1, "11-20 14:00:00.000000")
    text = "(W pid=1) OSError: x [repeated 3x across cluster]\n(W pid=1) OSError: x\n"
    assert explain(text).problems[0].count == 2


def test_an_endless_variety_of_errors_is_not_kept():
    text = "".join(f"ValueError: number {n}\n" for n in range(1000))
    explanation = explain(text)
    assert len(explanation.problems) == 200
    assert explanation.cause.finding.found == "ValueError: number 0"


def test_an_error_that_no_one_knows():
    (seen,) = explain("ValueError: brand new\n").problems
    assert not seen.known
    assert seen.to_dict()["id"] == ""
    assert seen.where == "log0:1"


STARTS = [
    ("INFO 06-07 13:19:44 [a.py:1] Using AttentionBackendEnum.TRITON_ATTN backend.",
     "attention", "TRITON_ATTN"),
    ("INFO 06-07 13:19:44 [a.py:1] Using 'MARLIN' NvFp4 MoE backend", "experts", "MARLIN (NvFp4)"),
    ("INFO 06-07 13:19:44 [a.py:1] Using TRITON Fp8 MoE backend out of potential backends: [...]",
     "experts", "TRITON (Fp8)"),
    ("Using NvFp4LinearBackend.FLASHINFER_CUTLASS for NVFP4 GEMM",
     "FP4 products", "FLASHINFER_CUTLASS"),
    ("Using FlashInferCutlassNvFp4LinearKernel for NVFP4 GEMM",
     "FP4 products", "FlashInferCutlass"),
    ("Model loading took 48.5 GiB memory and 455.900544 seconds", "weights", "48.5 GiB"),
    ("Estimated CUDA graph memory: 1.69 GiB total", "CUDA graphs", "1.69 GiB"),
    ("Available KV cache memory: 66.95 GiB", "KV cache", "66.95 GiB"),
    ("GPU KV cache size: 146,240 tokens", "KV tokens", "146,240"),
    ("Maximum concurrency for 32,768 tokens per request: 27.57x",
     "concurrency", "27.57 requests of 32,768 tokens"),
    ("GPU KV cache size: 70,240 tokens, Maximum concurrency for 2,048 tokens per request: 34.30x",
     "concurrency", "34.30 requests of 2,048 tokens"),
    ("INFO:     Application startup complete.", "up", "Application startup complete"),
    ("x NCCL INFO NET/IB : Using [0]rocep1s0f1:1/RoCE [1]roceP2p1s0f1:1/RoCE [RO]; OOB e:1",
     "link", "[0]rocep1s0f1:1/RoCE [1]roceP2p1s0f1:1/RoCE [RO]"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "name", "said"), STARTS)
def test_what_a_start_tells(line, name, said):
    assert explain(line).facts[name] == said


def test_a_log_without_an_error_shows_its_end():
    explanation = explain("first\nsecond\n\nthird\nnothing of vLLM\n")
    assert explanation.verdict == "no-error"
    assert explanation.last == {"log0": ["second", "third", "nothing of vLLM"]}
    assert explanation.missing == ["a start: no line of an engine was recognised"]


UP = "INFO:     Application startup complete.\n"


def test_what_is_missing():
    missing = explain(DRIVER).missing
    assert any("KV cache" in said for said in missing)
    assert any("never took requests" in said for said in missing)
    assert any("NCCL_DEBUG" in said for said in missing)
    assert explain("").missing == ["a single line: log0 is empty"]
    tail = UP + 'INFO: 127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    assert explain(tail).missing == ["the server's start: the log begins later"]


def test_what_the_server_got_over_is_no_cause():
    """A traceback that a warning quotes, or the run before a restart."""
    early = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'flash'\n"
    explanation = explain(early + UP)
    assert explanation.cause is None
    (seen,) = explanation.problems
    assert seen.overcome
    again = explain(early + UP + "(W pid=1) RuntimeError: No CUDA GPUs are available\n" + early)
    assert again.cause.finding.id == "gpu-dead"
    assert [(p.finding.severity, p.overcome) for p in again.problems] == [
        ("error", False), ("error", False), ("error", True),
    ]  # fmt: skip
    late = explain(UP + early)
    assert late.cause.finding.found.startswith("ModuleNotFoundError")


def test_the_document():
    document = explain(DRIVER, WORKER).to_dict()
    assert document["cause"]["id"] == "cuda-out-of-memory"
    assert [log["name"] for log in document["logs"]] == ["log0", "log1"]
    assert {"id", "severity", "title", "found", "cause", "fix", "source", "flag"} <= set(
        document["issues"][0]
    )


@pytest.mark.parametrize("error", ["KeyError: {}", "AssertionError: {}", "RuntimeError: same"])
def test_a_flood_of_errors_is_read_once(error, monkeypatch):
    """Each line, and the tracebacks of a bounded number; it was 60 lines for each error."""
    calls = 0
    real = log_lines.read

    def counted(raw):
        nonlocal calls
        calls += 1
        return real(raw)

    monkeypatch.setattr(log_lines, "read", counted)
    monkeypatch.setattr(explain_module, "TRACES", 50)
    count = 8_000  # at 60 lines each far more than the bound
    text = "\n".join(error.format(number) for number in range(count))
    found = explain_module.explain([log_of(text)])
    assert sum(p.count for p in found.problems) <= count
    assert len(found.problems) <= explain_module.MOST
    assert calls <= count + 61 * (explain_module.MOST + 50)


def test_how_often_an_error_was_seen_is_counted_exactly():
    text = "RuntimeError: No CUDA GPUs are available\nKeyError: 1\n" * 3000
    found = explain_module.explain([log_of(text)])
    assert [p.count for p in found.problems] == [3000, 3000]


@pytest.mark.parametrize(
    "line",
    [
        "engine (v0.19.0) Initializing a V1 tensor_parallel_size={}",
        "rank 0 in world size {}",
        "RuntimeError: x [repeated {}x across cluster]",
        "rank {} KeyError: x",
    ],
)
def test_a_number_that_no_program_prints(line):
    """Python refuses to read one of more than 4,300 digits."""
    explain(line.format("9" * 7000)).to_dict()


@pytest.mark.parametrize(
    "line",
    [
        "KeyError: 'layers.0.mlp.experts.w13_weight_scale_2'",
        "KeyError: 'layers.0.mlp.down_proj.weight_scale'",
    ],
)
def test_scales_that_are_missing_of_any_model_are_not_taken_for_gemma(line):
    issue = explain(f"{line}\n").cause.to_dict()
    assert "gemma" not in issue["title"].lower()
    assert "31B" not in issue["title"]
    assert issue["fix"].startswith("a newer vLLM")


FORM = "Repo id must be in the form 'repo_name' or 'namespace/repo_name': '{}'. Use `repo_type`"
LETTERS = (
    "Repo id must use alphanumeric chars, '-', '_' or '.'. The name cannot start or end with '-' "
    "or '.' and the maximum length is 96: '{}'."
)
OLD_LETTERS = (
    "Repo id must use alphanumeric chars or '-', '_', '.', '--' and '..' are forbidden, '-' and "
    "'.' cannot start or end the name, max length is 96: '{}'."
)
HUB = "huggingface_hub.errors.HFValidationError: "


@pytest.mark.parametrize("message", [FORM, LETTERS, OLD_LETTERS])
@pytest.mark.parametrize(
    "path", ["/models/none", "./models", "./models/none", "models/a/b", "~/models/x", "../m/x/y"]
)
def test_a_path_that_the_hub_refuses_is_a_missing_model(message, path):
    assert explain(HUB + message.format(path)).cause.finding.id == "model-path-missing"


@pytest.mark.parametrize("message", [FORM, LETTERS, OLD_LETTERS])
@pytest.mark.parametrize("name", ["google/gemma 4", "gemma-4-", "a--b", "google/gemma~4"])
def test_a_name_that_the_hub_refuses_is_no_path(message, name):
    assert explain(HUB + message.format(name)).cause.finding.id != "model-path-missing"
