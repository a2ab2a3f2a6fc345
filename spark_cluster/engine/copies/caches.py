"""Engine caches from one node to others: their keys say for which GPU and code they are.

Triton's and Inductor's keys are hashes of the source, the compiler's version and the GPU's
architecture: an entry is valid on another node, or never looked up. vLLM's compiled code is kept by
rank: that of one Spark is valid on another one. FlashInfer's kernels are built again when the times
of their files change, so these go with them (docs/how-to/caches.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_cluster.config.caches import CACHES
from spark_cluster.document import Document
from spark_cluster.engine.caches import root_of_all
from spark_cluster.engine.copies.copy import Copied
from spark_cluster.engine.copies.copy_model import named_nodes
from spark_cluster.engine.copies.folders import copy_folder
from spark_cluster.errors import Refused
from spark_cluster.node.cache_usage import COMPILED_IN
from spark_cluster.node.engine_caches import IMAGES
from spark_cluster.runner.play import Play

FOLDERS = {
    "triton": CACHES["TRITON_CACHE_DIR"],
    "inductor": CACHES["TORCHINDUCTOR_CACHE_DIR"],
    "compile": f"{CACHES['VLLM_CACHE_ROOT']}/{COMPILED_IN}",
    "flashinfer": CACHES["FLASHINFER_WORKSPACE_BASE"],
}
"""Kind to folder, of the caches that are copied."""

BY_TIME = ("flashinfer",)
"""Kinds that are built again when the time of a file is another one."""


@dataclass(frozen=True)
class CopiedCache(Document):
    """A kind of cache, and its copy to one node."""

    kind: str
    copied: Copied


def copy_caches(
    play: Play, source: str, targets: Sequence[str] = (), *, encrypt: bool = True
) -> list[CopiedCache]:
    """Copy the engine's caches from a node to others.

    Args:
        source: name of a node.
        targets: names of nodes; by default all others of the run.

    Raises:
        UsageError: a node is not in the run.
        Refused: there is no other node, it has another GPU, or the source has nothing to copy.
        SparkClusterError: see `copy_folder`.
    """
    nodes = named_nodes(play, (source, *targets))
    sender = nodes[source]
    others = [nodes[name] for name in dict.fromkeys(targets or nodes) if name != source]
    if not others:
        raise Refused("there is no other node to copy to", hint="widen --limit or --to")
    for node in others:
        ours, theirs = sender.facts.gpu, node.facts.gpu
        if ours is None or theirs is None or ours.name != theirs.name:
            raise Refused(
                f"{node.name} has {theirs.name if theirs else 'no GPU'}, and {source} has "
                f"{ours.name if ours else 'none'}: compiled kernels are of no use there",
                hint="name nodes with the same GPU with --to",
            )
    root = root_of_all(play.inventory.nodes[name] for name in nodes)
    usage = play.session(sender).request("caches", what="usage", folder=root)
    found = _folders(usage["entries"])
    if not found:
        raise Refused(
            f"{source} has no {' or '.join(FOLDERS)} cache below {root}",
            hint="`spark-cluster caches list` shows what the nodes have",
        )
    return [
        CopiedCache(kind, one)
        for kind, folder in found
        for one in copy_folder(
            play,
            f"{root}/{folder}",
            sender,
            others,
            exact=kind in BY_TIME,
            encrypt=encrypt,
        )
    ]


def _folders(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return kind and folder of what is copied, image by image; what was shared is used by none."""
    found = {
        (entry["kind"], f"{IMAGES}/{parts[1]}/{FOLDERS[entry['kind']]}")
        for entry in entries
        if entry["files"] and entry["kind"] in FOLDERS
        if (parts := entry["path"].split("/"))[0] == IMAGES
    }
    return sorted(found, key=lambda one: (one[1].split("/")[1], list(FOLDERS).index(one[0])))
