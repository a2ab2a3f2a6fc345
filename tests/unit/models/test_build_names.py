"""The quantization of a build, by its name: what it says, and what it leaves open."""

from __future__ import annotations

import pytest

from spark_cluster.errors import UsageError
from spark_cluster.models.lookup import find
from spark_cluster.models.naming import NOT_SAID, of_build
from spark_cluster.models.weights import checkpoint_quantization

BASE = "Qwen/Qwen3-Coder-Next"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Intel/Qwen3-Coder-Next-int4-AutoRound", "gptq-int4"),
        ("org/Qwen3-8B-quantized.w4a16", "awq-int4"),
        ("org/Qwen3-8B-FP8-Dynamic", "fp8"),
        ("org/Qwen3-8B-AWQ", "awq-int4"),
        ("org/Qwen3-8B-AWQ-8bit", NOT_SAID),
        ("org/Qwen3-235B-A22B-GPTQ-Int8", NOT_SAID),
        ("org/Qwen3-8B-bnb-4bit", NOT_SAID),
        ("org/Qwen3-8B-w8a8", NOT_SAID),
        ("org/Qwen3-8B-Instruct", None),
    ],
)
def test_a_name_says_the_quantization_or_that_there_is_one(name: str, expected: str | None) -> None:
    assert of_build(name) == expected


def test_a_build_does_not_lie_in_the_format_of_its_base() -> None:
    assert find("Intel/Qwen3-Coder-Next-int4-AutoRound", base=BASE).quantization == "gptq-int4"
    assert find("org/finetune", base=BASE).quantization is None
    unknown = find("org/Qwen3-Coder-Next-GPTQ-Int8", base=BASE)
    with pytest.raises(UsageError, match="but not how: their size and speed are not known"):
        checkpoint_quantization(unknown)
