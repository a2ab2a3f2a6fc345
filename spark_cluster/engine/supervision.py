"""Programs of our own on the head that outlive a run: a server's supervision, the model loader.

They are units that run without an agent, and after the laptop has gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spark_cluster.config.schema import Document, Hidden, derived
from spark_cluster.config.topology import Node, render
from spark_cluster.engine import proxy, runtime, vram
from spark_cluster.engine.deployment import Deployment, Endpoint, probe_once
from spark_cluster.engine.names import RAY, SERVER, TITLE
from spark_cluster.engine.ray import TOKEN_FILE
from spark_cluster.engine.readiness import Member
from spark_cluster.errors import VerificationFailed
from spark_cluster.models.memory_share import RESERVE_GIB
from spark_cluster.node import durable, own_program, paths, replies
from spark_cluster.node.health import judge
from spark_cluster.node.local_server import stop_command
from spark_cluster.node.supervisor import SupervisionState
from spark_cluster.node.values import looks
from spark_cluster.resources import Directory, File, Resource, Service, UnusedPrograms
from spark_cluster.runner import wire
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session, printed


@dataclass(frozen=True)
class OwnUnit:
    """A unit that runs a program of ours.

    Attributes:
        name: of the unit, without `.service`.
        program: its module, which has a `main`.
        folder: of the program, which only root opens.
        config: file with its settings, in that folder or in one for settings.
        mode: of that file.
    """

    name: str
    program: str
    folder: str
    config: str
    mode: int = 0o644

    @property
    def unit_file(self) -> str:
        """The file of the unit."""
        return f"{paths.SYSTEMD_UNITS}/{self.name}.service"

    def present(
        self, template: Path, settings: Mapping[str, Any], *, enabled: bool = True, **values: str
    ) -> Iterator[Resource]:
        """Yield the program, its settings and the unit, which is started again for new ones.

        Args:
            template: of the unit, with `program` and `config`.
            settings: what the program is told.
            enabled: it is started at boot.
            values: more of the template.
        """
        program = wire.program(self.folder, self.program)
        yield Directory(self.folder, mode=0o700)
        yield program
        above = str(Path(self.config).parent)
        if above != self.folder:
            yield Directory(above, mode=0o755)
        text = json.dumps(settings, indent=2) + "\n"
        config = File(self.config, content=text, mode=self.mode)
        command = " ".join(own_program.entry(program.path, self.program))
        values = {**values, "program": command, "config": self.config}
        unit = File(self.unit_file, content=render(template.parent, template.name, **values))
        yield config
        yield unit
        yield Service(self.name, enabled=enabled, restart_when=(config, unit, program))
        yield UnusedPrograms(self.folder)

    def absent(self) -> Iterator[Resource]:
        """Yield the removal of all of it, with what the program keeps in its folder."""
        yield Service(self.name, running=False, enabled=False)
        yield File(self.unit_file, state="absent")
        if str(Path(self.config).parent) != self.folder:
            yield File(self.config, state="absent")
        yield Directory(self.folder, state="absent", keep=False)


UNIT = OwnUnit(
    "spark-cluster-supervise",
    "spark_cluster.node.supervisor",
    paths.SUPERVISION,
    paths.SUPERVISE_SETTINGS,
)
STATE = f"{paths.SUPERVISION}/state/state.json"

START_LIMIT = OwnUnit(
    "spark-cluster-start-limit",
    "spark_cluster.node.local_server:limit_restarts",
    paths.START_LIMIT,
    paths.START_LIMIT_SETTINGS,
)
"""It stops a server that ends again and again, and needs no supervision."""


def start_limit_configuration() -> dict[str, Any]:
    """Return what the program of the start limit is told."""
    known = _known()
    wanted = ("server", "unit_folder", "ray_token")
    return {**{name: known[name] for name in wanted}, "servers": runtime.servers_question()}


def configuration(limits: Mapping[str, Any], head: Node) -> dict[str, Any]:
    """Return what the program is told: names, labels and paths of this package, and its limits."""
    unified_memory = not head.facts.gpu_memory.of_gpu
    return {**_known(), "unified_memory": unified_memory, "limits": dict(limits)}


def _known() -> dict[str, Any]:
    """Return the names, labels and paths by which our servers are known on a node."""
    return {
        "folder": STATE.rpartition("/")[0],
        "server": SERVER,
        "ray": RAY,
        "unit_folder": paths.SYSTEMD_UNITS,
        "lock": durable.RUN_LOCK,
        "title": TITLE.pattern,
        "ray_token": TOKEN_FILE,
        "description": proxy.DESCRIPTION,
    }


@dataclass(frozen=True)
class SupervisionEvent:
    """Something that the supervision did or saw; `at` in seconds since 1970."""

    at: float
    text: str


@dataclass(frozen=True)
class Supervision(Document):
    """The report of a head's supervision.

    Attributes:
        installed: its unit is there.
        active: of the unit, as systemd says it.
        at_boot: it is started at boot.
        state: what it knows of the server.
        problems: what it cannot repair.
        events: the oldest first.
    """

    installed: bool
    active: str
    at_boot: bool
    state: Hidden[SupervisionState]
    problems: tuple[str, ...] = ()
    events: tuple[SupervisionEvent, ...] = ()
    phase = derived(str, "state.phase")
    since = derived(float, "state.since")
    reason = derived(str, "state.reason")
    restarts = derived(tuple[float, ...], "state.restarts")
    due = derived(float, "state.due")


def report(session: Session) -> Supervision:
    """Ask a head for its supervision."""
    asked = session.request(
        "gather",
        commands={
            "active": ["systemctl", "is-active", UNIT.name],
            "enabled": ["systemctl", "is-enabled", UNIT.name],
        },
        files={"state": STATE, "config": UNIT.config},
    )
    outputs = {name: text.strip() for name, text in printed(asked).items()}
    document = replies.decoded(asked["files"]["state"])
    return Supervision(
        installed=asked["files"]["config"] is not None,
        active=outputs["active"] or "unknown",
        at_boot=outputs["enabled"] == "enabled",
        state=SupervisionState.from_dict(replies.at(document, "state")),
        problems=replies.texts_of(replies.at(document, "problems")),
        events=tuple(
            SupervisionEvent(min(max(0.0, float(row["at"])), 2.0**32), row["text"])
            for row in replies.objects_of(replies.at(document, "events"))
            if isinstance(row.get("at"), int | float) and replies.text_of(row.get("text"))
        ),
    )


# Models that are loaded when they are asked for: the program on the head, and what it is told.

ANSWER_S = 30.0
"""Seconds for an answer of a server that has just come up."""

STOP_S = 60.0
"""Seconds for a server to end."""

POLL_S = 1.0
"""Seconds between two requests for a model that is loading."""

LOADER = OwnUnit(
    proxy.LOADER_UNIT,
    "spark_cluster.node.model_loader",
    paths.MODEL_LOADER,
    paths.MODEL_LOADER_SETTINGS,
    mode=0o600,
)


def loader_configuration(
    head: Node, servers: Sequence[proxy.ModelServer], ready_s: float, stays_s: float
) -> dict[str, Any]:
    """Return what the program is told.

    Args:
        head: the node that it runs on.
        servers: all models of the endpoint, in the order of its backends.
        ready_s: seconds until a server that was started must answer.
        stays_s: seconds that a model stays after it was loaded.
    """
    known = configuration({}, head)
    return {
        **{name: known[name] for name in ("unit_folder", "unified_memory")},
        "socket": proxy.LOADER,
        "header": proxy.HEADER,
        "admin": proxy.ADMIN_SOCKET,
        "reserve_gib": RESERVE_GIB,
        "stays_s": stays_s,
        "always": [one.program for one in servers if not one.on_request and one.node == head.name],
        "models": [
            {
                "program": server.program,
                "names": list(server.names),
                "backend": f"model-{number}",
                "ready_s": ready_s,
            }
            for number, server in enumerate(servers, 1)
            if server.on_request
        ],
    }


def start_loader(play: Play, deployment: Deployment) -> None:
    """Start the program that loads models, where some are loaded on request; end it elsewhere."""
    waits = [one.recipe.ready_timeout_s for one in deployment.servers if one.on_request]
    settings = {"servers": deployment.endpoint.models, "ready_s": max(waits, default=0.0)}
    play.apply(deployment.nodes, play.role("model_loader", **settings))


def unload_models(play: Play, found: Sequence[Member]) -> None:
    """Unload what was loaded on request, before memory is counted on by what is started."""
    made = [one for one in found if one.server.on_request]
    present = [one.server.program for one in made if one.running.status != "absent"]
    if play.check or not present:
        return
    session = play.session(play.head)
    session.run(["systemctl", "stop", proxy.LOADER_UNIT])  # or it loads them; the role starts it
    for name in present:  # which of them run may have changed since they were looked at
        session.run(stop_command(name, "docker"), timeout=STOP_S)
    stays = [one.server.program for one in found if not one.server.on_request]
    nodes = [node.name for node in play.nodes]
    vram.until_free(play.sessions, ignored=runtime.our_processes(play, nodes, stays))


def load_model(play: Play, endpoint: Endpoint, one: Member) -> None:
    """Have a model loaded as a user would: by a request for it.

    Raises:
        VerificationFailed: it does not answer in time, or its load fails: the loader says why.
    """
    recipe = one.server.recipe
    few = recipe.probe.model_copy(update={"max_tokens": 1})
    asked = replace(endpoint, model=one.server.endpoint.model)
    session = play.session(play.head)
    for _ in looks(recipe.ready_timeout_s, POLL_S):
        reply = probe_once(session, asked, recipe.kind, few, timeout=ANSWER_S)
        if judge(None, None, reply).serves:
            return
        if "could not be loaded" in reply.why:
            break
    raise VerificationFailed(
        f"{asked.model} is not loaded when it is asked for: {reply.why or 'no answer'}",
        where=play.head.name,
        hint=f"journalctl -u {proxy.LOADER_UNIT} there, and `spark-cluster logs`",
    )
