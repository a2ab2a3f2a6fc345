"""The plan of a Gemma 4 against what the engine logs on a real GPU, with dummy weights."""

from typing import Any

import pytest
from engine_log import Logged, logged
from gemma4_shape import WORD
from gpu_recipes import recipe, write

pytestmark = pytest.mark.gpu

WEIGHTS = 0.01
"""Of what is loaded (docs/explanation/planning.md)."""

CACHE = 0.05
"""Of the cache that a share leaves, in GiB (docs/explanation/planning.md)."""

PER_GIB = 0.002
"""Of tokens in a GiB: what rounding to two decimals leaves open, of 9 GiB and more."""

EAGER = {"load-format": "dummy", "enforce-eager": True, "max-model-len": 65536, "max-num-seqs": 4}

CASES: dict[str, dict[str, Any]] = {
    "gpu-gemma4-share": {},
    "gpu-gemma4-bytes": {
        "quantization": "fp8", "kv-cache-dtype": "fp8", "max-num-batched-tokens": 2048,
        "kv-cache-memory-bytes": "20G",
    },
}  # fmt: skip
"""The share and the batch are left to the plan; the cache's size is given."""


@pytest.fixture(params=CASES)
def case(request, user, environment, gemma4):
    """A recipe's name, its plan, and what the engine logged when it was started."""
    document = recipe(
        request.param,
        gemma4,
        environment,
        description="A Gemma 4 26B-A4B with dummy weights",
        engine_args={**EAGER, **CASES[request.param]},
        # They mean nothing, and so do the answers: each has a word of the vocabulary.
        probe={"question": "What is the capital of France?", "expect": WORD, "max_tokens": 5},
    )
    name = write(user.home, document)
    allowed = ("--allow-venv", "--allow-file", str(gemma4))
    user("down")
    user("plan", name, "--tp", "1", *allowed)
    plan = user.json("plan", name, "--tp", "1", *allowed)
    up = user.json("up", "--recipe", name, "--tp", "1", *allowed)
    started = logged(user("logs", "--tail", "2000").out)
    user.save(f"plan-{name}", compared(plan, up, started))
    yield plan, started
    user("down")


def compared(plan: dict[str, Any], up: dict[str, Any], started: Logged) -> dict[str, Any]:
    """Return what was planned next to what was logged."""
    (memory,) = up["memory"]
    rows = {
        "weights_gib": (plan["weights_gib"], started.weights_gib),
        "kv_cache_gib": (plan["kv_cache_gib"], started.kv_gib),
        "kv_tokens": (plan["kv_tokens"], started.kv_tokens),
        "max_concurrency": (plan["max_concurrency"], started.concurrency),
        "gpu_memory_utilization": (plan["gpu_memory_utilization"], started.share),
        "vram_mib": (plan["nodes"][0]["vram_mib"], memory["ready"]),
    }
    return {
        "recipe": plan["recipe"],
        "versions": up["versions"],
        "node": plan["nodes"][0],
        "rule": plan["kv_rule"],
        **{name: {"planned": was, "logged": is_} for name, (was, is_) in rows.items()},
    }


def test_the_plan_is_what_the_engine_logs(case):
    plan, started = case
    told(plan, started)
    assert plan["feasible"], plan["reasons"]
    assert started.weights_gib == pytest.approx(plan["weights_gib"], rel=WEIGHTS)
    if started.kv_gib is None:  # its bytes are given, and nothing is left to an estimate
        assert started.kv_tokens == plan["kv_tokens"]
        assert started.concurrency == plan["max_concurrency"]
        return
    assert started.share == plan["gpu_memory_utilization"]
    assert started.kv_gib == pytest.approx(plan["kv_cache_gib"], rel=CACHE)
    tokens = plan["kv_tokens"] / plan["kv_cache_gib"]
    assert started.kv_tokens / started.kv_gib == pytest.approx(tokens, rel=PER_GIB)
    assert started.concurrency == pytest.approx(plan["max_concurrency"], rel=CACHE)


def told(plan: dict[str, Any], started: Logged) -> None:
    """Print both for who runs it."""
    print(
        f"\n{plan['recipe']}: planned {plan['weights_gib']} GiB of weights, "
        f"{plan['kv_cache_gib']} of cache, {plan['kv_tokens']:,} tokens; logged "
        f"{started.weights_gib}, {started.kv_gib}, {started.kv_tokens:,}"
    )
