"""A hub on this machine, with the checkpoints that published models have, without weights."""

from collections.abc import Callable, Iterator
from pathlib import Path

import checkpoints
import pytest
from checkpoints import SMALL

from spark_cluster.models.hub import HubLibrary
from spark_cluster.models.lookup import Hub, ModelStore
from spark_cluster_lab.hub import LabHub, serve


@pytest.fixture
def lab_hub(tmp_path: Path, hub_allowed: None) -> Iterator[LabHub]:
    """A hub with `org/small`: a Llama in FP8 of two files."""
    checkpoints.write(
        tmp_path / "hub" / "org" / "small", SMALL, checkpoints.dense(SMALL, "fp8"), files=2
    )
    with serve(tmp_path / "hub") as served:
        yield served


@pytest.fixture
def client(lab_hub: LabHub, tmp_path: Path) -> Callable[[], Hub]:
    """Clients of it that share one store, as one command after the other does."""
    return lambda: Hub(HubLibrary(lab_hub.url, known=("org/small",)), ModelStore(tmp_path / "kept"))
