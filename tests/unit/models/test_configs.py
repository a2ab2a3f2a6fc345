"""From a config.json to the shape of a model: every family, what is missing, what is odd.

`families.json` has a config, or the name of a known model, and what is read of it. A config stands
on Llama's, in which null takes a key away, unless its base is `none`.
"""

import copy
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from cases import cases, each_case, each_row, holds
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.models.config import from_config
from spark_cluster.models.lookup import find, known_models
from spark_cluster.models.naming import base_of, nearest_model, of_build, table
from spark_cluster.models.shape import Geometry
from spark_cluster.models.weights import checkpoint_quantization, parameters

LLAMA: dict[str, Any] = cases(__file__, "llama.json")
SOURCES = Path(__file__).parents[3] / "benchmarks/shapes/sources.json"


def read(base: str = "llama", **changed: Any) -> Geometry:
    config = {**(LLAMA if base == "llama" else {}), **changed}
    return from_config({key: value for key, value in config.items() if value is not None}, "it")


@each_case(__file__, "families.json")
def test_a_family_is_read_as_it_is(case):
    if "model" in case:
        found = find(case["model"])
    else:
        found = read(case.get("base", "llama"), **case["config"])
    assert holds(asdict(found), case["read"]), found


def test_every_model_of_the_table_is_read():
    assert len(known_models()) == len(set(known_models())) > 120
    for name in known_models():
        found = find(name)
        assert not found.not_understood, name
        assert found.name == name
        assert found.max_positions >= 8192


def billions(geometry: Geometry) -> float:
    return sum(parameters(geometry).values()) / 1e9


@pytest.mark.parametrize(
    ("name", "published", "within"),
    [
        (name, published, group["within"])
        for group in cases(__file__, "published_sizes.toml")["published"]
        for name, published in group["billions"].items()
    ],
)
def test_a_shape_has_the_parameters_that_are_published(name, published, within):
    assert billions(find(name)) == pytest.approx(published, rel=within)


def test_the_size_in_a_name_is_that_of_the_shape():
    """Names round: 397B for 396.8; E4B counts without tables, Qwen2.5-VL-7B without its eyes."""
    for entry in table("shapes")["models"]:
        said = re.search(r"(?<![\w.])(\d+(?:\.\d+)?)B(?![a-z]|-\d+E)", entry["name"])
        if said and "native" in entry:
            found = find(entry["name"])
            about = pytest.approx(float(said[1]), rel=0.12, abs=0.6)
            sizes = (billions(found), billions(found) - found.other_parameters / 1e9)
            assert about in sizes, entry["name"]


def test_every_generated_entry_has_its_source_and_is_named_once():
    rows = {row["name"]: row for row in json.loads(SOURCES.read_text())["models"]}
    entries = [entry for entry in table("shapes")["models"] if "date" in entry]
    assert {entry["name"] for entry in entries} == rows.keys()
    for entry in entries:
        row = rows[entry["name"]]
        assert entry["source"].startswith(row.get("repository") or row["source"])
        assert entry["date"] == row["date"]
        assert set(row) & {"config", "path"}, "a config, or where it lies"


# --- quantization ----------------------------------------------------------------------------


@each_case(__file__, "quantization_sections.json")
def test_a_section_says_the_quantization(case, request):
    """Layers of several formats are not taken for one of them."""
    expected = request.node.callspec.id
    for section in case:
        found = read(quantization_config=section)
        assert found.quantization == (None if expected == "none" else expected), section
        if expected in ("mixed-precision", "not readable"):
            with pytest.raises(UsageError, match="their size and speed are not known") as error:
                checkpoint_quantization(found)
            assert "tensors" in error.value.hint


@each_case(__file__, "build_names.json")
def test_the_name_of_a_build_says_its_base_and_its_quantization(case):
    assert of_build(case["build"]) == case["quantization"]
    if "base" in case:
        assert base_of(case["build"]) == case["base"]
        assert find(case["build"]).layers == find(case["base"]).layers


def test_a_build_does_not_lie_in_the_format_of_its_base():
    base = "Qwen/Qwen3-Coder-Next"
    assert find("Intel/Qwen3-Coder-Next-int4-AutoRound", base=base).quantization == "gptq-int4"
    assert find("org/finetune", base=base).quantization is None
    unknown = find("org/Qwen3-Coder-Next-GPTQ-Int8", base=base)
    with pytest.raises(UsageError, match="but not how: their size and speed are not known"):
        checkpoint_quantization(unknown)


@each_row(__file__, "configs.json", "what_is_suggested_has_the_same_family_and_size")
def test_what_is_suggested_has_the_same_family_and_size(name, expected):
    known = [entry["name"] for entry in table("shapes")["models"]]
    known += [alias for entry in table("shapes")["models"] for alias in entry["aliases"]]
    assert nearest_model(name, known) == expected


# --- what is wrong ---------------------------------------------------------------------------


@each_case(__file__, "wrong_configs.json")
def test_what_is_wrong_is_said(case):
    with pytest.raises(InvalidFile, match=re.escape(case["said"])) as error:
        read(case.get("base", "llama"), **case["config"])
    assert error.value.where == "config of it"


WORDS = ["layer_types", "sliding_window", "kv_lora_rank", "num_experts", "text_config", *LLAMA]
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 5000) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(WORDS), JUNK))
def test_odd_configs_give_a_geometry_or_an_error_for_the_user(changed):
    try:
        found = from_config({**copy.deepcopy(LLAMA), **changed}, "odd")
    except InvalidFile as error:
        assert error.where == "config of odd"
    else:
        assert found.layers > 0
