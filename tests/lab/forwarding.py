"""Three machines in network namespaces: a node of the lab of GPUs, its machine, one of the LAN.

`python forwarding.py NETWORK` inside `unshare --net --mount` puts them together with the lab's own
rules and prints, as JSON, who reaches whom; NETWORK is the machine's namespace, which is left
alone. The machine in the middle forwards, as one with Docker or a lab does.
"""

import json
import subprocess
import sys
from pathlib import Path

from spark_cluster_lab.gpu.layout import BRIDGE, GATEWAY, SUBNET
from spark_cluster_lab.gpu.network import rules
from spark_cluster_lab.network import CONF, IPTABLES, ip
from spark_cluster_lab.shell import run

NODE, LAN, MACHINE_ON_LAN = f"{SUBNET}.11", "192.0.2.9", "192.0.2.1"
LISTEN = "import socket; socket.create_server(('', 7000)).accept()"
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 7000), 1.5).close()"


def build() -> None:
    run(["mount", "--make-rprivate", "/"])
    run(["mount", "-t", "tmpfs", "tmpfs", "/run"])
    run(["mount", "-t", "sysfs", "sysfs", "/sys"])
    for name in ("node", "lan"):
        run(["ip", "netns", "add", name])
    ip(
        "link set lo up",
        f"link add {BRIDGE} type bridge forward_delay 0",
        f"addr add {GATEWAY}/24 dev {BRIDGE}",
        f"link set {BRIDGE} up",
        "link add lan-gpu1 type veth peer name eth0 netns node",
        f"link set lan-gpu1 master {BRIDGE} up",
        "link add outside type veth peer name eth0 netns lan",
        f"addr add {MACHINE_ON_LAN}/24 dev outside",
        "link set outside up",
    )
    for name, address, gateway in (("node", NODE, GATEWAY), ("lan", LAN, MACHINE_ON_LAN)):
        ip(
            f"addr add {address}/24 dev eth0",
            "link set lo up",
            "link set eth0 up",
            f"route add default via {gateway}",
            namespace=name,
        )
    (CONF / "all/forwarding").write_text("1")
    for table, rule in rules():
        run([*IPTABLES, "-t", table, "-I", *rule.split()])


def reaches(start: str, end: str, address: str) -> bool:
    """Return whether one of the three (the machine: "") opens a connection to another."""
    enter = {name: ["ip", "netns", "exec", name] if name else [] for name in (start, end)}
    listener = subprocess.Popen([*enter[end], sys.executable, "-c", LISTEN])
    try:
        while ":7000" not in run([*enter[end], "ss", "-Hltn"]).stdout:
            pass
        connect = [*enter[start], sys.executable, "-c", CONNECT, address]
        return run(connect, check=False).returncode == 0
    finally:
        listener.kill()
        listener.wait()


def network_namespace() -> str:
    return str(Path("/proc/self/ns/net").readlink())


def main() -> None:
    assert network_namespace() != sys.argv[1], "the machine's own network is left alone"
    build()
    found = {
        "machine to node": reaches("", "node", NODE),
        "node to LAN": reaches("node", "lan", LAN),
        "LAN to node": reaches("lan", "node", NODE),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
