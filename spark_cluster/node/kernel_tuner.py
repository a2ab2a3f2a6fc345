"""The engine's own tuner, one batch size after another, in a process that a transient unit runs.

What was measured for a batch size is kept at once: hours of it outlive a limit, a crash of the
tuner and a power cut, and the next run goes on with the sizes that lack.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_cluster.node import confinement, locks, own_program, tuned_kernels
from spark_cluster.node.beneath import Folder
from spark_cluster.node.engine_caches import short
from spark_cluster.node.values import ResourceError

CONTAINER = "spark-tune"
LABEL = "spark-cluster.tune"
TUNER = "benchmarks/kernels/benchmark_moe.py"
"""In vLLM's source tree; vllm/vllm-openai has it under /vllm-workspace (its Dockerfile copies
`benchmarks`), a wheel does not."""

INSIDE = "/spark-cluster-tuner.py"
OUTPUT = "/spark-cluster-tuned"
PROBE_S, REMOVE_S = 300.0, 60.0
LINES_KEPT = 200

PROBE = f"""
import importlib.metadata as m, importlib.util as u, json, os, sys
spec = u.find_spec("vllm")
near = [os.path.dirname(os.path.dirname(spec.origin))] if spec and spec.origin else []
folders = ["/vllm-workspace", *near, os.getcwd()]
found = [p for f in folders if os.path.isfile(p := os.path.join(f, "{TUNER}"))]
try:
    version = m.version("vllm")
except m.PackageNotFoundError:
    version = ""
place = "vllm/model_executor/layers/fused_moe/configs"
ships = any(os.path.isfile(os.path.join(f, place, sys.argv[1])) for f in near)
ray = bool(u.find_spec("ray"))
print(json.dumps({{"tuner": (found or [""])[0], "ray": ray, "vllm": version, "ships": ships}}))
"""
"""Asks an image for its tuner, Ray, version, and whether it ships parameters for a file's name."""


def argv(request: Mapping[str, Any]) -> list[str]:
    """Return the command that tunes, with this very code.

    Args:
        request: `image` (its id), `root` (folder of the caches), `lock` (its file), `entry`
            (model, tp, gpu, file), `words` (arguments of the tuner), `sizes`, `renew` (also what is
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
    """Tune what lacks, and return what was done. Raises ResourceError, OSError."""
    with _alone(Path(request["lock"])):
        return _tuned(request)


def _tuned(request: Mapping[str, Any]) -> dict[str, Any]:
    remove_container()  # of a run that was killed
    until = time.monotonic() + float(request["limit_s"])
    engine = _tuner(request)
    files = Folder(Path(request["root"]))
    folder = Path(tuned_kernels.folder_of(request["root"], request["image"]))
    staging = folder.with_name(f".{folder.name}.tuning")
    found: dict[str, Any] = {"sizes": [], "left": [], "file": request["entry"]["file"]}
    there = set() if request["renew"] else there_are(request)
    lacking = [size for size in request["sizes"] if size not in there]
    try:
        for number, size in enumerate(lacking, 1):
            print(f"batch size {size} ({number} of {len(lacking)})", flush=True)
            output = staging / "output"
            files.remove(output)
            files.make(output)
            if not _run(_container(request, engine, staging, size), until):
                found["left"] = lacking[number - 1 :]
                break
            _keep(request, engine, files, output, folder)
            found["sizes"].append(size)
    finally:
        remove_container()
        files.remove(staging)
    return {**found, "ships": engine["ships"]}


def there_are(request: Mapping[str, Any]) -> set[int]:
    """Return the batch sizes that are tuned for a model, its size, a GPU and an image.

    The name of the file is left to the engine.
    """
    image = short(str(request["image"]))
    wanted = {key: request["entry"][key] for key in ("model", "tp", "gpu")} | {"image": image}
    entries = tuned_kernels.read(Path(request["root"]))
    return {size for one in entries if wanted.items() <= one.items() for size in one["sizes"]}


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold the lock of tuning on this node.

    Raises:
        ResourceError: another one has it.
    """
    handle = locks.opened(lock)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ResourceError(
            "another tuning runs on this node",
            "the command that began it waits for it; `spark-cluster down` ends it, and keeps what "
            "it has measured",
        ) from None
    finally:
        os.close(handle)


def _keep(
    request: Mapping[str, Any],
    engine: Mapping[str, Any],
    files: Folder,
    output: Path,
    folder: Path,
) -> None:
    """Keep what the tuner wrote for one batch size."""
    written = sorted(
        n for n, _ in files.entries(output) if n.startswith("E=") and n.endswith(".json")
    )
    if len(written) != 1:
        names = ", ".join(written)[:300] or "nothing"
        raise ResourceError(f"the tuner ended well and wrote {names}, expected one file E=*.json")
    entry = {**request["entry"], "engine": engine["vllm"], "at": time.time()}
    if written[0] != entry["file"]:
        print(f"the engine's name for it is {written[0]}", flush=True)
        entry["file"] = written[0]
    tuned_kernels.keep(files, folder, entry, tuned_kernels.parameters(files, output / written[0]))


def _container(
    request: Mapping[str, Any], engine: Mapping[str, Any], staging: Path, size: int
) -> list[str]:
    """Return the command that runs the tuner: no network, no secrets, its output mounted."""
    program = INSIDE if request["tuner"] else engine["tuner"]
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
        *("--workdir", f"{OUTPUT}/output", "--entrypoint", "python3", request["image"]),
        *(program, *request["words"], "--tune", "--save-dir", f"{OUTPUT}/output"),
        *("--batch-size", str(size)),
    ]


def _run(command: Sequence[str], until: float) -> bool:
    """Run the tuner, and pass on what it prints.

    Returns:
        False where the time is over.

    Raises:
        ResourceError: it failed.
    """
    last: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process, _ended_at(until) as over:  # fmt: skip
        for line in process.stdout or ():
            text = line.decode(errors="replace").rstrip()
            if text:
                last = [*last, text][-LINES_KEPT:]
                print(text[:200], flush=True)
        status = process.wait()
    if over:
        return False
    if status != 0:
        raise ResourceError(
            f"the tuner ended with status {status}: {_reason(last)}",
            "vLLM's tuner may not know this model or this GPU; what was measured before is kept",
        )
    return True


@contextlib.contextmanager
def _ended_at(until: float) -> Iterator[list[bool]]:
    """End the container when the time is over; then the list is not empty."""
    over: list[bool] = []

    def end(_signal: int, _frame: Any) -> None:
        over.append(True)
        remove_container()

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(0.1, until - time.monotonic()))
    try:
        yield over
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _reason(lines: Sequence[str]) -> str:
    """Return the line that says why: the last of an exception, else the last one."""
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    return (errors or list(lines) or ["it printed nothing"])[-1][:300]


def _tuner(request: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the image for its tuner, Ray and version.

    Raises:
        ResourceError: the image cannot tune.
    """
    command = [
        *("docker", "run", "--rm", "--network", "none", "--entrypoint", "python3"),
        *confinement.options(*confinement.ENGINE),
        *(word for volume in request["volumes"] for word in ("--volume", volume)),
        *(request["image"], "-c", PROBE, str(request["entry"]["file"])),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, check=False)
        found = json.loads(done.stdout.strip().rpartition("\n")[2])
    except (subprocess.TimeoutExpired, ValueError):
        raise ResourceError(
            "the image does not answer where its tuner is", "does it have python3 and vLLM?"
        ) from None
    if not found["ray"]:
        raise ResourceError(
            "the image has no Ray, which vLLM's tuner runs on",
            "a build of the image with `RUN pip install ray` has it: image.build in the recipe",
        )
    if not found["tuner"] and not request["tuner"]:
        version = found["vllm"].partition("+")[0] or "VERSION"
        raise ResourceError(
            f"the image does not have vLLM's tuner ({TUNER})",
            "give that of the same version: https://github.com/vllm-project/vllm/blob/"
            f"v{version}/{TUNER} saved as a file, and --tuner FILE",
        )
    return dict(found)


def remove_container() -> None:
    """Remove the tuner's container, where there is one."""
    with contextlib.suppress(subprocess.TimeoutExpired, OSError):
        subprocess.run(
            ["docker", "rm", "--force", CONTAINER],
            capture_output=True,
            timeout=REMOVE_S,
            check=False,
        )
