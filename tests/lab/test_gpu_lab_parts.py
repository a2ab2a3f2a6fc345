"""The parts of the lab of GPUs that need no node: devices, mounts, refusals, what is seeded."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import factories
import forwarding
import pytest
from cases import cases
from factories import read_inventory
from waiting import HANG_S

from spark_cluster.config.inventory import fabric_addresses
from spark_cluster.errors import Failed, UsageError
from spark_cluster_lab import power, supervisor
from spark_cluster_lab.gpu import boot, devices, mounts, network, requirements, seed
from spark_cluster_lab.gpu.description import Description
from spark_cluster_lab.gpu.devices import Gpu
from spark_cluster_lab.gpu.inventory import inventory
from spark_cluster_lab.gpu.layout import DEFAULT_STATE, FABRIC, GpuLayout
from spark_cluster_lab.network import restore_forwarding

H100 = "0, GPU-1, 00000000:18:00.0, NVIDIA H100 80GB HBM3, 81559\n"
INVENTORIES = Path(__file__).parents[2] / "inventories"


def gpu(index: int) -> Gpu:
    return Gpu(index, index, f"GPU-{index}", f"00000000:0{index}:00.0", "NVIDIA H100", 81559)


# --- GPUs and their device files -------------------------------------------------------------


def test_a_device_has_the_drivers_number(tmp_path):
    """nvidia-smi counts by PCI address, the driver as it has found them."""
    folder = tmp_path / "0000:18:00.0"
    folder.mkdir()
    (folder / "information").write_text("Model: \t\t H100\nDevice Minor: \t 3\n")
    assert devices.parse(H100, tmp_path)[0].device == "nvidia3"


def test_a_missing_device_file_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "which", lambda _name: None)
    monkeypatch.setattr(devices, "make_uvm", lambda _dev: None)
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidiactl").touch()
    with pytest.raises(Failed, match=r"there is no .*/nvidia-uvm") as caught:
        devices.device_files(gpu(0), tmp_path)
    assert "nvidia-modprobe" in caught.value.hint


# --- mounts ----------------------------------------------------------------------------------

MOUNTINFO = Path(__file__).with_name("mountinfo.txt").read_text()


def test_mounts_that_nodes_see():
    found = mounts.shown(mounts.parse(MOUNTINFO), [Path("/var/cache/spark-cluster/lab")])
    assert found == [
        Path("/srv/my models"), Path("/mnt/tools"), Path("/usr/local/nvidia"),
        Path("/srv/my models/big"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("written", "point"),
    [("/media/Müller", "/media/Müller"), ("/srv/a\\040b\\011c", "/srv/a b\tc"),
     ("/srv/a\\134040b", "/srv/a\\040b"), ("/srv/\\xe4", "/srv/\\xe4"),
     ("/srv/a\x0cb\x1cc\x85", "/srv/a\x0cb\x1cc\x85")],
)  # fmt: skip
def test_the_name_of_a_mount_is_read_as_the_kernel_writes_it(written, point):
    (found,) = mounts.parse(f"36 35 98:0 / {written} ro - ext4 /dev/vdb ro")
    assert found.point == Path(point)


def test_a_mount_that_does_not_answer_is_left_out(tmp_path, monkeypatch, capsys):
    factories.put(tmp_path / "bin/stat", "#!/bin/sh\nexec sleep 60\n").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(boot, "ANSWERS_WITHIN_S", 0.1)
    boot.show(tmp_path / "dead", tmp_path / "root")
    first, last = capsys.readouterr().out.splitlines()
    assert first == f"showing {tmp_path}/dead"
    assert last.startswith(f"{tmp_path}/dead is not shown: stat -- {tmp_path}/dead did not end")
    assert not (tmp_path / "root").exists()


def test_memory_takes_what_an_overlay_cannot(tmp_path):
    root = mounts.parse("22 1 254:0 / / rw - overlay overlay rw\n")
    assert requirements.keeps_in_memory(root, tmp_path / "state")
    for kind in ("fuse.sshfs", "fuseblk", "cifs"):
        remote = mounts.parse(f"22 1 254:0 / / rw - {kind} x rw\n")
        assert requirements.keeps_in_memory(remote, tmp_path / "state"), kind
    assert not requirements.keeps_in_memory(mounts.parse(MOUNTINFO), tmp_path / "state")


# --- the network -----------------------------------------------------------------------------


@pytest.mark.lab
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("iptables"), reason="needs root on Linux and iptables"
)
def test_hosts_of_the_machines_network_do_not_reach_nodes():
    script = [sys.executable, forwarding.__file__, forwarding.network_namespace()]
    argv = ["unshare", "--net", "--mount", "--", *script]
    paths = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=paths)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "machine to node": True,
        "node to LAN": True,
        "LAN to node": False,
    }


def test_a_network_that_is_in_use_is_named():
    free = cases(__file__, "routes.json")
    network.require_free(free)
    for route, said in (
        ({"dst": "10.88.0.0/14", "gateway": "192.0.2.7", "dev": "wg0", "table": "52"},
         "10.88.0.0/14 via 192.0.2.7 dev wg0"),
        ({"dst": "10.90.0.7", "dev": "eth1"}, "10.90.0.7 dev eth1"),
        ({"type": "unreachable", "dst": "10.0.0.0/8"}, "unreachable 10.0.0.0/8"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=f"has a route to {re.escape(said)}, which") as caught:
            network.require_free([*free, route])
        assert "10.90.0.0/24" in caught.value.message
        assert "ip route" in caught.value.hint


# --- names, addresses, files -----------------------------------------------------------------


@pytest.mark.parametrize(("name", "count"), [("lab-gpu", 1), ("lab-gpus", 2)])
def test_inventories_that_ship_are_of_the_lab(name, count, tmp_path):
    nodes = GpuLayout(DEFAULT_STATE).nodes(count)
    written = factories.put(tmp_path / "inventory.yaml", inventory(nodes))
    shipped, made = read_inventory(INVENTORIES / f"{name}.yaml"), read_inventory(written)
    assert shipped.nodes == made.nodes
    for node in nodes if count > 1 else ():
        found = shipped.nodes[node.name]
        assert [str(a.ip) for a in fabric_addresses(shipped, found)] == [node.fabric_address]
        assert found.fabric[0].name == FABRIC  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot": "now\\n"}', '{"settings": 1}'])
def test_a_torn_record_of_forwarding_is_none(tmp_path, text):
    record = factories.put(tmp_path / "forwarding.json", text)
    restore_forwarding(record)
    assert not record.exists()
    restore_forwarding(record)


def test_a_supervisor_keeps_no_secrets(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("SPARK_CLUSTER_LAB_GPUS", "/srv/lab")
    monkeypatch.setenv("PYTHONPATH", "/srv/python")
    found = power.supervisor_environment()
    assert "HF_TOKEN" not in found
    assert found["SPARK_CLUSTER_LAB_GPUS"] == "/srv/lab"
    assert found["PYTHONPATH"].endswith(":/srv/python")
    assert found["PATH"] == os.environ["PATH"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine's file system, as a node sees it at first."""
    units = tmp_path / "usr/lib/systemd/system"
    for wanted in ("sysinit.target.wants/systemd-journald.service",
                   "sysinit.target.wants/systemd-udevd.service",
                   "multi-user.target.wants/ssh.service"):  # fmt: skip
        factories.put(units / wanted, "")
    for path in ("etc/systemd/system/multi-user.target.wants/docker.service", "etc/fstab",
                 "etc/ssh/ssh_host_rsa_key", "usr/bin/docker", "var/lib/spark-cluster/run",
                 "usr/lib/systemd/system-generators/systemd-fstab-generator"):  # fmt: skip
        factories.put(tmp_path / path, "the machine's\n")
    (tmp_path / "etc/resolv.conf").symlink_to("/run/systemd/resolve/stub-resolv.conf")
    return tmp_path


def seeded(root: Path, **parts: Any) -> Path:
    node = GpuLayout(Path("/state")).nodes(1)[0]
    hosts = {"10.90.0.11": "gpu1", "10.90.0.12": "gpu2"}
    seed.fill(root, node, Description(gpu(0), ("nvidia0",), hosts=hosts, **parts))
    return root


def test_a_node_starts_nothing_of_the_machines(root):
    seeded(root)
    units = root / "usr/lib/systemd/system"
    assert [path.name for path in units.glob("*.wants/*")] == ["systemd-journald.service"]
    assert [path.name for path in (root / "etc/systemd/system").iterdir()] == ["default.target"]
    generator = root / "etc/systemd/system-generators/systemd-fstab-generator"
    assert generator.readlink() == Path("/dev/null")
    assert (root / "etc/fstab").read_text() == ""
    gone = ("etc/ssh/ssh_host_rsa_key", "usr/bin/docker", "var/lib/spark-cluster")
    assert not any((root / path).exists() for path in gone)


def test_who_asks_for_a_nodes_state_does_not_keep_its_supervisor_out(tmp_path):
    """It holds the lock for a moment; a node that came up then was off for good."""
    file = tmp_path / "lock"
    file.touch()
    held = threading.Event()

    def ask() -> None:
        with file.open("r") as asked:
            fcntl.flock(asked, fcntl.LOCK_SH)
            held.set()
            time.sleep(0.2)

    asking = threading.Thread(target=ask)
    asking.start()
    assert held.wait(HANG_S)
    with file.open("r+") as lock:
        supervisor.take(lock)
        assert power_is_held(file)
    asking.join()


def power_is_held(file: Path) -> bool:
    with file.open("r") as asked:
        try:
            fcntl.flock(asked, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
