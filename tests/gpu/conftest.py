"""A node with a GPU of this machine, and an environment with vLLM: what `make gpu` needs."""

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
from gpu_node import GpuNode, machine_is_booted, why_no_lab
from gpu_recipes import PARIS as RECIPE
from gpu_recipes import recipe

from spark_cluster_lab.gpu.layout import GpuLayout

ENVIRONMENT = "SPARK_CLUSTER_GPU_VENV"
"""A virtual environment in which vLLM for CUDA is installed."""

KEPT = "SPARK_CLUSTER_GPU_OUT"
"""Folder for the transcript and the JSON documents."""

PAIR = "SPARK_CLUSTER_GPU_PAIR"
"""An inventory, file or name, of two nodes that have a GPU each."""

SHARE = "SPARK_CLUSTER_GPU_SHARE"
"""Set to 1, two nodes of the lab may share the machine's one GPU."""

NEEDED_MIB = 70_000
"""Of a GPU's memory, for the weights of a Gemma 4 26B-A4B in BF16 and a cache."""


def why_not() -> str:
    """Return why these tests cannot run here; empty when they can."""
    if not os.environ.get(ENVIRONMENT):
        return f"set {ENVIRONMENT} to an environment with vLLM (docs/gpu.md)"
    if os.geteuid() != 0:
        return "root is needed"
    if not gpus():
        return "nvidia-smi shows no GPU"
    return "" if machine_is_booted() else why_no_lab()


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
    node: GpuNode
    allowed: tuple[str, ...] = ()
    """Options for a recipe that the inventory does not allow."""

    def __call__(self, *words: str, status: int | None = 0, timeout: float = 600.0) -> Ran:
        try:
            ran = ended(self.start(*words), status, timeout)
        except AssertionError as error:  # what a failed command has said is kept, too
            self.note(f"$ spark-cluster {' '.join(words)}\n[not as expected: {error}]\n\n")
            raise
        self.keep(ran)
        return ran

    def run_there(self, *words: str) -> str:
        """Run a program on the first node without any of our code; returns what it printed."""
        argv = self.node.argv(words)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    def save(self, name: str, document: object) -> None:
        """Keep a document that a test has made of what it saw."""
        (self.out / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")

    def keep(self, ran: Ran) -> None:
        number = len(list(self.out.glob("*.json"))) + 1
        name = f"{number:02}-{ran.argv[0]}.json"
        if "--json" in ran.argv and ran.out:
            (self.out / name).write_text(ran.out)
        printed = "" if "--json" in ran.argv else ran.printed.rstrip() + "\n"
        ended_as = f"[status {ran.status}, {ran.seconds:.1f} s]\n\n"
        self.note(f"$ spark-cluster {' '.join(ran.argv)}\n{printed}{ended_as}")

    def note(self, text: str) -> None:
        with (self.out / "transcript.txt").open("a") as out:
            out.write(text)


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
    """Train the lab's model with the environment's own PyTorch, which takes half a minute.

    With a few threads: a thread for each of 64 cores took over eight minutes for so small a model.
    """
    model = folder / "paris"
    code = CHECKOUT / "packages/spark-cluster-lab/spark_cluster_lab/assets/train_model.py"
    argv = [f"{environment}/bin/python3", str(code), str(model)]
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "4"}
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
    """The command line in a project whose one node has a GPU; at the end nothing serves.

    The node is this machine, or where systemd does not run it, the first of the lab on its GPUs.
    """
    home = tmp_path_factory.mktemp("gpu")
    (home / "recipes").mkdir()
    model = made_model(home, environment)
    (home / f"recipes/{RECIPE}.yaml").write_text(recipe_text(environment, model))
    made = Recorded(home, str(home / "inventory.yaml"))
    made.node = GpuNode(lab=not machine_is_booted())
    (home / "inventory.yaml").write_text(
        f"nodes:\n  {made.node.entry()}\n"
        f"serve: {{recipe: {RECIPE}, allow_venv: true, allow_files: [{model}]}}\n"
    )
    made.environment["PYTHONPATH"] = os.pathsep.join([str(CHECKOUT), *sys.path])
    made.out = Path(os.environ.get(KEPT) or home / "kept")
    made.out.mkdir(parents=True, exist_ok=True)
    if made.node.lab:
        lab_up(made, environment, 1, "--fresh")
    with made.node.endpoint():
        yield made
    made("down")
    if made.node.lab:
        made("lab", "down", "--gpus")


def lab_up(user: Recorded, environment: str, nodes: int, *words: str) -> None:
    """Have so many nodes on this machine's GPUs, which see the environment and the project."""
    shares = ("--share", environment, "--share", str(user.home))
    if "--fresh" not in words:  # nodes that run are not replaced by others
        user("lab", "down", "--gpus")
    user("lab", "up", "--gpus", "--nodes", str(nodes), *shares, *words)


@pytest.fixture(scope="module")
def pair(user: Recorded, environment: str) -> Iterator[Recorded]:
    """The same project with two nodes that have a GPU each; at the end nothing serves.

    They are those of the inventory that is named, else of the lab on this machine's GPUs, where
    they share one if that is allowed. Afterwards the first one is as before.
    """
    inventory, shared = os.environ.get(PAIR), os.environ.get(SHARE) == "1"
    if not inventory and len(gpus()) < 2 and not shared:
        pytest.skip(f"two GPUs are needed, or {PAIR}, or {SHARE}=1 (docs/gpu.md)")
    if not inventory and (why := why_no_lab()):
        pytest.skip(why)
    user("down")
    made = Recorded(user.home, inventory or str(user.home / "pair.yaml"), user.environment)
    made.node = user.node
    made.allowed = ("--allow-venv", "--allow-file", str(user.home / "paris"))
    made.out = user.out / "pair"
    made.out.mkdir(exist_ok=True)
    if not inventory:
        lab_up(made, environment, 2, *(["--share-gpu"] if shared else []))
        (user.home / "pair.yaml").write_text(pair_inventory())
    try:
        yield made
    finally:
        made("down")
        if not inventory and user.node.lab:
            lab_up(user, environment, 1)
        elif not inventory:
            made("lab", "down", "--gpus")


def pair_inventory() -> str:
    """The inventory that the lab has written; without nftables the engine's ports are open on the
    lab's bridges, which nobody else is on.
    """
    text = GpuLayout.default().inventory.read_text()
    return text if shutil.which("nft") else f"{text}\ntrusted_network: true\n"
