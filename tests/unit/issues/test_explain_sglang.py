"""Logs of SGLang: whose they are, the causes that are certain, and the line that decides.

The lines are of public reports: sglang-4895, sglang-5285, sglang-12818, sglang-8741, sglang-4289.
"""

from __future__ import annotations

import pytest
from factories import log_of

from spark_cluster.issues.explain import Explanation, explain

BEGIN = """\
[2025-03-29 18:17:20] server_args=ServerArgs(model_path='/srv/models/m', tokenizer_path='m', \
device='cuda', host='127.0.0.1', port=8000, mem_fraction_static=0.8, tp_size=2, nnodes=2)
[2025-03-29 18:17:35 TP0] Init torch distributed begin.
[2025-03-29 18:17:36 TP0] Load weight begin. avail mem=110.21 GB
[2025-03-29 18:18:33 TP0] Load weight end. type=M, dtype=torch.bfloat16, avail mem=21.73 GB, \
mem usage=88.59 GB.
"""
HIT = """\
[2025-03-29 18:18:34 TP{rank}] Scheduler hit an exception: Traceback (most recent call last):
  File "/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py", line 1999, in run
    scheduler = Scheduler(server_args, port_args, gpu_id, tp_rank, dp_rank)
{errors}

"""
SIGQUIT = (
    "[2025-03-29 18:18:35] Received sigquit from a child process. It usually means the child "
    "failed.\n"
)
UP = """\
[2025-03-29 18:18:40 TP0] max_total_num_tokens=262144, chunked_prefill_size=8192, context_len=8192
[2025-03-29 18:18:41] INFO:     Application startup complete.
[2025-03-29 18:18:44] INFO:     127.0.0.1:1 - "POST /generate HTTP/1.1" 200 OK
[2025-03-29 18:18:44] The server is fired up and ready to roll!
"""
CHAIN = """\
OSError: disk quota of /root/.cache

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/sgl-workspace/sglang/python/sglang/srt/model_executor/cuda_graph_runner.py", line 269
Exception: Prepare the kernels failed: disk quota of /root/.cache
Possible solutions:
1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)"""


def hit(errors: str, rank: int = 0) -> str:
    return HIT.format(rank=rank, errors=errors)


def of(*texts: str) -> Explanation:
    return explain([log_of(text, f"log{n}") for n, text in enumerate(texts)])


def test_a_healthy_start_is_known_as_its_own():
    explanation = of(BEGIN.replace("tp_size=2", "tp_size=1") + UP)
    assert explanation.engine == "SGLang"
    assert explanation.problems == []
    assert explanation.missing == []
    assert explanation.facts == {
        "model": "/srv/models/m",
        "tensor parallel": "1",
        "weights": "88.59 GB",
        "KV tokens": "262144",
        "up": "The server is fired up and ready to roll",
    }


def test_it_is_not_up_when_only_its_http_server_is():
    """Uvicorn's own line comes before the warm-up, in which a start still fails."""
    explanation = of(BEGIN + hit("RuntimeError: x") + "INFO:     Application startup complete.\n")
    assert explanation.cause.finding.found == "RuntimeError: x"
    assert not explanation.cause.overcome
    assert any("fired up" in line for line in explanation.missing)


CERTAIN = [
    (
        "sglang-no-room-for-kv",
        BEGIN
        + hit("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
        + SIGQUIT,
    ),
    (
        "cuda-out-of-memory",
        BEGIN
        + hit("Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 448.00")
        + SIGQUIT,
    ),
    (
        "unknown-flag",
        "usage: launch_server.py [-h] --model-path MODEL_PATH [--tokenizer-path TOKENIZER_PATH]\n"
        "launch_server.py: error: unrecognized arguments: --reasoning_parser kimi_k2\n",
    ),
    (
        "port-taken",
        BEGIN
        + "[2025-03-29 18:18:41] ERROR:    [Errno 98] error while attempting to bind on address "
        "('127.0.0.1', 8000): address already in use\n",
    ),
    (
        "model-path-missing",
        BEGIN
        + "OSError: Can't load the configuration of '/srv/models/m'. If you were trying to load it "
        "from 'https://huggingface.co/models', make sure you don't have a local directory with the "
        "same name. Otherwise, make sure '/srv/models/m' is the correct path to a directory "
        "containing a config.json file\n",
    ),
    (
        "nccl-cannot-connect",
        BEGIN + "spark1:139:1092 [7] socket.c:485 NCCL WARN socketStartConnect: Connect to "
        "10.0.0.82<38455> failed : Software caused connection abort\n"
        + hit("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO)")
        + SIGQUIT,
    ),
    ("ranks-did-not-meet", BEGIN + hit("torch.distributed.DistStoreError: Timed out after 601 s")),
]


@pytest.mark.parametrize(("issue", "text"), CERTAIN, ids=[issue for issue, _ in CERTAIN])
def test_causes_that_are_certain(issue: str, text: str):
    explanation = of(text)
    assert explanation.engine == "SGLang"
    assert explanation.cause.finding.id == issue
    assert not explanation.cause.follows
    assert all(seen.follows for seen in explanation.problems[1:])


HEALTHY = [
    "[2025-03-29 18:18:34 TP0] max_total_tokens=131072 is larger than the profiled value 56198. "
    "Use the profiled value instead.",
    "Repo id must be in the form 'repo_name' or 'namespace/repo_name': 'a b/c'. Use `repo_type`",
    "h100-15:132:132 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1",
    '[2025-03-29 18:18:44] INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 503 Service Unavailable',
]


@pytest.mark.parametrize("line", HEALTHY)
def test_lines_that_are_like_them_and_mean_nothing(line: str):
    assert of(f"{BEGIN}{line}\n{UP}").problems == []


def test_without_a_known_cause_the_last_line_of_the_first_traceback():
    explanation = of(BEGIN + hit(CHAIN) + SIGQUIT)
    assert explanation.cause.finding.found == (
        "Exception: Prepare the kernels failed: disk quota of /root/.cache"
    )
    assert not explanation.cause.known
    assert explanation.cause.at == "03-29 18:18:34.000000"
    found = [seen.finding.id or seen.finding.found for seen in explanation.problems]
    assert found[1:] == ["OSError: disk quota of /root/.cache", "sglang-child-failed"]


def test_the_rank_that_failed_first():
    late = BEGIN + hit("RuntimeError: late", rank=1).replace("18:18:34", "18:19:00")
    explanation = of(late, BEGIN + hit("RuntimeError: early"))
    assert explanation.cause.finding.found == "RuntimeError: early"
    assert explanation.cause.where == "log1:8"


def test_a_known_cause_stays_before_what_wraps_it():
    text = CHAIN.replace(
        "OSError: disk quota of /root/.cache", "RuntimeError: No CUDA GPUs are available"
    )
    assert of(BEGIN + hit(text)).cause.finding.id == "gpu-dead"


def test_a_process_that_was_killed_from_outside():
    explanation = of(BEGIN + UP + SIGQUIT)
    assert explanation.verdict == "effects"
    assert explanation.cause.finding.id == "sglang-child-failed"
    assert [seen.finding.id for seen in explanation.problems] == ["sglang-child-failed"]


def test_the_other_rank_is_missing():
    alone = of(BEGIN + UP)
    assert "the log of 1 of 2 ranks: give all ranks' logs" in alone.missing
    second = BEGIN.replace("TP0", "TP1")
    assert not any("ranks:" in line for line in of(BEGIN + UP, second).missing)
    assert not any("took requests" in line for line in of(second).missing)


def test_a_log_of_vllm_stays_one():
    line = "INFO 11-20 14:00:00 [core.py:1] Initializing a V1 LLM engine (v0.28.0) with config: m\n"
    assert of(line).engine == "vLLM"
    assert of("KeyError: 'a'\n").engine == ""
