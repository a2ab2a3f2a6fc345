"""SGLang: its programs on one node and on two, and a stand-in that speaks its HTTP interface."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Interface

import pytest
from fake_cluster import Make
from serve_plans import bare_server, deployment_for, recipe_of
from web_server import Answer, Asked, WebServer

from spark_cluster.config.facts import Facts, Hca
from spark_cluster.config.facts import GpuProcess as ProcessHeld
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_settings import must_be_servable
from spark_cluster.config.topology import Link, Node
from spark_cluster.engine import readiness, readiness_checks, result, runtime
from spark_cluster.engine.deployment import Endpoint, Server
from spark_cluster.engine.engine import engine
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.readiness import Member
from spark_cluster.errors import Refused
from spark_cluster.issues.startup import Start
from spark_cluster.node.containers import ContainerState
from spark_cluster.resources import Container, Unit
from spark_cluster.runner.events import MemoryHeld, Progress

SGLANG = engine("sglang")

LOG = (
    "[2026-11-20 14:03:30] server_args=ServerArgs(model_path='/srv/models/m', tp_size=2)\n"
    "[2026-11-20 14:05:31 TP0] Load weight end. type=X, avail mem=50.1 GB, mem usage=15.02 GB.\n"
    "[2026-11-20 14:05:33 TP0] max_total_num_tokens=262144, chunked_prefill_size=8192\n"
    "[2026-11-20 14:06:01] The server is fired up and ready to roll!\n"
)


def pair() -> list[Node]:
    nodes = [
        Node(
            f"spark{number}",
            is_head=number == 1,
            links=(Link("enp1s0f1np1", IPv4Interface(f"192.168.177.1{number}/24"), "rocep1s0f1"),),
            facts=Facts(hcas=(Hca("rocep1s0f1", "enp1s0f1np1", up=True),)),
        )
        for number in (1, 2)
    ]
    return [replace(node, cluster=tuple(nodes)) for node in nodes]


def deployment(*nodes: str, **more: object) -> Server:
    flags = {"context-length": 4096, "tp-size": len(nodes)}
    usual = {"engine": "sglang", "image": "lmsysorg/sglang:spark", "executor": "mp"}
    return bare_server(*nodes, flags=flags, model_path="/srv/models/m", **{**usual, **more})


def test_one_node_alone() -> None:
    head, other = pair()
    process = SGLANG.server(head, deployment("spark1"), 29501)
    assert process.command == (
        *("python3", "-m", "sglang.launch_server", "--model-path", "/srv/models/m"),
        *("--context-length", "4096", "--tp-size", "1", "--host=127.0.0.1", "--port=8000"),
    )
    assert "NCCL_SOCKET_IFNAME" not in process.env
    assert SGLANG.server(other, deployment("spark1"), 29501) is None


def test_two_nodes_meet_by_themselves_over_the_link() -> None:
    made = [SGLANG.server(node, deployment("spark1", "spark2"), 29501) for node in pair()]
    for rank, process in enumerate(made):
        assert {
            "--nnodes=2",
            f"--node-rank={rank}",
            "--dist-init-addr=192.168.177.11:29501",
            "--nccl-port=29502",
            "--host=127.0.0.1",
        } <= set(process.command)
        assert process.env["NCCL_IB_HCA"] == "rocep1s0f1"
        assert process.env["GLOO_SOCKET_IFNAME"] == "enp1s0f1np1"
        assert process.rdma
    assert SGLANG.ports(29501) == ((29501, 29502),)


@pytest.mark.parametrize(("name", "kind"), [("docker", Container), ("venv", Unit)])
def test_it_runs_in_either_runtime(name: str, kind: type) -> None:
    made = deployment("spark1", runtime=name, venv="/opt/sglang")
    process = SGLANG.server(pair()[0], made, 29501)
    assert process is not None
    found = runtime.resource(process, made)
    assert isinstance(found, kind)
    assert found.name == "spark-vllm"


def test_what_its_log_tells() -> None:
    start = Start()
    for line in LOG.splitlines():
        start.take(line)
    assert start.engine.name == "SGLang"
    assert start.in_order() == {
        "model": "/srv/models/m",
        "tensor parallel": "2",
        "weights": "15.02 GB",
        "KV tokens": "262144",
        "up": SGLANG.started,
    }


class StandIn(WebServer):
    """Paths and bodies of SGLang's server; /health fails until it was asked three times."""

    def answer(self, asked: Asked) -> Answer:
        if asked.method == "POST":
            message = {"role": "assistant", "content": "Paris", "reasoning_content": None}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return 200, {"model": asked.document["model"], "choices": [choice]}
        known = {
            "/health": {},
            "/v1/models": {"object": "list", "data": [{"id": "m", "object": "model"}]},
            "/get_server_info": {"version": "0.5.4", "tp_size": 1},
        }
        fails = asked.path == "/health" and len(self.asked) < 3
        if asked.path not in known or fails:
            return 503, {"message": "loading"}
        return 200, known[asked.path]


@pytest.fixture
def port() -> Iterator[int]:
    with StandIn() as server:
        yield server.server_port


@pytest.mark.usefixtures("no_pauses")
def test_up_waits_asks_and_reads_the_version(port: int, fake_cluster: Make) -> None:
    cluster = fake_cluster("spark1")
    cluster.head.run_container(SERVER)
    cluster.head.held = [ProcessHeld(7, "sglang::scheduler", 1024)]
    play = cluster.play
    endpoint = Endpoint("127.0.0.1", port, "m")
    (vram,) = readiness.healthy(play, bare_server(*play.nodes, engine="sglang", port=port))
    assert vram.used_mib == 1024
    told = [event for event in cluster.events if isinstance(event, Progress)]
    assert [event.resource for event in told] == ["SGLang", "SGLang"]
    made = deployment_for(sglang_recipe(), play.head)
    server = replace(made.first, endpoint=endpoint)
    assert readiness_checks.run_all(play, server) == "Paris"
    member = Member(play, server, ContainerState("running"))
    serves = made.with_servers([server])
    found = result.served(play, serves, [member], ["Paris"], before=[], peak=[])
    held = [event for event in cluster.events if isinstance(event, MemoryHeld)]
    assert [(event.phase, event.used_mib) for event in held] == [("loading", 1024), ("ready", 1024)]
    assert found.versions["sglang"] == "0.5.4"
    assert "vllm" not in found.versions
    models = json.loads(endpoint.request(play.session(play.head), SGLANG.models).body)["data"]
    assert [model["id"] for model in models] == ["m"]


def sglang_recipe(**more: object) -> Recipe:
    return recipe_of("o/m", engine="sglang", **more)


def test_a_rung_that_an_engine_cannot_climb() -> None:
    recipe = sglang_recipe(readiness={"rungs": ["answer", "vision"]})
    must_be_servable(recipe, 1, SGLANG.rungs)
    with pytest.raises(Refused, match="recipe r: SGLang has no rung 'vision'"):
        must_be_servable(recipe, 1, {"answer"})


def test_its_server_has_its_own_flags_and_the_planner_vllms() -> None:
    recipe = sglang_recipe(engine_args={"context-length": 4096})
    found = deployment_for(recipe, *pair())
    server = found.first
    assert server.ranks == ("spark2",)
    assert not server.on_ray
    assert server.chooses_share
    started = server.starting(share=0.5, guarded="present")
    assert started.flags["mem-fraction-static"] == 0.5
    assert started.flags["context-length"] == 4096
    assert server.launch.args["max-model-len"] == 4096
    assert server.labels["spark-cluster.engine"] == "sglang"
    assert (29501, 29502) in found.firewall["ports"]
