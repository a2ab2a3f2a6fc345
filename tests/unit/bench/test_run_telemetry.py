"""Telemetry of a run from the lines of its steps."""

import gzip
import json
from pathlib import Path

from parquet_rows import read_parquet

from spark_cluster.bench.on_node import LINES, merge

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


def test_what_a_power_cut_left_empty_is_made_again(tmp_path):
    step(tmp_path, "000-a", 0)
    merge(tmp_path)
    for name in ("telemetry.parquet", "telemetry-processes.parquet"):
        (tmp_path / name).write_bytes(b"")
    step(tmp_path, "001-b", 10)
    merge(tmp_path)
    assert len(seconds(tmp_path)) == 6
