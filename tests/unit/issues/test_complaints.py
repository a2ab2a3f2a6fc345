"""Lines that look like an error without being an exception."""

from __future__ import annotations

import pytest

from spark_cluster.issues.log_lines import ANCHORS, complaint_in, faint_complaint_in, read

PLAIN = [
    "vllm serve: error: argument --port: expected one argument",
    "Error: No such option: --node-ip",
    "docker: Error response from daemon: Conflict.",
    "ptxas fatal   : Ptx assembly aborted due to errors",
    "ptxas /tmp/x.ptx, line 21; error   : Feature 'cvt' requires .target sm_100a or higher",
    "/bin/bash: line 1: ray: command not found",
    "spark1:1:1 [0] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr failed",
    "(autoscaler +41s) Error: No available node types can fulfill resource request {}",
    "[2025-06-13 01:49:41,730 E 1 1] gcs_rpc_client.h:179: Failed to connect",
    "Nov 20 14:14:29 spark1 kernel: Out of memory: Killed process 4711 (python3)",
    "Hunk #1 FAILED at 1000.",
    "(W pid=1) ERROR 11-20 14:14:29 [a.py:1] something that was logged as an error",
]
NONE = [
    "INFO 11-20 14:12:18 [a.py:1] error: handled",
    "WARNING 11-20 14:12:18 [a.py:1] error: but served",
    '(W pid=1) ERROR 11-20 14:14:29 [a.py:1]   File "x.py", line 1, in f',
    "(W pid=1) ERROR 11-20 14:14:29 [a.py:1]     raise RuntimeError(",
    "(W pid=1) ERROR 11-20 14:14:29 [a.py:1] Traceback (most recent call last):",
    "(W pid=1) ERROR 11-20 14:14:29 [dump_input.py:79] Dumping input data",
    "(W pid=1) ERROR 11-20 14:14:29 [a.py:1] For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "Loading safetensors checkpoint shards: 100% Completed",
    "",
]


@pytest.mark.parametrize("raw", PLAIN)
def test_what_looks_like_an_error(raw):
    assert complaint_in(read(raw))
    assert any(anchor in raw for anchor in ANCHORS), "or it is never looked at"


@pytest.mark.parametrize("raw", NONE)
def test_what_does_not(raw):
    assert complaint_in(read(raw)) == ""


def test_a_word_that_may_mean_one():
    assert faint_complaint_in(read("2 workers killed at node 10.0.0.1"))
    assert faint_complaint_in(read("x NCCL INFO Failed to open libibverbs.so[.1]")) == ""
    assert faint_complaint_in(read("INFO:     a request failed")) == ""
