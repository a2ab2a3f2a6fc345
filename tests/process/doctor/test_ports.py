"""Which ports answer: the scan on real sockets, and what is made of it."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cases import cases
from factories import make_inventory
from free_ports import free_port

from spark_cluster.doctor import port_scan, probes
from spark_cluster.doctor.observations import PortScan


def test_what_listens_as_ss_tells_it() -> None:
    assert probes.parse_listeners(cases(__file__, "ports.toml")["ss"]) == {
        6379: "gcs_server",
        22: "",
        37479: "ray::RayWorkerP",
    }


@pytest.fixture
def listener() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_scan_finds_what_listens_and_nothing_else(listener: int) -> None:
    closed = free_port()
    asked = [("127.0.0.1", closed), ("127.0.0.1", listener)]
    found = port_scan.scan(asked)
    assert (found.open, found.tried, found.complete) == ((("127.0.0.1", listener),), 2, True)


def test_a_scan_of_ipv6() -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with server:
        port = server.getsockname()[1]
        assert port_scan.scan([("::1", port)]).open == (("::1", port),)


def test_a_scan_with_few_files_at_once(listener: int) -> None:
    asked = [("127.0.0.1", port) for port in (*range(1, 40), listener)]
    found = port_scan.scan(asked, at_once=16)
    assert ("127.0.0.1", listener) in found.open
    assert found.tried == 40


def test_a_scan_that_has_no_time(listener: int) -> None:
    found = port_scan.scan([("127.0.0.1", listener)], limit_s=-1)
    assert (found.open, found.tried, found.complete) == ((), 0, False)


def scanned(tmp_path: Path, answer: dict[str, Any] | None) -> PortScan:
    """Return what the laptop finds of a node at 127.0.0.1 whose `ss` gives an answer."""
    commands = {"commands": {"ss": answer}}
    session: Any = SimpleNamespace(request=lambda _op, **_asked: commands)
    made = make_inventory(tmp_path, "nodes:\n  spark1: {address: 127.0.0.1, roles: [head]}\n")
    port = answer and int(answer["stdout"].split(":")[1].split()[0])
    found = probes.look(made, {"spark1": session}, ((port, port),) if port else ())
    assert isinstance(found, PortScan)
    return found


def test_only_what_listens_is_tried(tmp_path: Path, listener: int) -> None:
    said = f'LISTEN 0 5 0.0.0.0:{listener} 0.0.0.0:* users:(("raylet",pid=1,fd=2))\n'
    found = scanned(tmp_path, {"status": 0, "stdout": said})
    (one,) = found.open
    assert (one.node, one.port, one.program, one.engines) == ("spark1", listener, "raylet", True)
    assert (found.tried, found.complete, found.listed) == (1, True, True)


@pytest.mark.parametrize("answer", [None, {"status": 1, "stdout": "LISTEN 0 5 0.0.0.0:7 *:*"}])
def test_a_node_that_does_not_tell_what_listens_has_every_port_tried(
    tmp_path: Path, listener: int, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any] | None
) -> None:
    monkeypatch.setattr(port_scan, "EVERY", (22, listener))
    found = scanned(tmp_path, answer)
    assert [(one.port, one.program) for one in found.open] == [(listener, "")]
    assert not found.listed
    assert found.tried >= 2


def test_behind_a_jump_host_nothing_can_be_tried(tmp_path: Path) -> None:
    made = make_inventory(tmp_path, "nodes:\n  a: {address: 10.0.0.1, roles: [head], jump: gate}\n")
    session: Any = None
    assert "behind a jump host" in str(probes.look(made, {"a": session}))
