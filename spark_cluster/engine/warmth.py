"""Whether the next launch of a recipe finds what torch.compile made, and if not, what changed.

A launch is compared with the records of earlier ones on the same node. "Warm" says that a launch
with the same key became ready there and that its compiled code is still on the disk; weights are
loaded and CUDA graphs are captured at each start, warm or not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from spark_cluster.engine import compile_key
from spark_cluster.node.engine_caches import short
from spark_cluster.node.launch_records import LaunchRecord

State = Literal["warm", "cold", "unknown", "not compiled"]

SHOWN = 60
"""Characters of a value that a reason shows."""

UNLISTED = "whether that is a part of the key is not known"
DEFAULT = "the same only if that is the default"

_ORDER: tuple[State, ...] = ("cold", "unknown", "warm", "not compiled")
"""The state of several nodes is the first of these that one of them has."""


@dataclass(frozen=True)
class NodeWarmth:
    """The state of the caches on one node for the next launch.

    Attributes:
        reasons: why it is not warm: the flag, variable, version or image that changed.
        tuned: files with tuned parameters of kernels that it finds.
    """

    state: State
    reasons: tuple[str, ...] = ()
    tuned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Warmth:
    """The state of the caches for the next launch of a recipe.

    Attributes:
        state: `warm`; `cold` (something of the key changed, or the compiled code is gone);
            `not compiled` (the recipe has nothing compiled); `unknown` otherwise.
        reasons: why it is not warm, with the node where not all are alike.
    """

    recipe: str
    state: State
    reasons: tuple[str, ...]
    nodes: Mapping[str, NodeWarmth] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return it as `status --json` prints it."""
        return {
            "recipe": self.recipe,
            "state": self.state,
            "reasons": list(self.reasons),
            "nodes": {name: node.state for name, node in self.nodes.items()},
            "tuned": list(self.tuned),
        }

    @property
    def tuned(self) -> tuple[str, ...]:
        """Files with tuned parameters of kernels that are on each node."""
        files = [set(node.tuned) for node in self.nodes.values()]
        return tuple(sorted(set.intersection(*files))) if files else ()

    @property
    def of_tuned(self) -> str:
        """What a line on the next launch says of them; empty without any."""
        return f"; tuned kernels: {', '.join(self.tuned)}" if self.tuned else ""

    def __str__(self) -> str:
        why = f": {'; '.join(self.reasons)}" if self.reasons else ""
        return f"next launch of {self.recipe}: {self.state}{why}{self.of_tuned}"


def without_nodes(wanted: LaunchRecord) -> NodeWarmth | None:
    """Return the state that the launch has on any node; None where nodes must be asked."""
    if wanted.engine != "vllm":
        why = f"what makes another key of {wanted.engine}'s caches is not known here"
        return NodeWarmth("unknown", (why,))
    if setting := compile_key.compiles_nothing(wanted.flags, wanted.env):
        return NodeWarmth("not compiled", (f"{setting}: there is nothing to keep",))
    return None


def judge(
    wanted: LaunchRecord,
    records: Iterable[LaunchRecord],
    on_disk: Mapping[str, Collection[str]] | None,
    caches: str = "",
) -> NodeWarmth:
    """Compare a launch with the records of a node.

    Args:
        wanted: the launch; empty fields of it (`image`, `gpu`, `model`) are not known.
        records: of the node, newest first.
        on_disk: keys below `torch_compile_cache` that are there, by the folder of their image; None
            when it was not asked.
        caches: the folder of a virtual environment's caches; that of an image is known by its id.
    """
    if settled := without_nodes(wanted):
        return settled
    earlier = [record for record in records if record.recipe == wanted.recipe]
    if not earlier:
        return NodeWarmth("unknown", ("no launch of it is on record here",))
    nearest = min(earlier, key=lambda record: _distance(wanted, record))
    certain, possible = differences(wanted, nearest)
    if certain:
        return NodeWarmth("cold", (*certain, *possible))
    if possible:
        return NodeWarmth("unknown", tuple(possible))
    folder = caches or short(wanted.image or nearest.image)
    return _on_disk(nearest, None if on_disk is None else on_disk.get(folder, ()))


def _distance(wanted: LaunchRecord, record: LaunchRecord) -> tuple[int, int, float]:
    certain, possible = differences(wanted, record)
    return len(certain), len(possible), -record.last


def _on_disk(record: LaunchRecord, on_disk: Collection[str] | None) -> NodeWarmth:
    if not record.keys:
        why = "the log of its last launch named no compiled code"
        return NodeWarmth("unknown", (why,))
    if on_disk is None:
        return NodeWarmth("unknown", ("the folder of the compiled code could not be read",))
    gone = [key for key in record.keys if key not in on_disk]
    if gone == list(record.keys):
        return NodeWarmth("cold", (f"its compiled code is gone ({_key(gone[0])})",))
    if gone:
        # Whether the second layout needs the first depends on vLLM's and torch's versions.
        return NodeWarmth("unknown", (f"a part of its compiled code is gone ({_key(gone[0])})",))
    return NodeWarmth("warm")


def _key(key: str) -> str:
    return key.rpartition("/")[2][:10]


def differences(wanted: LaunchRecord, record: LaunchRecord) -> tuple[list[str], list[str]]:
    """Return what surely makes another key, and what may; in words."""
    certain, possible = _flags(wanted.flags, record.flags)
    names = sorted({*wanted.env, *record.env})
    for name in names:
        was, now = record.env.get(name), wanted.env.get(name)
        if was != now and compile_key.variable_enters(name):
            possible.append(f"{name} {_change(was, now)}")
    for what, was, now in (
        ("the model's path", record.model, wanted.model),
        ("the GPU", record.gpu, wanted.gpu),
    ):
        if was and now and was != now:
            certain.append(f"{what} {_change(was, now)}")
    if record.nodes != wanted.nodes and record.tp == wanted.tp:
        certain.append(f"nodes {_change(str(record.nodes), str(wanted.nodes))}")
    if wanted.image and record.image and wanted.image != record.image:
        certain.append(_other_image(wanted, record))
    else:
        possible += _image(wanted, record)
    return certain, possible


def _flags(now: Mapping[str, str], was: Mapping[str, str]) -> tuple[list[str], list[str]]:
    certain, possible = list[str](), list[str]()
    for flag in sorted({*now, *was}):
        effect = compile_key.flag_effect(flag)
        if effect == "none" or now.get(flag) == was.get(flag):
            continue
        text = f"--{flag} {_change(was.get(flag), now.get(flag))}"
        if effect == "unknown":
            possible.append(f"{text} ({UNLISTED})")
        elif (flag in now and flag in was) or flag in compile_key.OFF_BY_DEFAULT:
            certain.append(text)
        else:
            possible.append(f"{text} ({DEFAULT})")
    return certain, possible


def _other_image(wanted: LaunchRecord, record: LaunchRecord) -> str:
    """Each image has caches of its own, whatever is in it."""
    version = f" (vLLM {record.version} then)" if record.version else ""
    return f"the image {_change(short(record.image), short(wanted.image))}{version}"


def _image(wanted: LaunchRecord, record: LaunchRecord) -> list[str]:
    """Return what may be another image, as far as its id is not known."""
    if record.image and wanted.image:
        return []
    if record.reference != wanted.reference:
        return [f"the image {_change(record.reference, wanted.reference)}"]
    if record.image:
        return [f"the image {wanted.reference} is not on this node"]
    return []


def _change(was: str | None, now: str | None) -> str:
    if was is None:
        return f"is new: {_shown(now)}" if now else "is new"
    if now is None:
        return f"is gone (was {_shown(was)})" if was else "is gone"
    return f"changed from {_shown(was)} to {_shown(now)}"


def _shown(value: str | None) -> str:
    text = value or "''"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def whole(recipe: str, nodes: Mapping[str, NodeWarmth]) -> Warmth:
    """Put the nodes' states together: the worst is that of the launch."""
    states = [node.state for node in nodes.values()]
    state: State = next((state for state in _ORDER if state in states), "unknown")
    return Warmth(recipe, state, tuple(_reasons(nodes, state)), dict(nodes))


def _reasons(nodes: Mapping[str, NodeWarmth], state: State) -> Iterable[str]:
    shared = {node.reasons for node in nodes.values()}
    if len(shared) == 1:
        return next(iter(shared))
    return [
        f"{name}: {reason}"
        for name, node in nodes.items()
        if node.state == state
        for reason in node.reasons
    ]
