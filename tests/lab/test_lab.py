"""The lab itself, driven for real: what its nodes show, what they forget, what it leaves behind."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from waiting import until

from benchmarks.engine import nodes
from benchmarks.engine.link import LinkError
from spark_cluster_lab import Lab, LabNode, power
from spark_cluster_lab.layout import BRIDGE, RULE_COMMENT, Layout

pytestmark = pytest.mark.lab

TABLE = (Path(__file__).parent / "programs/nvidia-smi.txt").read_text()


def eventually(condition: Callable[[], bool]) -> bool:
    return until(condition, every_s=0.05)


def answer(node: LabNode, command: str) -> str:
    return node.ssh(command).stdout


@pytest.fixture
def as_new(spark1: LabNode) -> Iterator[LabNode]:
    """The first node with the stand-ins' defaults, before and after."""
    (spark1.root / "var/lib/lab/state.json").unlink(missing_ok=True)
    spark1.set_state()
    yield spark1
    (spark1.root / "var/lib/lab/state.json").unlink(missing_ok=True)
    spark1.set_state()


# --- what the stand-ins print ----------------------------------------------------------------


def test_nvidia_smi_prints_the_captured_table(as_new):
    as_new.set_state(temperature_c=45, pstate="P0", power_w=11.17)
    assert TABLE in answer(as_new, "nvidia-smi")
    queried = answer(
        as_new,
        "nvidia-smi --query-gpu=memory.total,memory.used,memory.free,utilization.gpu,power.draw,"
        "temperature.gpu --format=csv",
    )
    assert queried.splitlines() == [
        "memory.total [MiB], memory.used [MiB], memory.free [MiB], utilization.gpu [%], "
        "power.draw [W], temperature.gpu",
        "[N/A], [N/A], [N/A], 0 %, 11.17 W, 45",
    ]
    name = "nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader"
    assert answer(as_new, name) == "NVIDIA GB10, 12.1, 580.126.09\n"
    listed = "GPU 0: NVIDIA GB10 (UUID: GPU-b0ec33a0-2589-53de-953c-0713d37d0794)\n"
    assert answer(as_new, "nvidia-smi -L") == listed


# --- the fabric ------------------------------------------------------------------------------

ONE_CABLE = """\
rocep1s0f0 port 1 ==> enp1s0f0np0 (Down)
rocep1s0f1 port 1 ==> enp1s0f1np1 (Up)
roceP2p1s0f0 port 1 ==> enP2p1s0f0np0 (Down)
roceP2p1s0f1 port 1 ==> enP2p1s0f1np1 (Up)
"""
PORT_STATE = "cat /sys/class/infiniband/rocep1s0f1/ports/1/state"


def test_hcas_follow_the_cable(as_new, spark2):
    assert eventually(lambda: answer(as_new, "ibdev2netdev") == ONE_CABLE)
    up = "link rocep1s0f1/1 state ACTIVE physical_state LINK_UP netdev enp1s0f1np1"
    down = "link rocep1s0f0/1 state DOWN physical_state DISABLED netdev enp1s0f0np0"
    assert answer(as_new, "rdma link").splitlines()[:2] == [down, up]
    driver = answer(as_new, "ethtool -i enp1s0f1np1").splitlines()
    assert driver[0] == "driver: mlx5_core"
    assert driver[2] == "firmware-version: 28.45.4028 (NVD0000000087)"
    assert "\tSpeed: 200000Mb/s\n" in answer(as_new, "ethtool enp1s0f1np1")
    assert answer(as_new, "cat /sys/class/net/enp1s0f1np1/speed") == "200000\n"
    assert "PORT_ACTIVE (4)" in answer(as_new, "ibv_devinfo -d rocep1s0f1")
    as_new.unplug_fabric()
    try:
        for node in (as_new, spark2):  # both ends of the cable
            assert eventually(lambda node=node: "(Up)" not in answer(node, "ibdev2netdev"))
            assert eventually(lambda node=node: answer(node, PORT_STATE) == "1: DOWN\n")
    finally:
        as_new.plug_fabric()
    assert eventually(lambda: answer(as_new, "ibdev2netdev") == ONE_CABLE)
    assert eventually(lambda: answer(as_new, PORT_STATE) == "4: ACTIVE\n")


def test_gids_follow_the_addresses(as_new):
    ports = "/sys/class/infiniband/rocep1s0f1/ports/1"
    as_new.ssh("sudo ip address flush dev enp1s0f1np1 scope global")
    as_new.ssh("sudo ip address add 192.168.177.11/24 dev enp1s0f1np1")
    mapped = "0000:0000:0000:0000:0000:ffff:c0a8:b10b\n"
    found = f"grep -l {mapped.strip()} {ports}/gids/* | sort | xargs -n1 basename | xargs"
    assert eventually(lambda: answer(as_new, found) != "\n")
    for index in answer(as_new, found).split():
        kind = "RoCE v2" if int(index) % 2 else "IB/RoCE v1"
        assert answer(as_new, f"cat {ports}/gid_attrs/types/{index}") == f"{kind}\n"
        assert answer(as_new, f"cat {ports}/gid_attrs/ndevs/{index}") == "enp1s0f1np1\n"
    before = answer(as_new, found).split()
    as_new.set_state(gid_shift={"rocep1s0f1": 2})
    assert [int(index) - 2 for index in answer(as_new, found).split()] == [int(i) for i in before]
    as_new.ssh("sudo ip address del 192.168.177.11/24 dev enp1s0f1np1")
    assert eventually(lambda: answer(as_new, found) == "\n")


# --- a node is a machine of its own --------------------------------------------------------------


def test_a_fresh_node_has_only_what_a_base_system_has(fresh):
    missing = fresh.ssh("command -v docker dockerd containerd pip", check=False)
    assert missing.returncode != 0
    assert missing.stdout == ""
    assert answer(fresh, "ls /srv/images") == "spark-vllm.tar\n"
    assert answer(
        fresh, "test -x /opt/vllm/bin/vllm && touch /opt/vllm/x 2>&1 || echo no"
    ).endswith("no\n")
    assert answer(fresh, "id -un; hostname") == "nvidia\nspark1\n"
    fresh.ssh("echo spark | sudo --stdin --reset-timestamp true")


def test_reset_forgets_everything_but_the_host_key(spark1):
    spark1.ssh("touch ~/kept; sudo touch /etc/kept /var/lib/docker/kept")
    key = answer(spark1, "cat /etc/ssh/ssh_host_ed25519_key.pub")
    spark1.reset()
    gone = spark1.ssh("ls -d ~/kept /etc/kept /var/lib/docker/kept", check=False)
    assert gone.stdout == ""
    assert answer(spark1, "cat /etc/ssh/ssh_host_ed25519_key.pub") == key


def test_new_host_keys_are_not_trusted_before_someone_says_so(lab, spark1):
    def with_known_hosts_of_the_lab() -> subprocess.CompletedProcess[str]:
        argv = spark1.ssh_command("true")
        argv = [
            word.replace(str(spark1.layout.known_hosts), str(lab.known_hosts_path)) for word in argv
        ]
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    assert with_known_hosts_of_the_lab().returncode == 0
    spark1.reset(new_host_keys=True)
    refused = with_known_hosts_of_the_lab()
    assert refused.returncode == 255
    assert "Host key verification failed" in refused.stderr
    lab.trust()
    assert with_known_hosts_of_the_lab().returncode == 0


def test_a_node_with_other_host_keys_is_still_the_node(lab, spark1):
    """Roles make new ones where two nodes share them; the lab has to come up after that too."""
    spark1.reset()
    key = "/etc/ssh/ssh_host_ed25519_key"
    spark1.run(["sh", "-c", f"rm {key} {key}.pub; ssh-keygen -q -t ed25519 -N '' -f {key}"])
    spark1.reboot()
    public = spark1.run(["cat", f"{key}.pub"]).stdout.split()[1]
    assert public in spark1.layout.known_hosts.read_text()
    spark1.poweroff()
    spark1.boot()
    spark1.reset()
    assert public not in spark1.layout.known_hosts.read_text(), "its own keys outlive a wipe"


def test_a_reboot_loses_what_was_not_made_to_last(spark1, spark2):
    spark1.ssh("echo lasting > ~/file; sudo ip address add 10.99.0.1/24 dev enp1s0f1np1")
    spark1.ssh("sudo iptables -A INPUT -s 10.99.0.2 -j ACCEPT; sudo nvidia-smi -lgc 500,1000")
    spark2.ssh("sudo ip address add 10.99.0.2/24 dev enp1s0f1np1 2>/dev/null || true")
    boot = answer(spark1, "cat /proc/sys/kernel/random/boot_id")
    spark1.reboot()
    assert answer(spark1, "cat ~/file") == "lasting\n"
    assert answer(spark1, "cat /proc/sys/kernel/random/boot_id") != boot
    assert "10.99.0.1" not in answer(spark1, "ip address")
    assert "10.99.0.2" not in answer(spark1, "sudo iptables-save")
    assert "10.99.0.2" in answer(spark2, "ip address")
    assert eventually(lambda: answer(spark1, "ibdev2netdev") == ONE_CABLE)
    spark2.ssh("sudo ip address del 10.99.0.2/24 dev enp1s0f1np1")


def test_power_and_cables(lab, spark1, spark2):
    spark1.unplug()
    assert spark1.ssh("true", check=False).returncode == 255
    assert spark1.run(["cat", "/sys/class/net/enP7s7/operstate"]).stdout.strip() in (
        "down",
        "lowerlayerdown",
    )
    spark1.plug()
    spark1.wait()
    spark1.poweroff()
    assert (spark1.state, lab.state()) == ("off", "partly up")
    assert spark1.ssh("true", check=False).returncode == 255
    assert eventually(lambda: "(Up)" not in answer(spark2, "ibdev2netdev"))
    spark1.boot()
    assert (spark1.state, lab.state()) == ("running", "up")
    assert eventually(lambda: answer(spark2, "ibdev2netdev") == ONE_CABLE)


def test_kernel_settings_stay_in_the_node(spark1):
    setting = Path("/proc/sys/vm/swappiness")
    before = setting.read_text()
    spark1.ssh("sudo sysctl -qw vm.swappiness=1 net.core.rmem_max=99999999")
    assert answer(spark1, "sysctl -n vm.swappiness net.core.rmem_max") == "1\n99999999\n"
    assert setting.read_text() == before


# --- the lab as a whole -----------------------------------------------------------------------


def network_of_the_machine() -> dict[str, str]:
    """Links, namespaces, rules, mounts, forwarding of this machine, as text to compare; of groups
    and processes the lab's own, for another one may be up beside it (beside.py)."""
    state = Layout.default().state
    commands = {
        "links": "ip -o -br link | awk '{print $1}'",
        "namespaces": "ip netns list",
        "rules": "iptables-save | grep -v '^[#:]'",
        "mounts": "awk '{print $5}' /proc/self/mountinfo | sort",
        "forwarding": "grep . /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/conf/*/forwarding",
        "groups": f"find /sys/fs/cgroup -name 'spark-cluster-{state.name}-spark*'",
        "processes": f"pgrep -f 'directory={state}/node[s]|superviso[r] {state} '",
        "leftovers": "ls /run/systemd/nspawn/propagate 2>/dev/null | grep ^spark",
    }
    return {
        name: subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False).stdout
        for name, text in commands.items()
    }


def benchmarked(count: int) -> list[str]:
    """Return the nodes that the benchmark of the engine would measure."""
    with nodes.lab(count, rtt=0.0) as site:
        return [node.name for node in site.nodes]


def test_up_again_changes_nothing(lab):
    lab.up(2)
    leaders = [power.leader(node.layout) for node in lab.nodes]
    assert lab.up(2) is False
    assert [power.leader(node.layout) for node in lab.nodes] == leaders


def test_two_at_once_do_not_race(lab):
    lab.down()
    said: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        ups = [pool.submit(Lab(lab.layout).up, 2, progress=said.append) for _ in range(2)]
        changed = [up.result() for up in ups]
    assert sorted(changed) == [False, True]
    assert any("is changing the lab" in line for line in said)
    assert lab.state() == "up"


def test_down_leaves_the_machine_as_it_was(lab):
    lab.down()
    before = network_of_the_machine()
    assert lab.state() == "down"
    lab.up(2)
    during = network_of_the_machine()
    assert BRIDGE in during["links"]
    assert RULE_COMMENT in during["rules"]
    lab.node("spark1").unplug_fabric()
    assert lab.down() is True
    assert network_of_the_machine() == before
    assert lab.down() is False
    with pytest.raises(LinkError, match="the lab is down: run `spark-cluster lab up`"):
        benchmarked(1)
    lab.up(2)
    assert eventually(lambda: answer(lab.node("spark1"), "ibdev2netdev") == ONE_CABLE)


def test_one_node(lab):
    lab.down()
    try:
        lab.up(1)
        assert [node.name for node in lab.nodes] == ["spark1"]
        assert benchmarked(1) == ["spark1"]
        with pytest.raises(LinkError, match="asked for 2 nodes, but the lab has spark1: "):
            benchmarked(2)
        assert "(Up)" not in answer(lab.node("spark1"), "ibdev2netdev")
    finally:
        lab.up(2)


def kill_a_supervisor(lab: Lab) -> None:
    os.kill(power.supervisor(lab.node("spark1").layout), signal.SIGKILL)


def remove_the_network(_lab: Lab) -> None:
    subprocess.run(["ip", "link", "delete", BRIDGE], check=True)


@pytest.mark.parametrize("harm", [kill_a_supervisor, remove_the_network])
def test_a_lab_that_is_broken_is_repaired(lab, harm):
    harm(lab)
    assert eventually(lambda: lab.state() == "broken")
    said: list[str] = []
    assert lab.up(2, progress=said.append) is True
    assert any("cleaning up" in line for line in said) or harm is remove_the_network
    assert lab.state() == "up"
    answer(lab.node("spark2"), "true")
