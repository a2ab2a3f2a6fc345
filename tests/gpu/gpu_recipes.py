"""Recipes for a real GPU, and what of them this machine needs."""

import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from lab_model import QUESTION

CHANGES = "SPARK_CLUSTER_GPU_RECIPE"
"""JSON that is merged into each recipe: `env` and `engine_args` that this machine needs."""

PARIS = "gpu-paris"
"""Recipe of the lab's model."""


@functools.cache
def vllm_version(environment: str) -> str:
    """Return the version of vLLM in an environment, without what a build adds to it."""
    code = "from importlib.metadata import version; print(version('vllm'))"
    argv = [f"{environment}/bin/python3", "-c", code]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=120, check=False, env=variables
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().partition("+")[0]


def recipe(name: str, model: Path, environment: str, **parts: Any) -> dict[str, Any]:
    """Return a recipe without image and mounts, with what this machine needs.

    Args:
        model: the folder, whose name is the served one.
        parts: of the document, in place of the usual ones.
    """
    document = {
        "name": name,
        "model": {
            "name": model.name, "source": "directory", "directory": str(model),
            "path": f"/srv/models/{model.name}", "served_name": model.name,
        },
        "runtime": "venv",
        "venv": {"path": environment},
        "vllm": {"version": vllm_version(environment)},
        "tensor_parallel": {"min": 1, "max": 2},
        "env": {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
        "probe": {"question": QUESTION, "expect": "Paris", "max_tokens": 5},
        "readiness": {"rungs": ["answer"], "log_expect": ["Application startup complete"]},
        "ready_timeout_s": 300,
        **parts,
    }  # fmt: skip
    return changed(document)


def changed(document: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe with what this machine needs."""
    more = json.loads(os.environ.get(CHANGES, "{}"))
    return {**document, **{name: {**document.get(name, {}), **part} for name, part in more.items()}}


def write(home: Path, document: dict[str, Any]) -> str:
    """Write a recipe into a project; returns its name."""
    name: str = document["name"]
    (home / f"recipes/{name}.yaml").write_text(json.dumps(document, indent=1))  # which is YAML too
    return name
