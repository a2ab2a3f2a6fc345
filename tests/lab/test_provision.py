"""`provision` on real nodes: fresh ones made ready, drift repaired, faults that leave no ruins.

The tests of this file go on from what the one before has left; `provisioned` makes it so.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import example_pages
import pytest
import readme
from cases import cases
from commandline import CommandLine, Ran, until

from spark_cluster_lab import Lab, LabNode
from spark_cluster_lab.layout import FABRIC, PASSWORD, USER
from spark_cluster_lab.packages import DRIVER, REVISION, add_repository

pytestmark = pytest.mark.lab

OURS = "/etc/netplan/99-spark-cluster.yaml"
CAP = "spark-clock-cap"
HELPER = "/usr/local/sbin/spark-drop-caches"
CUTS_OFF = """
TEXT = 'network: {version: 2, ethernets: {enP7s7: {activation-mode: "off"}}}'


def main(play):
    cut = Netplan("/etc/netplan/60-cut.yaml", content=TEXT, addresses={}, mtu=9000)
    play.apply(play.nodes[0], [cut])
"""


@pytest.fixture(scope="module")
def user(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """A user of fresh nodes, with known hosts, settings and a key that tests change."""
    lab.up(2, fresh=True)
    made = CommandLine(tmp_path_factory.mktemp("user"))
    known = "".join(node.layout.known_hosts.read_text() for node in lab.nodes)
    (made.home / "known_hosts").write_text(known)
    yield made
    lab.trust()  # a node that shared its host key has one of its own now


class Laptop:
    """The user, whose inventory is written anew for each command."""

    def __init__(self, user: CommandLine) -> None:
        self.user, self.known_hosts = user, user.home / "known_hosts"
        self.settings: dict[str, Any] = {}
        self.identity: dict[str, str] = {}

    def __call__(self, *words: str, status: int = 0, **more: str) -> Ran:
        def change(document: dict[str, Any]) -> None:
            document["ssh"] |= {"known_hosts": "known_hosts", **self.identity}
            document["settings"] |= self.settings

        made = self.user.with_inventory("inventory", change).with_environment(**more)
        return made(*words, status=status)

    def json(self, *words: str, status: int = 0, **more: str) -> dict[str, Any]:
        return self(*words, "--json", status=status, **more).document

    def provision(self, *words: str, status: int = 0) -> dict[str, Any]:
        return self.json("provision", *words, status=status)

    def changed(self, *words: str) -> int:
        """Return how much a run changed; and the next one has nothing left to do."""
        count = int(self.provision(*words)["changed"])
        assert self.provision(*words)["changed"] == 0
        return count


@pytest.fixture
def laptop(user: CommandLine) -> Laptop:
    return Laptop(user)


@pytest.fixture
def provisioned(laptop: Laptop) -> Laptop:
    laptop.provision()
    return laptop


def root(node: LabNode, shell: str) -> str:
    return node.run(["sh", "-c", shell]).stdout.strip()


def as_user(node: LabNode, *argv: str) -> str:
    return node.ssh(list(argv)).stdout.strip()


# --- from fresh to ready ----------------------------------------------------------------------


def test_check_mode_changes_nothing(laptop, spark1):
    before = root(spark1, "find /etc /var/cache -xdev -newer /etc/hostname | sort")
    document = laptop.json(*readme.words("spark-cluster provision --check --diff"))
    assert document["changed"] > 15
    after = root(spark1, "find /etc /var/cache -xdev -newer /etc/hostname | sort")
    assert after == before


def test_fresh_nodes_are_made_ready_and_then_left(laptop, spark1, spark2):
    document = laptop.json(*readme.words("spark-cluster provision"))
    assert document["ok"]
    assert all(node["change"] > 20 for node in document["nodes"].values())
    again = laptop.provision()
    assert again["changed"] == 0
    assert again["seconds"]["total"] < 15, "two seconds on an idle machine; no timing decides here"


def test_what_ready_means(provisioned, spark1, spark2):
    for node, other in ((spark1, spark2), (spark2, spark1)):
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
    assert root(spark1, "cat /etc/machine-id") != root(spark2, "cat /etc/machine-id")


def test_the_sudo_rule_is_narrow(provisioned, spark1):
    root(spark1, f"mv /etc/sudoers.d/{USER} /root/{USER}")
    try:
        assert as_user(spark1, "sudo", "-n", HELPER) == ""
        for words in (["sudo", "-n", HELPER, "x"], ["sudo", "-n", "id"]):
            assert spark1.ssh(words, check=False).returncode != 0
    finally:
        root(spark1, f"mv /root/{USER} /etc/sudoers.d/{USER}")


def test_the_clock_cap_is_there_after_a_reboot(provisioned, spark1):
    spark1.reboot()
    assert "300" in root(spark1, "cat /run/lab/locked-clocks")
    assert provisioned.provision()["changed"] == 0


def test_a_clock_cap_that_was_lifted_by_hand_is_set_again(provisioned, spark1):
    """The unit is active all the while; the GPU's clock under load tells."""
    root(spark1, "nvidia-smi -rgc")
    spark1.set_state(sm_clock_mhz=2418)
    try:
        told = provisioned.provision("--check")
        assert (told["changed"], provisioned.provision()["changed"]) == (1, 1)
        assert root(spark1, "cat /run/lab/locked-clocks") == "[300, 2100]"
        assert provisioned.provision()["changed"] == 0
    finally:
        spark1.set_state(sm_clock_mhz=None)


# --- drift ------------------------------------------------------------------------------------

DRIFT: dict[str, dict[str, list[str]]] = cases(
    __file__, "drift.toml", HELPER=HELPER, USER=USER, OURS=OURS, CAP=CAP, CABLED=FABRIC[0],
    TWIN=FABRIC[1],
)  # fmt: skip


@pytest.mark.parametrize("kinds", DRIFT.values(), ids=DRIFT)
def test_drift_is_repaired(provisioned, spark1, spark2, kinds):
    machine_id = (spark1.root / "etc/machine-id").read_text()
    (spark2.root / "root/others-machine-id").write_text(machine_id)
    shells = [shell for kind in kinds.values() for shell in kind]
    for shell in shells:
        root(spark2, f"{{ {shell}; }} > /dev/null 2>&1")
    foreseen = provisioned.provision("--check")
    assert foreseen["changed"] >= len(shells)
    assert foreseen["nodes"][spark1.name]["change"] == 0
    assert provisioned.changed() >= len(shells)
    assert as_user(spark1, "ssh", "-o", "BatchMode=yes", spark2.name, "hostname") == spark2.name
    if "files" in kinds:
        assert json.loads(root(spark2, "cat /etc/docker/daemon.json"))["debug"] is False


def test_a_wiped_node_joins_again(provisioned, spark1, spark2):
    spark2.reset()
    assert provisioned.changed() > 20
    assert as_user(spark2, "ssh", "-o", "BatchMode=yes", spark1.name, "hostname") == spark1.name
    keys = root(spark1, f"grep -c mesh-{spark2.name} /home/{USER}/.ssh/authorized_keys")
    assert keys == "1", "the wiped node's old key is gone"


def test_it_can_be_taken_back_and_done_again(provisioned, spark1, spark2):
    places = f"/etc/hosts /etc/netplan /etc/ssh /etc/sudoers.d /etc/sysctl.d /home/{USER}/.ssh"
    listing = f"find {places} -type f | sort | xargs sha256sum"
    spark2.reset()
    before = root(spark2, listing)
    provisioned.provision("--limit", spark2.name)
    run = provisioned.json("history", "--limit", spark2.name)["runs"][0]["run"]
    provisioned("revert", run, "--limit", spark2.name)
    assert root(spark2, listing) == before
    assert provisioned.changed() > 10


# --- first contact ----------------------------------------------------------------------------


@pytest.fixture
def stranger(provisioned: CommandLine, spark1: LabNode, tmp_path: Path) -> Iterator[Path]:
    """A key that the first node does not know, and there no sudo without a password."""
    key = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    root(spark1, f"mv /etc/sudoers.d/{USER} /root/{USER}; usermod -aG sudo {USER}")
    provisioned.identity = {"identity_file": str(key)}
    yield key
    root(spark1, f"mv /root/{USER} /etc/sudoers.d/{USER}; gpasswd -d {USER} sudo")


def test_a_password_once_and_then_the_key(provisioned, spark1, stranger):
    only = ("--limit", spark1.name)
    assert "--ask-password" in provisioned("provision", *only, status=3).err
    wrong = provisioned("provision", *only, "--password-env", "PW", status=3, PW="wrong")
    assert "does not accept the password" in wrong.err
    provisioned.settings = {"bootstrap": {"passwordless_sudo": True}}
    instead = {"spark2": spark1.name, "--ask-password": "--password-env=PW"}
    document = provisioned.json(
        *readme.words("spark-cluster provision --limit spark2 --ask-password", instead), PW=PASSWORD
    )
    assert document["changed"] >= 2, "the key, and the sudo rule"
    assert provisioned.provision(*only)["changed"] == 0, "with the key, and sudo without a password"
    journal = root(spark1, "grep -rl 'spark$' /var/lib/spark-cluster/journal | head -1")
    assert journal == "", "the password is in no journal"


def test_shared_host_keys(provisioned, spark1, spark2):
    """As some makers' images have them: the later node gets its own, and the laptop knows it."""
    for suffix in ("", ".pub"):
        name = f"/etc/ssh/ssh_host_ed25519_key{suffix}"
        (spark2.root / name.lstrip("/")).write_bytes((spark1.root / name.lstrip("/")).read_bytes())
    root(spark2, "systemctl reload ssh")
    shared = root(spark1, "cat /etc/ssh/ssh_host_ed25519_key.pub").split()[1]
    addresses = (spark1.address, spark2.address)
    provisioned.known_hosts.write_text(f"{','.join(addresses)} ssh-ed25519 {shared} both\n")
    document = provisioned.provision()
    known = provisioned.known_hosts.read_text()
    assert f"{spark1.address} ssh-ed25519 {shared} both\n" in known, "the other's line stays"
    assert f"{spark2.address} ssh-ed25519 {shared}" not in known
    assert "spark-cluster:replaces" not in known
    assert root(spark2, "ls -A /etc/ssh | grep spark-cluster-next || true") == ""
    assert "new SSH host keys" in " ".join(document["nodes"][spark2.name]["notes"])
    assert provisioned.provision()["changed"] == 0, "over a connection with the new key"
    assert as_user(spark1, "hostname") == spark1.name
    new = root(spark2, "cat /etc/ssh/ssh_host_ed25519_key.pub").split()[1]
    assert new != shared
    assert as_user(spark1, "ssh", "-o", "BatchMode=yes", spark2.name, "hostname") == spark2.name


# --- drivers, with stand-ins for NVIDIA's packages ----------------------------------------------


def installed(node: LabNode, package: str = DRIVER) -> str:
    return root(node, f"dpkg-query -W -f '${{Version}} ${{db:Status-Want}}' {package} || true")


def test_pins_holds_and_a_reboot(provisioned, spark1, spark2):
    for node in (spark1, spark2):
        add_repository(node.root)
        root(node, "apt-get update -q")
        root(node, "apt-get install -y -q mlnx-fw-updater=24.10-1")
    provisioned.settings = {"drivers": {"set": "known-good"}}
    document = provisioned.provision(status=5)
    for node in document["nodes"].values():
        assert node["skipped"] == 1, "a reboot was needed and not allowed"
        assert "--allow-reboot" in node["error"]["hint"]
    assert installed(spark1) == f"580.142{REVISION} hold"
    assert installed(spark1, "nvidia-container-toolkit") == "1.19.0-1 hold"
    root(spark1, "rm -f /var/lib/lab/flashed")
    root(spark1, "apt-get dist-upgrade -y -q")
    assert installed(spark1) == f"580.142{REVISION} hold"
    assert root(spark1, "test -e /var/lib/lab/flashed || echo not") == "not"
    before = root(spark1, "cat /proc/sys/kernel/random/boot_id; cat /proc/1/stat | cut -d' ' -f22")
    document = provisioned.provision("--allow-reboot")
    assert root(spark1, "cat /proc/1/stat | cut -d' ' -f22") not in before
    assert root(spark1, "nvidia-smi --query-gpu=driver_version --format=csv,noheader") == "580.142"
    assert provisioned.provision()["changed"] == 0
    assert "nvidia.com/gpu" in root(spark1, "cat /etc/cdi/nvidia.yaml")


def test_the_role_and_the_playbook_of_the_page(provisioned, spark1):
    example_pages.write_files("role.md", provisioned.user.home)
    done = provisioned(*readme.words("spark-cluster playbook greet.py --check --diff"))
    assert f"+Welcome to {spark1.name}, NVIDIA GB10" in done.printed


# --- faults -----------------------------------------------------------------------------------


def test_one_node_that_fails_does_not_stop_the_other(provisioned, spark1, spark2):
    root(spark1, "echo '{ not json' > /etc/docker/daemon.json")
    root(spark2, "rm /etc/default/earlyoom")
    try:
        document = provisioned.provision(status=1)
        assert "not valid JSON" in document["nodes"][spark1.name]["error"]["message"]
        assert document["nodes"][spark2.name]["error"] is None
        assert root(spark2, "test -e /etc/default/earlyoom && echo there") == "there"
    finally:
        root(spark1, "rm /etc/docker/daemon.json")
    spark2.poweroff()  # with it goes the link
    root(spark1, "rm /etc/default/earlyoom")
    try:
        document = provisioned.provision(status=3)
        assert document["nodes"][spark2.name]["unreachable"]
        assert document["nodes"][spark1.name]["error"] is None
        assert document["nodes"][spark1.name]["failed"] == 0
        assert root(spark1, "test -e /etc/default/earlyoom && echo there") == "there"
    finally:
        spark2.boot()
    assert provisioned.provision()["ok"]


def test_netplan_that_would_cut_the_node_off(provisioned, spark1):
    """The node's own timer puts the old configuration back, with nobody's help."""
    done = provisioned("playbook", provisioned.user.playbook(CUTS_OFF), status=1)
    assert "could not be reached any more" in done.printed
    until(lambda: "60-cut.yaml" not in root(spark1, "ls /etc/netplan"), every=1)
    spark1.wait()
    assert "timer" not in root(spark1, "systemctl list-units 'spark-cluster-rollback*'")
    assert provisioned.provision()["ok"]
