"""A folder that is a node for the sampler: files of /proc and /sys, and a nvidia-smi."""

from __future__ import annotations

from pathlib import Path

from factories import put

BUSY = "96, 2411, 45.10, 62, Not Active, Not Active, Not Active, Active"
APPS = "2065247, VLLM::Worker_TP0, 102843"
SMI = """\
#!/bin/sh
case "$*" in
*compute-apps*) {apps} ;;
*) {gpu} ;;
esac
"""
MEMINFO = """\
MemTotal:       127600748 kB
MemFree:         1000000 kB
MemAvailable:   20971520 kB
SwapTotal:      16777212 kB
SwapFree:       16776188 kB
"""
NETWORK = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0
enp1s0f1np1: 1000 1 0 0 0 0 0 0 2000 1 0 0 0 0 0 0
enP7s7: 300 1 0 0 0 0 0 0 400 1 0 0 0 0 0 0
veth12: 7 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0
"""
HCA = "sys/class/infiniband/rocep1s0f1"

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a} b{"} 4.0
vllm:num_requests_running{engine="1",model_name="a} b{"} 1.0
vllm:num_requests_waiting{engine="0",model_name="x"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="x"} 0.125
vllm:kv_cache_usage_perc{engine="1",model_name="x"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="x"} 1000.0
vllm:prompt_tokens_created{engine="0",model_name="x"} 1.7e+09
vllm:generation_tokens_total{engine="0",model_name="x"} 500.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="x"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="x"} 40.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="x"} 30.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="x"} 7.0
process_virtual_memory_bytes 1e+09
"""


def loop(line: str = BUSY) -> str:
    """Shell that prints a line again and again, as nvidia-smi -lms does."""
    return f"while :; do echo '{line}'; sleep 0.05; done"


def nvidia_smi(root: Path, *, gpu: str = "", apps: str = f"echo '{APPS}'") -> Path:
    """Give a node a nvidia-smi: shell for --query-gpu, and for --query-compute-apps."""
    text = SMI.format(gpu=gpu or loop(), apps=apps)
    return put(root / "usr/local/bin/nvidia-smi", text, 0o755).parent


def put_system(root: Path) -> None:
    """The files of /proc and /sys of a node with one HCA."""
    put(root / "proc/meminfo", MEMINFO)
    put(root / "proc/vmstat", "nr_free_pages 5\npswpin 3\npswpout 4\n")
    put(root / "proc/net/dev", NETWORK)
    put(root / HCA / "ports/1/counters/port_rcv_data", "25\n")
    put(root / HCA / "ports/1/counters/port_xmit_data", "50\n")
    put(root / HCA / "ports/1/hw_counters/out_of_sequence", "2\n")
    (root / HCA / "device/net/enp1s0f1np1").mkdir(parents=True)
