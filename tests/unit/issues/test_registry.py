"""What lint knows of models and of SGLang's options by release, against public threads."""

from __future__ import annotations

import pytest
from cases import cases
from test_rules import recipe, shape

from spark_cluster.importers import commandline
from spark_cluster.issues.rules import lint
from spark_cluster.issues.rules_model import MODELS

OURS = {"model-newer-than-vllm", "lora-not-supported", "pipeline-not-supported"}


TABLES = cases(__file__, "registry.toml")


@pytest.mark.parametrize("thread", TABLES["thread"], ids=lambda t: t["url"])
def test_a_thread(thread):
    launch = recipe(vllm=thread["vllm"], args=thread.get("args", {}))
    experts = (2, 1, 4, 8) if thread.get("experts") else ()
    geometry = shape(architectures=(thread["architecture"],), experts=experts)
    found = {f.id: f.severity for f in lint(launch, geometry) if f.id in OURS}
    wanted = {thread["finds"]: thread.get("severity", "error")} if thread["finds"] else {}
    assert found == wanted


def test_the_newest_release_has_each_architecture_that_does_not_do_something():
    for ability in ("without_lora", "without_stages"):
        lacking = MODELS[ability]
        assert lacking.keys() <= MODELS["architectures"].keys()
        assert "LlamaForCausalLM" not in lacking


@pytest.mark.parametrize("case", TABLES["sglang"], ids=lambda case: case["line"].split()[0])
def test_a_line_for_sglang(case):
    found = lint(commandline.parse(f"docker run --gpus all {case['line']}"))
    told = [(f.found, f.severity) for f in found if f.id in ("unknown-flag", "wrong-flag-value")]
    assert told == ([(case["finds"], case["severity"])] if case["finds"] else [])
