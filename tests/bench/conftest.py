"""Fixtures of the tests of benchmarks."""

from __future__ import annotations

from typing import Any

import pytest

from spark_cluster.bench import node_files


@pytest.fixture(autouse=True)
def files_of_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins of connections give the files of their nodes themselves."""
    real = node_files.files_of

    def files_of(connections: Any, name: str) -> Any:
        played = getattr(connections, "files", None)
        return real(connections, name) if played is None else played(name)

    monkeypatch.setattr(node_files, "files_of", files_of)
