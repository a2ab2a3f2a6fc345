"""A stand-in for SGLang's server, not SGLang: no model, no GPU, one answer that is written here.

It takes the command line that spark-cluster renders (`python3 -m sglang.launch_server ...`),
refuses flags that it does not know, logs a start and its failures with SGLang's lines, and answers
at the paths that spark-cluster asks. It shows that an engine is started, waited for and asked; it
shows nothing about SGLang. The lines and paths are those of sglang-4848, sglang-8741, sglang-4330
and sglang-12818 in docs/sources.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VERSION = "0.0.0+stand-in"
LEAST_SHARE = 0.08
"""A smaller share of the memory has no room for a KV cache."""

ANSWER = "Paris"
OTHERWISE = "This is a stand-in for SGLang: it has no model."
ADDRESS_IN_USE = 98
BODY = 1 << 20

VALUES = (
    *("--served-model-name", "--tokenizer-path", "--revision", "--dtype", "--quantization"),
    *("--kv-cache-dtype", "--attention-backend", "--dist-init-addr", "--tool-call-parser"),
    *("--reasoning-parser", "--chat-template"),
)
NUMBERS = (
    *("--context-length", "--max-running-requests", "--max-total-tokens", "--random-seed"),
    *("--chunked-prefill-size", "--pp-size", "--dp-size", "--nccl-port"),
)
SWITCHES = ("--trust-remote-code", "--disable-cuda-graph", "--disable-radix-cache")


def main() -> int:
    args = parser().parse_args()
    shown = ", ".join(f"{name}={value!r}" for name, value in vars(args).items())
    log(f"server_args=ServerArgs({shown})")
    if not Path(args.model_path, "config.json").is_file():
        return failed(
            f"OSError: Can't load the configuration of '{args.model_path}'. If you were trying to "
            "load it from 'https://huggingface.co/models', make sure you don't have a local "
            "directory with the same name. Otherwise, make sure "
            f"'{args.model_path}' is the correct path to a directory containing a config.json file"
        )
    log("Load weight begin. avail mem=100.00 GB")
    log("Load weight end. type=StandIn, avail mem=99.00 GB, mem usage=1.00 GB.")
    if args.mem_fraction_static < LEAST_SHARE:
        return failed(
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
        )
    log("max_total_num_tokens=4096, chunked_prefill_size=8192")
    return serve(args)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags that are known; each other one ends the start."""
    made = argparse.ArgumentParser("launch_server.py", allow_abbrev=False)
    made.add_argument("--model-path", required=True)
    made.add_argument("--host", default="127.0.0.1")
    made.add_argument("--port", type=int, default=30000)
    made.add_argument("--mem-fraction-static", type=float, default=0.88)
    made.add_argument("--tp-size", "--tensor-parallel-size", type=int, default=1)
    made.add_argument("--nnodes", type=int, default=1)
    made.add_argument("--node-rank", type=int, default=0)
    for name in VALUES:
        made.add_argument(name)
    for name in NUMBERS:
        made.add_argument(name, type=int)
    for name in SWITCHES:
        made.add_argument(name, action="store_true")
    return made


def log(text: str) -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    print(f"[{stamp}] {text}", file=sys.stderr, flush=True)


def failed(error: str) -> int:
    """Log an error as SGLang logs one of its scheduler's, and that the server ends by it."""
    log(
        "Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/opt/stand-in/sglang/srt/managers/scheduler.py", line 1, in run\n'
        f"{error}\n"
    )
    log("Received sigquit from a child process. It usually means the child failed.")
    return 1


class Server(ThreadingHTTPServer):
    """The HTTP server; `ready` once the warm-up is over."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, args: argparse.Namespace) -> None:
        self.name = args.served_model_name or args.model_path
        self.length = args.context_length or 4096
        self.ready = threading.Event()
        super().__init__((args.host, args.port), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that goes away, as uvicorn does not."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """The paths that spark-cluster asks."""

    server: Server
    timeout = 60

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(None, 200 if self.server.ready.is_set() else 503)
        elif self.path == "/v1/models":
            model = {
                "id": self.server.name,
                "object": "model",
                "owned_by": "sglang",
                "root": self.server.name,
                "max_model_len": self.server.length,
            }
            self.answer({"object": "list", "data": [model]})
        elif self.path == "/get_server_info":
            self.answer({"version": VERSION})
        else:
            self.answer({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        try:
            size = min(int(self.headers.get("Content-Length", "0")), BODY)
            asked = json.loads(self.rfile.read(size))
            question = str(asked["messages"][-1]["content"])
        except (ValueError, KeyError, IndexError, TypeError):
            self.answer({"object": "error", "message": "not a chat completion", "code": 400}, 400)
            return
        if self.path != "/v1/chat/completions":
            self.answer({"detail": "Not Found"}, 404)
            return
        text = ANSWER if "capital of France" in question else OTHERWISE
        message = {"role": "assistant", "content": text, "reasoning_content": None}
        used = {"prompt_tokens": len(question.split()), "completion_tokens": len(text.split())}
        self.answer(
            {
                "id": "stand-in",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": self.server.name,
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {**used, "total_tokens": sum(used.values())},
            }
        )

    def answer(self, body: Any, status: int = 200) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ARG002
        log(f'INFO:     {self.client_address[0]} - "{self.requestline}" {args[1]}')


def serve(args: argparse.Namespace) -> int:
    """Answer until it is told to end; the scheduler is a process that sleeps."""
    try:
        server = Server(args)
    except OSError as error:
        if error.errno != ADDRESS_IN_USE:
            raise
        place = (args.host, args.port)
        log(
            f"ERROR:    [Errno 98] error while attempting to bind on address {place}: "
            "address already in use"
        )
        return 1
    sleeps = [sys.executable, "-c", "import signal; signal.pause()"]
    scheduler = subprocess.Popen(["sglang::scheduler", *sleeps[1:]], executable=sleeps[0])
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    log("INFO:     Application startup complete.")
    threading.Timer(0.5, lambda: ready(server)).start()
    try:
        server.serve_forever(poll_interval=0.1)
    finally:
        scheduler.kill()
        scheduler.wait(10)
    return 0


def ready(server: Server) -> None:
    server.ready.set()
    log("The server is fired up and ready to roll!")


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads of requests do not keep it
