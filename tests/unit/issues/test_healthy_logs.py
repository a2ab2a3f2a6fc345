"""Logs of starts that served show no error, by no rule of any kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_cluster.issues.explain import explain
from spark_cluster.issues.log_reading import of_file

DATA = Path(__file__).parents[2] / "data"

FAILED = {
    *(f"gpu/failures/{name}" for name in ("folder", "gate", "length", "load", "quantization")),
    *(f"gpu/{name}_killed_{executor}" for name, executor in (("worker", "mp"), ("worker", "ray"))),
    *(f"gpu/no_{what}" for what in ("model_folder", "network", "python_package")),
    *("gpu/failures/value", "gpu/engine_killed", "gpu/worker_hung_mp", "gpu/wrong_flag_value"),
    *("gpu/gemma4_new_transformers", "gpu/memory_held_by_another", "gpu/model_not_inspected"),
    "gpu/kv-share/qwen3.6-27b_serve_fp8_compiled_8192x1024_0.60",
    "gpu/kv-unseen-4/glm-4.5-air_fp8_tp2_eager_8192x512_0.75",
    "gpu/kv-unseen-4/glm-4.7-flash_fp8_mtp2_eager_2048x64_0.70",
    "gpu/kv-unseen-4/gpt-oss-120b_tp2_compiled_8192x256_0.50",
    "gpu/kv-unseen-4/mixtral-8x7b_fp8_kvfp8_compiled_16384x32_0.70",
    "gpu/kv-unseen-4/qwen3-vl-30b-a3b_fp8_compiled_defaults_0.50",
    *("vllm_no_compiler", "vllm_worker_killed"),
}
"""Logs of starts that failed, or of servers that ended by an error."""

LOGS = {str(path.relative_to(DATA).with_suffix("")): path for path in sorted(DATA.rglob("*.log"))}


@pytest.mark.parametrize("name", sorted(LOGS.keys() - FAILED))
def test_a_log_of_a_server_that_served_has_no_error(name: str) -> None:
    found = explain([of_file(str(LOGS[name]))])
    errors = [seen for seen in found.problems if seen.finding.severity == "error"]
    assert [seen.finding.found for seen in errors if not seen.overcome] == []
    assert found.verdict in ("no-error", "unfinished", "warnings")


def test_each_log_of_a_failure_has_a_known_cause() -> None:
    causes = {name: explain([of_file(str(LOGS[name]))]).cause for name in FAILED}
    assert {name for name, cause in causes.items() if cause is None or not cause.known} == set()
