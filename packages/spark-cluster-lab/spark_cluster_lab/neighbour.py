"""A machine next to the nodes on the management network, which does not belong to them.

It has no key and no account: what it reaches, anyone on the owner's network reaches. It also knows
how Linux answers: it has routes to the fabric's addresses by way of the nodes' management ports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import spark_cluster.doctor.port_scan
from spark_cluster_lab.layout import BRIDGE, GATEWAY, NEIGHBOUR, SUBNET
from spark_cluster_lab.network import NEIGHBOUR_PORT, detach_neighbour, ip
from spark_cluster_lab.shell import output, run

ADDRESS = f"{GATEWAY.rsplit('.', 1)[0]}.66"
PORT = "eth0"


@dataclass(frozen=True)
class Neighbour:
    """The machine, for as long as the context is open."""

    def run(self, argv: Sequence[str], *, check: bool = True) -> str:
        """Run a program of this machine there; what it printed."""
        return run(["ip", "netns", "exec", NEIGHBOUR, *argv], check=check).stdout

    def start(self, argv: Sequence[str]) -> subprocess.Popen[str]:
        """Begin a program there and do not wait."""
        whole = ["ip", "netns", "exec", NEIGHBOUR, *argv]
        return subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def open_ports(self, *addresses: str) -> dict[str, set[int]]:
        """Every TCP port that accepts a connection, by address: all 65535 are tried.

        A scan is work for a processor, so the addresses are divided among those of this machine.
        """
        scan = ["ip", "netns", "exec", NEIGHBOUR, sys.executable, "-I", *scanner()]
        count = min(os.cpu_count() or 1, len(addresses))
        with ThreadPoolExecutor(count) as pool:
            shares = [[*scan, *addresses[first::count]] for first in range(count)]
            printed = list(pool.map(output, shares))
        found = [row for text in printed for row in json.loads(text).items()]
        return {address: set(ports) for address, ports in found}


@contextmanager
def neighbour(routes: Mapping[str, str]) -> Iterator[Neighbour]:
    """Plug it into the lab's bridge, and take it away again.

    Args:
        routes: addresses that are not on the bridge to the address of the node that has them.
    """
    detach_neighbour()
    try:
        run(["ip", "netns", "add", NEIGHBOUR])
        ip(
            f"link add {NEIGHBOUR_PORT} type veth peer name {PORT} netns {NEIGHBOUR}",
            f"link set {NEIGHBOUR_PORT} master {BRIDGE}",
            f"link set {NEIGHBOUR_PORT} up",
        )
        ip(
            "link set lo up",
            f"addr add {ADDRESS}/{SUBNET.split('/')[1]} dev {PORT}",
            f"link set {PORT} up",
            *(f"route add {far}/32 via {via}" for far, via in routes.items()),
            namespace=NEIGHBOUR,
        )
        yield Neighbour()
    finally:
        detach_neighbour()


SCAN = """\
import json, runpy, sys
path, *addresses = sys.argv[1:]
of_doctor = runpy.run_path(path)
every = of_doctor["targets"](addresses, of_doctor["EVERY"])
found = {address: [] for address in addresses}
for address, port in of_doctor["scan"](every, at_once=20000).open:
    found[address].append(port)
print(json.dumps(found))
"""


def scanner() -> tuple[str, ...]:
    """The scan as a program of its own, which imports nothing of ours but one file."""
    return "-c", SCAN, str(Path(spark_cluster.doctor.port_scan.__file__))
