"""The Python API in a scratch project, on real agents over pipes."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories import put
from piped_cluster import PipedNodes

from spark_cluster import Cluster

INVENTORY = """\
nodes:
  spark1: {address: 10.0.0.1, roles: [head]}
  spark2: {address: 10.0.0.2}
"""
PLAYBOOK = """\
from spark_cluster.resources import Directory, File

def main(play):
    with play.stage("files"):
        play.apply(play.nodes, [Directory("/srv"), File("/srv/a", content="1")], fail_fast=False)
    return [node.name for node in play.nodes]
"""


@pytest.fixture
def project(tmp_path: Path, piped_nodes: PipedNodes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the project, with two nodes and a playbook; its nodes are folders in it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    put(tmp_path / "inventory.yaml", INVENTORY)
    put(tmp_path / "playbooks/mine.py", PLAYBOOK)
    return tmp_path


@pytest.fixture
def cluster(project: Path) -> Cluster:
    """The project's cluster."""
    return Cluster(project=project)
