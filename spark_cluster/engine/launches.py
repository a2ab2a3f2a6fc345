"""Launches as the nodes remember them: asked before a start, recorded when a server is ready."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from spark_cluster.config.flags import words
from spark_cluster.engine import compile_key, logs, runtime, tuned, warmth
from spark_cluster.engine.caches import root_on
from spark_cluster.engine.startup_log import BEGINNING
from spark_cluster.errors import SparkClusterError
from spark_cluster.node import images, launch_records, unit_state
from spark_cluster.node.engine_caches import of_environment
from spark_cluster.node.launch_records import LaunchRecord, short

if TYPE_CHECKING:
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.engine.deployment import Key, Server
    from spark_cluster.engine.members import Member
    from spark_cluster.engine.warmth import NodeWarmth, Warmth
    from spark_cluster.node.containers import ContainerState
    from spark_cluster.runner.play import Play
    from spark_cluster.runner.session import Pending, Session
    from spark_cluster.topology import Node

RECORD_S = 60.0
"""Seconds that writing a record may take, the sizes of the caches counted."""

NOT_RECORDED = "the launch could not be recorded, so the next one's warmth is unknown: {}"


def wanted(recipe: Recipe, tp: int) -> LaunchRecord:
    """Return the launch of a recipe, as far as the laptop knows it: no version, image id and GPU.

    The path of a model that is found by its revision is only known to `up`, and left out; a drafter
    from the hub stands by its name for the same reason.
    """
    given = _drafter_by_name(recipe).flags(tp)
    flags = {flag: short(" ".join(words({flag: value})[1:])) for flag, value in given.items()}
    env = {
        name: short(value)
        for name, value in recipe.plain_env.items()
        if compile_key.variable_enters(name)
    }
    venv = recipe.venv
    made_of = f"{venv.path} {' '.join(venv.requirements)}".strip() if venv else ""
    return LaunchRecord(
        recipe=recipe.name,
        engine=recipe.engine,
        reference=short(made_of or recipe.image.reference),
        model=recipe.model.path or "",
        tp=tp,
        nodes=recipe.nodes_for(tp),
        flags=flags,
        env=env,
    )


def _drafter_by_name(recipe: Recipe) -> Recipe:
    drafter = recipe.drafter
    if drafter is None or drafter.name is None:
        return recipe
    return recipe.model_copy(update={"drafter": drafter.model_copy(update={"path": drafter.name})})


def planned(server: Server) -> LaunchRecord:
    """Return the launch of a server, with the path of the model that it is given."""
    return replace(wanted(server.recipe, server.tp), model=server.model_path)


@dataclass(frozen=True)
class Asked:
    """What a node was asked about a launch; both requests are on their way in one turn.

    Attributes:
        model: its name.
        caches: the folder of a virtual environment's caches; empty for an image, by whose id it is
            known.
    """

    state: Pending
    image: Pending | None
    model: str
    caches: str = ""

    def answer(self, launch: LaunchRecord) -> NodeWarmth:
        """Wait, and judge the launch; unknown where the node does not answer."""
        try:
            return self._judged(launch)
        except SparkClusterError as error:
            return warmth.NodeWarmth("unknown", (error.message,))

    def _judged(self, launch: LaunchRecord) -> NodeWarmth:
        state = self.state.wait()
        asked = self.image.wait()["commands"]["image"] if self.image is not None else None
        image = images.answered(asked)
        if image is not None:
            launch = replace(launch, image=image.id)
        found = (launch_records.from_dict(one) for one in state["launches"])
        records = [record for record in found if record is not None]
        files = [
            str(entry["file"])
            for entry in tuned.fitting(state["tuned"], launch.tp, {launch.gpu}, launch.image or "-")
            if entry["model"] == self.model
        ]
        return replace(
            warmth.judge(launch, records, state["compiled"], self.caches),
            tuned=tuple(sorted(files)),
        )


def ask(session: Session, folder: str, reference: str, model: str, venv: str = "") -> Asked:
    """Ask a node for its records, the compiled code that is there, and the id of the image.

    Args:
        folder: of the caches.
        reference: of the image; empty without one.
        model: its name.
        venv: folder of the virtual environment; empty without one.
    """
    state = session.submit("caches", what="state", folder=folder)
    if not reference:
        return Asked(state, None, model, of_environment(venv) if venv else "")
    asked = {"image": images.question(reference)}
    return Asked(state, session.submit("gather", commands=asked), model)


@dataclass(frozen=True)
class Upcoming:
    """The recipe that is started next, and where the nodes have their caches.

    Attributes:
        folders: node to the folder of its caches.
    """

    recipe: Recipe
    folders: Mapping[str, str]

    def ask(self, node: str, session: Session) -> Asked:
        """Ask a node about the next launch."""
        recipe = self.recipe
        venv = recipe.venv.path if recipe.venv else ""
        return ask(session, self.folders[node], _reference(recipe), recipe.model.name, venv)

    def judge(self, asked: Mapping[str, Asked], tp: int, gpus: Mapping[str, str]) -> Warmth:
        """Judge the next launch.

        Args:
            asked: the nodes that will serve.
            gpus: node to the name of its GPU; without those where it is not known.
        """
        launch = wanted(self.recipe, tp)
        found = {
            name: one.answer(replace(launch, gpu=gpus.get(name, ""))) for name, one in asked.items()
        }
        return warmth.whole(self.recipe.name, found)


def _reference(recipe: Recipe) -> str:
    """Return the image whose id is to be asked for: Docker takes longer to answer than all else."""
    if recipe.venv is not None or warmth.without_nodes(wanted(recipe, 1)) is not None:
        return ""
    return recipe.image.ref


def before_start(play: Play, server: Server, running: ContainerState) -> None:
    """Tell why the server had been stopped, and whether its start finds its compiled code.

    The latter not where it runs already, or where its recipe has nothing compiled.
    """
    if running.start_limit_hit:
        read = {node.name: logs.read(play.session(node), server.program) for node in server.nodes}
        fault = logs.first_error(read)
        cause = f": {fault.text}" if fault else ""
        play.note(f"{server.program} is {running.in_words}{cause}", warning=True, node=play.head)
    args, launch = set(server.args), planned(server)
    if play.check or (running.status == "running" and args <= set(running.command)):
        return
    if warmth.without_nodes(launch) is not None:
        return
    image = server.image if server.runtime == "docker" else ""
    folder, venv = server.cache_root, server.venv
    model = server.recipe.model.name
    asked = [(node, ask(play.session(node), folder, image, model, venv)) for node in server.nodes]
    found = {node.name: one.answer(replace(launch, gpu=_gpu(node))) for node, one in asked}
    whose = f"{server.recipe.name}: " if server.instance else ""
    play.note(f"{whose}{shown(warmth.whole(launch.recipe, found))}")


def of_recipe(play: Play, recipe: Recipe, tp: int) -> Warmth | None:
    """Judge the next launch of a recipe; None where there are fewer nodes than it takes."""
    count = recipe.nodes_for(tp)
    nodes = sorted(play.nodes, key=lambda node: not node.is_head)[:count]
    if len(nodes) < count:
        return None
    next_one = Upcoming(
        recipe, {node.name: root_on(play.inventory.nodes[node.name]) for node in nodes}
    )
    asked = {node.name: next_one.ask(node.name, play.session(node)) for node in nodes}
    return next_one.judge(asked, tp, {node.name: _gpu(node) for node in nodes})


def shown(told: Warmth) -> str:
    """Return in a line whether a launch finds its compiled code, and why not."""
    why = f" ({'; '.join(told.reasons)})" if told.reasons else ""
    return f"compile cache: {told.state}{why}{told.of_tuned}"


def _gpu(node: Node) -> str:
    return node.facts.gpu.name if node.facts.gpu else ""


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
    asked = session.request("gather", commands={"inspect": runtime.question(server.program)})
    state = unit_state.answered(asked["commands"]["inspect"])
    run = f"{state.id[:12]} {state.started}".strip()
    answer = session.request(
        "caches",
        what="known",
        run=run,
        log=runtime.beginning(server.program, BEGINNING),
        pattern=compile_key.KEY.pattern,
    )
    if answer["known"]:
        return None
    return replace(planned(server), image=state.image, run=run, keys=tuple(answer["found"]))


def record(new: Mapping[Key, tuple[Member, LaunchRecord]], versions: Mapping[Key, str]) -> None:
    """Write the records of launches on each node that serves; what fails there is only noted.

    Args:
        new: as `unrecorded` returns it.
        versions: of the servers' engines.
    """
    waiting = []
    for key, (one, made) in new.items():
        for node in one.server.nodes:
            whole = replace(made, version=versions[key], gpu=_gpu(node)).to_dict()
            asked = {"what": "record", "folder": one.server.cache_root, "record": whole}
            session = one.play.session(node)
            waiting.append((one, node, session.submit("caches", timeout=RECORD_S, **asked)))
    for one, node, pending in waiting:
        try:
            pending.wait()
        except SparkClusterError as error:
            one.play.note(NOT_RECORDED.format(error.message), warning=True, node=node)
