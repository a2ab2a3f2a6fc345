"""Each weight in one format: what is fetched of a repository, and what is left out."""

from __future__ import annotations

import pytest

from spark_cluster.node.store.download import needed

KEPT = [
    "config.json",
    "model-00001-of-00002.safetensors",
    "model.safetensors.index.json",
    "modeling_own.py",
    "tokenizer.json",
    "1_Pooling/config.json",
]
AGAIN = [
    "pytorch_model-00001-of-00002.bin",
    "pytorch_model.bin.index.json",
    "tf_model.h5",
    "flax_model.msgpack",
    "model-Q4_K_M.gguf",
    "original/consolidated.00.pth",
    "original/params.json",
    "onnx/model.onnx",
    "onnx/config.json",
]


def test_the_same_weights_in_other_formats_are_left_out() -> None:
    assert needed([*KEPT, *AGAIN]) == KEPT


@pytest.mark.parametrize(
    "paths",
    [
        ["config.json", "pytorch_model.bin"],
        ["README.md", "model.gguf"],
        ["config.json", "original/consolidated.00.pth", "vae/model.safetensors"],
    ],
)
def test_a_repository_without_safetensors_at_its_top_is_taken_whole(paths: list[str]) -> None:
    assert needed(paths) == paths
