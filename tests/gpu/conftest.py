"""This machine with its GPU as a node, and an environment with vLLM: what `make gpu` needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import CHECKOUT, CommandLine, Ran, ended
from gemma4_shape import make_model
from gpu_recipes import PARIS as RECIPE
from gpu_recipes import recipe

ENVIRONMENT = "SPARK_CLUSTER_GPU_VENV"
"""A virtual environment in which vLLM for CUDA is installed."""

KEPT = "SPARK_CLUSTER_GPU_OUT"
"""Folder for the transcript and the JSON documents."""


PAIR = "SPARK_CLUSTER_GPU_PAIR"
"""An inventory, file or name, of two nodes that have a GPU each."""

LAB = "lab-gpus"
"""The inventory of `lab up --gpus`."""

NEEDED_MIB = 70_000
"""Of a GPU's memory, for the weights of a Gemma 4 26B-A4B in BF16 and a cache."""


def why_not() -> str:
    """Return why these tests cannot run here; empty when they can."""
    if not os.environ.get(ENVIRONMENT):
        return f"set {ENVIRONMENT} to an environment with vLLM (docs/gpu.md)"
    if not Path("/run/systemd/system").is_dir():
        return "systemd does not run this machine"
    if os.geteuid() != 0:
        return "root is needed"
    return "" if gpus() else "nvidia-smi shows no GPU"


def gpus() -> list[str]:
    """Return a line for each GPU of this machine."""
    if not shutil.which("nvidia-smi"):
        return []
    found = subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False
    )
    return [line for line in found.stdout.splitlines() if line.startswith("GPU ")]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print why they were skipped once."""
    if terminalreporter.stats.get("skipped") and (why := why_not()):
        terminalreporter.write_line(f"tests/gpu: skipped: {why}")


class Recorded(CommandLine):
    """The command line, of which everything that it prints is kept as a transcript."""

    out: Path
    allowed: tuple[str, ...] = ()
    """Options for a recipe that the inventory does not allow."""

    def __call__(self, *words: str, status: int | None = 0, timeout: float = 600.0) -> Ran:
        ran = ended(self.start(*words), status, timeout)
        self.keep(ran)
        return ran

    def save(self, name: str, document: object) -> None:
        """Keep a document that a test has made of what it saw."""
        (self.out / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")

    def keep(self, ran: Ran) -> None:
        number = len(list(self.out.glob("*.json"))) + 1
        name = f"{number:02}-{ran.argv[0]}.json"
        if "--json" in ran.argv and ran.out:
            (self.out / name).write_text(ran.out)
        with (self.out / "transcript.txt").open("a") as out:
            out.write(f"$ spark-cluster {' '.join(ran.argv)}\n")
            if "--json" not in ran.argv:
                out.write(ran.printed.rstrip() + "\n")
            out.write(f"[status {ran.status}, {ran.seconds:.1f} s]\n\n")


def recipe_text(environment: str, model: Path) -> str:
    """The lab's model on a GPU: no image, no mounts, and what this machine needs."""
    arguments = {
        "dtype": "bfloat16", "max-model-len": 4096, "max-num-seqs": 8,
        "enforce-eager": True, "kv-cache-memory-bytes": "1G",
    }  # fmt: skip
    about = "The lab's model on a real GPU"
    parts = {"engine_args": arguments, "ray": {"object_store_memory": 200_000_000}}
    document = recipe(RECIPE, model, environment, description=about, **parts)
    return json.dumps(document, indent=1)  # which is YAML too


def made_model(folder: Path, environment: str) -> Path:
    """Train the lab's model with the environment's own PyTorch, which takes half a minute."""
    model = folder / "paris"
    code = CHECKOUT / "spark_cluster/lab/assets/train_model.py"
    argv = [f"{environment}/bin/python3", str(code), str(model)]
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    variables.pop("PYTHONPATH", None)
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=600, check=False, env=variables
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return model


@pytest.fixture(scope="session")
def environment() -> str:
    """The environment with vLLM; skips where these tests cannot run."""
    if why := why_not():
        pytest.skip(why)
    return os.environ[ENVIRONMENT]


@pytest.fixture(scope="session")
def gemma4(user: Recorded) -> Path:
    """The folder of a Gemma 4 26B-A4B without weights; skips where they would not fit."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    printed = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout
    if int(printed.splitlines()[0]) < NEEDED_MIB:
        pytest.skip(f"the GPU has {printed.splitlines()[0]} MiB, and {NEEDED_MIB} are needed")
    return make_model(user.home / "gemma4-26b")


@pytest.fixture(scope="session")
def user(environment: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """The command line in a project whose one node is this machine; at the end nothing serves."""
    home = tmp_path_factory.mktemp("gpu")
    (home / "recipes").mkdir()
    model = made_model(home, environment)
    (home / f"recipes/{RECIPE}.yaml").write_text(recipe_text(environment, model))
    (home / "inventory.yaml").write_text(
        "nodes:\n  gpu1: {address: 127.0.0.1, connection: local, roles: [head]}\n"
        f"serve: {{recipe: {RECIPE}, allow_venv: true, allow_files: [{model}]}}\n"
    )
    made = Recorded(home, str(home / "inventory.yaml"))
    made.environment["PYTHONPATH"] = os.pathsep.join([str(CHECKOUT), *sys.path])
    made.out = Path(os.environ.get(KEPT) or home / "kept")
    made.out.mkdir(parents=True, exist_ok=True)
    yield made
    made("down")


@pytest.fixture(scope="module")
def pair(user: Recorded, environment: str) -> Iterator[Recorded]:
    """The same project with two nodes that have a GPU each; at the end nothing serves.

    They are those of the inventory that is named, else of the lab on this machine's GPUs.
    """
    inventory = os.environ.get(PAIR)
    if not inventory and len(gpus()) < 2:
        pytest.skip(f"two GPUs are needed, or {PAIR} (docs/gpu.md)")
    user("down")
    made = Recorded(user.home, inventory or LAB, user.environment)
    model = str(user.home / "paris")
    made.allowed = ("--allow-venv", "--allow-file", model)
    made.out = user.out / "pair"
    made.out.mkdir(exist_ok=True)
    if not inventory:
        made("lab", "up", "--gpus", "--nodes", "2", "--share", environment, "--share", model)
    try:
        yield made
    finally:
        made(*(("down",) if inventory else ("lab", "down")))
