"""Models whose shapes are known, written down by hand, and the published runs."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from spark_cluster.models.shape import Attention, Experts, Geometry, Latent, Recurrent

GEMMA_31B = Geometry(
    name="google/gemma-4-31B-it",
    model_type="gemma4",
    layers=60,
    hidden=5376,
    vocab=262144,
    intermediate=21504,
    dense_layers=60,
    attention=(
        Attention("sliding", 50, 32, 16, 256, 256, window=1024),
        Attention("full", 10, 32, 4, 512, 512, k_is_v=True),
    ),
    tied=True,
    max_positions=262144,
    tower_parameters=550_000_000,
)
GEMMA_26B = Geometry(
    name="google/gemma-4-26B-A4B-it",
    model_type="gemma4",
    layers=30,
    hidden=2816,
    vocab=262144,
    intermediate=2112,
    dense_layers=30,
    attention=(
        Attention("sliding", 25, 16, 8, 256, 256, window=1024),
        Attention("full", 5, 16, 2, 512, 512, k_is_v=True),
    ),
    experts=Experts(count=128, top_k=8, layers=30, intermediate=704),
    tied=True,
    max_positions=262144,
    tower_parameters=550_000_000,
)
LLAMA_70B = Geometry(
    name="meta-llama/Llama-3.3-70B-Instruct",
    model_type="llama",
    layers=80,
    hidden=8192,
    vocab=128256,
    intermediate=28672,
    dense_layers=80,
    attention=(Attention("full", 80, 64, 8, 128, 128),),
    max_positions=131072,
)
DEEPSEEK_LITE = Geometry(
    name="deepseek-ai/DeepSeek-V2-Lite",
    model_type="deepseek_v2",
    layers=27,
    hidden=2048,
    vocab=102400,
    intermediate=10944,
    dense_layers=1,
    latent=Latent(layers=27, q_heads=16, rank=512, rope_dim=64, nope_dim=128, value_dim=128),
    experts=Experts(count=64, top_k=6, layers=26, intermediate=1408, shared_intermediate=2816),
    max_positions=163840,
)
HYBRID = Geometry(
    name="a hybrid",
    model_type="qwen3_next",
    layers=48,
    hidden=2048,
    vocab=151936,
    intermediate=5120,
    dense_layers=0,
    attention=(Attention("full", 12, 16, 2, 256, 256),),
    recurrent=(Recurrent("gdn", 36, 24576, 524288, 33_700_000),),
    experts=Experts(count=512, top_k=10, layers=48, intermediate=512, shared_intermediate=512),
    max_positions=262144,
)
MODELS = {"31B": GEMMA_31B, "26B": GEMMA_26B}
EVERY = (GEMMA_31B, GEMMA_26B, LLAMA_70B, DEEPSEEK_LITE, HYBRID)


@cache
def published() -> list[dict[str, Any]]:
    """The published runs."""
    path = Path(__file__).parents[0] / "data" / "published_points.json"
    points: list[dict[str, Any]] = json.loads(path.read_text())["points"]
    return points
