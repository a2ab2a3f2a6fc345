"""vLLM's own tuner, one batch size after another, in a process that a transient unit runs.

What was measured for a batch size is kept at once: hours of it outlive a limit, a crash of the
tuner and a power cut, and the next run goes on with the sizes that are missing. Which file the
result belongs into and what is in it is the tuner's own business.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_cluster.node import confinement, durable, engine_caches, own_program
from spark_cluster.node.beneath import Folder
from spark_cluster.node.output import Lines
from spark_cluster.node.processes import Processes, TooLong
from spark_cluster.node.safe_paths import closing_handle
from spark_cluster.node.values import ResourceError

CONTAINER = "spark-tune"
LABEL = "spark-cluster.tune"
TUNER = "benchmarks/kernels/benchmark_moe.py"
"""In vLLM's source tree; vllm/vllm-openai has it under /vllm-workspace (its Dockerfile copies
`benchmarks`), a wheel does not."""

INSIDE = "/spark-cluster-tuner.py"
OUTPUT = "/spark-cluster-tuned"
REMOVE_S = 60.0
LINES_KEPT = 200
LONGEST_LINE = 4096
"""Characters of a line of the tuner's that are kept."""

CANNOT = 78
"""Exit status of `LAUNCH` where the image cannot tune (EX_CONFIG of sysexits.h)."""

LAUNCH = f"""
import importlib.metadata, importlib.util, os, sys
given, arguments = sys.argv[1], sys.argv[2:]
spec = importlib.util.find_spec("vllm")
near = [os.path.dirname(os.path.dirname(spec.origin))] if spec and spec.origin else []
places = [os.path.join(f, "{TUNER}") for f in ("/vllm-workspace", *near, os.getcwd())]
found = [given] if given else [place for place in places if os.path.isfile(place)]
versions = [one.version for one in importlib.metadata.distributions(name="vllm")]
version = versions[0].partition("+")[0] if versions else "VERSION"
if not importlib.util.find_spec("ray"):
    print("the image has no Ray, which vLLM's tuner runs on; a build of the image with "
          "`RUN pip install ray` has it: image.build in the recipe")
    sys.exit({CANNOT})
if not found:
    print("the image does not have vLLM's tuner ({TUNER}); give that of the same version: "
          f"https://github.com/vllm-project/vllm/blob/v{{version}}/{TUNER} "
          "saved as a file, and --tuner FILE")
    sys.exit({CANNOT})
os.execv(sys.executable, [sys.executable, found[0], *arguments])
"""
"""Starts the tuner that is given, or the image's own; else says what is missing; and what to do."""


def argv(request: Mapping[str, Any]) -> list[str]:
    """Return the command that tunes, with this very code.

    Args:
        request: `image` (its id), `root` (folder of the caches), `folder` (the model's below it),
            `lock` (its file), `words` (arguments of the tuner), `sizes`, `renew` (also what is
            tuned), `volumes`, `env`, `tuner` (a file of the node, or empty for the image's own),
            `limit_s`. It does not depend on what is done already: the same work must be found while
            it runs.
    """
    return own_program.argv(__name__, json.dumps(dict(request), sort_keys=True))


def main(text: str) -> None:
    """Tune; the last line of output is JSON: its result, or `error` and `hint`."""
    signal.signal(signal.SIGTERM, _ended)
    own_program.print_answer(lambda: tune(json.loads(text)))


def _ended(_signal: int, _frame: Any) -> None:
    remove_container()  # or the command that waits for it would keep us here
    raise ResourceError("it was ended from outside", "run it again: what was measured is kept")


def tune(request: Mapping[str, Any]) -> dict[str, Any]:
    """Tune the sizes that are missing; return those that were tuned, and those that are `left`.

    Raises:
        ResourceError: the image cannot tune, the tuner failed, or another one runs on this node.
        OSError: the result cannot be written.
    """
    with _alone(Path(request["lock"])):
        return _tuned(request)


def _tuned(request: Mapping[str, Any]) -> dict[str, Any]:
    remove_container()  # of a run that was killed
    until = time.monotonic() + float(request["limit_s"])
    files = Folder(Path(request["root"]))
    folder = Path(request["folder"])
    staging = folder.parent.with_name(f".{folder.parent.name}.tuning")
    present = set() if request["renew"] else engine_caches.tuned_sizes(files, folder)
    missing = [size for size in request["sizes"] if size not in present]
    try:
        for number, size in enumerate(missing):
            print(f"batch size {size} ({number + 1} of {len(missing)})", flush=True)
            output = staging / "output"
            files.remove(output)
            files.make(output)
            if not _run(_container(request, staging, size), until):
                return {"sizes": missing[:number], "left": missing[number:]}
            engine_caches.keep_tuned(files, folder, output)
    finally:
        remove_container()
        files.remove(staging)
    return {"sizes": missing, "left": []}


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold the lock of tuning on this node.

    Raises:
        ResourceError: another one has it.
    """
    with closing_handle(durable.open_lock(lock)) as handle:
        if not durable.take_lock(handle):
            raise ResourceError(
                "another tuning runs on this node",
                "the command that began it waits for it; `spark-cluster down` ends it, and keeps "
                "what it has measured",
            )
        yield


def _container(request: Mapping[str, Any], staging: Path, size: int) -> list[str]:
    """Return the command that runs the tuner: no network, no secrets, its output mounted."""
    volumes = [*request["volumes"], f"{staging}:{OUTPUT}"]
    if request["tuner"]:
        volumes.append(f"{request['tuner']}:{INSIDE}:ro")
    env = {
        **request["env"],
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TRITON_CACHE_DIR": f"{OUTPUT}/triton",  # kernels of one size serve the others
        "PYTHONUNBUFFERED": "1",
    }
    return [
        *("docker", "run", "--rm", "--init", "--name", CONTAINER, "--label", f"{LABEL}=1"),
        *("--network", "none", "--ipc", "host", "--gpus", "all", "--ulimit", "memlock=-1"),
        *confinement.options(*confinement.ENGINE),
        *(word for volume in volumes for word in ("--volume", volume)),
        *(word for name, value in env.items() for word in ("--env", f"{name}={value}")),
        *("--entrypoint", "python3", request["image"], "-c", LAUNCH),
        *(INSIDE if request["tuner"] else "", *request["words"], "--tune"),
        *("--save-dir", f"{OUTPUT}/output", "--batch-size", str(size)),
    ]


def _run(command: Sequence[str], until: float) -> bool:
    """Run the tuner, and pass on what it prints.

    Returns:
        False where the time is over.

    Raises:
        ResourceError: it failed, or the image cannot tune.
    """
    last = deque[str](maxlen=LINES_KEPT)

    def tell(line: str) -> None:
        if line:
            last.append(line[:LONGEST_LINE])
            print(line[:200], flush=True)

    lines, left = Lines(tell), max(0.1, until - time.monotonic())
    try:
        with Processes().start(command, env=os.environ, timeout=left, merged=True) as running:
            status = running.attend(lambda _number, data: lines.add(data), threading.Event())
    except TooLong:
        return False
    lines.end()
    if status == CANNOT and last:
        what, _, hint = last[-1].partition("; ")
        raise ResourceError(what[:300], hint[:300])
    if status != 0:
        raise ResourceError(
            f"the tuner ended with status {status}: {_reason(last)}",
            "vLLM's tuner may not know this model or this GPU; what was measured before is kept",
        )
    return True


def _reason(lines: Iterable[str]) -> str:
    """Return the line that says why: the last of an exception, else the last one."""
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    return (errors or list(lines) or ["it printed nothing"])[-1][:300]


def remove_container() -> None:
    """Remove the tuner's container, where there is one."""
    own_program.printed(["docker", "rm", "--force", CONTAINER], REMOVE_S)
