"""The parts of the engine's caches on all nodes: what each is for, and what may be removed.

Each image has caches of its own (node/engine_caches.py). Compiled code belongs to recipes by the
records of their launches. Triton's, Inductor's and FlashInfer's folders serve all recipes of the
image: their own keys have the source of a kernel and the GPU's architecture in them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_cluster.config.folders import CACHES
from spark_cluster.config.schema import Document
from spark_cluster.config.topology import Node
from spark_cluster.engine import runtime
from spark_cluster.engine.deployment import root_of_all
from spark_cluster.engine.model_upkeep import named_nodes
from spark_cluster.engine.names import PROGRAMS, instance_of
from spark_cluster.engine.node_copies import Copied, copy_folder
from spark_cluster.errors import Refused
from spark_cluster.node import containers, engine_caches
from spark_cluster.node.containers import RECIPE
from spark_cluster.node.engine_caches import LaunchRecord
from spark_cluster.node.replies import made_of
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session, ask_each

USUAL = ("compile", "flashinfer")
"""Kinds of which single parts can be told from others: pruned unless others are named."""

USAGE_S, REMOVE_S = 60.0, 600.0
"""Seconds that counting and removing may take on a node."""

COMPILED = f"vllm/{engine_caches.COMPILED_IN}/"


@dataclass(frozen=True)
class CachePart(Document):
    """A part of a node's caches that can be removed by itself.

    Attributes:
        kind: compile, triton, inductor, flashinfer, tuned (parameters of kernels, by `tune`), vllm
            (other files of vLLM), downloads (of an engine itself) or huggingface.
        path: below the folder of the caches.
        bytes: on the disk; a lower bound where `whole` is False.
        recipes: whose launches used it, as far as records tell; of shared parts none.
        last_used: seconds since 1970 (UTC) by the node's clock: the last launch that used it, or
            when something was last written there.
        idle_days: days since then.
        kept: why it is never removed now; empty when it may be.
    """

    node: str
    kind: str
    path: str
    bytes: int
    whole: bool
    recipes: tuple[str, ...]
    last_used: float
    idle_days: float
    kept: str


_STATES = {
    **{name: runtime.question(name) for name in PROGRAMS},
    "servers": [runtime.servers_question()],
}
"""The questions for what serves on a node."""


def parts(
    sessions: Mapping[str, Session], folders: Mapping[str, str], recipes: Collection[str]
) -> list[CachePart]:
    """Return the parts on all nodes, the one that was used longest ago first.

    Args:
        folders: node to the folder of its caches.
        recipes: of the inventory, whose compiled code is kept.
    """
    waiting = {
        name: (
            session.submit("caches", what="usage", folder=folders[name], timeout=USAGE_S),
            session.submit("gather", commands=_STATES),
        )
        for name, session in sessions.items()
    }
    answers = {name: (usage.wait(), state.wait()) for name, (usage, state) in waiting.items()}
    serves, found = _serving(state["commands"] for _, state in answers.values()), list[CachePart]()
    for name, (usage, _) in answers.items():
        found += _of_node(name, usage, serves, recipes)
    return sorted(found, key=lambda part: (part.last_used, part.node, part.path))


def _serving(answers: Iterable[Mapping[str, Any]]) -> frozenset[str] | None:
    """Return the recipes that all nodes together serve: every rank reads its caches, the server's
    or not. None where there is neither a server nor Ray, not even a stopped one.
    """
    recipes = set[str]()
    for told in answers:
        states = [containers.answered(told[name]) for name in PROGRAMS]
        recipes |= {one.labels.get(RECIPE, "") for one in states if one.status != "absent"}
        listed = told["servers"]
        several = runtime.server_names(str(listed["stdout"])) if listed is not None else ()
        recipes |= set(map(instance_of, several))
    return frozenset(filter(None, recipes)) if recipes else None


def _of_node(
    node: str,
    usage: Mapping[str, Any],
    serves: frozenset[str] | None,
    recipes: Collection[str],
) -> list[CachePart]:
    """Return the parts of one node from its answer."""
    records = list(filter(None, map(engine_caches.launch_from_dict, usage["launches"])))
    now = float(usage["now"])
    found = []
    for entry in usage["entries"]:
        users = _users(entry, records)
        last = max([float(entry["modified"]), *(r.last for r in users)])
        named = tuple(sorted({r.recipe for r in users})) if entry["kind"] == "compile" else ()
        found.append(
            made_of(
                CachePart,
                entry,
                node=node,
                recipes=named,
                last_used=last,
                idle_days=round(max(0.0, now - last) / 86400, 2),
                kept=_kept(entry["kind"], named, serves, records, recipes),
            )
        )
    return found


def _users(entry: Mapping[str, Any], records: Sequence[LaunchRecord]) -> list[LaunchRecord]:
    """Return the launches that used an entry; every launch may have used a shared one."""
    image, path = _image_of(entry["path"])
    # Of a virtual environment records have the packages only, perhaps as a hash.
    own = "" if image.startswith(engine_caches.VENV) else image
    of_image = [one for one in records if not image or engine_caches.short(one.image) == own]
    if entry["kind"] != "compile":
        return [] if entry["kind"] == "huggingface" else of_image
    key = path.removeprefix(COMPILED)
    return [record for record in of_image if key in record.keys]


def _image_of(path: str) -> tuple[str, str]:
    """Return the folder of an image's caches and the path in it; no folder for what was shared."""
    top, _, rest = path.partition("/")
    image, _, inside = rest.partition("/")
    return (image, inside) if top == engine_caches.IMAGES else ("", path)


def _kept(
    kind: str,
    named: Collection[str],
    serves: frozenset[str] | None,
    records: Iterable[LaunchRecord],
    recipes: Collection[str],
) -> str:
    if kind == "huggingface":
        return "models are not pruned here"
    if serves is not None:
        if kind != "compile":
            return "a server uses it"
        known = {r.recipe for r in records if r.keys}
        # Of a server without a record nothing says which compiled code it uses.
        if not serves or not serves <= known or serves & set(named):
            return "a server uses it, or may"
    of_inventory = [recipe for recipe in recipes if recipe in named]
    return f"recipe {', '.join(of_inventory)} of the inventory uses it" if of_inventory else ""


def prunable(
    found: Iterable[CachePart], *, days: float, kinds: Collection[str], recipe: str | None
) -> list[CachePart]:
    """Return what may be removed, in the order of their use.

    Args:
        days: without a use for at least so long.
        recipe: only what this recipe's launches used, and no other's.
    """
    return [
        part
        for part in found
        if not part.kept
        and part.kind in kinds
        and part.idle_days >= days
        and (recipe is None or part.recipes == (recipe,))
    ]


def remove(
    sessions: Mapping[str, Session], folders: Mapping[str, str], chosen: Iterable[CachePart]
) -> dict[str, list[str]]:
    """Remove parts, on all nodes at once.

    Returns:
        Node to the paths that were removed.

    Raises:
        SparkClusterError: a node could not remove one.
    """
    by_node: dict[str, list[str]] = {}
    for part in chosen:
        by_node.setdefault(part.node, []).append(part.path)
    asked = {
        name: {"what": "remove", "folder": folders[name], "paths": paths, "timeout": REMOVE_S}
        for name, paths in by_node.items()
    }
    answers = ask_each(sessions, "caches", asked)
    return {name: list(answer["removed"]) for name, answer in answers.items()}


# Engine caches from one node to others: their keys say for which GPU and code they are.
#
# Triton's and Inductor's keys are hashes of the source, the compiler's version and the GPU's
# architecture: an entry is valid on another node, or never looked up. vLLM's compiled code is kept
# by rank: that of one Spark is valid on another one. FlashInfer's kernels are built again when the
# times of their files change, so these go with them (docs/how-to/caches.md).

FOLDERS = {
    "triton": CACHES["TRITON_CACHE_DIR"],
    "inductor": CACHES["TORCHINDUCTOR_CACHE_DIR"],
    "compile": f"{CACHES['VLLM_CACHE_ROOT']}/{engine_caches.COMPILED_IN}",
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
        _must_have_the_same_gpu(sender, node)
    root = root_of_all(play.inventory.nodes[name] for name in nodes)
    usage = play.session(sender).request("caches", what="usage", folder=root)
    found = _folders(usage["entries"])
    if not found:
        raise Refused(
            f"{source} has no cache to copy below {root} ({', '.join(FOLDERS)})",
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


def _must_have_the_same_gpu(sender: Node, node: Node) -> None:
    ours, theirs = sender.facts.gpu, node.facts.gpu
    if ours is None or theirs is None or ours.name != theirs.name:
        raise Refused(
            f"{node.name} has {theirs.name if theirs else 'no GPU'}, and {sender.name} has "
            f"{ours.name if ours else 'none'}: compiled kernels are of no use there",
            hint="name nodes with the same GPU with --to",
        )


def _folders(entries: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return kind and folder of what is copied, image by image; what was shared is used by none."""
    found = {
        (entry["kind"], f"{engine_caches.IMAGES}/{parts[1]}/{FOLDERS[entry['kind']]}")
        for entry in entries
        if entry["files"] and entry["kind"] in FOLDERS
        if (parts := entry["path"].split("/"))[0] == engine_caches.IMAGES
    }
    return sorted(found, key=lambda one: (one[1].split("/")[1], list(FOLDERS).index(one[0])))
