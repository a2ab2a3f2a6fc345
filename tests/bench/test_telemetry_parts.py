"""Telemetry of a run from the lines of its steps: what is read again, and what is whole."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from spark_cluster.bench import telemetry_parts
from spark_cluster.bench.sampling import rows_of
from spark_cluster.bench.telemetry_file import read_parquet
from spark_cluster.bench.telemetry_parts import LINES, merge, texts, write_part

NOON = 1_795_348_800.0


def lines(begin: int, count: int = 3) -> str:
    held = [[7, "VLLM::Worker_TP0", 100]]
    return "".join(
        json.dumps({"format": 1, "time": NOON + at, "clock": float(at), "processes": held}) + "\n"
        for at in range(begin, begin + count)
    )


def step(run: Path, name: str, begin: int, *nodes: str) -> Path:
    folder = run / "raw" / name
    folder.mkdir(parents=True, exist_ok=True)
    for node in nodes or ("spark1",):
        (folder / LINES.format(node)).write_bytes(gzip.compress(lines(begin).encode()))
    return folder


def seconds(run: Path) -> list[tuple[float, str]]:
    rows = read_parquet(run / "telemetry.parquet")
    return [(row.time.timestamp() - NOON, row.node) for row in rows]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the steps whose lines are read."""
    found: list[str] = []

    def noted(folder: Path) -> dict[str, str]:
        found.append(folder.name)
        return texts(folder)

    monkeypatch.setattr(telemetry_parts, "texts", noted)
    return found


def test_the_whole_is_in_the_order_of_time(tmp_path):
    step(tmp_path, "000-a", 100, "spark1", "spark2")
    step(tmp_path, "001-b", 0)
    merge(tmp_path)
    found = seconds(tmp_path)
    assert found == sorted(found)
    assert len(found) == 9
    rows = list(read_parquet(tmp_path / "telemetry.parquet"))
    assert all(row.processes and row.processes[0].used_mib == 100 for row in rows)
    assert not [path for path in tmp_path.rglob("*") if "new" in path.name]


def test_lines_are_read_once_for_each_step(tmp_path, read):
    for number in range(5):
        folder = step(tmp_path, f"{number:03}-s", 10 * number)
        write_part(folder, rows_of(texts(folder)))  # as after each step
        merge(tmp_path)
    assert read == []
    assert len(seconds(tmp_path)) == 15


def test_a_step_without_its_file_or_with_newer_lines_is_read(tmp_path, read):
    for number in range(3):
        step(tmp_path, f"{number:03}-s", 10 * number)
    merge(tmp_path)
    assert read == ["000-s", "001-s", "002-s"]
    read.clear()
    later = step(tmp_path, "001-s", 500)
    new = (later / "telemetry.parquet").stat().st_mtime_ns + 10**9
    os.utime(later / LINES.format("spark1"), ns=(new, new))
    merge(tmp_path)
    assert read == ["001-s"]
    assert max(seconds(tmp_path))[0] == 502


def test_lines_that_were_cut_are_left_out(tmp_path):
    folder = step(tmp_path, "000-a", 0, "spark1", "spark2")
    path = folder / LINES.format("spark2")
    path.write_bytes(path.read_bytes()[:-9])
    merge(tmp_path)
    assert {node for _, node in seconds(tmp_path)} == {"spark1"}


def test_a_run_without_telemetry(tmp_path):
    merge(tmp_path)
    (tmp_path / "raw" / "000-a").mkdir(parents=True)
    merge(tmp_path)
    assert not (tmp_path / "telemetry.parquet").exists()


@pytest.mark.parametrize("name", ["telemetry.parquet", "telemetry-processes.parquet"])
def test_a_file_that_a_power_cut_left_empty_is_made_again(tmp_path, read, name):
    folder = step(tmp_path, "000-a", 0)
    step(tmp_path, "001-b", 10)
    merge(tmp_path)
    read.clear()
    (folder / name).write_bytes(b"")
    merge(tmp_path)
    assert read == ["000-a"]
    assert len(seconds(tmp_path)) == 6
