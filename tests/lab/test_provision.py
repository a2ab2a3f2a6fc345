"""`provision` on real nodes: fresh ones made ready, drift repaired, faults that leave no ruins.

The tests of this file go on from what the one before has left; `provisioned` makes it so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import example_pages
import pytest
import readme
from commandline import WAIT_S, until

from spark_cluster_lab import Lab, LabNode
from spark_cluster_lab.layout import FABRIC, PASSWORD, USER
from spark_cluster_lab.packages import DRIVER, REVISION, add_repository

pytestmark = pytest.mark.lab

CHECKOUT = Path(__file__).parents[2]
OURS = "/etc/netplan/99-spark-cluster.yaml"
CAP = "spark-clock-cap"
HELPER = "/usr/local/sbin/spark-drop-caches"
CUTS_OFF = """
from spark_cluster.resources import Netplan

TEXT = 'network: {version: 2, ethernets: {enP7s7: {activation-mode: "off"}}}'


def main(play):
    cut = Netplan("/etc/netplan/60-cut.yaml", content=TEXT, addresses={}, mtu=9000)
    play.apply(play.nodes[0], [cut])
"""


class CommandLine:
    """`spark-cluster` in a project with an inventory of the lab's nodes."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text("".join(n.layout.known_hosts.read_text() for n in lab.nodes))
        self.settings: dict[str, Any] = {}
        self.identity: Path = lab.key_path
        (folder / "home").mkdir()

    def write(self) -> None:
        roles = ["head", "worker"]
        document = {
            "ssh": {
                "user": USER,
                "identity_file": str(self.identity),
                "known_hosts": str(self.known_hosts),
            },
            "nodes": {
                node.name: {"address": node.address, "roles": [role]}
                for node, role in zip(self.lab.nodes, roles, strict=True)
            },
            "settings": self.settings,
        }
        (self.folder / "inventory.yaml").write_text(json.dumps(document))

    def __call__(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        self.write()
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder / "home"),
            "PYTHONPATH": str(CHECKOUT),
            **more,
        }
        return subprocess.run(
            [sys.executable, "-m", "spark_cluster", *words],
            check=False, capture_output=True, text=True, cwd=self.folder, env=environment,
            stdin=subprocess.DEVNULL, timeout=WAIT_S,
        )  # fmt: skip

    def provision(self, *words: str, status: int = 0, **more: str) -> dict[str, Any]:
        return self.json("provision", *words, status=status, **more)

    def json(self, *words: str, status: int = 0, **more: str) -> dict[str, Any]:
        done = self(*words, "--json", **more)
        assert done.returncode == status, done.stderr + done.stdout
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def changed(self, *words: str) -> int:
        """Return how much a run changed; and the next one has nothing left to do."""
        count = int(self.provision(*words)["changed"])
        assert self.provision(*words)["changed"] == 0
        return count


@pytest.fixture(scope="module")
def laptop(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    lab.up(2, fresh=True)
    yield CommandLine(lab, tmp_path_factory.mktemp("laptop"))
    lab.trust()  # a node that shared its host key has one of its own now


@pytest.fixture
def provisioned(laptop: CommandLine) -> CommandLine:
    laptop.settings = {}
    laptop.provision()
    return laptop


@pytest.fixture
def first(laptop: CommandLine) -> LabNode:
    return laptop.lab.nodes[0]


@pytest.fixture
def second(laptop: CommandLine) -> LabNode:
    return laptop.lab.nodes[1]


def root(node: LabNode, shell: str) -> str:
    return node.run(["sh", "-c", shell]).stdout.strip()


def as_user(node: LabNode, *argv: str) -> str:
    return node.ssh(list(argv)).stdout.strip()


# --- from fresh to ready ----------------------------------------------------------------------


def test_check_mode_changes_nothing(laptop, first):
    before = root(first, "find /etc /var/cache -xdev -newer /etc/hostname | sort")
    document = laptop.json(*readme.words("spark-cluster provision --check --diff"))
    assert document["changed"] > 15
    after = root(first, "find /etc /var/cache -xdev -newer /etc/hostname | sort")
    assert after == before


def test_fresh_nodes_are_made_ready_and_then_left(laptop, first, second):
    document = laptop.json(*readme.words("spark-cluster provision"))
    assert document["ok"]
    assert all(node["change"] > 20 for node in document["nodes"].values())
    again = laptop.provision()
    assert again["changed"] == 0
    assert again["seconds"]["total"] < 15, "two seconds on an idle machine; no timing decides here"


def test_what_ready_means(provisioned, first, second):
    for node, other in ((first, second), (second, first)):
        assert as_user(node, "ssh", "-o", "BatchMode=yes", other.name, "hostname") == other.name
        fabric = f"{other.name}-fabric"
        assert as_user(node, "ssh", "-o", "BatchMode=yes", fabric, "hostname") == other.name
        assert as_user(node, "ssh", "-o", "BatchMode=yes", node.name, "hostname") == node.name
        assert USER not in root(node, "getent group docker"), "its members are root on the node"
        assert node.ssh(["docker", "ps"], check=False).returncode != 0
        assert as_user(node, "sudo", "-n", HELPER) == ""
        assert root(node, f"systemctl is-active {CAP} earlyoom docker").split() == ["active"] * 3
        assert "300" in root(node, "cat /run/lab/locked-clocks")
        assert root(node, "sysctl -n vm.swappiness") == "10"
        assert root(node, "stat -c %a /etc/sudoers.d/91-spark-cluster-drop-caches") == "440"
        addresses = root(node, "ip -4 -o addr")
        assert all(f"{interface} " in addresses for interface in FABRIC)
    assert root(first, "cat /etc/machine-id") != root(second, "cat /etc/machine-id")


def test_the_sudo_rule_is_narrow(provisioned, first):
    root(first, f"mv /etc/sudoers.d/{USER} /root/{USER}")
    try:
        assert as_user(first, "sudo", "-n", HELPER) == ""
        for words in (["sudo", "-n", HELPER, "x"], ["sudo", "-n", "id"]):
            assert first.ssh(words, check=False).returncode != 0
    finally:
        root(first, f"mv /root/{USER} /etc/sudoers.d/{USER}")


def test_the_clock_cap_is_there_after_a_reboot(provisioned, first):
    first.reboot()
    assert "300" in root(first, "cat /run/lab/locked-clocks")
    assert provisioned.provision()["changed"] == 0


def test_a_clock_cap_that_was_lifted_by_hand_is_set_again(provisioned, first):
    """The unit is active all the while; the GPU's clock under load tells."""
    root(first, "nvidia-smi -rgc")
    first.set_state(sm_clock_mhz=2418)
    try:
        told = provisioned.provision("--check")
        assert (told["changed"], provisioned.provision()["changed"]) == (1, 1)
        assert root(first, "cat /run/lab/locked-clocks") == "[300, 2100]"
        assert provisioned.provision()["changed"] == 0
    finally:
        first.set_state(sm_clock_mhz=None)


# --- drift ------------------------------------------------------------------------------------

DRIFT = {
    "files": (
        "echo junk >> /etc/default/earlyoom",
        f"chmod 600 {HELPER}",
        "rm /etc/ssh/ssh_config.d/40-spark-cluster.conf",
        f"chown {USER} /var/cache/spark-cluster/engine",
        "echo x > /etc/ssh/spark-cluster-known-hosts",
        f"echo '{USER} ALL=(ALL) ALL' > /etc/sudoers.d/91-spark-cluster-drop-caches",
        "sed -i /fabric/d /etc/hosts",
        'echo \'{"log-driver": "local", "debug": false}\' > /etc/docker/daemon.json',
    ),
    "services": (
        "systemctl stop earlyoom",
        "systemctl disable --quiet docker",
        f"systemctl disable --quiet --now {CAP}",
        "sysctl -q -w vm.swappiness=60",
    ),
    "packages": ("apt-get -y -q remove earlyoom",),
    "addresses": (f"ip link set {FABRIC[0]} mtu 1500; ip addr flush dev {FABRIC[1]}",),
    "netplan": (f"rm {OURS} && netplan apply",),
    "accounts": (f"sed -i /mesh/d /home/{USER}/.ssh/authorized_keys",),
    "public key": ("rm /etc/spark-cluster/mesh/id_ed25519.pub",),
    "key": ("rm /etc/spark-cluster/mesh/id_ed25519",),
    "machine id": ("cp /root/others-machine-id /etc/machine-id",),
}

TOGETHER = (
    ("files", "accounts"), ("services", "addresses"), ("packages", "netplan", "public key"),
    ("key", "machine id"),
)  # fmt: skip
"""Kinds that leave each other alone, so that one run repairs them all. (Without a node's public
key, check mode does not know what becomes of the files and accounts with it.)"""


def test_each_kind_of_drift_is_tried() -> None:
    assert sorted(kind for kinds in TOGETHER for kind in kinds) == sorted(DRIFT)


@pytest.mark.parametrize("kinds", TOGETHER, ids=lambda kinds: kinds[0])
def test_drift_is_repaired(provisioned, first, second, kinds):
    machine_id = (first.root / "etc/machine-id").read_text()
    (second.root / "root/others-machine-id").write_text(machine_id)
    shells = [shell for kind in kinds for shell in DRIFT[kind]]
    for shell in shells:
        root(second, f"{{ {shell}; }} > /dev/null 2>&1")
    foreseen = provisioned.provision("--check")
    assert foreseen["changed"] >= len(shells)
    assert foreseen["nodes"][first.name]["change"] == 0
    assert provisioned.changed() >= len(shells)
    assert as_user(first, "ssh", "-o", "BatchMode=yes", second.name, "hostname") == second.name
    if "files" in kinds:
        assert json.loads(root(second, "cat /etc/docker/daemon.json"))["debug"] is False


def test_a_wiped_node_joins_again(provisioned, first, second):
    second.reset()
    assert provisioned.changed() > 20
    assert as_user(second, "ssh", "-o", "BatchMode=yes", first.name, "hostname") == first.name
    keys = root(first, f"grep -c mesh-{second.name} /home/{USER}/.ssh/authorized_keys")
    assert keys == "1", "the wiped node's old key is gone"


def test_it_can_be_taken_back_and_done_again(provisioned, first, second):
    places = f"/etc/hosts /etc/netplan /etc/ssh /etc/sudoers.d /etc/sysctl.d /home/{USER}/.ssh"
    listing = f"find {places} -type f | sort | xargs sha256sum"
    second.reset()
    before = root(second, listing)
    provisioned.provision("--limit", second.name)
    only = provisioned("history", "--json", "--limit", second.name)
    run = json.loads(only.stdout)["runs"][0]["run"]
    reverted = provisioned("revert", run, "--limit", second.name)
    assert reverted.returncode == 0, reverted.stderr
    assert root(second, listing) == before
    assert provisioned.changed() > 10


def test_limit_leaves_the_other_alone(provisioned, first, second):
    for node in (first, second):
        root(node, "rm /etc/default/earlyoom")
    document = provisioned.provision("--limit", second.name)
    assert list(document["nodes"]) == [second.name]
    assert root(first, "test -e /etc/default/earlyoom || echo none") == "none"
    assert provisioned.provision()["changed"] == 2, "the file, and the service that reads it"


# --- first contact ----------------------------------------------------------------------------


@pytest.fixture
def stranger(provisioned: CommandLine, first: LabNode, tmp_path: Path) -> Iterator[Path]:
    """A key that the first node does not know, and there no sudo without a password."""
    key = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    root(first, f"mv /etc/sudoers.d/{USER} /root/{USER}; usermod -aG sudo {USER}")
    provisioned.identity = key
    yield key
    provisioned.identity = provisioned.lab.key_path
    root(first, f"mv /root/{USER} /etc/sudoers.d/{USER}; gpasswd -d {USER} sudo")


def test_a_password_once_and_then_the_key(provisioned, first, stranger):
    only = ("--limit", first.name)
    refused = provisioned("provision", *only)
    assert refused.returncode == 3
    assert "--ask-password" in refused.stderr
    wrong = provisioned("provision", *only, "--password-env", "PW", PW="wrong")
    assert wrong.returncode == 3
    assert "does not accept the password" in wrong.stderr
    provisioned.settings = {"bootstrap": {"passwordless_sudo": True}}
    instead = {"spark2": first.name, "--ask-password": "--password-env=PW"}
    document = provisioned.json(
        *readme.words("spark-cluster provision --limit spark2 --ask-password", instead), PW=PASSWORD
    )
    assert document["changed"] >= 2, "the key, and the sudo rule"
    assert provisioned.provision(*only)["changed"] == 0, "with the key, and sudo without a password"
    journal = root(first, "grep -rl 'spark$' /var/lib/spark-cluster/journal | head -1")
    assert journal == "", "the password is in no journal"


def test_shared_host_keys(provisioned, first, second):
    """As some makers' images have them: the later node gets its own, and the laptop knows it."""
    for suffix in ("", ".pub"):
        name = f"/etc/ssh/ssh_host_ed25519_key{suffix}"
        (second.root / name.lstrip("/")).write_bytes((first.root / name.lstrip("/")).read_bytes())
    root(second, "systemctl reload ssh")
    shared = root(first, "cat /etc/ssh/ssh_host_ed25519_key.pub").split()[1]
    addresses = (first.address, second.address)
    provisioned.known_hosts.write_text(f"{','.join(addresses)} ssh-ed25519 {shared} both\n")
    document = provisioned.provision()
    known = provisioned.known_hosts.read_text()
    assert f"{first.address} ssh-ed25519 {shared} both\n" in known, "the other's line stays"
    assert f"{second.address} ssh-ed25519 {shared}" not in known
    assert "spark-cluster:replaces" not in known
    assert root(second, "ls -A /etc/ssh | grep spark-cluster-next || true") == ""
    assert "new SSH host keys" in " ".join(document["nodes"][second.name]["notes"])
    assert provisioned.provision()["changed"] == 0, "over a connection with the new key"
    assert as_user(first, "hostname") == first.name
    new = root(second, "cat /etc/ssh/ssh_host_ed25519_key.pub").split()[1]
    assert new != shared
    assert as_user(first, "ssh", "-o", "BatchMode=yes", second.name, "hostname") == second.name


# --- drivers, with stand-ins for NVIDIA's packages ----------------------------------------------


def installed(node: LabNode, package: str = DRIVER) -> str:
    return root(node, f"dpkg-query -W -f '${{Version}} ${{db:Status-Want}}' {package} || true")


def pinned(version: str, **more: Any) -> dict[str, Any]:
    return {"drivers": {"pins": {DRIVER: version + REVISION, **more}}}


def test_pins_holds_and_a_reboot(provisioned, first, second):
    for node in (first, second):
        add_repository(node.root)
        root(node, "apt-get update -q")
        root(node, "apt-get install -y -q mlnx-fw-updater=24.10-1")
    provisioned.settings = {"drivers": {"set": "known-good"}}
    document = provisioned.provision(status=5)
    for node in document["nodes"].values():
        assert node["skipped"] == 1, "a reboot was needed and not allowed"
        assert "--allow-reboot" in node["error"]["hint"]
    assert installed(first) == f"580.142{REVISION} hold"
    assert installed(first, "nvidia-container-toolkit") == "1.19.0-1 hold"
    root(first, "rm -f /var/lib/lab/flashed")
    root(first, "apt-get dist-upgrade -y -q")
    assert installed(first) == f"580.142{REVISION} hold"
    assert root(first, "test -e /var/lib/lab/flashed || echo not") == "not"
    before = root(first, "cat /proc/sys/kernel/random/boot_id; cat /proc/1/stat | cut -d' ' -f22")
    document = provisioned.provision("--allow-reboot")
    assert root(first, "cat /proc/1/stat | cut -d' ' -f22") not in before
    assert root(first, "nvidia-smi --query-gpu=driver_version --format=csv,noheader") == "580.142"
    assert provisioned.provision()["changed"] == 0
    assert "nvidia.com/gpu" in root(first, "cat /etc/cdi/nvidia.yaml")


def test_another_version_and_back(provisioned, first, second):
    """On both nodes: two that differ are trouble, which `doctor` warns of."""
    for version in ("580.159.03", "580.126.09"):
        provisioned.settings = pinned(version)
        provisioned.provision("--allow-reboot")
        for node in (first, second):
            assert installed(node) == f"{version}{REVISION} hold"
            said = root(node, "nvidia-smi --query-gpu=driver_version --format=csv,noheader")
            assert said == version


def test_firmware_is_reported_and_updated_when_asked(provisioned, first, second):
    """fwupd's command is a stand-in; what is offered for the ConnectX-7 is never flashed."""
    root(first, "apt-get install -y -q fwupd")
    connectx = "MT2910 Family (ConnectX-7)"
    first.set_state(firmware_offers={"USB-PD": "0x00000520", connectx: "28.47.1088"})
    told = provisioned.provision("--limit", first.name)["nodes"][first.name]["firmware"]
    assert told["USB-PD"] == "0x00000516", "looked at, and left"
    provisioned.provision("--firmware", "--allow-reboot", "--limit", first.name)
    told = provisioned.provision("--limit", first.name)["nodes"][first.name]["firmware"]
    assert told["USB-PD"] == "0x00000520"
    assert told[connectx] == "28.45.4028"
    first.set_state(firmware_offers=None, firmware_versions=None)


def test_pins_that_cannot_be(provisioned, first, second):
    provisioned.settings = pinned("580.173.02")
    document = provisioned.provision(status=4)
    message = document["nodes"][first.name]["error"]["message"]
    assert "the driver does not match the system's release" in message
    provisioned.settings = pinned("580.999")
    document = provisioned.provision(status=1)
    assert "versions that it knows" in document["nodes"][first.name]["error"]["hint"]
    assert installed(second).endswith("hold")


def test_the_role_and_the_playbook_of_the_page(provisioned, first):
    example_pages.write_files("role.md", provisioned.folder)
    done = provisioned(*readme.words("spark-cluster playbook greet.py --check --diff"))
    assert done.returncode == 0, done.stderr
    assert f"+Welcome to {first.name}, NVIDIA GB10" in done.stdout + done.stderr


# --- faults -----------------------------------------------------------------------------------


def test_one_node_that_fails_does_not_stop_the_other(provisioned, first, second):
    root(first, "echo '{ not json' > /etc/docker/daemon.json")
    root(second, "rm /etc/default/earlyoom")
    try:
        document = provisioned.provision(status=1)
        assert "not valid JSON" in document["nodes"][first.name]["error"]["message"]
        assert document["nodes"][second.name]["error"] is None
        assert root(second, "test -e /etc/default/earlyoom && echo there") == "there"
    finally:
        root(first, "rm /etc/docker/daemon.json")
    second.poweroff()  # with it goes the link
    root(first, "rm /etc/default/earlyoom")
    try:
        document = provisioned.provision(status=3)
        assert document["nodes"][second.name]["unreachable"]
        assert document["nodes"][first.name]["error"] is None
        assert document["nodes"][first.name]["failed"] == 0
        assert root(first, "test -e /etc/default/earlyoom && echo there") == "there"
    finally:
        second.boot()
    assert provisioned.provision()["ok"]


def test_a_cable_that_is_out(provisioned, first):
    first.unplug_fabric()
    try:
        document = provisioned.provision(status=1)
        assert "reseat the QSFP cable" in document["nodes"][first.name]["error"]["hint"]
    finally:
        first.plug_fabric()
    first.unplug_fabric(FABRIC[1])
    try:
        document = provisioned.provision(status=1)
        assert (
            "1 of the ConnectX-7's functions" in document["nodes"][first.name]["error"]["message"]
        )
    finally:
        first.plug_fabric(FABRIC[1])
    assert provisioned.provision()["changed"] == 0


def test_netplan_that_would_cut_the_node_off(provisioned, first):
    """The node's own timer puts the old configuration back, with nobody's help."""
    playbook = provisioned.folder / "cut.py"
    playbook.write_text(CUTS_OFF)
    done = provisioned("playbook", str(playbook))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "could not be reached any more" in done.stdout + done.stderr
    until(lambda: "60-cut.yaml" not in root(first, "ls /etc/netplan"), every=1)
    first.wait()
    assert "timer" not in root(first, "systemctl list-units 'spark-cluster-rollback*'")
    assert provisioned.provision()["ok"]


def test_the_users_own_netplan_is_not_touched(provisioned, first):
    theirs = "network: {version: 2, ethernets: {enp1s0f0np0: {dhcp4: false}}}\n"
    path = first.root / "etc/netplan/01-mine.yaml"
    path.write_text(theirs)
    path.chmod(0o600)
    root(first, f"rm {OURS}")
    assert provisioned.changed() > 0
    assert path.read_text() == theirs
    path.unlink()
