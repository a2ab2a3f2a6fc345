"""Made-up recipes in the forms of other tools: `data/foreign`."""

from pathlib import Path

SPARKRUN_V2, SPARKRUN_STRUCTURED, SPARKRUN_SGLANG, EUGR, VLLM_RECIPE = (
    (Path(__file__).parent / f"data/foreign/{name}.yaml").read_text()
    for name in ("sparkrun-v2", "sparkrun-structured", "sparkrun-sglang", "eugr", "vllm-recipe")
)
