"""Recipes of other tools, and files that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases import cases
from foreign_samples import EUGR, SPARKRUN_SGLANG, SPARKRUN_STRUCTURED, SPARKRUN_V2, VLLM_RECIPE
from ruamel.yaml import YAML

from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.importers.files import read_file, write
from spark_cluster.importers.importer import Choice, Imported

CASES = cases(__file__, "import_foreign.toml")

Made = tuple[Recipe, Imported]


def made(tmp_path: Path, text: str, choice: Choice | None = None, name: str = "x.yaml") -> Made:
    """The recipe as our own reader takes it, and what was said about it."""
    path = tmp_path / name
    path.write_text(text)
    imported = write(read_file(path, choice))
    target = tmp_path / f"{imported.name}.yaml"
    target.write_text(imported.text)
    return load_recipe(target, Project(tmp_path)), imported


def left(imported: Imported) -> dict[str, str]:
    return {one.what: one.why for one in imported.left_out}


class TestSparkrun:
    def test_version_2(self, tmp_path: Path) -> None:
        recipe, imported = made(tmp_path, SPARKRUN_V2)
        assert imported.kind == "sparkrun recipe"
        assert recipe.name == "x"
        assert recipe.description == "A bison on Sparks"
        assert recipe.model.name == "example/Bison-24B-NVFP4"
        assert recipe.model.revision == "0123456789abcdef0123456789abcdef01234567"
        assert (recipe.model.served_name, recipe.model.quantization) == ("bison", "nvfp4")
        assert recipe.image.ref == "ghcr.io/example/spark-vllm:1.2"
        assert (recipe.tensor_parallel.min, recipe.tensor_parallel.max) == (1, 2)
        assert recipe.executor == "ray"
        assert recipe.gpu_memory_utilization == 0.7
        assert recipe.engine_args == {"max-model-len": 65536, "enable-prefix-caching": True}
        assert recipe.env == {"VLLM_NO_USAGE_STATS": "1"}
        assert recipe.drafter is not None
        assert recipe.drafter.config == {
            "method": "eagle3",
            "model": "example/bison-eagle3",
            "num_speculative_tokens": 3,
        }

    def test_what_it_leaves_out(self, tmp_path: Path) -> None:
        _, imported = made(tmp_path, SPARKRUN_V2)
        found = left(imported)
        assert "patches" in found["mods: fix-bison-template"]
        assert "mods: faster-loading" in found
        assert "serve.port" in found["--port 8000"]
        assert "serve.bind" in found["--host 0.0.0.0"]
        assert found["defaults.unused: 1"] == "the command does not use it"
        assert "secret" in found["HF_TOKEN (value not shown)"]
        assert "each node" in found["NCCL_IB_HCA=rocep1s0f1"]
        assert any(what.startswith("metadata: ") for what in found)
        assert any(what.startswith("pre_exec: ") for what in found)
        assert not any("served_model_name" in what for what in found)

    def test_without_a_command_the_defaults_are_the_flags(self, tmp_path: Path) -> None:
        recipe, imported = made(tmp_path, SPARKRUN_STRUCTURED)
        assert recipe.name == "x"
        assert recipe.engine_args == {
            "max-model-len": 32768,
            "enforce-eager": True,
            "no-enable-prefix-caching": True,
        }
        assert recipe.drafter is not None
        assert (recipe.drafter.method, recipe.drafter.tokens) == ("mtp", 2)
        assert (recipe.tensor_parallel.min, recipe.tensor_parallel.max) == (1, 1)
        found = left(imported)
        assert found["defaults.lm_head_dtype: bf16"] == "vLLM has no flag of this name"
        assert found["brand_new: 7"] == "this field is not known here"

    @pytest.mark.parametrize(("runtime", "more", "executor"), CASES["executors"])
    def test_the_runtime_says_the_executor(
        self, tmp_path: Path, runtime: str, more: str, executor: str
    ) -> None:
        text = (
            f"model: example/m\nruntime: {runtime}\ncontainer: i\ndefaults: {{port: 1}}\n{more}\n"
        )
        recipe, _ = made(tmp_path, text)
        assert recipe.executor == executor

    @pytest.mark.parametrize(
        ("metadata", "quantization"),
        [
            ("{quantization: nvfp4, model_dtype: bfloat16}", "nvfp4"),
            ("{model_dtype: bfloat16}", "bf16"),
            ("{quantization: unheard}", None),
        ],
    )
    def test_metadata_say_the_quantization(
        self, tmp_path: Path, metadata: str, quantization: str | None
    ) -> None:
        text = f"model: example/Crane\nruntime: vllm\ncontainer: i\nmetadata: {metadata}\n"
        recipe, _ = made(tmp_path, text)
        assert recipe.model.quantization == quantization

    def test_a_folded_command_under_taskset(self, tmp_path: Path) -> None:
        text = (
            "recipe_version: '2'\nmodel: example/Crane\ncontainer: i\ndefaults: {n: 2}\n"
            "command: >\n  taskset -c 5-9,15-19 vllm serve {model}\n  --spec-method mtp \n"
            "  --spec-tokens {n}\n  --async-scheduling\n"
        )
        recipe, imported = made(tmp_path, text)
        assert recipe.drafter is not None
        assert (recipe.drafter.method, recipe.drafter.tokens) == ("mtp", 2)
        assert "taskset -c 5-9,15-19" in left(imported)

    def test_another_engine_is_refused(self, tmp_path: Path) -> None:
        other = SPARKRUN_SGLANG.replace("runtime: sglang", "runtime: trtllm")
        with pytest.raises(InvalidFile, match="this recipe is for trtllm, expected one for vLLM"):
            made(tmp_path, other)


class TestSparkVllmDocker:
    def test_a_recipe(self, tmp_path: Path) -> None:
        recipe, imported = made(tmp_path, EUGR)
        assert imported.kind == "spark-vllm-docker recipe"
        assert recipe.name == "dove-31b-online-fp8"
        assert recipe.tensor_parallel.default == 2
        assert recipe.model.name == "example/dove-31b-it"
        assert recipe.model.quantization == "fp8-online"
        assert recipe.image.ref == "vllm-node-tf5"
        assert (recipe.tensor_parallel.min, recipe.tensor_parallel.unlimited) == (2, True)
        assert recipe.executor == "ray"
        assert recipe.drafter is not None
        assert recipe.drafter.config == {
            "method": "mtp",
            "model": "example/dove-assistant",
            "num_speculative_tokens": 4,
            "moe_backend": "triton",
        }
        assert "vllm-node-tf5 is in no registry but Docker's own" in imported.to_do[0]
        found = left(imported)
        assert "image.build" in found["mods: mods/fix-dove"]
        assert "build" in found["build_args: --tf5"]

    def test_json_in_a_default(self, tmp_path: Path) -> None:
        text = (
            'container: c\ndefaults:\n  spec: \'{"method": "mtp", "num_speculative_tokens": 5}\'\n'
            "command: vllm serve example/m --speculative-config {spec}\n"
        )
        recipe, _ = made(tmp_path, text)
        assert recipe.drafter is not None
        assert recipe.drafter.tokens == 5

    @pytest.mark.parametrize(("text", "line", "message"), CASES["wrong_recipes"])
    def test_errors_name_the_line(self, tmp_path: Path, text: str, line: int, message: str) -> None:
        with pytest.raises(InvalidFile) as caught:
            made(tmp_path, text)
        assert message in caught.value.message
        assert caught.value.where.endswith(f"x.yaml:{line}")


class TestVllmRecipes:
    def test_the_default_variant(self, tmp_path: Path) -> None:
        recipe, imported = made(tmp_path, VLLM_RECIPE)
        assert imported.kind == "vLLM recipe"
        assert recipe.name == "finch-30b-a3b"
        assert recipe.model.name == "example/Finch-30B-A3B"
        assert recipe.vllm.supported == ">=0.25.0"
        assert recipe.engine_args == {
            "trust-remote-code": True,
            "no-enable-chunked-prefill": True,
            "enable-auto-tool-choice": True,
            "tool-call-parser": "finch",
            "reasoning-parser": "finch",
        }
        assert recipe.env == {"EXAMPLE_BASE": "1"}
        assert recipe.drafter is None
        assert (recipe.tensor_parallel.min, recipe.tensor_parallel.default) == (1, 1)
        assert any("no container image is named" in task for task in imported.to_do)

    def test_a_variant_for_sparks(self, tmp_path: Path) -> None:
        recipe, _ = made(tmp_path, VLLM_RECIPE, Choice("nvfp4"))
        assert recipe.model.name == "example/Finch-30B-A3B-NVFP4"
        assert recipe.model.quantization == "nvfp4"
        assert recipe.image.ref == "example/spark-vllm:dated"
        assert recipe.vllm.supported == ">=0.28.0"
        assert recipe.gpu_memory_utilization == 0.5
        assert recipe.engine_args["max-num-seqs"] == 8
        assert recipe.engine_args["max-model-len"] == 8192
        assert recipe.engine_args["enable-chunked-prefill"] is True
        assert "no-enable-chunked-prefill" not in recipe.engine_args
        assert recipe.env == {"EXAMPLE_BASE": "1", "EXAMPLE_SPARK": "1"}

    def test_a_feature_for_sparks(self, tmp_path: Path) -> None:
        choice = Choice("nvfp4", ("spec_decoding", "text_only", "no-reasoning"))
        recipe, _ = made(tmp_path, VLLM_RECIPE, choice)
        assert recipe.drafter is not None
        assert recipe.drafter.options == {"moe_backend": "triton"}
        assert recipe.env["EXAMPLE_SPEC"] == "1"
        assert recipe.engine_args["language-model-only"] is True
        assert "reasoning-parser" not in recipe.engine_args

    def test_a_mode(self, tmp_path: Path) -> None:
        recipe, imported = made(tmp_path, VLLM_RECIPE, Choice("default", ("spec_decoding=eagle3",)))
        assert recipe.drafter is not None
        assert (recipe.drafter.method, recipe.drafter.name) == ("eagle3", "example/finch.eagle3")
        assert "features.spec_decoding.modes.mtp" in left(imported)

    def test_what_it_leaves_out(self, tmp_path: Path) -> None:
        _, imported = made(tmp_path, VLLM_RECIPE)
        found = left(imported)
        assert found["variants.nvfp4"] == "--variant nvfp4 takes it"
        assert found["features.spec_decoding"] == (
            "it is off; --feature spec_decoding switches it on"
        )
        assert "compatible_strategies: multi_node_dep" in found
        assert found["hardware_overrides.amd"] == "for other hardware"
        assert "dependencies: pip install finch-sound" in found
        assert found["guide"] == "a text for people"
        assert {"meta", "model.architecture", "variants.default.precision"} <= set(found)

    @pytest.mark.parametrize(
        ("choice", "message", "hint"),
        [
            (Choice("nvfp"), "no variant 'nvfp'", "did you mean 'nvfp4'?"),
            (Choice(features=("tools",)), "no feature 'tools'", "features: "),
            (Choice(features=("spec_decoding=medusa",)), "no mode of spec_decoding", "eagle3"),
            (Choice("nvfp4", ("spec_decoding=eagle3",)), "is for the variants default", "another"),
        ],
    )
    def test_a_choice_that_there_is_not(
        self, tmp_path: Path, choice: Choice, message: str, hint: str
    ) -> None:
        with pytest.raises(UsageError) as caught:
            made(tmp_path, VLLM_RECIPE, choice)
        assert message in caught.value.message
        assert hint in caught.value.hint

    def test_notes_when_sparks_are_not_named(self, tmp_path: Path) -> None:
        _, imported = made(tmp_path, VLLM_RECIPE, Choice("fp8"))
        assert "the file does not name DGX Spark for the variant fp8" in imported.notes
        # Files of early 2026 call it gb10 alone.
        older = VLLM_RECIPE.replace("dgx_spark_gb10", "gb10")
        assert made(tmp_path, older)[1].notes == made(tmp_path, VLLM_RECIPE)[1].notes
        assert made(tmp_path, older)[0].engine_args == made(tmp_path, VLLM_RECIPE)[0].engine_args
        text = VLLM_RECIPE.replace("gb10: verified", "gb10: unsupported")
        _, imported = made(tmp_path, text)
        assert any("does not run on a DGX Spark yet" in note for note in imported.notes)

    def test_too_large_for_one_spark(self, tmp_path: Path) -> None:
        recipe, _ = made(tmp_path, VLLM_RECIPE.replace("gb: 72", "gb: 200"))
        assert (recipe.tensor_parallel.min, recipe.tensor_parallel.default) == (1, 2)
        recipe, _ = made(tmp_path, VLLM_RECIPE.replace("gb: 72", "gb: 276"))
        assert (recipe.tensor_parallel.min, recipe.tensor_parallel.default) == (1, 4)

    def test_the_file_says_what_names_do_not(self, tmp_path: Path) -> None:
        recipe, _ = made(tmp_path, VLLM_RECIPE)
        assert (recipe.model.base, recipe.model.quantization) == (None, "bf16")
        recipe, _ = made(tmp_path, VLLM_RECIPE, Choice("fp8"))
        assert (recipe.model.base, recipe.model.quantization) == ("example/Finch-30B-A3B", "fp8")

    @pytest.mark.parametrize(("old", "new", "message"), CASES["wrong_model_files"])
    def test_errors_name_the_line(self, tmp_path: Path, old: str, new: str, message: str) -> None:
        assert old in VLLM_RECIPE
        text = VLLM_RECIPE.replace(old, new, 1)
        with pytest.raises(InvalidFile) as caught:
            made(tmp_path, text)
        assert message in caught.value.message
        assert "x.yaml:" in caught.value.where


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        (SPARKRUN_V2, None),
        (SPARKRUN_STRUCTURED, None),
        (EUGR, None),
        (VLLM_RECIPE, Choice("nvfp4", ("spec_decoding",))),
    ],
)
def test_no_field_is_dropped_silently(tmp_path: Path, text: str, choice: Choice | None) -> None:
    """Every field at the top is in the recipe, or named among what is left out."""
    recipe, imported = made(tmp_path, text, choice)
    told = " ".join(left(imported))
    data: dict[str, Any] = YAML(typ="safe").load(text)
    known = {"model", "model_revision", "container", "command", "defaults", "env", "name"}
    known |= {"description", "min_nodes", "max_nodes", "cluster_only", "solo_only", "runtime"}
    known |= {"variants", "features", "opt_in_features", "compatible_strategies"}
    known |= {"hardware_overrides", "strategy_overrides"}
    assert all(name in known or name in told for name in data)
    assert recipe.model.name.startswith("example/")


class TestFiles:
    @pytest.mark.parametrize(
        ("name", "raw", "message"),
        [
            ("x.yaml", b"\x00\x01\x02\xff", "byte 0xff is not UTF-8"),
            ("x.yaml", b"a: \x01", "control character"),
            ("x", b"\x7fELF\x00\x00 docker run", "control character"),
            ("x", b"\xff\xfe", "not UTF-8"),
            ("x.yaml", b"a: " + b"x" * (1 << 20), "larger than 1 MiB"),
            ("x.sh", b"docker run " + b"x" * (1 << 20), "larger than 1 MiB"),
            ("x.yaml", b"", "the file is empty"),
            ("x.yaml", b"- a\n- b\n", "found a list at the top level"),
            ("x.yaml", b"a: [\n", "never closed"),
            ("x.yaml", b"services: {vllm: {image: x}}\n", "no service starts vLLM or SGLang"),
            (
                "x.yaml",
                b"name: x\nmodel: {name: m, served_name: m}\nimage: {ref: r}\n",
                "a recipe of spark-cluster already",
            ),
            ("x.yaml", b"one: 1\ntwo: 2\n", "its fields are one, two"),
            ("x.sh", b"#!/bin/sh\necho docker x\n", "no command in it starts vLLM"),
            ("x.txt", b"a letter to vllm users\n", "no launch of vLLM"),
        ],
    )
    def test_what_is_none(self, tmp_path: Path, name: str, raw: bytes, message: str) -> None:
        path = tmp_path / name
        path.write_bytes(raw)
        with pytest.raises(InvalidFile) as caught:
            read_file(path)
        assert message in caught.value.message
        assert name in caught.value.where
        assert caught.value.hint or "compose" in message

    def test_aliases_that_grow_without_end(self, tmp_path: Path) -> None:
        rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
        rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
        path = tmp_path / "x.yaml"
        path.write_text("\n".join(rows))
        with pytest.raises(InvalidFile, match="too many values"):
            read_file(path)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidFile, match="no such file"):
            read_file(tmp_path / "no.yaml")

    def test_a_script(self, tmp_path: Path) -> None:
        path = tmp_path / "run.sh"
        path.write_text("#!/bin/bash\nset -e\nexport A=1\nexec vllm serve org/m --seed 1\n")
        source = read_file(path)
        assert (source.launch.model, source.launch.env) == ("org/m", {"A": "1"})
        assert source.origin == "run.sh"

    def test_an_error_in_a_script_names_its_line(self, tmp_path: Path) -> None:
        path = tmp_path / "run.sh"
        path.write_text("#!/bin/bash\nvllm serve m \\\n  --seed 1 --seed 2\n")
        with pytest.raises(InvalidFile) as caught:
            read_file(path)
        assert caught.value.where.endswith("run.sh:3")

    def test_a_choice_is_for_one_kind_only(self, tmp_path: Path) -> None:
        path = tmp_path / "x.yaml"
        path.write_text(EUGR)
        with pytest.raises(UsageError, match="--variant and --feature"):
            read_file(path, Choice("nvfp4"))
