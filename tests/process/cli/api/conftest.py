"""The Python API in a scratch project, on real agents over pipes."""

from pathlib import Path

import pytest
from cli_fixtures import FILES
from factories import TWO_NODES, put
from piped_cluster import PipedNodes

from spark_cluster import Cluster


@pytest.fixture
def project(tmp_path: Path, piped_nodes: PipedNodes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the project, with two nodes and a playbook; its nodes are folders in it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    put(tmp_path / "inventory.yaml", TWO_NODES)
    put(tmp_path / "playbooks/mine.py", FILES)
    return tmp_path


@pytest.fixture
def cluster(project: Path) -> Cluster:
    """The project's cluster."""
    return Cluster(project=project)
