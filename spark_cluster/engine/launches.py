"""Launches as the nodes remember them: asked before a start, recorded when a server is ready.

Whether the next launch of a recipe finds its compiled code is told by what the last one like it has
logged: one of the same recipe with the same image and the same arguments on the same node. "Warm"
says that its compiled code is still on the disk; weights are loaded and CUDA graphs are captured at
each start, warm or not. Which arguments make vLLM compile anew is not known here.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from spark_cluster.config.folders import state_folder
from spark_cluster.config.launch import Changes, changes_of, options_text, quoted_options
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.schema import Document, PrintedAs, printed
from spark_cluster.config.topology import Node
from spark_cluster.engine import runtime
from spark_cluster.engine.deployment import Deployment, Key, Server, root_on
from spark_cluster.engine.names import PROGRAMS
from spark_cluster.engine.readiness import Member
from spark_cluster.engine.resolve import resolve
from spark_cluster.engine.tuning import fitting
from spark_cluster.errors import Refused, SparkClusterError
from spark_cluster.node import dockerd, durable, engine_caches
from spark_cluster.node.containers import OVERRIDES, RECIPE, TP, ContainerState
from spark_cluster.node.engine_caches import LaunchRecord, of_environment, short
from spark_cluster.node.store.manifest import revision_of
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Pending, Session

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
    def told(self) -> str:
        """Whether a launch finds its compiled code, why not, and what is tuned, in a line."""
        why = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        tuned = f"; tuned kernels: {', '.join(self.tuned)}" if self.tuned else ""
        return f"{self.state}{why}{tuned}"

    def __str__(self) -> str:
        return f"next start of {self.recipe}: {self.told}"


def without_nodes(recipe: Recipe) -> NodeWarmth | None:
    """Return the state that a launch has on any node; None where nodes must be asked."""
    if recipe.engine != "vllm":
        return NodeWarmth("unknown", (f"what {recipe.engine} compiles is not read from its log",))
    if recipe.engine_args.get("enforce-eager"):
        return NodeWarmth("not compiled", ("--enforce-eager",))
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
        some = len(gone) < len(last.keys)
        what = "a part of its compiled code" if some else "its compiled code"
        why = f"{what} is gone ({gone[0].rpartition('/')[2][:10]})"
        return NodeWarmth("unknown" if some else "cold", (why,))
    if not last.outcome:
        return NodeWarmth("warm")
    return NodeWarmth("warm", (f"its last launch {last.outcome} it in {last.compile_s:g} s",))


def warmth_of(recipe: str, nodes: Mapping[str, NodeWarmth]) -> Warmth:
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


RECORD_S = 60.0
"""Seconds that writing a record may take."""

NOT_RECORDED = "the launch could not be recorded, so the next one's warmth is unknown: {}"

LOGGED = (
    r"torch_compile_cache/(?:torch_aot_compile/)?[0-9a-f]{10,64}/rank_\d"
    r"|Compiling a graph for|Directly load (?:AOT|the compiled)"
    r"|torch\.compile (?:and initial profiling run )?(?:takes|took) \d{1,5}\.\d{1,3} s"
)
"""What vLLM's log says of its compile cache: `Using cache directory: DIR for vLLM's torch.compile`,
`saved AOT compiled function to FILE`, `Compiling a graph for compile range (1, 8192) takes 61.05
s`, `Directly load the compiled graph(s) for ... from the cache`, `Directly load AOT compilation
from path FILE`, `torch.compile took 90.82 s in total` (`takes` up to 0.15). Sources: vllm-source,
measured-on-h200."""


def wanted(recipe: Recipe, tp: int) -> LaunchRecord:
    """Return the launch of a recipe, as far as the laptop knows it: no version and image id.

    A drafter from the hub stands by its name: its path is only known to `up`.
    """
    drafter = recipe.drafter
    if drafter is not None and drafter.in_hub_cache and drafter.name is not None:
        recipe = recipe.located({drafter.name: drafter.name})
    model, venv = recipe.model, recipe.venv
    passed = {
        "model": [model.name, model.revision, model.path],
        "nodes": recipe.nodes_for(tp),
        "flags": recipe.flags(tp),
        "env": recipe.plain_env,
        "packages": venv.requirements if venv else [],
    }
    text = json.dumps(passed, sort_keys=True, default=str)
    return LaunchRecord(
        recipe=recipe.name,
        engine=recipe.engine,
        reference=venv.path if venv else recipe.image.reference,
        arguments=hashlib.sha256(text.encode()).hexdigest(),
    )


def logged(found: Iterable[str]) -> dict[str, Any]:
    """Return what a log tells of a launch, as fields of its record.

    Args:
        found: matches of `LOGGED`, as a node says.
    """
    keys, seconds, said = list[str](), [0.0], set[str]()
    for text in (one for one in found if re.fullmatch(LOGGED, one)):
        if text.startswith("torch_compile_cache"):
            keys.append(text.partition("/")[2].rpartition("/")[0])
        elif text.startswith("torch.compile"):
            seconds.append(float(text.split()[-2]))
        else:
            said.add(text.split()[0])
    outcome = "loaded" if said == {"Directly"} else "compiled" if said or seconds[1:] else ""
    return {"keys": tuple(dict.fromkeys(keys)), "outcome": outcome, "compile_s": max(seconds)}


def next_launch(
    play: Play, recipe: Recipe, nodes: Sequence[Node], tp: int, image: str = ""
) -> Warmth:
    """Ask the nodes that will serve, all at once, and judge the next launch of a recipe.

    Args:
        image: its reference, where it is not the recipe's own.
    """
    asked = {node.name: _ask(play, node, recipe, image or recipe.image.ref) for node in nodes}
    found = {name: _on_node(recipe, tp, *pending) for name, pending in asked.items()}
    return warmth_of(recipe.name, found)


def _ask(play: Play, node: Node, recipe: Recipe, image: str) -> tuple[Pending, Pending | None]:
    """Ask a node for its records, the compiled code that is there, and the id of the image."""
    session, folder = play.session(node), root_on(play.inventory.nodes[node.name])
    state = session.submit("caches", what="state", folder=folder)
    if recipe.venv is not None or without_nodes(recipe) is not None:
        return state, None  # Docker takes longer to answer than all else
    asked = {"image": dockerd.image_question(image)}
    return state, session.submit("gather", commands=asked)


def _on_node(recipe: Recipe, tp: int, asked: Pending, of_image: Pending | None) -> NodeWarmth:
    """Wait, and judge the launch; unknown where the node does not answer."""
    try:
        state = asked.wait()
        answer = of_image.wait()["commands"]["image"] if of_image is not None else None
    except SparkClusterError as error:
        return NodeWarmth("unknown", (error.message,))
    image = dockerd.image_answer(answer)
    own = image.id if image is not None else ""
    entries = fitting(state["tuned"], tp, own or "-")
    files = sorted(str(one["file"]) for one in entries if one["model"] == recipe.model.name)
    found = without_nodes(recipe)
    if found is None:
        read = map(engine_caches.launch_from_dict, state["launches"])
        records = [record for record in read if record is not None]
        environment = of_environment(recipe.venv.path) if recipe.venv else ""
        launch = replace(wanted(recipe, tp), image=own)
        found = judge(launch, records, state["compiled"], environment)
    return replace(found, tuned=tuple(files))


def before_start(play: Play, server: Server, running: ContainerState) -> None:
    """Tell why the server had been stopped, and whether its start finds its compiled code.

    The latter not where it runs already, or where its recipe has nothing compiled.
    """
    if running.start_limit_hit:
        read = {
            node.name: runtime.read_log(play.session(node), server.program) for node in server.nodes
        }
        fault = runtime.first_error(read)
        cause = f": {fault.text}" if fault else ""
        play.note(f"{server.program} is {running.in_words}{cause}", warning=True, node=play.head)
    if play.check or (running.status == "running" and set(server.args) <= set(running.command)):
        return
    if without_nodes(server.recipe) is not None:
        return
    found = next_launch(play, server.recipe, server.nodes, server.tp, server.image)
    whose = f"{server.recipe.name}: " if server.instance else ""
    play.note(f"{whose}compile cache: {found.told}")


def of_recipe(play: Play, recipe: Recipe, tp: int) -> Warmth | None:
    """Judge the next launch of a recipe; None where there are fewer nodes than it takes."""
    count = recipe.nodes_for(tp)
    nodes = sorted(play.nodes, key=lambda node: not node.is_head)[:count]
    if len(nodes) < count:
        return None
    return next_launch(play, recipe, nodes, tp)


def unrecorded(
    play: Play, found: Sequence[Member], answers: Sequence[str]
) -> dict[Key, tuple[Member, LaunchRecord]]:
    """Return the records of servers whose head has none yet.

    A server that serves is not failed for its record: what goes wrong here is only noted.

    Args:
        answers: of each; one on request without an answer is not loaded, and left out.
    """
    loaded = [
        one
        for one, answer in zip(found, answers, strict=True)
        if answer or not one.server.on_request
    ]
    made: list[LaunchRecord | None] = play.together(*[partial(_made, one) for one in loaded])
    return {
        one.server.key: (one, new) for one, new in zip(loaded, made, strict=True) if new is not None
    }


def _made(one: Member) -> LaunchRecord | None:
    try:
        return _unrecorded(one.play.session(one.node), one.server)
    except SparkClusterError as error:
        one.play.note(NOT_RECORDED.format(error.message), warning=True, node=one.node)
        return None


def _unrecorded(session: Session, server: Server) -> LaunchRecord | None:
    state = runtime.state_of(session, server.program)
    run = f"{state.id[:12]} {state.started}".strip()
    answer = session.request(
        "caches",
        what="known",
        run=run,
        log=runtime.beginning(server.program, runtime.BEGINNING_BYTES),
        pattern=LOGGED,
    )
    if answer["known"]:
        return None
    models = tuple(
        revision_of(str(model.node_path))
        for model in (server.recipe.model, server.recipe.drafter)
        if model is not None and model.in_hub_cache
    )
    made = replace(wanted(server.recipe, server.tp), image=state.image, models=models, run=run)
    return replace(made, **logged(answer["found"]))


def record(new: Mapping[Key, tuple[Member, LaunchRecord]], versions: Mapping[Key, str]) -> None:
    """Write the records of launches on each node that serves; what fails there is only noted.

    Args:
        new: as `unrecorded` returns it.
        versions: of the servers' engines.
    """
    waiting = []
    for key, (one, made) in new.items():
        for node in one.server.nodes:
            written = asdict(replace(made, version=versions[key]))
            asked = {"what": "record", "record": written, "timeout": RECORD_S}
            waiting.append((one, node, one.play.session(node).submit("caches", **asked)))
    for one, node, pending in waiting:
        try:
            pending.wait()
        except SparkClusterError as error:
            one.play.note(NOT_RECORDED.format(error.message), warning=True, node=node)


# What served before a swap: as its container's labels name it, and how it is started again.


@dataclass(frozen=True)
class PreviousServer(Document):
    """A server that ran before another one took its place.

    Attributes:
        recipe: its name.
        tp: tensor-parallel size.
        overrides: engine arguments in place of the recipe's, as options of a command line.
    """

    recipe: str
    tp: int
    overrides: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, [f"{self.recipe} (tp {self.tp})", self.overrides]))

    @property
    def command(self) -> str:
        """The command that starts it again."""
        again = shlex.join(["spark-cluster", "up", "--recipe", self.recipe, "--tp", str(self.tp)])
        return f"{again} {quoted_options(self.overrides)}".rstrip()

    @property
    def changes(self) -> Changes:
        """The overrides as KEY=VALUE."""
        return changes_of(self.overrides)


Load = Callable[[PreviousServer], "Recipe"]
"""Returns the recipe of a previous server, with its overrides."""


def previous_server_of(running: ContainerState) -> PreviousServer | None:
    """Return what a container's labels name; None where they name no recipe and size."""
    recipe, tp = running.label(RECIPE), running.number(TP, 0)
    return PreviousServer(recipe, tp, running.label(OVERRIDES)) if recipe and tp else None


def plan_again(
    play: Play, previous: PreviousServer, load: Load, running: ContainerState
) -> Deployment:
    """Resolve a previous server again, while it still serves, and say where it would differ.

    Raises:
        Refused: it could not be started again: its recipe, a variable or a key is missing.
    """
    try:
        recipe = load(previous)
        again = resolve(recipe, play.inventory, play.nodes, previous.tp)
    except SparkClusterError as error:
        raise Refused(
            f"{previous} serves now and could not be started again: {error.message}",
            where=error.where,
            hint="; ".join(filter(None, [error.hint, "--no-restore swaps without a way back"])),
        ) from error
    if options_text(recipe.overrides) != previous.overrides:
        raise Refused(
            f"{previous} serves now, and its options cannot be read back from its labels",
            hint="--no-restore swaps without a way back",
        )
    if not set(again.first.args) <= set(running.command):
        play.note(
            f"recipe {previous.recipe} has been changed since its server was started: if it has to "
            "be started again, it is as the recipe is now",
            warning=True,
        )
    return again


LINES = 5000
"""Lines of each log that are kept."""

KEPT = 20
"""Files of failed servers that are kept."""


def keep_logs(play: Play) -> Path | None:
    """Write the end of all logs into one file that only the user reads; None without any.

    It is a help for a failure that has its own message: what goes wrong here is only noted.
    """
    try:
        found = [
            f"==> {node.name} {program}\n{text}\n"
            for node in play.nodes
            for program in PROGRAMS
            if (text := runtime.read_log(play.session(node), program, lines=LINES))
        ]
        return _write("".join(found)) if found else None
    except (SparkClusterError, OSError) as error:
        play.note(f"the log of the failed server could not be kept: {error}", warning=True)
        return None


def _write(text: str) -> Path:
    folder = state_folder() / "failed"
    path = folder / time.strftime("%Y%m%dT%H%M%SZ.log", time.gmtime())
    durable.put_file(path, text.encode(errors="replace"))
    for old in sorted(folder.glob("*.log"))[:-KEPT]:
        old.unlink(missing_ok=True)
    return path
