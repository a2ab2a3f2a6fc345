"""The model loader as a program: real sockets and a real server, and a docker that keeps state."""

import http.client
import json
import os
import socket
import socketserver
import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from factories import make_node, put
from local_docker import DockerNode
from small_server import answering
from unit_programs import installed
from waiting import until

from spark_cluster.engine import proxy, supervision
from spark_cluster.engine.proxy import ModelServer
from spark_cluster.node import load_watch, model_loader
from spark_cluster.node.containers import NEEDS, ContainerState
from spark_cluster.node.health import State
from spark_cluster.node.model_loader import Loader, Queue


class Admin(socketserver.StreamRequestHandler):
    """HAProxy's runtime API, as far as it is asked."""

    def handle(self) -> None:
        server: Any = self.server
        asked = self.rfile.readline().decode().strip()
        server.asked.append(asked)
        if asked == "show stat":
            rows = [f"m,{name},0,{scur},{idle},UP" for name, (scur, idle) in server.use.items()]
            rows.append(f"m,chat,0,0,5,{server.chat}")
            text = "\n".join(["# pxname,svname,qcur,scur,lastsess,status", *rows, ""])
            self.wfile.write(text.encode())


class Node(DockerNode):
    """A head with three models on request, `a`, `b` and `c`, and what is needed to load them."""

    def __init__(
        self, folder: Path, port: int, admin: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        super().__init__(folder, monkeypatch)
        self.admin = admin
        labels = {
            "spark-cluster.endpoint": f"http://127.0.0.1:{port}/v1",
            "spark-cluster.model": "m",
            NEEDS: "14",
        }
        self.labels = labels
        self.are("created", "a", "b", "c")
        servers = [
            ModelServer("h", "127.0.0.1", port, names=(f"model-{n}",), program=n, on_request=True)
            for n in ("a", "b", "c")
        ]
        always = ModelServer("h", "127.0.0.1", port, names=("chat",), program="chat")
        self.config = {
            **supervision.loader_configuration(make_node("h"), [always, *servers], 20.0, 60.0),
            "unit_folder": str(folder),
            "socket": str(folder / "http.sock"),
            "admin": admin.server_address,
        }

    def are(self, status: str, *names: str, **labels: str) -> None:
        for name in names:
            self.has(name, {**self.labels, **labels}, status)


@pytest.fixture
def engine() -> Iterator[Any]:
    told = SimpleNamespace(alive=True)
    body = json.dumps({"choices": [{"message": {"content": "Paris"}}]})
    with answering(lambda _: (200 if told.alive else 503, {}, body)) as told.port:
        yield told


@pytest.fixture
def node(tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    admin: Any = socketserver.ThreadingUnixStreamServer(str(tmp_path / "admin.sock"), Admin)
    admin.asked, admin.use, admin.chat = [], {}, "UP 1/3"
    Thread(target=admin.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setattr("spark_cluster.node.model_loader.LEAVE_S", 0.0)
    yield Node(tmp_path, engine.port, admin, monkeypatch)
    admin.shutdown()
    admin.server_close()


def loaded(node: Node, name: str, monkeypatch: pytest.MonkeyPatch, gib: list[float]) -> Queue:
    """Ask for a model, with the memory that is available at each look."""
    left = iter(gib)
    monkeypatch.setattr(model_loader, "available_gib", lambda: next(left))
    monkeypatch.setattr(model_loader, "LOOK_S", 0.0)
    queue = Queue(lambda: 0.0)
    loader = Loader(node.config, queue)
    queue.ask(name)
    loader.load_next(0)
    return queue


def test_a_model_is_started_where_there_is_memory(node, monkeypatch):
    """A container that someone removed is in no one's way."""
    with node.state("docker") as docker:
        del docker["containers"]["b"]
    queue = loaded(node, "a", monkeypatch, [20])
    assert node.acts == ["start a"]
    assert queue.take(0) == ""
    assert "could not" not in queue.ask("a").text


def test_the_other_is_unloaded_first_and_gets_no_request_meanwhile(node, monkeypatch):
    node.are("running", "a")
    node.admin.use = {"a": (0, 400)}
    loaded(node, "b", monkeypatch, [8, 8, 20])
    assert node.acts == ["stop a", "start b"]
    told = [line for line in node.admin.asked if line != "show stat"]
    assert told == [
        f"set server model-2/a {what}" for what in ("state drain", "health down", "state ready")
    ]


def test_one_that_got_a_request_at_the_last_moment_stays(node, monkeypatch):
    node.are("running", "a")
    node.admin.use = {"a": (0, 400)}
    before = Loader.unload

    def unload(loader: Loader, name: str) -> bool:
        if "show stat" in node.admin.asked and not node.admin.use["a"][0]:
            node.admin.use = {"a": (1, 0)}
        return before(loader, name)

    monkeypatch.setattr(Loader, "unload", unload)
    loaded(node, "b", monkeypatch, [8, 8, 20])
    assert node.acts == ["start b"], "a answers its request; the memory came from elsewhere"
    assert node.admin.asked[-1] != "set server model-2/a health down"


@pytest.mark.parametrize("fault", ["docker", "answer", "memory"])
def test_a_load_that_fails_says_why_and_leaves_nothing_started(
    node, engine, monkeypatch, fault, capsys
):
    if fault == "docker":
        with node.state("docker") as docker:
            docker["behaviour"] = {"a": {"refuses": "no such device"}}
    if fault == "answer":
        engine.alive = False
        node.config["models"][0]["ready_s"] = 0.0
    monkeypatch.setattr(model_loader, "RETURN_S", -1.0)
    queue = loaded(node, "a", monkeypatch, [4.0 if fault == "memory" else 20.0])
    told = queue.ask("a").text
    why = {
        "docker": "docker start a failed",
        "answer": "its server does not answer in time: /v1/chat/completions answers with",
        "memory": "it needs 14.0 GiB, and with every other model unloaded 4.0 are",
    }[fault]
    assert told.startswith(f"it could not be loaded: {why}")
    assert why in capsys.readouterr().out, "the journal has it"
    assert node.acts == {"answer": ["start a", "stop a"], "docker": ["start a"]}.get(fault, [])


def test_after_a_restart_it_goes_on_with_a_load_and_leaves_no_server_drained(node, engine):
    node.are("running", "a", "b")
    engine.alive = False
    queue = Queue(lambda: 0.0)
    Loader(node.config, queue).go_on()
    assert [queue.take(0), queue.take(0)] == ["a", "b"]
    assert node.admin.asked == [
        "set server model-2/a state ready",
        "set server model-3/b state ready",
        "set server model-4/c state ready",
    ]


def test_no_other_is_unloaded_while_the_memory_of_one_comes_back(node, monkeypatch):
    node.are("running", "b", "c")
    node.admin.use = {"b": (0, 900), "c": (0, 400)}
    loaded(node, "a", monkeypatch, [8, 8, 8, 20])
    assert node.acts == ["stop b", "start a"]


def test_the_memory_of_one_that_is_always_there_is_kept_for_it(node, monkeypatch):
    node.admin.chat = "DOWN"
    monkeypatch.setattr(model_loader, "ROOM_S", -1.0)
    queue = loaded(node, "a", monkeypatch, [100])
    assert "could not be loaded: memory is kept for chat, which is not up" in queue.ask("a").text
    assert node.acts == []


def test_a_proxy_that_is_started_again_is_waited_for(node, monkeypatch):
    admin, node.config["admin"] = node.config["admin"], str(node.root / "no.sock")
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        node.config["admin"] = admin

    monkeypatch.setattr("time.sleep", sleep)
    loaded(node, "a", monkeypatch, [20])
    assert node.acts == ["start a"]
    assert looks


def test_a_stop_that_outlives_the_program_is_no_failure_of_a_load(node, engine, monkeypatch):
    """SIGKILL in the middle of an unload: `docker stop` goes on."""
    node.are("running", "a")
    engine.alive = False
    monkeypatch.setattr(model_loader, "LOOK_S", 0.0)
    queue = Queue(lambda: 0.0)
    loader = Loader(node.config, queue)
    loader.go_on()
    look = Loader.state

    def state(loader: Loader, one: ContainerState) -> State:
        node.are("exited", "a")  # now
        return look(loader, one)

    monkeypatch.setattr(Loader, "state", state)
    loader.load_next(0)
    assert queue.ask("a").text == "it is going to be loaded"
    assert node.acts == []


@pytest.mark.parametrize(("user", "taken"), [(0, True), (os.getuid(), True), (65534, False)])
def test_other_users_of_the_node_have_no_say(node, user, taken):
    class Peer:
        def getsockopt(self, *_: int) -> bytes:
            return model_loader.PEER.pack(1, user, user)

    server = model_loader.LoaderSocket(node.config, {}, Queue(lambda: 0.0))
    try:
        assert server.verify_request(Peer(), None) is taken
    finally:
        server.server_close()


def asked(path: str, program: str, model: str = "m") -> http.client.HTTPResponse:
    """Send what the proxy would send."""
    connection = http.client.HTTPConnection("proxy")
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(20)
    connection.sock.connect(path)
    headers = {"Content-Type": "application/json", proxy.HEADER: program}
    connection.request("POST", "/v1/chat/completions", json.dumps({"model": model}), headers)
    return connection.getresponse()


def test_a_load_is_prepared_and_guarded(node, monkeypatch):
    """P07: caches are dropped before the start; P06: a load that was ended says why."""
    reason = node.root / "reason.json"
    monkeypatch.setattr(load_watch, "reason_file", lambda _name: str(reason))
    monkeypatch.setattr(model_loader, "available_gib", lambda: 100.0)
    queue = Queue(lambda: 0.0)
    loader = Loader(node.config, queue)
    queue.ask("a")
    loader.load_next(0.0)
    assert node.acts == ["start a"]
    assert node.memory == ["end a", "prepare", "guard a", "end a"]
    figures = {"available_kib": 2**20, "free_kib": 0, "swap_free_kib": 0, "pressure": None, "at": 0}
    start = Loader.start

    def ended(loader: Loader, name: str) -> None:
        start(loader, name)
        put(reason, json.dumps(figures))
        node.are("exited", name)

    monkeypatch.setattr(Loader, "start", ended)
    queue.ask("b")
    loader.load_next(0.0)
    assert "its load was ended before the node ran out of memory: 1.0 GiB" in queue.ask("b").text
    assert not reason.exists()


def test_the_installed_files_answer_and_load_by_themselves(node, tmp_path):
    """Run as on the node: by its own interpreter, with nothing of this checkout."""
    node.are("created", "a", **{NEEDS: "0.001"})
    # This machine's caches are its own; test_supervisor.py runs the same files on a scratch root.
    put(tmp_path / "config.json", json.dumps({**node.config, "unified_memory": False}))
    argv = installed(tmp_path, supervision.LOADER.program, str(tmp_path / "config.json"))
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        until((tmp_path / "http.sock").exists)
        first = asked(node.config["socket"], "a")
        error = json.loads(first.read())["error"]
        assert (first.status, error["code"]) == (503, "model_loading")
        assert error["message"].startswith("model-a is not loaded: it is ")
        assert 2 <= int(first.headers["Retry-After"]) <= 60
        lines = iter(process.stdout.readline, "")
        assert next(line for line in lines if "loaded in" in line).startswith("a: loaded in")
        assert asked(node.config["socket"], "chat").status == 404
    finally:
        process.kill()
        process.communicate()
    assert node.acts == ["start a"]
