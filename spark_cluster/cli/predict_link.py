"""Results of `bench fabric` among those that are given to `predict --calibrate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spark_cluster.bench.fabric_record import FabricRecord, is_fabric, load_fabric
from spark_cluster.config.yamlfile import shown
from spark_cluster.planning.link import MeasuredLink
from spark_cluster.planning.speed import allreduce


def split(results: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the results of `bench fabric`, and the others."""
    links = tuple(path for path in results if is_fabric(path))
    return links, tuple(path for path in results if path not in links)


def measured_link(paths: Sequence[Path]) -> tuple[MeasuredLink | None, list[str]]:
    """Return the link of the last result that tells of one, and why others do not.

    Raises:
        UsageError: there is no such file.
        InvalidFile: a file is no result of `bench fabric`.
    """
    found, left_out = None, []
    for path in paths:
        record = load_fabric(path)
        link = _link(record)
        if link is None:
            left_out.append(f"{shown(path)}: {_why_not(record)}")
        else:
            found = link
    return found, left_out


def _link(record: FabricRecord) -> MeasuredLink | None:
    """Return a record's link as that of two nodes, however many it was measured between."""
    token, chunk = record.of_use("one token"), record.of_use("prefill chunk")
    if record.backend != "nccl" or token is None or chunk is None:
        return None
    nodes = len(record.nodes)
    one = allreduce.exchanges(nodes)
    return MeasuredLink(
        latency_us=token.latency_us / one,
        low_us=min(token.values_us, default=token.latency_us) / one,
        high_us=max(token.values_us, default=token.latency_us) / one,
        bytes_s=allreduce.carried(nodes) * chunk.bytes / chunk.latency_us * 1e6,
    )


def _why_not(record: FabricRecord) -> str:
    if record.backend != "nccl":
        return "measured with gloo on CPUs"
    return "the message sizes of its model were not measured"
