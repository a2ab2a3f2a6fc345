"""A folder that is a node for the sampler: files of /proc and /sys, and a nvidia-smi."""

from pathlib import Path

from cases import cases
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
FILES: dict[str, str] = cases(__file__, "data/telemetry.toml")
PAGE = FILES.pop("metrics")
"""What `/metrics` of vLLM tells."""

HCA = "sys/class/infiniband/rocep1s0f1"


def loop(line: str = BUSY) -> str:
    """Shell that prints a line again and again, as nvidia-smi -lms does."""
    return f"while :; do echo '{line}'; sleep 0.05; done"


def nvidia_smi(root: Path, *, gpu: str = "", apps: str = f"echo '{APPS}'") -> Path:
    """Give a node a nvidia-smi: shell for --query-gpu, and for --query-compute-apps."""
    text = SMI.format(gpu=gpu or loop(), apps=apps)
    return put(root / "usr/local/bin/nvidia-smi", text, 0o755).parent


def put_system(root: Path) -> None:
    """The files of /proc and /sys of a node with one HCA."""
    for name, text in FILES.items():
        put(root / name, text)
    (root / HCA / "device/net/enp1s0f1np1").mkdir(parents=True)
