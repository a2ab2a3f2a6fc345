"""Folders of the engine's caches on a node and the variables that name them; ours on the laptop."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from spark_cluster.errors import Failed, naming
from spark_cluster.node import paths

CACHES = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "HF_HOME": "huggingface",
}
"""Variable to folder; the compile cache's key hashes the launch flags."""

PRUNED_KINDS = ("compile", "triton", "inductor", "flashinfer", "tuned", "vllm", "downloads")
"""Kinds of parts of the caches that `caches prune` can remove; models are not among them."""

CACHE_ROOT = paths.CACHE_ROOT


def laptop_cache() -> Path:
    """`$SPARK_CLUSTER_CACHE`, else `$XDG_CACHE_HOME/spark-cluster`, by default under ~/.cache: what
    can be asked for again.
    """
    if given := os.environ.get("SPARK_CLUSTER_CACHE"):
        return Path(given).expanduser()
    return base_folder("XDG_CACHE_HOME", "~/.cache") / "spark-cluster"


def state_folder() -> Path:
    """`$XDG_STATE_HOME/spark-cluster`, by default under ~/.local/state: what runs leave here."""
    return base_folder("XDG_STATE_HOME", "~/.local/state") / "spark-cluster"


def base_folder(variable: str, usual: str) -> Path:
    """Return a base folder; a relative one does not count (XDG Base Directory Specification)."""
    given = Path(os.environ.get(variable, "")).expanduser()
    return given if given.is_absolute() else Path(usual).expanduser()


def keeping(what: str, path: Path) -> AbstractContextManager[None]:
    """Name a file of the state folder that cannot be written during the block.

    Args:
        what: did not work, as `the answers cannot be kept`.

    Raises:
        Failed: it cannot be written.
    """
    hint = "XDG_STATE_HOME names another folder for it"
    return naming(Failed, what, where=str(path), hint=hint)
