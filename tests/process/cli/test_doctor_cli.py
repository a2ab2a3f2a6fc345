"""`doctor` as a shell sees it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from program import Done, Program

Run = Callable[..., Done]


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs it in a project with one node, at a port where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    (tmp_path / "inventory.yaml").write_text(
        f"nodes:\n  spark1: {{address: 127.0.0.1, port: {port}, roles: [head]}}\n"
    )
    return Program(tmp_path, monkeypatch)


def test_a_node_out_of_reach(doctor: Run) -> None:
    done = doctor("doctor", "--json")
    assert done.returncode == 3, done.stderr
    (check,) = json.loads(done.stdout)["checks"]
    assert (check["id"], check["node"], check["status"]) == ("system.reachable", "spark1", "fail")
    assert "refused the connection" in check["found"]
    assert set(check) >= {"id", "node", "status", "found", "cause", "fix"}
    shown = doctor("doctor")
    assert shown.returncode == 3
    assert "system.reachable" in shown.stdout
