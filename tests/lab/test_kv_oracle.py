"""Real vLLM is started on the CPU and lays out a KV cache as we say."""

import os
import sys

import kv_figures
import pytest

from benchmarks.kv_oracle.questions import questions
from benchmarks.kv_oracle.start import VLLM, ask
from spark_cluster.models.config import from_config
from spark_cluster_lab import Lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0, reason="the lab needs root on Linux"
    ),
]


def test_a_hybrid_with_sliding_windows():
    """The attention of Gemma 4 26B-A4B: 25 layers with windows and 5 without, other heads."""
    (question,) = [each for each in questions() if each.name == "gemma4-26b"]
    answer = ask(Lab.default().prepare(), question)
    document = question.to_dict()
    engine = document["engine"]
    assert answer["vllm"].split("+")[0] == VLLM
    started = {
        "kv_bytes": engine["kv_cache_memory_bytes"],
        "max_model_len": engine["max_model_len"],
        "max_num_batched_tokens": engine["max_num_batched_tokens"],
    }
    for said in ({**started, **answer["started"]}, *answer["more"]):
        found = kv_figures.cache(
            from_config(question.config, question.name),
            **{key: said[key] for key in started},
            block_size=engine["block_size"],
            vllm=answer["vllm"],
            device="cpu",
        )
        assert found.max_model_len == said.get("longest", found.max_model_len)
        if "refused" not in said:
            assert (found.tokens, found.max_concurrency) == (
                said["tokens"],
                said["max_concurrency"],
            )
