"""Which engine caches are copied, and to which nodes."""

from __future__ import annotations

import os

import pytest
from fake_cluster import FakeCluster

from spark_cluster.config.folders import CACHE_ROOT
from spark_cluster.engine import cache_parts
from spark_cluster.errors import Refused, UsageError

IMAGE = f"{CACHE_ROOT}/images/0123456789ab"
H100 = "NVIDIA H100 80GB HBM3, 9.0, 580.95.05, 40, 10.0, 2400, 1000, 80000"


TRITON, COMPILED = "triton/AB2C", "vllm/torch_compile_cache/0123456789"
FLASHINFER = "flashinfer/.cache/flashinfer/0.6.1/121a/cached_ops"


def cached(cluster: FakeCluster, *folders: str) -> None:
    """Have a file in these folders of the head's caches, of an old time."""
    for folder in folders:
        os.utime(cluster.head.put(f"{folder}/rank_0_0/kernel.cubin", "x"), (1e9, 1e9))


def test_caches_that_are_there_are_copied(linked: FakeCluster) -> None:
    kinds = (TRITON, COMPILED, FLASHINFER)
    shared = f"{CACHE_ROOT}/torchinductor/x"  # of before images had their own: nobody reads it
    cached(linked, *(f"{IMAGE}/{kind}" for kind in kinds), shared, f"{IMAGE}/huggingface/hub")
    done = cache_parts.copy_caches(linked.play, "spark1", ("spark2",))
    assert [one.to_dict()["kind"] for one in done] == ["triton", "compile", "flashinfer"]
    assert {(one.copied.sender, one.copied.node) for one in done} == {("spark1", "spark2")}
    place = linked.nodes["spark2"].root / IMAGE.lstrip("/")
    there = {kind: place / f"{kind}/rank_0_0/kernel.cubin" for kind in kinds}
    assert set(linked.nodes["spark2"].root.rglob("*.cubin")) == set(there.values())
    kept = [kind for kind, file in there.items() if file.stat().st_mtime == 1e9]
    assert kept == [FLASHINFER], "it is built again when the time of a file is another one"


def test_another_gpu_is_refused(linked: FakeCluster) -> None:
    linked.nodes["spark2"].gpu = H100
    cached(linked, f"{IMAGE}/{TRITON}")
    with pytest.raises(Refused, match="spark2 has NVIDIA H100 80GB HBM3, and spark1 has NVIDIA GB"):
        cache_parts.copy_caches(linked.play, "spark1")
    assert not list(linked.nodes["spark2"].root.rglob("*.cubin"))


def test_nothing_to_copy_is_refused(linked: FakeCluster) -> None:
    cached(linked, f"{IMAGE}/huggingface/hub")
    with pytest.raises(Refused, match="has no triton or inductor or compile"):
        cache_parts.copy_caches(linked.play, "spark1")
    with pytest.raises(Refused, match="no other node"):
        cache_parts.copy_caches(linked.play, "spark1", ("spark1",))
    with pytest.raises(UsageError, match="spark9"):
        cache_parts.copy_caches(linked.play, "spark9")
