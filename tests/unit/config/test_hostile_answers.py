"""Whatever the tools of a hostile node print is left out or unknown, and never a traceback."""

import json

from cases import cases
from hostile.agent import answers, texts
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_cluster.bench.telemetry import LineReader
from spark_cluster.config import discovery, fact_gathering
from spark_cluster.config.discovery import ip_neigh
from spark_cluster.config.facts import Facts

EXAMPLES = min(8 * settings.default.max_examples, 2000)

TOLD = cases(__file__, "hostile_answers.toml")
LISTENERS, ROW = TOLD["listeners"], TOLD["row"]
SPARK = {
    "commands": {
        name: {"status": 0, "stdout": text, "stderr": ""} for name, text in TOLD["commands"].items()
    },
    "files": {**dict.fromkeys(fact_gathering.FILES, ""), **TOLD["files"]},
    "trees": {**{name: {} for name in fact_gathering.TREES}, **TOLD["trees"]},
    "late": {},
    "machine": TOLD["machine"],
}
(NEIGHBOUR,) = json.loads(TOLD["commands"]["neigh"])


def test_nothing_is_missing_before_it_is_changed():
    found = fact_gathering.facts(SPARK)
    assert (found.hostname, found.os, found.dgx_version) == ("spark1", "ubuntu 24.04", "7.4.0")
    assert (found.gpu.driver, found.nvml_error, found.docker) == ("580.126.09", "", "29.1.3")
    assert (found.boot_id, found.memory.total_kib) == ("b-1", 128)
    assert [str(a) for a in found.interfaces[0].addresses] == ["192.168.177.11/24"]
    assert (found.hcas[0].gid_index, found.ssh_ports) == (3, (22, 2222))
    assert len(found.host_keys) == len(found.given_addresses) == 1
    assert (found.packages, found.held) == ({"docker-ce": "5:29.1.3"}, ("docker-ce",))
    assert (found.cmdline, found.reboot_required) == ("quiet kho=off", True)
    assert found.mesh_key == found.host_keys[0]
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
        {
            "ifname": "b",
            "mtu": "many",
            "addr_info": json.loads(TOLD["commands"]["ip"])[0]["addr_info"],
        },
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


def test_a_node_with_many_netplan_files_is_read_in_part():
    files = {f"/etc/netplan/{n:04}.yaml": "[" * 1500 + " " * n for n in range(1000)}
    found = fact_gathering.netplan_files(files, ())
    assert len(found.unreadable) == 1000
    assert "64 files come before it" in found.unreadable[-1]
