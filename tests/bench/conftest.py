"""Fixtures of the tests of benchmarks."""

from __future__ import annotations

from typing import Any

import pytest

from spark_cluster.bench import on_node


@pytest.fixture(autouse=True)
def files_of_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins of connections give the files of their nodes themselves."""
    real = on_node.files_of

    def files_of(connections: Any, name: str) -> Any:
        played = getattr(connections, "files", None)
        return real(connections, name) if played is None else played(name)

    monkeypatch.setattr(on_node, "files_of", files_of)
