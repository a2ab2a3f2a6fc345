"""A short benchmark on a real GPU: its record, its telemetry, and what telemetry costs."""

import json
from typing import Any

import pytest
from gpu_recipes import PARIS
from steady_load import overhead, tokens_per_second

pytestmark = pytest.mark.gpu

URL = "http://127.0.0.1:8000"

SUITE = {
    "tool": "vllm-bench",  # of the environment: nothing is installed
    "recipes": [PARIS], "prompt": [64], "output": [64], "requests": 32, "runs": 1,
}  # fmt: skip

SHORT = {**SUITE, "name": "gpu-short", "concurrency": [1, 4]}

DUAL = {
    **SUITE, "name": "gpu-dual", "concurrency": [2],
    "stages": [{"name": "one node", "tp": [1]}, {"name": "two nodes", "tp": [2]}],
}  # fmt: skip

TURNS, SECONDS = 4, 5.0
"""Of a load with telemetry, and as often of one without."""

LEAST = 0.5
"""Of the throughput, far below what is measured: telemetry that takes half is broken."""


def measured(user: Any, suite: dict[str, Any], *words: str) -> tuple[dict[str, Any], list[Any]]:
    """Run a suite; returns its record and the rows of its telemetry."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed (the extra `bench`)")
    from parquet_rows import read_parquet

    name = str(suite["name"])
    (user.home / "suites").mkdir(exist_ok=True)
    (user.home / f"suites/{name}.yaml").write_text(json.dumps(suite))  # which is YAML too
    user("bench", "run", name, "--out", name, *words, *user.allowed)
    record = json.loads((user.home / name / "run.json").read_text())
    user.save(f"bench-{name}", record)
    return record, list(read_parquet(user.home / name / "telemetry.parquet"))


def test_a_short_suite_is_measured_with_telemetry(user):
    record, rows = measured(user, SHORT, "--keep")
    assert record["status"] == "complete"
    assert [(cell["status"], cell["reason"]) for cell in record["cells"]] == [("ok", "")] * 2
    assert record["tool"]["version"] == record["setups"][0]["versions"]["vllm"]
    assert all(cell["metrics"] for cell in record["cells"])
    assert {row.node for row in rows} == {"gpu1"}
    assert any(row.utilisation for row in rows), "the GPU was at work"
    assert any(row.running for row in rows), "so was the engine"
    assert all(row.power_w for row in rows if row.utilisation is not None)
    held = [one for row in rows for one in row.processes or ()]
    assert max(one.used_mib or 0 for one in held if one.name == "VLLM::EngineCore") > 1024


def test_what_telemetry_costs(user, tmp_path):
    """The lab's model keeps the processor busy, not the GPU, so that it shows what is taken."""
    user("up", "--tp", "1")
    tokens_per_second(URL, "paris", 1.0)  # what is compiled at first
    found = overhead(URL, "paris", tmp_path, turns=TURNS, seconds=SECONDS)
    user.save("telemetry-overhead", found.to_dict())
    print(f"\ntelemetry: {json.dumps(found.to_dict())}")
    assert any((line["gpu"] or {}).get("power_w") for line in found.lines)
    assert any(line["processes"] for line in found.lines)
    assert any(line["engine"] for line in found.lines)
    assert found.ratio > LEAST
    assert 0 < found.cpu_share < 1 - LEAST


def test_two_nodes_against_one(pair):
    record, rows = measured(pair, DUAL)
    assert [(cell["status"], cell["reason"]) for cell in record["cells"]] == [("ok", "")] * 2
    assert sorted(setup["tp"] for setup in record["setups"]) == [1, 2]
    assert len({row.node for row in rows}) == 2
