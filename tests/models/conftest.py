"""A hub on this machine, with the checkpoints that published models have, without weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import checkpoints
import pytest
from checkpoints import SMALL

from spark_cluster.lab.hub import LabHub, serve
from spark_cluster.models.hub.library import HubLibrary
from spark_cluster.models.hub.lookup import Hub
from spark_cluster.models.hub.store import ModelStore


@pytest.fixture
def lab_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LabHub]:
    """A hub with `org/small`: a Llama in FP8 of two files."""
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("SPARK_CLUSTER_CACHE", str(tmp_path / "cache"))
    checkpoints.write(
        tmp_path / "hub" / "org" / "small", SMALL, checkpoints.dense(SMALL, "fp8"), files=2
    )
    with serve(tmp_path / "hub") as served:
        yield served


@pytest.fixture
def client(lab_hub: LabHub, tmp_path: Path) -> Callable[[], Hub]:
    """Clients of it that share one store, as one command after the other does."""
    return lambda: Hub(HubLibrary(lab_hub.url, known=("org/small",)), ModelStore(tmp_path / "kept"))
