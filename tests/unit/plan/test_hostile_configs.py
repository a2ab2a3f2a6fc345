"""Configs and flags of others, with anything in them: an answer or a clear error, no traceback."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import kv_figures
from hypothesis import example, given
from hypothesis import strategies as st

from spark_cluster.errors import SparkClusterError
from spark_cluster.models.config import from_config
from spark_cluster.models.lookup import _table, find
from spark_cluster.models.weights import weights_of

CONFIGS = [entry["config"] for entry in _table()]
MOE = next(c for c in CONFIGS if c.get("num_experts") and "decoder_sparse_step" in c)
LATENT = next(c for c in CONFIGS if "kv_lora_rank" in c)
MAMBA = next(c for c in CONFIGS if "mamba_head_dim" in c)
HUGE = (99_999_999_999, 10**400, -(10**400), 2**63, -1, 0, 1)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(HUGE),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["float", "fp8", "nvfp4", "auto", "compressed-tensors", "modelopt", "awq"]),
    st.sampled_from([math.inf, -math.inf, math.nan]),
)
ANYTHING = st.recursive(
    ODD,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


@cache
def _keys() -> list[str]:
    """Keys that some config or some reader here knows."""
    found = {key for config in CONFIGS for key in _all_keys(config)}
    folder = Path(find.__code__.co_filename).parent
    for path in folder.glob("*.py"):
        words = path.read_text().replace("(", " ").replace(")", " ").replace(",", " ").split()
        found |= {w.strip("'\"[]:") for w in words if w.startswith('"') and w.isascii()}
    return sorted(key for key in found if key.isidentifier())


def _all_keys(config: dict[str, Any]) -> set[str]:
    inner = [value for value in config.values() if isinstance(value, dict)]
    return {*config, *(key for one in inner for key in _all_keys(one))}


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """A config of a real model in which a few keys are something else."""
    config: dict[str, Any] = json.loads(json.dumps(draw(st.sampled_from(CONFIGS))))
    places = [config, *(v for v in config.values() if isinstance(v, dict))]
    changes = st.dictionaries(st.sampled_from(_keys()), ANYTHING, min_size=1, max_size=4)
    draw(st.sampled_from(places)).update(draw(changes))
    section = st.sampled_from(["quantization_config", "compression_config", "text_config"])
    if draw(st.booleans()):
        config[draw(section)] = draw(changes)
    return config


@given(configs(), st.sampled_from([1, 2, 4]), st.sampled_from([None, "0.19.0", "0.32.0"]))
@example({**CONFIGS[0], "num_hidden_layers": 99_999_999_999}, 1, None)
@example({**CONFIGS[0], "quantization_config": {"quant_method": ["fp8"]}}, 1, None)
@example(
    {**CONFIGS[0], "quantization_config": {"kv_cache_scheme": {"type": "float", "num_bits": [8]}}},
    1,
    None,
)
@example({**CONFIGS[0], "vocab_size": 10**400}, 1, None)
@example({**MOE, "mlp_only_layers": [[1]]}, 1, None)
@example({**MOE, "mlp_only_layers": 3}, 1, None)
@example({**LATENT, "q_lora_rank": "x"}, 1, None)
@example({**LATENT, "sliding_window": 3}, 1, None)
@example({**MAMBA, "mamba_head_dim": 10**400}, 1, None)
def test_any_config(config: dict[str, Any], tp: int, vllm: str | None) -> None:
    try:
        shape = from_config(config, "org/model")
        weights_of(shape, "bf16").step_bytes()
        kv_figures.cache(shape, kv_gib=4.0, max_model_len=4096, tp=tp, vllm=vllm)
    except SparkClusterError as error:
        assert len(str(error)) < 2000
