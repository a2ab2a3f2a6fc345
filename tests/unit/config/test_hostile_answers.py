"""Whatever the tools of a hostile node print is left out or unknown, and never a traceback."""

from __future__ import annotations

import json

from hostile.agent import answers, texts
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_cluster.bench.telemetry import LineReader
from spark_cluster.config import discovery, fact_gathering
from spark_cluster.config.discovery import ip_neigh
from spark_cluster.config.facts import Facts
from spark_cluster.node.telemetry import FORMAT

EXAMPLES = min(8 * settings.default.max_examples, 2000)

KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"
GIDS = "/sys/class/infiniband/rocep1s0f1/ports/1"
IP = [
    {
        "ifname": "enp1s0f1np1", "mtu": 9000, "flags": ["UP", "LOWER_UP"], "address": "aa:bb",
        "addr_info": [{"family": "inet", "local": "192.168.177.11", "prefixlen": 24}],
    }
]  # fmt: skip
NETPLAN = f"""{fact_gathering.MANAGED}
network:
  ethernets:
    fabric:
      match: {{macaddress: "aa:bb"}}
      addresses: [192.168.177.11/24]
  bonds: {{bond0: {{interfaces: [fabric]}}}}
"""
NEIGHBOUR = {"dst": "169.254.1.2", "dev": "enp1s0f1np1", "lladdr": "AA:BB", "state": ["STALE"]}


def done(stdout):
    return {"status": 0, "stdout": stdout, "stderr": ""}


SPARK = {
    "commands": {
        "gpu": done("NVIDIA GB10, 12.1, 580.126.09, 45, 11.2, 208, 100, 200\n"),
        "ip": done(json.dumps(IP)),
        "hcas": done("rocep1s0f1 port 1 ==> enp1s0f1np1 (Up)\n"),
        "sshd": done("port 22\nlistenaddress 0.0.0.0:2222\n"),
        "ssh_sockets": done("Listen=[::]:22 (Stream)\n"),
        "docker": done("29.1.3\n"),
        "dpkg": done("docker-ce\t5:29.1.3\tinstalled\thold\n"),
        "neigh": done(json.dumps([NEIGHBOUR])),
        "mdns": done("=;enp1s0f1np1;IPv4;spark2;_ssh._tcp;local;spark2.local;169.254.1.2;22;\n"),
        "apps": done("4711, /usr/bin/python3, 1024\n"),
    },
    "files": {
        **dict.fromkeys(fact_gathering.FILES, ""),
        "os": "ID=ubuntu\nVERSION_ID=24.04\n",
        "meminfo": "MemTotal:  128 kB\nMemAvailable:   64 kB\n",
        "local_ports": "32768\t60999\n",
        "mesh_key": f"ssh-ed25519 {KEY} x",
    },
    "trees": {
        **{name: {} for name in fact_gathering.TREES},
        "gids?": {f"{GIDS}/gids/3": "0000:0000:0000:0000:0000:ffff:c0a8:b10b"},
        "types?": {f"{GIDS}/gid_attrs/types/3": "RoCE v2"},
        "host_keys": {"/etc/ssh/ssh_host_ed25519_key.pub": f"ssh-ed25519 {KEY} x"},
        "netplan /etc/netplan": {"/etc/netplan/99-spark-cluster.yaml": NETPLAN},
    },
    "late": {},
    "machine": {
        "hostname": "spark1", "kernel": "6.17", "arch": "aarch64", "python": "3.12.3", "cpus": 20,
        "disk_total": 4, "disk_free": 3,
    },
}  # fmt: skip
LISTENERS = 'LISTEN 0 4096 127.0.0.1%lo:8000 0.0.0.0:* users:(("vllm",pid=4711,fd=3))\n'
ROW = json.dumps(
    {
        "format": FORMAT, "time": 1.0, "clock": 1.0, "gpu": {"utilisation": 1, "throttle": ["x"]},
        "memory": {"total_kib": 1024, "available_kib": 1}, "engine": {"running": 1},
        "processes": [[1, "a", 2]], "rdma_errors": {"a": 1}, "notes": ["x"],
    }
)  # fmt: skip


def test_nothing_is_missing_before_it_is_changed():
    found = fact_gathering.facts(SPARK)
    assert [str(a) for a in found.interfaces[0].addresses] == ["192.168.177.11/24"]
    assert (found.hcas[0].gid_index, found.ssh_ports) == (3, (22, 2222))
    assert len(found.host_keys) == len(found.given_addresses) == 1
    assert discovery.peers(SPARK)[0].host == "spark2"
    assert fact_gathering.memory(SPARK)[0][0].pid == 4711
    assert fact_gathering.listeners(LISTENERS)[0].pid == 4711
    assert LineReader("spark1").row(ROW) is not None


@given(answers(SPARK))
@settings(max_examples=EXAMPLES)
def test_facts_of_whatever_a_node_answers(answer):
    found = fact_gathering.facts(answer)
    assert isinstance(found, Facts)
    assert all(0 <= port <= 65535 for port in (*found.ssh_ports, *found.local_ports))
    json.dumps([found.gpu.power_w if found.gpu else 0, found.memory.total_kib], allow_nan=False)
    fact_gathering.memory(answer)
    discovery.peers(answer)


@given(st.data())
@settings(max_examples=EXAMPLES)
def test_lines_of_whatever_a_node_prints(data):
    fact_gathering.listeners(data.draw(texts(LISTENERS)))
    reader = LineReader("spark1")
    for line in (ROW, data.draw(texts(ROW)), ROW):
        reader.row(line)


def test_an_address_that_is_none_costs_only_itself():
    rows = [
        {"ifname": "a", "addr_info": ["x", {"family": "inet", "local": "1.2.3.4/99"}]},
        {"ifname": "b", "mtu": "many", "addr_info": IP[0]["addr_info"]},
    ]
    found = fact_gathering.ip_addr(json.dumps(rows))
    assert [(one.name, one.mtu, len(one.addresses)) for one in found] == [
        ("a", 1500, 0),
        ("b", 0, 1),
    ]
    assert fact_gathering.ip_addr("[" * 100_000) == ()


def test_neighbours_in_no_known_form():
    for entries in (None, 7, [NEIGHBOUR | {"state": None}], [NEIGHBOUR | {"state": [{}]}], [[]]):
        assert len(ip_neigh(json.dumps(entries))) <= 1
    assert ip_neigh(json.dumps([NEIGHBOUR | {"state": ["FAILED"]}])) == []


def test_numbers_that_no_kernel_prints():
    assert (
        fact_gathering.port_range("² ³")
        == fact_gathering.port_range("9" * 5000 + " 1")
        == (32768, 60999)
    )
    assert fact_gathering.meminfo(f"MemTotal: {'9' * 5000} kB").total_kib == 0
    assert fact_gathering.listeners("LISTEN 0 1 *:² *:*") == []
