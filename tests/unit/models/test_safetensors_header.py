"""Headers of safetensors files, of real layouts and made up to do harm."""

import json
from typing import Any

import checkpoints
import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.errors import InvalidFile
from spark_cluster.models.checkpoint import (
    BITS,
    Tensor,
    folded,
    header_length,
    numbers,
    part_of,
    tensors,
)


def text(**entries: Any) -> bytes:
    return json.dumps(entries).encode()


def entry(dtype: str = "BF16", shape: Any = (2, 3), begin: Any = 0, end: Any = 12) -> Any:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_a_header_as_it_should_be():
    found = tensors(text(__metadata__={"format": "pt"}, a=entry(), b=entry(begin=12, end=24)), "x")
    assert found == [Tensor("a", "BF16", (2, 3), 12), Tensor("b", "BF16", (2, 3), 12)]
    assert tensors(text(a=entry("F4", (3, 2), 0, 3)), "x")[0].size == 3
    assert tensors(text(a=entry("F4", (0,), 5, 5)), "x")[0].elements == 0


def test_a_type_that_is_not_known_counts_by_its_bytes():
    assert tensors(text(a=entry("NF3", (2, 3), 0, 7)), "x")[0].size == 7


NO_HEADERS = [
    (b"[]", "should be a JSON object"),
    (b"{", "no safetensors header"),
    (b"[" * 100_000, "no safetensors header"),
    (text(**{"bitsandbytes__a" * 100_000: entry()}), "the name of a tensor has 1500000 characters"),
    *((text(**{name: {**entry(), **one} if isinstance(one, dict) else one
               for name, one in header.items()}), words)
      for words, headers in cases(__file__, "headers.json").items() for header in headers),
]  # fmt: skip
"""`headers.json` has what is another in an entry than it should be, by the words of the error."""


@pytest.mark.parametrize(("header", "words"), NO_HEADERS)
def test_headers_that_contradict_themselves(header, words):
    with pytest.raises(InvalidFile, match=words) as caught:
        tensors(header, "model.safetensors")
    assert caught.value.where == "model.safetensors"
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("first", [b"", b"\0" * 8, b"\xff" * 8, b"\x01\0\0"])
def test_lengths_that_no_header_has(first):
    with pytest.raises(InvalidFile, match="bytes long"):
        header_length(first, "x")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner),
    max_leaves=8,
)
described = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from([*BITS, "X9", ""]) | values,
        "shape": st.lists(st.integers(-3, 10**20) | values, max_size=4) | values,
        "data_offsets": st.lists(st.integers(-5, 10**17), max_size=3) | values,
    },
)


@given(st.dictionaries(st.text(max_size=30), described | values, max_size=5) | values)
def test_any_header_gives_tensors_or_an_error_in_words(document):
    try:
        found = tensors(json.dumps(document).encode(), "x")
    except InvalidFile:
        return
    assert all(tensor.size >= 0 and min(tensor.shape, default=0) >= 0 for tensor in found)
    for tensor in folded(found):
        counted = numbers(tensor, 4)
        assert counted.parameters >= 0
        assert counted.loaded >= 0
        part_of(tensor.name, 10)


@given(st.binary(max_size=200))
def test_any_bytes(data):
    try:
        tensors(data, "x")
    except InvalidFile as error:
        assert error.hint


def test_experts_are_kept_together_and_layers_apart():
    every = [
        checkpoints.tensor(f"model.layers.{layer}.mlp.experts.{number}.up_proj.weight", "BF16", 2)
        for layer in range(2)
        for number in range(100)
    ]
    found = list(folded(every))
    assert [(one.name, one.count) for one in found] == [
        ("model.layers.0.mlp.experts.*.up_proj.weight", 100),
        ("model.layers.1.mlp.experts.*.up_proj.weight", 100),
    ]
    assert sum(one.size * one.count for one in found) == sum(one.size for one in every)
