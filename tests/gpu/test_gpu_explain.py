"""`explain` on starts that fail on a real GPU, and a plan next to what another process holds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gpu_recipes import PARIS, recipe, write

pytestmark = pytest.mark.gpu

LEFT_GIB = 30
"""What another process leaves of the GPU's memory."""

LOADS_SHARE = 0.15
"""Of the GPU: less than is left, so that vLLM begins to load what does not fit."""

FAIL_S = 180
"""In which each of them must have failed."""

HOLD = """\
import os, sys, time, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - int(sys.argv[1]) * 2**30, dtype=torch.uint8, device="cuda")
held.fill_(1)
torch.cuda.synchronize()
print(os.getpid(), flush=True)
time.sleep(900)
"""

EAGER = ("--enforce-eager", "--max-model-len", "4096")


@dataclass(frozen=True)
class Failure:
    """A command line that fails, and the known issue that it is.

    Attributes:
        model: `paris`, `gemma4`, or a path.
        arguments: of `vllm serve`.
    """

    issue: str
    model: str
    arguments: tuple[str, ...]


FAILURES = {
    "folder": Failure("model-path-missing", "/srv/models/not-there", ()),
    "quantization": Failure("quantization-unknown", "paris", ("--quantization", "nonesuch")),
    "length": Failure("context-beyond-model", "paris", ("--max-model-len", "8192")),
    "value": Failure("wrong-flag-value", "paris", ("--kv-cache-dtype", "int3")),
    "gate": Failure("start-gate", "paris", ("--gpu-memory-utilization", "0.9", *EAGER)),
    "load": Failure(
        "memory-held-by-others",
        "gemma4",
        ("--load-format", "dummy", "--gpu-memory-utilization", str(LOADS_SHARE), *EAGER),
    ),
}


def clean_environment(recipe_env: dict[str, str]) -> dict[str, str]:
    """The variables of an engine that is started by hand."""
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**given, **recipe_env, "VLLM_LOGGING_COLOR": "0"}


@pytest.fixture(scope="module")
def holder(user, environment) -> Iterator[int]:
    """Another process that holds most of the GPU's memory; its id."""
    user("down")
    argv = user.node.argv([f"{environment}/bin/python3", "-c", HOLD, str(LEFT_GIB)])
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env=clean_environment({}), start_new_session=True
    )
    try:
        line = process.stdout.readline()
        assert line, "it could not take the memory"
        yield int(line)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=60)


@pytest.fixture(scope="module")
def logs(user, environment, gemma4, holder) -> dict[str, Path]:
    """Logs of all failures, by name: they are provoked at the same time, next to the holder."""
    assert holder
    document = json.loads((user.home / f"recipes/{PARIS}.yaml").read_text())
    models = {"paris": document["model"]["directory"], "gemma4": str(gemma4)}
    more = [word for flag, value in engine_args(document).items() for word in (flag, value)]
    folder = user.out / "failures"
    folder.mkdir(exist_ok=True)
    started = {}
    for number, (name, failure) in enumerate(FAILURES.items()):
        model = models.get(failure.model, failure.model)
        argv = [f"{environment}/bin/vllm", "serve", model, "--host", "127.0.0.1"]
        argv += ["--port", str(8100 + number), *failure.arguments, *more]
        with (folder / f"{name}.log").open("w") as log:
            log.write(f"$ vllm {' '.join(argv[1:])}\n")
            log.flush()
            started[name] = subprocess.Popen(
                user.node.argv(argv),
                stdout=log,
                stderr=subprocess.STDOUT,
                env=clean_environment(document["env"]),
                cwd=folder,
                start_new_session=True,
            )
    return {name: failed(folder / f"{name}.log", one) for name, one in started.items()}


def engine_args(document: dict[str, Any]) -> dict[str, str]:
    """The arguments that this machine needs, beyond those of the recipe itself."""
    needed = {"attention-backend"} & document["engine_args"].keys()
    return {f"--{flag}": str(document["engine_args"][flag]) for flag in needed}


def failed(log: Path, process: subprocess.Popen[bytes]) -> Path:
    """Wait until it has failed, and return its log."""
    try:
        status = process.wait(timeout=FAIL_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=60)
        raise AssertionError(f"no failure after {FAIL_S} s:\n{log.read_text()[-2000:]}") from None
    assert status != 0, log.read_text()[-2000:]
    return log


@pytest.mark.parametrize("name", FAILURES)
def test_the_cause_is_named(user, logs, name):
    document = user.json("explain", str(logs[name]))
    assert document["verdict"] == "cause", document
    assert document["cause"]["id"] == FAILURES[name].issue


def test_the_process_that_holds_the_memory_is_named(user, holder, logs):
    cause = user.json("explain", str(logs["load"]))["cause"]["cause"]
    assert f"process {holder} holds" in cause


def test_a_plan_next_to_it(user, environment, gemma4, holder):
    """The GPU's own memory counts, of which it holds most; the machine's is free."""
    document = recipe("gpu-gemma4-held", gemma4, environment, engine_args={"max-model-len": 65536})
    name = write(user.home, document)
    allowed = ("--allow-venv", "--allow-file", str(gemma4))
    plan = user.json("plan", name, "--tp", "1", *allowed, status=4)
    (node,) = plan["nodes"]
    assert node["available_gib"] == pytest.approx(LEFT_GIB, abs=1.5)
    assert [one["pid"] for one in node["held_by"]] == [holder]
    assert f"(pid {holder})" in plan["reasons"][0]
    refused = user("up", "--recipe", name, "--tp", "1", *allowed, status=4)
    assert f"(pid {holder})" in refused.printed
