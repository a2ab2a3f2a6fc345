"""`up` as a whole, of one model on two nodes and of several on one: a fake Docker starts their
containers, and their engines and proxy are servers of this machine."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from chat_server import ChatServer, Reply
from factories import make_recipe, put
from fake_programs import Said
from free_ports import BESIDE_RAY, free_port
from piped_cluster import Make, PipedCluster, PipedNode
from serve_plans import own_programs

from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import Readiness
from spark_cluster.engine.deployment import Deployment
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.proxy import DESCRIPTION
from spark_cluster.engine.resolve import ServedModel, resolve, resolve_models
from spark_cluster.errors import SparkClusterError, VerificationFailed
from spark_cluster.runner.events import Options, Result, Selection

ROLES = ("network", "firewall", "containers", "caches", "start_limit", "models", "ray", "endpoint")
ERROR = json.dumps({"error": {"message": "EngineCore encountered an issue.", "code": 500}})


def recipe() -> Recipe:
    """A recipe without Ray, whose model is on the nodes."""
    return make_recipe(readiness=Readiness(rungs=["answer"]), model={"path": "/srv/models/m"})


class Serving:
    """Nodes that have all that recipes need.

    Args:
        serve: what the inventory says of that, besides where it is bound.
    """

    def __init__(self, make: Make, *nodes: str, roles: Sequence[str], serve: str, **more: Any):
        told = f"serve: {{bind: loopback, {serve}}}\n"
        self.cluster: PipedCluster = make(*nodes, more=told, **more)
        self.cluster.marked(*roles)
        own_programs(self.cluster.project, "vllm")
        for node in self.cluster.nodes.values():
            node.put("/srv/models/m/.complete")
            node.have_image(make_recipe().image.ref)

    def up(self, deployment: Deployment, **more: Any) -> Any:
        return self.cluster.run("up", deployment=deployment, **more)

    def started(self, node: PipedNode) -> list[str]:
        """The containers that were started on a node, in their order."""
        calls = [words for words in node.calls("docker") if words[0] == "run"]
        return [words[words.index("--name") + 1] for words in calls]


class Up(Serving):
    """Two nodes, and the engine of a recipe."""

    def __init__(self, make: Make) -> None:
        self.engine = ChatServer(free_port(*BESIDE_RAY))
        port = f"port: {self.engine.http.server_port}"
        super().__init__(make, "spark1", "spark2", roles=ROLES, serve=port)

    def __call__(self) -> Any:
        play = self.cluster.play
        return self.up(resolve(recipe(), play.inventory, play.nodes, 2), load=False)

    def starts(self) -> list[int]:
        """How often each node's server was started."""
        return [len(self.started(node)) for node in self.cluster.nodes.values()]


def works_when_started(node: PipedNode, engine: ChatServer) -> None:
    """Have the engine be well again when a container is started on this node."""
    docker = node.programs["docker"]

    def starting(words: list[str], stdin: str) -> Said | str:
        if words[0] == "run":
            engine.raw = None
        return docker(words, stdin)

    node.programs["docker"] = starting


@pytest.fixture
def up(piped_cluster: Make) -> Iterator[Up]:
    made = Up(piped_cluster)
    yield made
    made.engine.close()


def test_it_serves_and_a_second_run_changes_nothing(up):
    found = up()
    assert "paris" in found.answer.lower()
    assert up.cluster.stages == ["prepare", "fetch", "start", "load", "verify"]
    assert up.cluster.containers == {"spark1": [SERVER], "spark2": [SERVER]}
    made = up.cluster.settings("ray").server
    assert made.node_names == ("spark1", "spark2")
    up.cluster.events.clear()
    assert up().answer == found.answer
    results = [event for event in up.cluster.events if isinstance(event, Result)]
    assert {event.verdict for event in results} == {"ok"}
    assert up.starts() == [1, 1]


def test_a_server_that_ran_already_and_whose_engine_is_dead_is_started_again_once(up):
    """Its API says that it is healthy for a moment after a worker was killed (executor mp)."""
    up()
    up.engine.raw = (500, ERROR)
    works_when_started(up.cluster.nodes["spark2"], up.engine)
    assert "paris" in up().answer.lower()
    assert up.starts() == [2, 2]
    (note,) = [note for note in up.cluster.notes if "the running server fails" in note]
    assert "a completion is not (status 500)" in note
    assert note.endswith("starting it again")


def test_one_that_was_started_now_is_not_started_again(up):
    up.engine.raw = (500, ERROR)
    with pytest.raises(VerificationFailed, match=r"a completion is not \(status 500\)"):
        up()
    assert up.starts() == [1, 1]


def test_one_that_answers_wrongly_is_left(up):
    up()
    up.engine.change = lambda _request, _reply: Reply("the the the")
    with pytest.raises(VerificationFailed, match="the model says 'the the the'"):
        up()
    assert up.starts() == [1, 1]


# -- several models ------------------------------------------------------------------------------

NAMES = ("gemma", "words")
PROGRAMS = [f"spark-vllm-{name}" for name in NAMES]
ROLES_OF_SEVERAL = (
    *("haproxy", "firewall", "containers", "caches", "start_limit", "models", "endpoint"),
    "model_loader",
)
NO_HAPROXY = """\
from factories import SHIPPED
from spark_cluster.resources import Command

Settings = SHIPPED.load_role("haproxy").settings_model

def role(node, settings):
    yield Command("install haproxy", ("false",))
"""
"""In place of the role `haproxy`: a package that cannot be had."""


def model(name: str) -> ServedModel:
    """A model whose files are on the node."""
    known = {"path": "/srv/models/m", "served_name": name}
    readiness = Readiness(rungs=["answer"])
    recipe = make_recipe(name=name, model=known, readiness=readiness, gpu_memory_utilization=0.4)
    return ServedModel(recipe, "spark1")


class UpOfSeveral(Serving):
    """A node, the engines of two models, and the proxy in front of them."""

    def __init__(self, make: Make, options: Options | None = None) -> None:
        self.servers = self._servers()
        self.proxy, *self.engines = self.servers
        self.proxy.listed = NAMES
        port = self.proxy.http.server_port
        serve = f"port: {port}, engine_port: {port + 1}, recipes: [{', '.join(NAMES)}]"
        super().__init__(make, "spark1", roles=ROLES_OF_SEVERAL, serve=serve, options=options)
        self.cluster.head.programs["nft"] = lambda _words, _stdin: ""  # it works here

    def _servers(self) -> tuple[ChatServer, ...]:
        while True:
            port, made = free_port(*BESIDE_RAY), []
            try:
                for number in range(3):
                    made.append(ChatServer(port + number))
            except OSError:  # that one is taken
                for one in made:
                    one.close()
                continue
            return tuple(made)

    def deployment(self, *names: str) -> Deployment:
        play, models = self.cluster.play, [model(name) for name in names or NAMES]
        return resolve_models(models, play.inventory, play.nodes)

    def __call__(self) -> Any:
        return self.up(self.deployment())

    def starts(self) -> list[str]:
        return self.started(self.cluster.head)


@pytest.fixture
def ups(piped_cluster: Make) -> Iterator[Any]:
    """`ups(options)`: a node for a run with these options."""
    made: list[UpOfSeveral] = []

    def make(options: Options | None = None) -> UpOfSeveral:
        made.append(UpOfSeveral(piped_cluster, options))
        return made[-1]

    yield make
    for up in made:
        for server in up.servers:
            server.close()


def test_they_serve_and_a_second_run_changes_nothing(ups):
    up = ups()
    found = up()
    assert [part.server.names for part in found.servers] == [("gemma",), ("words",)]
    assert all("paris" in part.answer.lower() for part in found.servers)
    assert up.cluster.stages == ["prepare", "fetch", "start", "load", "verify"], "no short load"
    assert [model["model"] for model in found.to_dict()["models"]] == ["gemma", "words"]
    assert up.starts() == PROGRAMS
    up.cluster.events.clear()
    up()
    results = [event for event in up.cluster.events if isinstance(event, Result)]
    assert {event.verdict for event in results} == {"ok"}
    assert up.starts() == PROGRAMS


def test_nothing_is_changed_where_haproxy_cannot_be_installed(ups):
    """Its package is what a node without a network lacks; the firewall was changed before it."""
    up = ups()
    put(up.cluster.project / "roles/haproxy/__init__.py", NO_HAPROXY)
    with pytest.raises(SparkClusterError, match="install haproxy"):
        up()
    assert up.cluster.roles() == []


def test_the_next_one_is_started_when_the_one_before_is_healthy(ups):
    up = ups()
    up.engines[0].when_asked = lambda: seen.append(up.starts())
    seen: list[list[str]] = []
    up()
    assert seen[0] == PROGRAMS[:1]


def test_one_that_is_gone_is_started_and_the_other_left(ups):
    up = ups()
    up()
    up.cluster.head.remove_container(PROGRAMS[1])
    up()
    assert up.starts() == [*PROGRAMS, PROGRAMS[1]]


def test_one_that_has_no_place_any_more_is_ended(ups):
    up = ups()
    former, _ = up.deployment("old", "words").endpoint.models
    up.cluster.head.put(DESCRIPTION, json.dumps({"models": [former.to_dict()]}))
    up.cluster.head.run_container(former.program)
    up()
    assert up.cluster.containers == {"spark1": PROGRAMS}


def test_a_proxy_that_does_not_know_or_does_not_lead_to_one_is_no_success(ups):
    up = ups()
    up.proxy.listed = NAMES[:1]
    told = r'lists \["gemma"\] \(status 200\), expected \["gemma", "words"\]'
    with pytest.raises(VerificationFailed, match=told):
        up()
    up.proxy.listed, refused = NAMES, (404, "no such model")
    up.proxy.refuse = lambda request: refused if request["model"] == "words" else None
    with pytest.raises(VerificationFailed, match="words answers by itself, but through http"):
        up()


def test_check_mode_starts_nothing_and_shows_all(ups):
    up = ups(Options(check=True))
    assert up() is None
    assert (up.starts(), up.cluster.stages) == ([], ["prepare", "fetch", "start"])
    would = up.cluster.applied("Container:spark-vllm-")
    assert would == [f"spark1 Container:{name}" for name in PROGRAMS]
    assert up.cluster.notes[-1] == "not everything was started, so nothing was verified"


def test_a_selection_of_roles_starts_all_of_them_and_verifies_none(ups):
    up = ups(Options(selection=Selection(tags=frozenset({"vllm"}))))
    assert up() is None
    assert up.starts() == PROGRAMS
    assert up.proxy.asked == []
