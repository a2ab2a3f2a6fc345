"""Engine arguments of the command line in place of the recipe's."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import serve_plans
from cases import cases
from hypothesis import given as given_any
from hypothesis import strategies as st

from spark_cluster.config.launch import (
    changes_of,
    of_recipe,
    options_text,
    override,
    override_launch,
    quoted_options,
    read_overrides,
)
from spark_cluster.config.recipe import Recipe
from spark_cluster.errors import UsageError
from spark_cluster.importers.commandline import parse as parse_line
from spark_cluster.importers.vllm_flags import kinds

CASES = cases(__file__, "overrides.json")


def recipe_of(**changed: Any) -> Recipe:
    given = {
        "model": {"name": "o/m", "served_name": "m", "quantization": "bf16", "weights_gib": 60},
        "image": {"ref": "example/vllm:1"},
        "engine_args": {"max-model-len": 8192, "enforce-eager": True},
        "measured": [{"source": "a run", "decode_tok_s": 5}],
    }
    return serve_plans.recipe_of("o/m", **{**given, **changed})


def given(*texts: str, engine: str = "vllm") -> dict[str, Any]:
    return dict(read_overrides(texts, engine, kinds(engine)))


@pytest.mark.parametrize(("option", "expected"), CASES["values"])
def test_values_are_read_by_the_kind_of_their_flag(option: str, expected: dict[str, Any]) -> None:
    assert given(option) == expected


def test_the_last_one_counts() -> None:
    assert given("max-num-seqs=4", "max_num_seqs=8") == {"max-num-seqs": 8}
    assert given("enforce-eager=false", "enforce-eager=true") == {"enforce-eager": True}


def test_another_engine_has_names_of_its_own() -> None:
    assert given("max-model-len=4096", engine="sglang") == {"context-length": 4096}


@pytest.mark.parametrize(("option", "message", "hint"), CASES["refused"])
def test_what_is_refused(option: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        given(option)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_recipe_with_changes() -> None:
    changed = override(recipe_of(), given("max-model-len=4096", "enforce-eager=", "max-num-seqs=2"))
    assert changed.engine_args == {"max-model-len": 4096, "max-num-seqs": 2}
    assert changed.measured == [], "measured of the recipe as it is"
    assert (
        options_text(changed.overrides)
        == "-o enforce-eager= -o max-model-len=4096 -o max-num-seqs=2"
    )
    assert changed.flags(1)["max-model-len"] == 4096


def test_what_a_recipe_has_already_is_no_change() -> None:
    recipe = recipe_of(gpu_memory_utilization=0.5, env={"A": "1"})
    for same in (
        ("max-model-len=8192", "gpu-memory-utilization=0.5", "tool-call-parser="),
        ("env.A=1", "env.B=", "image.ref=example/vllm:1"),
    ):
        assert override(recipe, given(*same)) is recipe
    assert override(recipe, {}).overrides == {}


def test_the_share_of_memory() -> None:
    recipe = recipe_of(gpu_memory_utilization=0.5)
    changed = override(recipe, given("gpu-memory-utilization=0.6"))
    assert changed.flags(1)["gpu-memory-utilization"] == 0.6
    computed = override(recipe, given("gpu-memory-utilization=auto"))
    assert "gpu-memory-utilization" not in computed.flags(1)


def test_quantization_while_loading() -> None:
    changed = override(recipe_of(), given("quantization=fp8"))
    launch = of_recipe(changed, 1)
    assert (launch.quantization, launch.weights_gib) == ("fp8-online", None)
    assert launch.args["quantization"] == "fp8"


def test_tokens_of_the_drafter() -> None:
    drafting = recipe_of(drafter={"method": "mtp", "tokens": 3})
    assert override(drafting, given("num-speculative-tokens=1")).drafter.tokens == 1  # type: ignore[union-attr]
    assert override(drafting, given("num-speculative-tokens=0")).drafter is None
    assert override(drafting, given("num-speculative-tokens=3")) is drafting
    with pytest.raises(UsageError, match="has no drafter"):
        override(recipe_of(), given("num-speculative-tokens=2"))


def test_a_secret_is_refused_and_not_shown() -> None:
    secret = "hf_" + "a" * 34
    with pytest.raises(UsageError) as caught:
        override(recipe_of(), {"reasoning-parser": secret})
    assert secret not in str(caught.value)


DIGEST = "sha256:" + "a" * 64


def test_variables_and_the_image() -> None:
    recipe = recipe_of(env={"NCCL_DEBUG": "WARN", "A": "1"}, vllm={"version": "0.19.0"})
    found = given(
        "env.NCCL_DEBUG=INFO", "env.A=", "env.B_C=x y", f"image.ref=other/vllm:2@{DIGEST}"
    )
    changed = override(recipe, found)
    assert changed.env == {"NCCL_DEBUG": "INFO", "B_C": "x y"}
    assert changed.image.reference == f"other/vllm:2@{DIGEST}"
    assert (changed.vllm.version, changed.measured) == (None, [])
    assert options_text(changed.overrides) == (
        f"-e A= -e 'B_C=x y' -e NCCL_DEBUG=INFO --image other/vllm:2@{DIGEST}"
    )
    assert of_recipe(changed, 1).image == "other/vllm:2"
    assert recipe.env == {"NCCL_DEBUG": "WARN", "A": "1"}


@pytest.mark.parametrize(("option", "message"), CASES["images"])
def test_a_variable_or_an_image_that_no_recipe_can_have(option: str, message: str | None) -> None:
    recipe, found = recipe_of(), given(option)
    if message is None:
        assert override(recipe, found) is recipe
        return
    with pytest.raises(UsageError) as caught:
        override(recipe, found)
    assert caught.value.message.startswith(message)
    assert "x1y2" not in str(caught.value)
    assert "hf_" not in str(caught.value)


def test_an_image_for_a_recipe_without_a_container() -> None:
    venv = {"path": "/srv/venv", "requirements": []}
    recipe = recipe_of(runtime="venv", venv=venv, image={"ref": "x"}).model_copy()
    recipe = recipe.model_copy(update={"image": recipe.image.model_copy(update={"ref": ""})})
    with pytest.raises(UsageError, match=r"--image: found an image, expected none"):
        override(recipe, given("image.ref=other/vllm:2"))


def test_a_pasted_command() -> None:
    launch = parse_line(
        "docker run -e A=1 -e B=2 old/vllm:1 vllm serve google/gemma-4-31B-it "
        "--gpu-memory-utilization 0.9"
    )
    words = ("env.A=", "env.C=3", "image.ref=new/vllm:2", "gpu-memory-utilization=auto")
    changed = override_launch(launch, given(*words, "max-num-seqs=2", "quantization=fp8"))
    assert changed.env == {"B": "2", "C": "3"}
    assert (changed.image, changed.digest) == ("new/vllm:2", "")
    assert "gpu-memory-utilization" not in changed.args
    assert (changed.args["max-num-seqs"], changed.quantization) == (2, "fp8-online")


@given_any(
    key=st.sampled_from(["max-model-len", "max-num-seqs", "hf-overrides", "seed", "quantization"]),
    value=st.text(max_size=40) | st.floats().map(str) | st.integers().map(str),
)
def test_any_text_is_a_value_or_refused(key: str, value: str) -> None:
    try:
        found = given(f"{key}={value}")
    except UsageError:
        return
    recipe = recipe_of()
    try:
        changed = override(recipe, found)
    except UsageError:  # what looks like a secret
        return
    again = override(recipe, found)
    assert options_text(changed.overrides) == options_text(again.overrides)
    assert all(isinstance(word, str) for word in changed.args_for(1))


@pytest.mark.parametrize(("label", "words"), CASES["labels"])
def test_options_of_a_label_run_nothing_in_a_shell(label: str, words: list[str]) -> None:
    assert shlex.split(quoted_options(label)) == words


@given_any(
    text=st.lists(st.sampled_from([*"ab'\"\\{=", " ", " -o ", " -e A=", " --image "])).map("".join)
)
def test_a_label_gives_back_what_it_was_made_of(text: str) -> None:
    made = {"env.A": f"x{text}", "hf-overrides": {"a": text}, "image.ref": "a:1", "seed": 3}
    label = options_text(made)
    assert given(*changes_of(label)) == made
    assert quoted_options(label) == label, "what is shown can be pasted as it is"


def test_a_label_of_escaped_quotes_is_read_once() -> None:
    label = '"' + '\\"' * 300_000
    assert shlex.split(quoted_options(label)) == [label]
