"""Configs, recipes and flags with anything in them: an answer or a clear error, no traceback."""

from __future__ import annotations

import functools
import json
import math
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kv_figures
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import InvalidFile, SparkClusterError
from spark_cluster.importers import commandline
from spark_cluster.issues.rules import lint
from spark_cluster.models.config import from_config
from spark_cluster.models.lookup import _table, find
from spark_cluster.models.weights import weights_of
from spark_cluster.plan import plan as plan_module
from spark_cluster.plan.planner import PlannedLoad, Planner, Subject, of_a_command
from spark_cluster.plan.room import assumed

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


# --- plans and lint of recipes and command lines with any figures in them: never a traceback -----


RECIPE = """\
name: r
model: {name: google/gemma-4-31B-it, served_name: m}
image: {ref: "repo/image:1"}
"""
NUMBERS = (
    "max-model-len", "max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization",
    "kv-cache-memory-bytes", "block-size", "tensor-parallel-size", "pipeline-parallel-size",
    "nnodes", "swap-space", "long-prefill-token-threshold",
)  # fmt: skip
PROJECT = Project(Path(__file__).parent)
DIGITS = "9" * 400
ODD_FIGURES = (
    "1e400", "-1e400", "inf", "-inf", "nan", DIGITS, f"-{DIGITS}", f"{DIGITS}G", "9" * 5000, "1e30",
    "0", "-1", "-0.0", "1e-400", "0.5", "auto", "\u00b2G", "1G", "99999999999", "[]", "{}", "true",
)  # fmt: skip
YAML = (".inf", "-.inf", ".nan", "1e400", DIGITS, "9" * 5000, "99999999999999999999", "1e300")


@pytest.fixture(autouse=True, scope="module")
def shipped_recipes_are_read_once() -> Iterator[None]:
    """Each plan that does not work looks through them for another build."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_module, "load_recipe", functools.cache(load_recipe))
        yield


def plan(launch_of: Any) -> None:
    """The whole plan, and lint, of what a function gives; a clear error is as good."""
    try:
        subject = launch_of()
        rooms = assumed(max(2, subject.launch.tp))
        lint(subject.launch)
        json.dumps(Planner(PROJECT).plan(subject, rooms, PlannedLoad()).to_dict())
    except SparkClusterError as error:
        assert len(str(error)) < 2000


LINES = [
    *(f"engine_args: {{{flag}: {value}}}"
      for flag in ("max-model-len", "max-num-seqs", "kv-cache-memory-bytes") for value in YAML),
    *(f"{field}: {value}"
      for field in ("ready_timeout_s", "gpu_memory_utilization") for value in YAML[:4]),
    "tensor_parallel: {max: 99999999999}",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:50])
def test_figures_of_a_recipe(tmp_path: Path, line: str) -> None:
    (tmp_path / "r.yaml").write_text(f"{RECIPE}{line}\n")
    with pytest.raises(InvalidFile, match=r"expected|number|digits|finite"):
        load_recipe(tmp_path / "r.yaml", Project(tmp_path))


@pytest.mark.parametrize("flag", NUMBERS)
def test_figures_of_each_flag_of_a_command(flag: str) -> None:
    for value in ODD_FIGURES:
        words = f"vllm serve google/gemma-4-31B-it --{flag}={value}"
        plan(lambda words=words: of_a_command(commandline.parse(words), None))


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(NUMBERS), st.one_of(st.floats(), st.integers()), max_size=3))
@example({"max-model-len": math.inf})
@example({"max-model-len": 10**400, "max-num-seqs": 2**64 - 1})
def test_any_figures_of_a_launch(args: dict[str, float]) -> None:
    def subject() -> Subject:
        launch = commandline.parse("vllm serve google/gemma-4-31B-it")
        return of_a_command(launch.with_flags(args), None)

    plan(subject)


@pytest.mark.parametrize(
    "flag",
    [
        "--compilation-config=" + "[" * 100_000,
        '--compilation-config={"max_cudagraph_capture_size": Infinity}',
        '--compilation-config={"max_cudagraph_capture_size": NaN}',
        f'--compilation-config={{"cudagraph_capture_sizes": [{DIGITS}, -1, 0, true, null]}}',
        '--compilation-config={"cudagraph_capture_sizes": [1e400], "cudagraph_mode": {"a": 1}}',
        "--limit-mm-per-prompt=" + "[" * 100_000,
        "--speculative-config=" + "[" * 100_000,
        *(
            f'--speculative-config={{"method": "mtp", "num_speculative_tokens": {tokens}}}'
            for tokens in ("-1", "0", DIGITS, "9" * 5000, "1e400", "[]", "true", "1001")
        ),
        f"--max-cudagraph-capture-size={DIGITS}",
    ],
    ids=lambda flag: flag[:50],
)
def test_objects_of_any_form(flag: str) -> None:
    words = shlex.join(["vllm", "serve", "google/gemma-4-31B-it", flag])
    plan(lambda: of_a_command(commandline.parse(words), None))
