"""What the tests on a GPU are made of, where there is none."""

import json

import pytest
from engine_log import logged
from gemma4_shape import WORD, make_model
from gpu_recipes import changed
from gpu_runs import DATA, runs
from test_gpu_explain import FAILURES

from spark_cluster.issues.entries import catalogue
from spark_cluster.models.lookup import find

START = "(APIServer pid=1) INFO non-default args: {'gpu_memory_utilization': 0.85}\n"
WHOLE = {run.name: run for run in runs() if "Model loading took" in run.log}


@pytest.mark.parametrize("name", WHOLE)
def test_the_figures_of_a_start(name):
    run = WHOLE[name]
    before = f"{START}Available KV cache memory: 1.0 GiB\nGPU KV cache size: 1 tokens\n"
    found = logged(before + START + run.log)
    assert (found.kv_tokens, found.concurrency, found.share) == (run.tokens, run.concurrency, 0.85)
    assert found.kv_gib == (None if run.kv_exact else run.kv_gib), "of this start only"


def test_a_start_that_was_kept_whole():
    found = logged((DATA / "main_job_start.log").read_text())
    assert (found.kv_gib, found.kv_tokens, found.concurrency) == (None, 2_097_152, 512.0)


def test_a_shape_without_weights(tmp_path):
    folder = make_model(tmp_path / "it", vocab_size=1000)
    known = find("google/gemma-4-26B-A4B-it")
    found = find(folder)
    assert (found.layers, found.experts) == (known.layers, known.experts)
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(words.values()) == list(range(1000))
    assert all(word.startswith(WORD) for word in words)


def test_what_a_machine_needs_is_in_each_recipe(monkeypatch):
    needed = {"engine_args": {"attention-backend": "TRITON_ATTN"}, "env": {"A": "1"}}
    monkeypatch.setenv("SPARK_CLUSTER_GPU_RECIPE", json.dumps(needed))
    found = changed({"name": "x", "engine_args": {"enforce-eager": True}})
    assert found["engine_args"] == {"enforce-eager": True, "attention-backend": "TRITON_ATTN"}
    assert found["env"] == {"A": "1"}


def test_failures_are_of_the_catalogue():
    assert {failure.issue for failure in FAILURES.values()} <= catalogue().keys()
