"""State and problems of what serves: logs, states, readings; on real logs and on fake nodes."""

import gc
import json
import threading
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cases import cases, each_case, holds
from chat_server import Reply
from fake_programs import missing

from spark_cluster.config.facts import Facts, Hca
from spark_cluster.config.inventory_schema import ServeEntry
from spark_cluster.config.recipe_schema import Probe
from spark_cluster.engine import ray, readiness, runtime, state
from spark_cluster.engine.deployment import probe_once
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.proxy import LOADER_UNIT, NOT_SERVED, UNIT
from spark_cluster.engine.ray import RayNode
from spark_cluster.errors import Unreachable, VerificationFailed
from spark_cluster.node.containers import ContainerState, parse_state
from spark_cluster.resources.nft_table import normalised
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Answer

DATA = Path(__file__).parents[2] / "data"
PROBE = Probe(question="What is the capital of France?", expect="Paris")


LOGS = cases(__file__, "logs.toml")


def log(name):
    return (DATA / name).read_text()


# -- logs --------------------------------------------------------------------------------------


def test_the_earliest_of_all_ranks():
    early = "2026-11-20T14:12:18.9Z \x1b[36m(w)\x1b[0m OSError: early\n"
    follows = "2026-11-20T14:12:18.1Z (EngineCore pid=1) RuntimeError: Executor failed.\n"
    late = "2026-11-20T14:12:19.5Z ValueError: late\n"
    logs = {"spark1 spark-vllm": late, "spark2 spark-ray": early + follows}
    found = runtime.first_error(logs)
    assert (found.where, found.text) == ("spark2 spark-ray", "OSError: early")
    assert found.at == "2026-11-20T14:12:18.9Z"


@pytest.mark.parametrize("case", LOGS["error"], ids=lambda case: case.get("text", "well"))
def test_what_is_an_error(case):
    """In a real log the errors of engine and server come first; the cause is the worker's."""
    text = log(case["file"]) if "file" in case else case["line"]
    found = runtime.first_error({"x": text})
    assert (found.text if found else None) == case.get("text")


@pytest.mark.parametrize(("text", "line"), LOGS["last"])
def test_last_line(text, line):
    assert runtime.last_line(text) == line


# -- containers --------------------------------------------------------------------------------


def inspected(status="running", tp=1, **more):
    labels = {
        "spark-cluster.tp": str(tp),
        "spark-cluster.model": "paris",
        "spark-cluster.endpoint": "http://10.0.0.1:8000/v1",
        **({"spark-cluster.executor": more["executor"]} if "executor" in more else {}),
        **more.get("labels", {}),
    }
    state = {"Status": status, "ExitCode": more.get("exit_code", 0), "Error": "",
             "StartedAt": more.get("started", "2026-11-25T07:40:06.909532253Z")}  # fmt: skip
    config = {"Labels": labels, "Cmd": ["vllm", "serve"]}
    return json.dumps([{"State": state, "RestartCount": more.get("restarts", 0), "Config": config}])


@each_case(__file__, "containers.json")
def test_what_docker_says_of_a_container(case):
    text, expected = case
    found = parse_state(text)
    assert holds({**asdict(found), "command": list(found.command)}, expected)
    assert (text in found.error) == (found.status == "unknown") or not text


def test_what_is_nested_too_deeply_is_no_container():
    gc.collect()  # or finalizers of earlier tests run at that depth
    assert parse_state("[" * 100_000) == ContainerState("absent"), "no RecursionError"


# -- status ------------------------------------------------------------------------------------


TABLE = '{"nftables": [{"metainfo": {}}, {"rule": {"handle": 3, "expr": []}}]}'


ODD = {
    "401": Answer(401, "{}"),
    "": Answer(500, "Internal Server Error"),
    "hangs": Answer(0, "", "timed out"),
    "wordless": Answer(200, json.dumps({"choices": [{"message": {"content": None}}]})),
}
"""Answers of a node that are none in words."""


@dataclass
class FakeSession:
    """A node with these containers (name to what `docker inspect` prints)."""

    containers: dict[str, str] = field(default_factory=dict)
    health: int = 0
    answer: str = ""
    firewall: str = TABLE
    description: str | None = None
    proxy: str = "active"
    loader: str = "active"
    at_work: bool = False
    ray: str = '{"data": {"result": {"result": []}}}'
    asked: list[Any] = field(default_factory=list)
    waits: dict[str, float] = field(default_factory=dict)

    def submit(self, op, commands, files=()):
        assert op == "gather"
        found = {
            name: {"status": 0, "stdout": self.containers.get(name, "[]"), "stderr": ""}
            for name in commands
        }
        found["firewall"] = {"status": 0 if self.firewall else 1, "stdout": self.firewall}
        if UNIT in commands:
            found[UNIT]["stdout"] = f"{self.proxy}\n"
            found[LOADER_UNIT]["stdout"] = f"{self.loader}\n"
        kept = dict.fromkeys(files, self.description) | {"firewall": normalised(TABLE)}
        return SimpleNamespace(wait=lambda: {"commands": found, "files": kept})

    def run(self, argv):
        if argv[0] == "flock":
            return SimpleNamespace(status=int(self.at_work))
        assert "docker logs" in argv[2]
        return SimpleNamespace(status=0, stdout="ValueError: no room\n", stderr="")

    def http(self, url, timeout, **options):
        if url.endswith(ray.NODES):
            return Answer(200, self.ray)
        self.waits[url.rpartition("/")[2]] = timeout
        self.asked.append((url, options))
        if url.endswith("/health"):
            body = NOT_SERVED if self.health == 503 and self.description else ""
            return Answer(self.health, body, "" if self.health else "refused", "ab" * 32)
        if self.answer in ODD:
            return ODD[self.answer]
        return Answer(200, json.dumps({"choices": [{"message": {"content": self.answer}}]}))


def play_of(lost=(), head="spark1", cable=True, **sessions):
    facts = Facts(hcas=(Hca("rocep1s0f1", "enp1s0f1np1", cable),))
    nodes = [
        SimpleNamespace(name=n, is_head=n == head, facts=facts) for n in sessions if n not in lost
    ]
    return SimpleNamespace(
        nodes=nodes,
        out={name: Unreachable("no answer", where=name) for name in lost},
        inventory=SimpleNamespace(serve=ServeEntry(bind="management")),
        connections=SimpleNamespace(
            nodes=dict.fromkeys(sessions), session=sessions.__getitem__, connection=lambda _n: None
        ),
        together=partial(Play.together, None),
    )


def rows(nodes):
    """What Ray's State API says of its nodes."""
    found = [
        {"node_ip": one.address, "is_head_node": one.is_head, "state": "ALIVE",
         "resources_total": {"GPU": one.gpus}}
        for one in nodes
    ]  # fmt: skip
    return json.dumps({"data": {"result": {"result": found}}})


@pytest.fixture
def status():
    """`status(play, ray=[...])`: the state, with Ray's nodes as told."""

    def look(play, ray=()):
        for node in play.nodes:
            play.connections.session(node.name).ray = rows(ray)
        return state.status(play, None, PROBE)

    return look


STATES = cases(__file__, "states.toml")
WAYS, DESCRIPTIONS = STATES.pop("ways"), STATES.pop("descriptions")
OF_SESSION = ("health", "answer", "firewall", "proxy", "loader", "at_work")


def a_node(way, name, **changed):
    """Return a node of a way to serve; what is changed is of FakeSession or of `inspected`."""
    usual = WAYS[way].get(name, {})
    given = {**usual, **changed, "labels": {**usual.get("labels", {}), **changed.get("labels", {})}}
    statuses = {given.pop("program", SERVER): given.pop("server", "running")}
    told = given.pop("description", None)
    ours = {name: given.pop(name) for name in OF_SESSION if name in given}
    statuses[RAY] = given.pop("ray", "absent")
    program, server = next(iter(statuses.items()))
    containers = {
        name: inspected(status, **(given if name == program or server == "absent" else {}))
        for name, status in statuses.items()
        if status != "absent"
    }
    described = json.dumps(DESCRIPTIONS[told]) if told in DESCRIPTIONS else told
    usually = {"health": 200, "answer": "Paris", "description": described}
    return FakeSession(containers, **{**usually, **ours})


serving, worker = partial(a_node, "ray", "spark1"), partial(a_node, "ray", "spark2")


def asked_for(node):
    """Return the models of the completions that were asked for on a node."""
    return [json.loads(o["body"])["model"] for _, o in node.asked if o.get("body")]


def told_by_ray(*gpus):
    places = zip(("192.168.177.11", "192.168.177.12"), gpus, strict=False)
    return [RayNode(address, not n, count) for n, (address, count) in enumerate(places)]


TWO = told_by_ray(1.0, 1.0)


@pytest.mark.parametrize(
    ("way", "case"),
    [
        pytest.param(way, case, id=f"{way}: {case.get('found') or case['problems'] or 'well'}"[:60])
        for way in STATES
        for case in STATES[way]
    ],
)
def test_the_state_of_two_nodes(status, way, case):
    sessions = {
        name: None if name in case.get("lost", ()) else a_node(way, name, **case.get(name, {}))
        for name in ("spark1", "spark2")
    }
    play = play_of(lost=case.get("lost", ()), cable=case.get("cable", True), **sessions)
    gpus = case.get("ray", [1.0, 1.0] if way == "ray" else [])
    found = status(play, told_by_ray(*gpus))
    assert found.state == case.get("state", "serving"), found.problems
    if "problems" in case:
        assert list(found.problems) == case["problems"]
    else:
        assert any(case["found"] in problem for problem in found.problems), found.problems
    shown = found.to_dict()
    rows = shown.get("replicas") or shown.get("models") or ()
    assert [row["state"] for row in rows] == case.get("states", [])
    json.dumps(shown)
    assert holds(shown, case.get("shown", {})), shown
    for name, asked in case.get("asked", {}).items():
        assert [url for url, _ in sessions[name].asked] == asked
    if "completions" in case:
        assert sorted(asked_for(sessions["spark1"])) == case["completions"]


def test_a_server_that_never_ran_has_no_start(status):
    never = serving(server="created", tp=1, started="0001-01-01T00:00:00Z")
    assert status(play_of(spark1=never)).since is None


def test_a_completion_over_a_dead_link_is_not_waited_for(status):
    """It hangs for as long as it is waited for, which made `status` take 24 s."""
    well, dark = serving(), serving(answer="")
    status(play_of(spark1=well, spark2=worker()), TWO)
    found = status(play_of(cable=False, spark1=dark, spark2=worker()), TWO)
    assert dark.waits["completions"] <= 2 < well.waits["completions"] <= 10
    assert [problem.partition(":")[0] for problem in found.problems[:2]] == [
        f"no ConnectX-7 interface of {name} is up" for name in ("spark1", "spark2")
    ]


def test_ray_and_the_server_are_asked_in_parallel(status):
    """Neither waits for the other's answer."""
    meet = threading.Barrier(2, timeout=120)

    class Head(FakeSession):
        def http(self, url, **options):
            if url.endswith(("/health", ray.NODES)):
                meet.wait()
            return super().http(url, **options)

    head = Head(serving().containers, 200, "Paris")
    assert status(play_of(spark1=head, spark2=worker()), TWO).state == "serving"


# -- the answer --------------------------------------------------------------------------------


@pytest.fixture
def ask(server, one_node):
    """Ask the recipe's question, as `up` does."""
    return lambda: readiness.ask(one_node.play, server.endpoint, PROBE)


def answers(server, content):
    """Have the server give this answer, and no other."""
    server.change = lambda _request, _reply: Reply(content)


def test_a_right_answer_a_wrong_one_and_none(server, ask):
    answers(server, "It is PARIS.")
    assert ask() == "It is PARIS."
    answers(server, "the the the")
    with pytest.raises(VerificationFailed, match="'the the the'; expected 'Paris'") as caught:
        ask()
    assert caught.value.exit_code == 5
    server.raw = (500, "Internal Server Error")
    with pytest.raises(VerificationFailed, match=r"status 500\): Internal Server Error"):
        ask()


@pytest.mark.parametrize(("message", "text"), cases(__file__, "answers.json")["texts"])
def test_where_the_text_is(server, message, text):
    server.raw = (200, json.dumps({"choices": [{"message": message}]}))
    assert probe_once(server.session, server.endpoint, "chat", PROBE, timeout=60).text == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<html>proxy</html>", "not a chat completion: <html>proxy</html>"),
        *((odd, "not a chat completion: ")
          for odd in ('{"choices":[{"message":null}]}', "[" * 100_000, "", "[]", "5")),
    ],
)  # fmt: skip
def test_a_body_that_is_no_completion(server, ask, text, why):
    server.raw = (200, text)
    said = probe_once(server.session, server.endpoint, "chat", PROBE, timeout=60)
    assert said.text == ""
    assert said.why.startswith(f"the server's reply is {why}")
    with pytest.raises(VerificationFailed, match=f"the server's reply is {why}"):
        ask()


def test_reading_a_log(piped_cluster):
    cluster = piped_cluster("spark1", "spark2")
    cluster.head.run_container(SERVER)
    cluster.head.log(SERVER, "out\nerr\n")
    cluster.nodes["spark2"].programs["docker"] = missing
    head, bare = map(cluster.play.session, cluster.play.nodes)
    assert runtime.read_log(head, SERVER) == "out\nerr\n"
    assert runtime.read_log(head, RAY) == "", "there is no such container"
    assert runtime.read_log(bare, SERVER) == "", "there is no Docker"
