"""Scratch nodes, and a play over them."""

from __future__ import annotations

import pytest
from scratch_nodes import ScratchNode, play_over

from spark_cluster.engine import comeback


@pytest.fixture
def nodes(tmp_path, agents_home, monkeypatch):
    """`nodes["spark1"]`, `nodes["spark2"]`; what waits for a node to come back waits no longer."""
    monkeypatch.setenv("HOME", str(agents_home))
    monkeypatch.setattr(comeback, "FIRST_TRY_S", 0.0)
    monkeypatch.setattr(comeback, "PAUSES", (0.01, 0.05))
    monkeypatch.setattr(comeback, "RECONNECT_S", 5.0)
    return {name: ScratchNode(tmp_path / name) for name in ("spark1", "spark2")}


@pytest.fixture
def start(tmp_path, nodes):
    """`start() -> (play, events)`: a play over both nodes, or the named ones."""
    started = []

    def begin(*names, **options):
        chosen = {name: nodes[name] for name in names or nodes}
        play, events = play_over(tmp_path, chosen, **options)
        started.append(play)
        return play, events

    yield begin
    for play in started:
        play.connections.close()
