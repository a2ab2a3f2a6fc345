"""SGLang: its programs on one node and on two, and a stand-in that speaks its HTTP interface."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from serve_plans import bare_server, deployment_for, linked_nodes, recipe_of
from web_server import Answer, Asked, WebServer

from spark_cluster.config.facts import Facts, Hca
from spark_cluster.config.facts import GpuProcess as ProcessHeld
from spark_cluster.config.launch import Launch
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_settings import must_be_servable
from spark_cluster.config.topology import Node
from spark_cluster.engine import readiness, readiness_checks, result
from spark_cluster.engine.deployment import Endpoint, Server
from spark_cluster.engine.engine import engine
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.readiness import Member
from spark_cluster.errors import Refused, VerificationFailed
from spark_cluster.node.containers import ContainerState
from spark_cluster.runner.events import MemoryHeld, Progress

SGLANG = engine("sglang")


def pair() -> list[Node]:
    nodes = linked_nodes("spark1", "spark2")
    hcas = Facts(hcas=(Hca("rocep1s0f1", "enp1s0f1np1", up=True),))
    links = (replace(node.links[0], hca="rocep1s0f1") for node in nodes)
    made = [replace(n, links=(link,), facts=hcas) for n, link in zip(nodes, links, strict=True)]
    return [replace(node, cluster=tuple(made)) for node in made]


def deployment(*nodes: str, **more: object) -> Server:
    flags = {"context-length": 4096, "tp-size": len(nodes)}
    usual = {"engine": "sglang", "image": "lmsysorg/sglang:spark", "executor": "mp"}
    return bare_server(*nodes, flags=flags, model_path="/srv/models/m", **{**usual, **more})


def test_one_node_alone():
    head, other = pair()
    process = SGLANG.server(head, deployment("spark1"), 29501)
    assert process.command == (
        *("python3", "-m", "sglang.launch_server", "--model-path", "/srv/models/m"),
        *("--context-length", "4096", "--tp-size", "1", "--host=127.0.0.1", "--port=8000"),
    )
    assert "NCCL_SOCKET_IFNAME" not in process.env
    assert SGLANG.server(other, deployment("spark1"), 29501) is None


def test_two_nodes_meet_by_themselves_over_the_link():
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


class StandIn(WebServer):
    """Paths and bodies of SGLang's server; /health fails until it was asked three times."""

    def answer(self, asked: Asked) -> Answer:
        if asked.method == "POST":
            message = {"role": "assistant", "content": "Paris", "reasoning_content": None}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return 200, {"model": asked.document["model"], "choices": [choice]}
        known = {"/health": {}, "/get_server_info": {"version": "0.5.4", "tp_size": 1}}
        fails = asked.path == "/health" and len(self.asked) < 3
        if asked.path not in known or fails:
            return 503, {"message": "loading"}
        return 200, known[asked.path]


@pytest.fixture
def port() -> Iterator[int]:
    with StandIn() as server:
        yield server.server_port


@pytest.mark.usefixtures("no_pauses")
def test_up_waits_asks_and_reads_the_version(port, piped_cluster):
    cluster = piped_cluster("spark1")
    cluster.head.run_container(SERVER)
    cluster.head.held = [ProcessHeld(7, "sglang::scheduler", 1024)]
    play = cluster.play
    (vram,) = readiness.healthy(play, bare_server(*play.nodes, engine="sglang", port=port))
    assert vram.used_mib == 1024
    told = [event.resource for event in cluster.events if isinstance(event, Progress)]
    assert told == ["SGLang", "SGLang"]
    made = deployment_for(sglang_recipe(), play.head)
    server = replace(made.first, endpoint=Endpoint("127.0.0.1", port, "m"))
    assert readiness_checks.run_all(play, server) == "Paris"
    member = Member(play, server, ContainerState("running"))
    serves = made.with_servers([server])
    found = result.served(play, serves, [member], ["Paris"], before=[], peak=[])
    assert found.versions["sglang"] == "0.5.4"
    assert "vllm" not in found.versions
    held = [event for event in cluster.events if isinstance(event, MemoryHeld)]
    assert [(event.phase, event.used_mib) for event in held] == [("loading", 1024), ("ready", 1024)]


def sglang_recipe(**more: object) -> Recipe:
    return recipe_of("o/m", engine="sglang", **more)


def test_a_rung_that_an_engine_cannot_climb():
    recipe = sglang_recipe(readiness={"rungs": ["answer", "vision"]})
    must_be_servable(recipe, 1, SGLANG.rungs)
    with pytest.raises(Refused, match="recipe r: SGLang has no rung 'vision'"):
        must_be_servable(recipe, 1, {"answer"})


def test_its_server_has_its_own_flags_and_the_planner_vllms():
    recipe = sglang_recipe(engine_args={"context-length": 4096})
    found = deployment_for(recipe, *pair())
    server = found.first
    assert server.ranks == ("spark2",)
    assert not server.on_ray
    assert server.chooses_share
    started = server.starting(share=0.5)
    assert started.flags["mem-fraction-static"] == 0.5
    assert started.flags["context-length"] == 4096
    assert server.launch.args["max-model-len"] == 4096
    assert server.labels["spark-cluster.engine"] == "sglang"
    assert (29501, 29502) in found.firewall["ports"]


def test_a_wrong_answer_is_explained_with_its_own_flags():
    error = VerificationFailed("no answer", hint="a smaller --max-num-seqs")
    known = readiness_checks.with_known(error, "answer", Launch("m", engine="sglang"))
    assert known.hint.startswith("a smaller --max-running-requests")
