"""The KV cache of a model by the options of a server, for tests."""

from typing import Any

from spark_cluster.models.shape import Geometry
from spark_cluster.plan import kv
from spark_cluster.plan.kv_layout import KvLayout


def cache(
    geometry: Geometry,
    *,
    max_model_len: int,
    kv_gib: float | None = None,
    kv_bytes: int | None = None,
    **options: Any,
) -> kv.KvCache:
    """Return what a cache holds, of a size in GiB or in bytes."""
    size = int(kv_gib * kv.GIB) if kv_bytes is None and kv_gib is not None else int(kv_bytes or 0)
    return kv.cache(KvLayout(geometry, **options), size, max_model_len)


def bytes_for(geometry: Geometry, requests: int, length: int, **options: Any) -> int:
    """Return the bytes that hold some requests of a length."""
    return kv.bytes_for(KvLayout(geometry, **options), requests, length)
