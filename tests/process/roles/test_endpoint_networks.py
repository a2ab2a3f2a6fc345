"""A real HAProxy against a network whose hosts hold idle connections without a key."""

import contextlib
import ctypes
import select
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hostile import user
from proxied import KEY, Engine, needs_haproxy, proxied, request
from role_samples import a_spark
from waiting import HANG_S, until

from spark_cluster.engine.proxy import ModelServer, Replica

pytestmark = needs_haproxy

MOST = 8
"""Connections that a network may have in these tests, of 20 in all."""

HOSTILE = [f"127.0.5.{host}" for host in range(1, 11)]
NEIGHBOUR, ELSEWHERE = "127.0.5.200", "127.0.6.1"
"""A client in the attackers' network, and one in another."""


def one_server(_port: int) -> dict[str, Any]:
    return {}


def replicas(port: int) -> dict[str, Any]:
    return {"replicas": tuple(Replica(f"spark{n}", "127.0.0.1", port) for n in (1, 2))}


def models(port: int) -> dict[str, Any]:
    return {
        "models": tuple(
            ModelServer("spark1", "127.0.0.1", port, names=(name,), program=f"spark-vllm-{name}")
            for name in "ab"
        )
    }


@contextlib.contextmanager
def guarded(folder: Path, engine: Engine, **settings: Any) -> Iterator[int]:
    """The port of a proxy on all addresses that asks for a key and has few places."""
    places = "maxconn 256" if "models" in settings else "maxconn 4096"
    given: dict[str, Any] = {"host": "0.0.0.0", "connections_per_address": MOST, **settings}
    instead = {
        places: "maxconn 20",
        "timeout http-request 15s": "timeout http-request 1h",
        "timeout client 60s": "timeout client 1h",
    }
    with proxied(folder, a_spark(), engine.port, api_key=KEY, instead=instead, **given) as port:
        yield port


@contextlib.contextmanager
def idle(
    address: tuple[str, int], sources: Sequence[str], each: int
) -> Iterator[Callable[[], int]]:
    """Connections that send the beginning of a request; yields what counts those still open."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with contextlib.ExitStack() as opened:
        held = [opened.enter_context(socket.socket(family)) for _ in range(each * len(sources))]
        for number, connection in enumerate(held):
            connection.settimeout(HANG_S)
            connection.bind((sources[number % len(sources)], 0))
            with contextlib.suppress(OSError):  # it may be reset at once
                connection.connect(address)
                connection.sendall(b"GET / HT")
        yield lambda: sum(not select.select([c], [], [], 0)[0] for c in held)


def asked(address: tuple[str, int], source: str, key: str = KEY) -> str:
    """Return the status that a request gets; empty when its connection is reset."""
    asking = request("GET", "/v1/models", f"Authorization: Bearer {key}\r\n")
    try:
        with socket.create_connection(address, HANG_S, (source, 0)) as connection:
            connection.sendall(asking)
            return connection.recv(4096).decode()[9:12]
    except OSError:
        return ""


KINDS = pytest.mark.parametrize("servers", [one_server, replicas, models])


@KINDS
def test_a_network_with_many_addresses_does_not_block_other_networks(tmp_path, engine, servers):
    with guarded(tmp_path, engine, **servers(engine.port)) as port:
        address = ("127.0.0.1", port)
        with idle(address, HOSTILE, 6) as held:
            until(lambda: held() <= MOST)
            assert held() == MOST
            assert asked(address, ELSEWHERE) == "200"
            assert asked(address, NEIGHBOUR) == "", "it has not shown its key yet"


def test_a_client_that_has_shown_its_key_is_not_counted_with_its_network(tmp_path, engine):
    with guarded(tmp_path, engine) as port:
        address = ("127.0.0.1", port)
        assert asked(address, NEIGHBOUR) == "200"
        assert asked(address, HOSTILE[0], key="guessed") == "401"
        with idle(address, HOSTILE, 6) as held:
            until(lambda: held() <= MOST)
            assert asked(address, NEIGHBOUR) == "200"
            assert asked(address, HOSTILE[0]) == "", "a wrong key proves nothing"


def test_an_address_that_has_shown_a_key_has_a_limit_too(tmp_path, engine):
    with guarded(tmp_path, engine) as port:
        address = ("127.0.0.1", port)
        assert asked(address, NEIGHBOUR) == "200"
        with idle(address, [NEIGHBOUR], 2 * MOST) as held:
            until(lambda: held() <= MOST)
            assert held() == MOST
            assert asked(address, ELSEWHERE) == "200"


HOSTILE6 = [f"fd00:0:0:5:{host}::{host}" for host in range(1, 11)]
HERE6, NEIGHBOUR6, ELSEWHERE6 = "fd00::1", "fd00:0:0:5:ffff::1", "fd00:0:0:6::1"


@user.needs_root
def test_an_ipv6_network_has_64_bits(tmp_path):
    """On a socket for both protocols, where each IPv4 address is written as an IPv6 address."""

    def work() -> None:
        here = Engine()
        with guarded(tmp_path, here, host="::") as port:
            six, four = (HERE6, port), ("127.0.0.1", port)
            with idle(six, HOSTILE6, 6) as held, idle(four, HOSTILE, 6) as also_held:
                until(lambda: held() <= MOST and also_held() <= MOST)
                assert (held(), also_held()) == (MOST, MOST)
                assert (asked(six, ELSEWHERE6), asked(four, ELSEWHERE)) == ("200", "200")
                assert (asked(six, NEIGHBOUR6), asked(four, NEIGHBOUR)) == ("", "")
        here.close()

    in_own_network(work, [HERE6, NEIGHBOUR6, ELSEWHERE6, *HOSTILE6])


def in_own_network(work: Callable[[], None], addresses: Sequence[str]) -> None:
    """Call it in a network namespace of its own, whose loopback has these addresses, too."""

    def moved() -> None:
        clone_newnet = 0x40000000
        assert ctypes.CDLL(None, use_errno=True).unshare(clone_newnet) == 0, ctypes.get_errno()
        wanted = ["link set lo up", *(f"addr add {one}/128 dev lo nodad" for one in addresses)]
        subprocess.run(["ip", "-batch", "-"], input="\n".join(wanted), text=True, check=True)
        work()

    with ThreadPoolExecutor(1) as thread:  # its namespace ends with it
        thread.submit(moved).result()
