"""Whether the next launch of a recipe finds its compiled code, by what the last one like it logged.

Like it is a launch of the same recipe with the same image and the same arguments on the same node.
"Warm" says that its compiled code is still on the disk; weights are loaded and CUDA graphs are
captured at each start, warm or not. Which arguments make vLLM compile anew is not known here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from spark_cluster.document import Document, PrintedAs, printed
from spark_cluster.node.engine_caches import short
from spark_cluster.node.launch_records import LaunchRecord

if TYPE_CHECKING:
    from spark_cluster.config.recipe import Recipe

State = Literal["warm", "cold", "unknown", "not compiled"]

OTHER_ARGUMENTS = "its arguments or environment are those of no launch on record here"

_ORDER: tuple[State, ...] = ("cold", "unknown", "warm", "not compiled")
"""The state of several nodes is the first of these that one of them has."""


@dataclass(frozen=True)
class NodeWarmth:
    """The state of the caches on one node for the next launch.

    Attributes:
        reasons: what the state follows from.
        tuned: files with tuned parameters of kernels that it finds.
    """

    state: State
    reasons: tuple[str, ...] = ()
    tuned: tuple[str, ...] = ()


def _states(nodes: Mapping[str, NodeWarmth]) -> dict[str, State]:
    return {name: node.state for name, node in nodes.items()}


@dataclass(frozen=True)
class Warmth(Document):
    """The state of the caches for the next launch of a recipe.

    Attributes:
        state: `warm`; `cold` (another image, or the compiled code is gone); `not compiled` (the
            recipe has nothing compiled); `unknown` otherwise.
        reasons: what it follows from, with the node where not all are alike.
    """

    recipe: str
    state: State
    reasons: tuple[str, ...]
    nodes: Annotated[Mapping[str, NodeWarmth], PrintedAs(_states)] = field(default_factory=dict)

    @printed
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


def without_nodes(recipe: Recipe) -> NodeWarmth | None:
    """Return the state that a launch has on any node; None where nodes must be asked."""
    if recipe.engine != "vllm":
        return NodeWarmth("unknown", (f"what {recipe.engine} compiles is not read from its log",))
    if recipe.engine_args.get("enforce-eager"):
        return NodeWarmth("not compiled", ("--enforce-eager: there is nothing to keep",))
    return None


def judge(
    wanted: LaunchRecord,
    records: Iterable[LaunchRecord],
    on_disk: Mapping[str, Collection[str]],
    environment: str = "",
) -> NodeWarmth:
    """Compare a launch with the records of a node.

    Args:
        wanted: the launch, without an image where that is not on the node.
        records: of the node, newest first.
        on_disk: keys below `torch_compile_cache` that are there, by the folder of their image.
        environment: the folder of a virtual environment's caches; empty for an image.
    """
    earlier = [record for record in records if record.recipe == wanted.recipe]
    if not earlier:
        return NodeWarmth("unknown", ("no launch of it is on record here",))
    if not (wanted.image or environment):
        return NodeWarmth("unknown", (f"the image {wanted.reference} is not on this node",))
    own = [record for record in earlier if record.image == wanted.image]
    if not own:  # each image has caches of its own, whatever is in it
        was, now = short(earlier[0].image) or earlier[0].reference, short(wanted.image)
        version = f" (vLLM {earlier[0].version} then)" if earlier[0].version else ""
        change = f"the image changed from {was} to {now or wanted.reference}{version}"
        return NodeWarmth("cold", (change,))
    same = next((record for record in own if record.arguments == wanted.arguments), None)
    if same is None:
        return NodeWarmth("unknown", (OTHER_ARGUMENTS,))
    return _on_disk(same, on_disk.get(environment or short(wanted.image), ()))


def _on_disk(last: LaunchRecord, on_disk: Collection[str]) -> NodeWarmth:
    if not last.keys:
        return NodeWarmth("unknown", ("the log of its last launch named no compiled code",))
    gone = [key for key in last.keys if key not in on_disk]
    if gone:
        # Whether the second layout needs the first depends on vLLM's and torch's versions.
        part = len(gone) < len(last.keys)
        what = "a part of its compiled code" if part else "its compiled code"
        why = f"{what} is gone ({gone[0].rpartition('/')[2][:10]})"
        return NodeWarmth("unknown" if part else "cold", (why,))
    if not last.outcome:
        return NodeWarmth("warm")
    return NodeWarmth("warm", (f"its last launch {last.outcome} it in {last.compile_s:g} s",))


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
