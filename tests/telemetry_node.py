"""A folder that is a node for the sampler: files of /proc and /sys, a nvidia-smi, a server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from cases import cases
from factories import put
from web_server import Asked, WebServer

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


@contextlib.contextmanager
def server(answer: Callable[[list[str]], tuple[int, str]]) -> Iterator[tuple[str, list[list[str]]]]:
    """A server of `/metrics`: its URL, and the names that it was asked for each time."""
    names: list[list[str]] = []

    def reply(asked: Asked) -> tuple[int, str]:
        names.append(parse_qs(urlsplit(asked.path).query).get("name[]", []))
        return answer(names[-1])

    with WebServer(reply) as made:
        yield f"{made.url}/metrics", names
