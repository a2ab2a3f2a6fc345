"""Nodes with a GPU each on this machine, whose GPUs are made up: everything but CUDA is real."""

import functools
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import CommandLine
from conftest import WHY_NOT
from fake_gpus import fake_gpus, why_not
from waiting import until

from spark_cluster.errors import UsageError
from spark_cluster_lab import cgroup, power
from spark_cluster_lab.gpu import GpuLab, network, requirements
from spark_cluster_lab.gpu.lab import inside
from spark_cluster_lab.gpu.layout import GpuLayout, GpuNodeLayout
from spark_cluster_lab.network import BOOT_ID, namespaces
from spark_cluster_lab.shell import run

pytestmark = pytest.mark.lab

UNIT = """\
def main(play):
    unit = Unit("greeting", ("sh", "-c", "echo hello from $(hostname); exec sleep 600"))
    play.apply(play.nodes, [unit])
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for PATH whose nvidia-smi shows two GPUs."""
    if why := WHY_NOT or why_not():
        pytest.skip(why)
    if GpuLab.default().state() != "down":
        pytest.skip("the lab of GPUs is in use: spark-cluster lab down --gpus")
    with fake_gpus(tmp_path_factory.mktemp("smi")) as folder:
        yield folder


@pytest.fixture(scope="module")
def user(machine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """The command line with both nodes up; a folder in /tmp is shared with them."""
    made = CommandLine(tmp_path_factory.mktemp("gpu-lab"), "lab-gpus")
    made.environment["PATH"] = f"{os.environ['PATH']}:{machine}"
    (made.home / "shared").mkdir()
    (made.home / "shared/model").write_text("weights")
    up(made, machine, "--fresh")
    yield made
    made("lab", "down", "--gpus", "--wipe")


def up(user: CommandLine, machine: Path, *words: str) -> bool:
    """Bring the nodes up; returns whether anything was done."""
    shares = ("--share", str(machine), "--share", str(user.home / "shared"))
    return user.json("lab", "up", "--gpus", *shares, *words)["changed"]


def node(number: int) -> GpuNodeLayout:
    return GpuLab.default().layout.nodes(number)[-1]


def in_node(number: int, *argv: str) -> str:
    """Run a program in a node, without any of our agents."""
    return inside(power.leader(node(number)), argv)


def test_each_node_has_namespaces_and_a_gpu_of_its_own(user, machine):
    assert not up(user, machine)
    links = {}
    for number in (1, 2):
        name = f"gpu{number}"
        leader = power.leader(node(number))
        for space in ("net", "pid", "mnt", "uts", "ipc", "cgroup"):
            links[name, space] = Path(f"/proc/{leader}/ns/{space}").readlink()
        assert in_node(number, "hostname") == name
        assert in_node(number, "systemctl", "is-system-running") == "running"
        assert in_node(number, "cat", "/proc/1/comm") == "systemd"
        devices = in_node(number, "sh", "-c", "cd /dev; echo nvidia*").split()
        assert devices == ["nvidia-uvm", f"nvidia{number - 1}", "nvidiactl"]
        assert in_node(number, "nvidia-smi", "-L").count("GPU 0: NVIDIA Fake") == 1
        assert in_node(number, "cat", str(user.home / "shared/model")) == "weights"
    own = {space: Path(f"/proc/self/ns/{space}").readlink() for _, space in links}
    assert len({*links.values(), *own.values()}) == len(links) + len(own)
    ids = {in_node(number, "cat", "/etc/machine-id") for number in (1, 2)}
    assert len(ids) == 2
    assert len({boot_id(1), boot_id(2), BOOT_ID.read_text().strip()}) == 3


def test_nodes_reach_each_other_and_the_machine_reaches_them(user):
    code = "import socket,sys; socket.create_connection((sys.argv[1], 7000), 5).close()"
    listen = "import socket; socket.create_server(('', 7000)).accept()"
    for address in (node(2).address, node(2).fabric_address):
        in_node(2, "systemd-run", "--quiet", "--unit=listen", "python3", "-c", listen)
        until(lambda: ":7000" in in_node(2, "ss", "-Hltn"), what="it listens")
        in_node(1, "python3", "-c", code, address)
        until(lambda: in_node(2, "systemctl", "is-active", "listen") == "inactive", what="it came")
    assert in_node(2, "cat", "/sys/class/net/fabric0/mtu") == "9000"


def test_the_machine_is_not_the_nodes_to_change(user):
    in_node(1, "sh", "-c", "echo theirs > /etc/spark-cluster-test")
    assert not Path("/etc/spark-cluster-test").exists()
    assert in_node(1, "sh", "-c", "echo 1 > /proc/sys/vm/swappiness || echo refused") == "refused"
    shared = user.home / "shared/model"
    assert in_node(1, "sh", "-c", f"echo x > {shared} || echo refused") == "refused"
    assert in_node(1, "sh", "-c", "ls /var/cache/spark-cluster/lab-gpus") == ""
    lost = sum(1 << bit for bit in (16, 17, 25, 27))  # sys_module, sys_rawio, sys_time, mknod
    unit = ("systemd-run", "--quiet", "--pipe", "--wait")
    for ways in (in_node(1, *unit, *CAPABILITIES), in_node(1, *CAPABILITIES)):
        assert not bits(ways) & lost
    printed = user("--limit", "gpu1", "exec", "--", *CAPABILITIES).out
    assert not bits(printed) & lost
    tried = user("--limit", "gpu1", "exec", "--", "sh", "-c", "mknod /x c 1 3 || echo refused").out
    assert "refused" in tried


CAPABILITIES = ("grep", "^Cap", "/proc/self/status")


def bits(printed: str) -> int:
    """All capabilities of a process, in any of its sets."""
    found = re.findall(r"Cap(?:Inh|Prm|Eff|Bnd|Amb):\s*([0-9a-f]+)", printed)
    assert len(found) == 5
    return functools.reduce(int.__or__, (int(word, 16) for word in found))


def test_commands_work_without_ssh(user):
    found = {entry["name"]: entry for entry in user.json("facts")["nodes"]}
    assert set(found) == {"gpu1", "gpu2"}
    assert user("ping").printed.count("reachable") == 2
    printed = user("exec", "hostname").out
    assert "gpu1: gpu1" in printed
    assert "gpu2: gpu2" in printed
    alone = CommandLine(user.home, "lab-gpu", user.environment)
    assert "gpu2" not in alone("exec", "hostname").printed


def test_what_only_a_spark_has_is_missed_nowhere_else(user):
    checks = user.json("doctor")["checks"]
    only_there = {"link.connectx-present", "driver.firmware-update"}
    found = {check["status"] for check in checks if check["id"] in only_there}
    assert found == {"ok"}
    unknown = {check["id"] for check in checks if check["status"] == "unknown"}
    assert not {"driver.kho", "driver.known-bad", "memory.swap"} & unknown, "the kernel tells them"
    assert not [check for check in checks if check["status"] == "fail"]


def test_a_unit_runs_and_survives_a_reboot(user):
    user("playbook", user.playbook(UNIT))
    until(lambda: "hello from gpu1" in journal(1), what="the unit runs")
    before = power.leader(node(2))
    in_node(2, "systemctl", "reboot")
    until(lambda: power.leader(node(2)) not in (0, before), what="it boots again")
    until(lambda: "hello from gpu2" in journal(2, "--boot"), what="its disk is kept")
    assert in_node(2, "systemctl", "is-active", "greeting") == "active"


def boot_id(number: int) -> str:
    return in_node(number, "cat", "/proc/sys/kernel/random/boot_id")


def journal(number: int, *words: str) -> str:
    return in_node(number, "journalctl", "--unit=greeting", "--output=cat", *words)


def test_nodes_that_run_are_not_replaced_by_others(user, machine, monkeypatch):
    up(user, machine)
    before = power.leader(node(1))
    refused = user("lab", "up", "--gpus", "--nodes", "1", "--share", str(machine), status=2)
    assert "nodes: 2 exist, 1 are asked for" in refused.err
    assert "lab down --gpus" in refused.err
    shared = user("lab", "up", "--gpus", "--share", str(machine), status=2)
    assert f"--share asks for {machine}" in shared.err
    monkeypatch.setenv("PATH", user.environment["PATH"])
    monkeypatch.setattr(requirements, "libraries", lambda: ["/srv/other"])
    told: list[str] = []
    lab = GpuLab.default()
    assert not lab.up(shares=[machine, user.home / "shared"], progress=told.append)
    assert any("nodes were started: folders of libraries" in line for line in told)
    assert power.leader(node(1)) == before


def test_a_machine_has_one_lab_at_a_time(user, machine, monkeypatch, tmp_path):
    """Another folder's has the same bridges, rules and namespaces."""
    up(user, machine)
    before = power.leader(node(1))
    monkeypatch.setenv("PATH", user.environment["PATH"])
    (tmp_path / "lab-gpus").mkdir()
    other = GpuLab(GpuLayout(tmp_path / "lab-gpus"))  # and the same control groups
    assert other.state() == "down"
    with pytest.raises(UsageError, match=r"the lab of GPUs in .* is up, and") as caught:
        other.up(1, shares=[machine])
    assert f"SPARK_CLUSTER_LAB_GPUS={node(1).state} spark-cluster lab down" in caught.value.hint
    told: list[str] = []
    assert not other.down(progress=told.append)
    assert any("is left alone" in line for line in told)
    assert power.leader(node(1)) == before
    assert GpuLab.default().state() == "up"
    user("lab", "down", "--gpus")
    assert other.up(1, shares=[machine])
    assert GpuLab.default().state() == "down"
    assert other.down()


def test_a_namespace_of_somebody_elses_stays(user, machine):
    user("lab", "down", "--gpus")
    run(["ip", "netns", "add", "gpu2"])
    try:
        refused = user("lab", "up", "--gpus", "--share", str(machine), status=2)
        assert "there is a network namespace gpu2 that the lab of GPUs has not made" in refused.err
        user("lab", "down", "--gpus")
        assert "gpu2" in namespaces()
    finally:
        run(["ip", "netns", "delete", "gpu2"])


def test_a_node_that_is_off_says_so(user, machine):
    up(user, machine)
    in_node(2, "systemctl", "poweroff")
    until(lambda: power.state(node(2)) == "off", what="it is off")
    ran = user("ping", status=3)
    assert "gpu2" in ran.printed
    assert "is not running" in ran.printed
    assert user.json("lab", "status")["gpus"]["state"] == "partly up"
    before = power.leader(node(1))
    assert up(user, machine)
    assert power.leader(node(1)) == before, "the other one goes on"
    user("ping")


@pytest.mark.parametrize("victim", ["supervisor", "process 1"])
def test_whatever_was_killed_nothing_is_left(user, machine, victim):
    up(user, machine)
    pid = power.supervisor(node(1)) if victim == "supervisor" else power.leader(node(1))
    os.kill(pid, signal.SIGKILL)
    until(lambda: GpuLab.default().state() in ("broken", "partly up"), what="it is noticed")
    assert user.json("lab", "down", "--gpus")["changed"]
    nodes = GpuLab.default().layout.nodes()
    assert network.leftovers(nodes) == []
    assert [g for one in nodes for g in cgroup.groups(one.group) if g.exists()] == []
    assert "lab-gpus" not in Path("/proc/self/mountinfo").read_text()
    assert not user.json("lab", "down", "--gpus")["changed"]
    assert up(user, machine)


def test_nodes_share_a_gpu_only_when_told_to(user, machine):
    refused = user("lab", "up", "--gpus", "--nodes", "3", status=2)
    assert "--nodes 3: this machine has 2 GPUs, and each node gets one" in refused.err
    assert "--share-gpu" in refused.err
    user("lab", "down", "--gpus")
    assert up(user, machine, "--nodes", "3", "--share-gpu")
    devices = [in_node(n, "sh", "-c", "cd /dev; echo nvidia[0-9]*") for n in (1, 2, 3)]
    assert devices == ["nvidia0", "nvidia1", "nvidia0"]
    made = GpuLab.default().layout.inventory
    three = CommandLine(user.home, str(made), user.environment)
    assert len(three.json("facts")["nodes"]) == 3
    assert json.loads(three("lab", "status", "--json").out)["gpus"]["inventory"] == str(made)


def test_disks_in_memory_where_overlayfs_cannot_write(user, machine, monkeypatch):
    monkeypatch.setenv("PATH", user.environment["PATH"])
    monkeypatch.setattr(requirements, "keeps_in_memory", lambda *_: True)
    told: list[str] = []
    GpuLab.default().down()
    GpuLab.default().up(1, shares=[machine], progress=told.append)
    assert any("in memory" in line for line in told)
    assert "memory/upper" in in_node(1, "cat", "/proc/mounts")
    assert in_node(1, "systemctl", "is-system-running") == "running"
    alone = CommandLine(user.home, "lab-gpu", user.environment)
    assert "gpu1: gpu1" in alone("exec", "hostname").out
