"""The KV cache at a share against logs of vLLM 0.26.0 on H100s (`tests/data/gpu/kv-share`).

The parts were derived from the logs in FITTED; HELD_OUT were not looked at for it, and the H200's
(`gpu_runs.py`) neither. The configs are in `models.json`; the weights are those that were logged.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_cluster.config.facts import Memory
from spark_cluster.config.launch import Launch
from spark_cluster.models.config import from_config
from spark_cluster.models.memory_share import GIB_KIB
from spark_cluster.plan.fit import Fit, fit
from spark_cluster.plan.room import NodeMemory

DATA = Path(__file__).parents[2] / "data" / "gpu" / "kv-share"
MODELS = json.loads((DATA / "models.json").read_text())
LOGS = sorted(path.stem for path in DATA.glob("*.log"))
HELD_OUT = frozenset(
    name
    for name in LOGS
    if name.startswith(("qwen3-32b", "llama", "gpt-oss", "qwen3-14b_fp8", "gemma4-26b_serve"))
    or name in ("qwen3-30b-a3b_fp8_compiled_8192x64_0.70", "gemma3-27b_eager_8192x1024_0.85")
)
FITTED = [name for name in LOGS if name not in HELD_OUT]
TOTAL_GIB = 79.18
"""Of an H100 80GB, as vLLM prints it."""


def planned(name: str) -> tuple[Fit, float]:
    """Return the plan of a start, and the KV cache that it logged, GiB."""
    text = (DATA / f"{name}.log").read_text()
    command, env = (line[2:] for line in text.splitlines()[1:3])
    model, args = _arguments(command)
    tp = int(args.pop("tensor-parallel-size", 1))
    config = {**MODELS[model], **args.pop("hf-overrides", {})}
    quantization = str(args.pop("quantization", "bf16"))
    launch = Launch(
        model,
        quantization=quantization,
        tp=tp,
        vllm="0.26.0",
        args=args,
        env=dict(part.split("=") for part in env.split()),
    )
    memory = Memory(round(TOTAL_GIB * GIB_KIB), round(78.66 * GIB_KIB), of_gpu=True)
    room = NodeMemory("gpu1", memory, gpu="NVIDIA H100 80GB HBM3")
    weights = float(re.search(r"Model loading took ([\d.]+) GiB", text)[1])  # type: ignore[index]
    rooms = [replace(room, name=f"gpu{n}") for n in range(tp)]
    logged = float(re.search(r"Available KV cache memory: ([\d.]+)", text)[1])  # type: ignore[index]
    return fit(launch, from_config(config, model), rooms, weights * tp), logged


def _arguments(command: str) -> tuple[str, dict[str, Any]]:
    """The model and the flags of `LLM(...)`, or of `vllm serve`."""
    if command.startswith("LLM("):
        call = ast.parse(command, mode="eval").body
        assert isinstance(call, ast.Call)
        given = {str(key.arg): ast.literal_eval(key.value) for key in call.keywords}
        model = str(given.pop("model"))
        return model, {
            key.replace("_", "-"): value
            for key, value in given.items()
            if key not in ("load_format", "skip_tokenizer_init")
        }
    words = command.split()[2:]
    flags = re.findall(r"--([a-z-]+)(?: ([^-\s]\S*))?", " ".join(words[1:]))
    return words[0], {
        key: (float(value) if re.fullmatch(r"[\d.]+", value) else value) if value else True
        for key, value in flags
        if key != "load-format"
    }


@pytest.mark.parametrize("name", LOGS)
def test_the_cache_is_within_5_percent_and_in_range(name: str) -> None:
    found, logged = planned(name)
    assert found.kv_gib == pytest.approx(logged, rel=0.05)
    assert found.kv_low_gib <= logged + 0.01
    assert logged - 0.01 <= found.kv_high_gib
