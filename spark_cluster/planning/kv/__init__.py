"""The KV cache arithmetic of vLLM, version by version: how much context fits."""

from spark_cluster.planning.kv.cache import KvCache, Options, bytes_for, cache
from spark_cluster.planning.kv.rules import Rule, for_version

__all__ = [
    "KvCache",
    "Options",
    "Rule",
    "bytes_for",
    "cache",
    "for_version",
]
