"""`bench fabric` on the laptop: its document, the verdict, when it may run, what the head gets."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest
from cases import cases, each_case, each_row
from fabric_results import RDMA, measured, node, told
from factories import make_node, make_recipe, put
from fake_programs import Said
from piped_cluster import Make, PipedCluster
from ray_server import RayServer, ray_server
from serve_plans import server_for

from spark_cluster.bench import fabric_run
from spark_cluster.bench.fabric_probe import MARK
from spark_cluster.bench.fabric_run import (
    FILE,
    FabricRecord,
    all_reduce,
    judged,
    load_fabric,
    messages,
    must_be_possible,
    record_of,
    result_in,
)
from spark_cluster.config.facts import GpuProcess
from spark_cluster.config.topology import Link
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.ray import TOKEN_FILE
from spark_cluster.errors import Failed, InvalidFile, Refused, UsageError
from spark_cluster.runner.events import Progress

LOGS: dict[str, tuple[str, ...]] = {
    "rdma": RDMA, **{name: tuple(log) for name, log in cases(__file__, "nccl_logs.json").items()}
}  # fmt: skip
"""As NCCL 2.28 prints them: over both paths of the cable, over one, and without RDMA."""

ONE, SOCKETS = LOGS["one"], LOGS["sockets"]


def ids(found: FabricRecord) -> list[str]:
    return [issue.id for issue in found.issues]


def test_bus_bandwidth():
    """Two nodes send what they have once; eight send it 1.75 times."""
    row = all_reduce(1_000_000, (1e-4, 3e-4, 2e-4), 2)
    assert row.latency_us == 200
    assert row.bus_gb_s == 5
    assert row.values_us == (100, 300, 200)
    assert all_reduce(1_000_000, (2e-4,), 8).bus_gb_s == 8.75


def test_an_all_reduce_of_four_nodes_may_take_a_ring_of_them():
    assert judged(measured(token_us=(500.0,) * 5, count=4)).verdict == "as expected"
    slow = judged(measured(token_us=(600.0,) * 5, count=4))
    assert slow.reasons == (
        "an all-reduce of one token takes 600 us, at most 525 are expected of 4 nodes",
    )
    (reason,) = judged(measured(token_us=(500.0,) * 5)).reasons
    assert reason.endswith("at most 175 were seen elsewhere")


@each_case(__file__, "slow_fabrics.json")
def test_slow(case):
    about = {name: case["nodes"].get(name, {}) for name in ("spark1", "spark2")}
    nodes = (
        node(name, **{**changed, "log": LOGS[changed.get("log", "rdma")]})
        for name, changed in about.items()
    )
    found = judged(measured(**case["measured"], nodes=tuple(nodes)))
    reason, known = case["reason"], case["known"]
    assert found.verdict == "slow"
    assert any(reason in text for text in found.reasons)
    assert known in ids(found) if known else not found.issues
    assert all(issue.fix and issue.cause for issue in found.issues)


def test_what_was_seen_comes_first():
    both = (node("spark1", SOCKETS), node("spark2", SOCKETS))
    found = judged(measured(1.0, nodes=both))
    assert ids(found)[0] == "nccl-sockets"
    assert ids(found).count("nccl-sockets") == 1
    one = judged(measured(12.1, nodes=(node("spark1", ONE), node("spark2"))))
    assert ids(one) == ["nccl-one-twin"], "what explains it leaves no room for guesses"
    assert one.issues[0].found == f"spark1: NCCL uses one of the cable's two paths: {ONE[0]}"
    fast = judged(measured(nodes=both))
    assert fast.verdict == "slow"
    assert fast.reasons == (f"spark1: NCCL uses sockets: {SOCKETS[2]}",)
    listed = (
        *RDMA,
        SOCKETS[2],
        "spark1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via NET/IB/0",
    )
    cleared = (node("spark1", listed), node("spark2"))
    assert judged(measured(nodes=cleared)).issues == (), "sockets are listed and RDMA was taken"


def test_figures_of_other_gpus_are_not_judged():
    """Of two H100s over sockets nothing is known that they could be compared with."""
    nodes = tuple(node(name, SOCKETS, device="NVIDIA H100 80GB HBM3") for name in ("a", "b"))
    found = judged(measured(1.0, nodes=nodes))
    assert (found.verdict, found.issues) == ("not judged", ())
    assert found.reasons == ("NVIDIA H100 80GB HBM3: what to expect is known of Sparks only",)
    sparks = measured(nodes=(node("a", device="NVIDIA GB10"), node("b")))
    assert judged(sparks).verdict == "as expected"


@each_case(__file__, "wrong_fabric_documents.json")
def test_a_document_that_is_none(tmp_path, case):
    data = json.loads(measured().model_dump_json())
    (tmp_path / FILE).write_text(json.dumps({**data, **case["change"]}))
    with pytest.raises(InvalidFile, match=case["said"]):
        load_fabric(tmp_path)


def test_files_that_are_no_document(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        load_fabric(tmp_path)
    (tmp_path / FILE).write_text("[" * 100_000)
    with pytest.raises(InvalidFile, match="not a result of `bench fabric`"):
        load_fabric(tmp_path)
    evil = json.loads(measured().model_dump_json()) | {"model": "a\x1b[31mb\u202e"}
    (tmp_path / FILE).write_text(json.dumps(evil))
    assert load_fabric(tmp_path).model.isprintable() or "\ufffd" in load_fabric(tmp_path).model
    assert "\x1b" not in load_fabric(tmp_path).model


def pair() -> list[Any]:
    made = []
    for number, name in enumerate(("spark1", "spark2")):
        link = Link("eth0", IPv4Interface(f"192.168.177.1{number + 1}/24"), "rocep1s0f1")
        made.append(replace(make_node(name, head=not number, address=f"10.0.0.{number}"),
                            links=(link,)))  # fmt: skip
    return made


def test_the_result_of_a_job():
    plan = server_for(make_recipe("gemma4-31b-fp8"), *pair())
    printed = f"memory\n{MARK}{json.dumps(told())}\n"
    found = record_of(result_in(printed), plan, pair(), {10752: "one token"}, "r1")
    assert [(row.bytes, row.use) for row in found.allreduce] == [(8, ""), (10752, "one token")]
    assert found.nodes[0].copy_gb_s == 210
    assert found.nodes[0].hcas == ("rocep1s0f1",)
    assert found.nodes[1].mtu == 1500
    assert found.left_out == (1024,)


@pytest.mark.parametrize(
    "printed", ["", "memory\n", f"{MARK}{{", f"{MARK}[]", f"{MARK}{'[' * 99999}"]
)
def test_a_job_without_a_result(printed):
    with pytest.raises(Failed, match="without a result"):
        result_in(printed, "spark1")


NESTED: list[Any] = []
for _ in range(100_000):
    NESTED = [NESTED]


@each_row(__file__, "impossible_results.json", "results")
def test_a_result_that_cannot_be(field, value):
    plan = server_for(make_recipe("gemma4-31b-fp8"), *pair())
    given = told(**{field: NESTED if value == "NESTED" else value})
    with pytest.raises(Failed, match="the job's result cannot be read"):
        record_of(given, plan, pair(), {}, "r1")


def test_the_messages_of_the_model(tmp_path):
    """Gemma 4 31B has a hidden size of 5,376, two bytes each."""
    found = messages(server_for(make_recipe("gemma4-31b-fp8"), *pair()), tmp_path)
    by_use = {use: size for size, use in found.items() if use}
    assert by_use["one token"] == 2 * 5376
    assert by_use["prefill chunk"] % by_use["one token"] == 0
    assert by_use["prefill chunk"] >= 2048 * by_use["one token"]
    assert {8, 256 << 20} <= set(found)
    assert list(found) == sorted(found)


RECIPE = make_recipe("gemma4-31b-fp8")


def test_it_is_refused_next_to_a_server(piped_cluster):
    cluster = piped_cluster()
    play = cluster.play
    plan = server_for(RECIPE, *play.nodes)
    must_be_possible(play, plan)
    cluster.head.run_container(SERVER, status="exited")
    must_be_possible(play, plan)
    labels = {"spark-cluster.recipe": "lab-paris"}
    for name, server in (("spark2", SERVER), ("spark1", "spark-vllm-chat")):
        cluster.nodes[name].run_container(server, labels)
        with pytest.raises(Refused, match="lab-paris is up: it holds the GPU's memory") as caught:
            must_be_possible(play, plan)
        assert (caught.value.where, "spark-cluster down" in caught.value.hint) == (name, True)
        cluster.nodes[name].run_container(server, labels, status="exited")


def test_it_is_refused_on_one_node_and_without_ray(piped_cluster):
    play = piped_cluster().play
    with pytest.raises(Refused, match="between nodes"):
        must_be_possible(play, server_for(RECIPE, play.head, tp=1))
    joined = make_recipe("gemma4-31b-fp8", executor="mp")
    with pytest.raises(Refused, match="without Ray"):
        must_be_possible(play, server_for(joined, *play.nodes))


@pytest.mark.parametrize("name", ["spark1", "spark2"])
def test_it_is_refused_next_to_a_benchmark(piped_cluster, name):
    """Another inventory may have another head."""
    cluster = piped_cluster()

    def holds_the_lock(words: list[str], _stdin: str) -> Said:
        return Said("/var/lib/spark-cluster/bench/r/s" if "flock" in words[1] else "")

    cluster.nodes[name].programs["sh"] = holds_the_lock
    with pytest.raises(Refused, match="a benchmark is running") as caught:
        must_be_possible(cluster.play, server_for(RECIPE, *cluster.play.nodes))
    assert caught.value.where == name


class Measured:
    """A cluster whose head has a Ray that runs jobs on this machine."""

    def __init__(self, cluster: PipedCluster, ray: RayServer) -> None:
        self.cluster, self.ray = cluster, ray
        self.plan = server_for(RECIPE, *cluster.play.nodes)
        cluster.head.put(TOKEN_FILE, f"{ray.token}\n")

    def __call__(self) -> FabricRecord:
        return fabric_run.measure(self.cluster.play, self.plan, self.ray.port, "r1")


@pytest.fixture
def measure(piped_cluster: Make, tmp_path: Path) -> Iterator[Measured]:
    with ray_server(tmp_path) as server:
        yield Measured(piped_cluster(), server)


def test_a_job_is_measured_and_judged(measure, tmp_path):
    place = put(tmp_path / "printed", f"memory\n{MARK}{json.dumps(told())}\n")
    measure.ray.runs = f"cat {place}"
    found = measure()
    (job,) = measure.ray.jobs.values()
    assert job["submission_id"] == "fabric-r1"
    program, file, text = shlex.split(job["entrypoint"])
    asked = json.loads(text)
    assert (program, file) == ("python3", "fabric_probe.py")
    assert list(tmp_path.glob("*/fabric_probe.py")), "the job has the program in its folder"
    assert asked["addresses"] == ["192.168.177.11", "192.168.177.12"], "the head is rank 0"
    sizes = messages(measure.plan, tmp_path)
    assert asked["sizes"][:2] == [size for size, use in sizes.items() if use]
    assert sorted(asked["sizes"]) == list(sizes)
    assert found.verdict == "slow", "no size reached what is expected"
    shown = [event for event in measure.cluster.events if isinstance(event, Progress)]
    assert shown[0].node == "spark1"


def test_the_real_program_says_which_nodes_are_missing(measure, monkeypatch, tmp_path):
    """With a Ray that has no nodes."""
    put(tmp_path / "ray/util/__init__.py")
    strategies = "class NodeAffinitySchedulingStrategy: pass"
    put(tmp_path / "ray/util/scheduling_strategies.py", strategies)
    put(tmp_path / "ray/__init__.py", "init = remote = lambda *_, **__: None\nnodes = list\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    missing = "LookupError: not in the Ray cluster: 192.168.177.11, 192.168.177.12"
    with pytest.raises(Failed, match=f"the job on Ray failed: {missing}"):
        measure()


def test_programs_that_hold_gpu_memory_are_named(piped_cluster):
    cluster = piped_cluster()
    cluster.nodes["spark2"].held = [GpuProcess(7, "python3", 900)]
    fabric_run.warn_of_others(cluster.play)
    assert cluster.notes == [
        "python3 (pid 7) holds GPU memory on spark2: if it is at work, it disturbs the figures"
    ]
