"""Files that are read for the laptop, when something else lies in their place."""

from __future__ import annotations

import os
from pathlib import Path

from factories import put

from spark_cluster.agent.gathering import Gathering
from spark_cluster.node.host import Host


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    """A program in a container may leave a FIFO where its model's configuration was."""
    os.mkfifo(tmp_path / "config.json")
    put(tmp_path / "good", "text")
    (tmp_path / "folder").mkdir()
    wanted = {name: f"/{name}" for name in ("config.json", "good", "folder", "missing")}
    found = Gathering(Host(root=tmp_path), 60).all({}, wanted, {}, {})
    assert found["files"] == {"config.json": None, "good": "text", "folder": None, "missing": None}
