"""Probes: what is sent, and what is made of what comes back."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import factories
import pytest
from doctor_samples import inspected, seen
from waiting import HANG_S

from spark_cluster.config.facts import Facts, Hca
from spark_cluster.config.inventory import Inventory
from spark_cluster.config.recipe_schema import Probe
from spark_cluster.config.topology import topology_of
from spark_cluster.doctor import probes
from spark_cluster.doctor.probes import Question
from spark_cluster.engine import link_check
from spark_cluster.engine.link_check import Cabling, checked_hops
from spark_cluster.errors import Failed
from spark_cluster.runner.session import Answer as HttpAnswer
from spark_cluster.runner.session import Session

QUESTION = Question(Probe(question="capital of France?", expect="Paris"), key="secret")


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    return factories.make_inventory(
        tmp_path,
        "nodes:\n  spark1: {address: 192.168.1.163, roles: [head]}\n"
        "  spark2: {address: 192.168.1.164}\nserve: {recipe: x}\n",
    )


class Fake:
    """A session whose node answers pings up to some size."""

    def __init__(self, largest: int = 9000, description: str | None = None) -> None:
        self.largest, self.description = largest, description
        self.asked: list[dict[str, list[str]]] = []
        self.requests: list[tuple[str, str | None]] = []

    def submit(self, _op: str, *, commands: dict[str, list[str]], timeout: float) -> Any:
        self.asked.append(commands)
        told = {
            name: {"status": int(int(argv[argv.index("-s") + 1]) + 28 > self.largest), "stdout": ""}
            for name, argv in commands.items()
        }
        return SimpleNamespace(wait=lambda: {"commands": told})

    def request(self, _op: str, *, files: dict[str, str]) -> dict[str, Any]:
        return {"files": dict.fromkeys(files, self.description)}

    def http(self, url: str, **options: Any) -> HttpAnswer:
        self.requests.append((url, options["certificate"]))
        assert options["headers"]["Authorization"] == "Bearer secret"
        return HttpAnswer(200, "") if url.endswith("/health") else HttpAnswer(0, "", "timed out")


def probed(
    inventory: Inventory, monkeypatch: pytest.MonkeyPatch, one: Fake, two: Fake, tools: str
) -> Any:
    monkeypatch.setattr(probes, "transfers", lambda *_: ())
    sessions: Any = {"spark1": one, "spark2": two}
    nodes = [seen(number, tools=tools) for number in (1, 2)]
    return probes.probe(inventory, nodes, sessions, QUESTION)


def test_full_size_packets_on_every_way(inventory: Inventory, monkeypatch: Any) -> None:
    one, two = Fake(), Fake(largest=1500)
    found = probed(inventory, monkeypatch, one, two, "ping\n")
    assert found.full_size == 8972
    assert len(found.pings) == 4
    assert [(ping.small, ping.full) for ping in found.pings] == [(True, True)] * 2 + [
        (True, False)
    ] * 2
    assert found.pings[0].link.startswith("spark1 enp1s0f1np1 to spark2")
    (argv, *_) = one.asked[0].values()
    assert argv[0] == "ping"
    assert "do" in argv


TLS = '{"url": "https://10.0.0.1:8443/v1", "api_key": true, "tls": "self-signed"}'
CERTIFICATE = "/etc/spark-cluster/endpoint/self-signed.pem"


@pytest.mark.parametrize(
    ("description", "url", "certificate"),
    [(None, "http://127.0.0.1:8000", None), (TLS, "https://10.0.0.1:8443", CERTIFICATE)],
)
def test_a_server_that_is_healthy_and_does_not_answer(
    inventory: Inventory, monkeypatch: Any, description: str | None, url: str, certificate: Any
) -> None:
    """What is probed is what users reach."""
    one = Fake(description=description)
    found = probed(inventory, monkeypatch, one, Fake(), "docker\nping\n")
    assert found.answer.health == 200
    assert (found.answer.completion.status, found.answer.completion.why) == (0, "timed out")
    assert one.requests[0] == (f"{url}/health", certificate)
    assert {given for _, given in one.requests} == {certificate}
    assert "secret" not in repr(QUESTION)


def test_a_ring_of_cables_is_named_and_nothing_is_waited_for(
    inventory: Inventory, monkeypatch: Any
) -> None:
    ring = [Cabling("spark1", {"np0": ("spark3",), "np1": ("spark2",)})]
    monkeypatch.setattr(link_check, "in_doubt", lambda _: True)
    monkeypatch.setattr(link_check, "look", lambda *_: ring)
    found = probes.probe(inventory, [seen(1, tools=""), seen(2, tools="")], {}, QUESTION)
    assert found.cabling == tuple(ring)
    assert (found.pings, found.transfers, found.rdma) == (None, None, None)
    assert found.why_not["pings"] == "no switch joins the nodes"

    def lost(*_: Any) -> list[Cabling]:
        raise Failed("it is gone", where="spark2")

    monkeypatch.setattr(link_check, "look", lost)
    monkeypatch.setattr(probes, "_hops", lambda *_: ([], "none"))
    found = probes.probe(inventory, [seen(1, tools=""), seen(2, tools="")], {}, QUESTION)
    assert (found.cabling, found.why_not["cabling"]) == (None, "spark2: it is gone")


def test_nothing_to_probe(inventory: Inventory) -> None:
    stopped = inspected(1, "spark-vllm", State__Status="exited")
    found = probes.probe(inventory, [seen(1, containers=stopped)], {}, QUESTION)
    assert found.pings is None
    assert found.why_not["pings"] == "one node alone"
    assert found.why_not["answer"] == "no server of spark-cluster runs on these nodes"


def test_transfers_and_rdma_between_four_nodes(tmp_path: Path, monkeypatch: Any) -> None:
    text = "".join(f"  spark{n}: {{address: 10.0.0.{n}}}\n" for n in (2, 3, 4))
    made = factories.make_inventory(
        tmp_path, f"nodes:\n  spark1: {{address: 10.0.0.1, roles: [head]}}\n{text}"
    )
    facts = Facts(hcas=(Hca("rocep1s0f1", "enp1s0f1np1", up=True),))
    hops = checked_hops(list(topology_of(made, made.nodes, {}, lambda _: facts).values()))
    sessions: Any = {name: name for name in made.nodes}

    def measure(sender: str, receiver: str, address: str, port: int = 0) -> probes.Throughput:
        if receiver == "spark3" != sender:
            raise Failed("it is lost", where="spark3")
        return probes.Throughput(10.0 * int(sender[-1]))

    monkeypatch.setattr(probes, "measure", measure)
    found = probes.transfers(hops, sessions)
    assert [(t.link, t.rate, t.own, t.message) for t in found] == [
        ("spark1 enp1s0f1np1 to spark2", 10.0, 10.0, ""),
        ("spark2 enp1s0f1np1 to spark3", None, 20.0, "it is lost"),
        ("spark3 enp1s0f1np1 to spark4", 30.0, 30.0, ""),
        ("spark4 enp1s0f1np1 to spark1", 40.0, 40.0, ""),
    ]
    monkeypatch.setattr(
        link_check, "measure", lambda server, client, hop: measure(client, server, "").rate
    )
    assert [(t.rate, t.message) for t in probes.rdma(hops, sessions)] == [
        *((10.0, ""), (None, "it is lost")),
        *((30.0, ""), (40.0, "")),
    ]


def test_a_transfer_between_real_agents(agent: Callable[..., Session]) -> None:
    done = probes.measure(agent("spark1"), agent("spark2"), "127.0.0.1")
    assert done.output == ""
    assert done.rate is not None
    assert done.rate > 0


def test_a_transfer_to_a_port_that_another_program_has(agent: Callable[..., Session]) -> None:
    def refuse() -> None:
        with contextlib.suppress(OSError):
            for _ in range(probes.STREAMS):
                server.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(HANG_S)
        port = server.getsockname()[1]
        threading.Thread(target=refuse, daemon=True).start()
        done = probes.measure(agent("spark1"), agent("spark2"), "127.0.0.1", port=port)
    assert done.rate is None
    assert "Address already in use" in done.output
