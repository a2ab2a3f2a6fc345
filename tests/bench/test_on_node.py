"""Files that come back from the node: foreign input. What a hostile one says of them is tried in
tests/runner/test_node_files.py."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories import put

from spark_cluster.bench import on_node, run_telemetry
from spark_cluster.bench.on_node import LocalFiles
from spark_cluster.bench.run_telemetry import FILE, Recording
from spark_cluster.errors import Failed
from spark_cluster.runner.local_connection import LocalConnection

FOLDER = "/var/lib/spark-cluster/bench/r/s"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The step's folder on a node."""
    return tmp_path / f"node{FOLDER}"


def fetch(tmp_path: Path) -> tuple[list[str], set[str]]:
    """Return what is too large, and what has come."""
    left = on_node.fetch(LocalFiles("spark1", str(tmp_path / "node")), FOLDER, tmp_path / "in")
    files = {p for p in (tmp_path / "in").rglob("*") if not p.is_dir()}
    return left, {str(path.relative_to(tmp_path / "in")) for path in files}


def test_results_come_and_nothing_else(tmp_path, node):
    for name in ("cells/a.json", "raw/a.json", "raw/below/b.json", "worker.py", "home/x"):
        put(node / name, "{}")
    (node / "raw/link").symlink_to("/etc/shadow")
    os.mkfifo(node / "raw/pipe")
    assert fetch(tmp_path) == ([], {"cells/a.json", "raw/a.json"})
    assert (tmp_path / "in/raw/a.json").read_text() == "{}"


def test_a_folder_that_is_a_link_out_of_the_node_is_not_followed(tmp_path, node):
    put(tmp_path / "laptop/secret", "x")
    put(node / "cells/a.json", "{}")
    (node / "raw").symlink_to(os.path.relpath(tmp_path / "laptop", node))
    assert fetch(tmp_path) == ([], {"cells/a.json"})


def test_a_node_that_has_nothing(tmp_path):
    (tmp_path / "node").mkdir()
    assert fetch(tmp_path) == ([], set())


def test_many_files_come_and_huge_ones_stay(tmp_path, node):
    names = {f"raw/{'n' * 120}{number}" for number in range(500)}
    for name in names:
        put(node / name, "1")
    os.truncate(put(node / "raw/huge", ""), on_node.LARGEST_BYTES + 1)
    assert fetch(tmp_path) == (["raw/huge"], names)


def test_results_without_end_are_given_up(tmp_path, node, monkeypatch):
    monkeypatch.setattr(on_node, "MOST_BYTES", 5 << 20)
    for number in range(9):
        os.truncate(put(node / f"raw/{number}", ""), 1 << 20)
    with pytest.raises(Failed, match="holds more than 5 MiB of results"):
        fetch(tmp_path)
    assert sum(p.stat().st_size for p in tmp_path.rglob("in/raw/*")) == 5 << 20


def test_the_lines_of_telemetry_come_in_their_order(tmp_path):
    notes: list[str] = []
    play: Any = SimpleNamespace(
        nodes=[SimpleNamespace(name=name) for name in ("spark1", "spark2")],
        head=SimpleNamespace(name="spark1"),
        note=lambda text, **_: notes.append(text),
        connections=SimpleNamespace(
            connection=lambda name: LocalConnection(name, root=str(tmp_path / name))
        ),
    )
    recording = Recording(play, ["spark1", "spark2"], FOLDER)
    place = tmp_path / f"spark1{recording.place}/{FILE}"
    put(place, "two\n")
    put(place.with_name(f"{run_telemetry.FILE}.1"), "one\n")
    recording.fetch(tmp_path / "in")
    for name, lines in (("spark1", b"one\ntwo\n"), ("spark2", b"")):
        path = tmp_path / "in" / run_telemetry.LINES.format(name)
        assert gzip.decompress(path.read_bytes()) == lines
    assert notes == []
