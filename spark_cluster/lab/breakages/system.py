"""Breakages of driver, memory, packages and services, and of what makes two nodes a pair."""

from __future__ import annotations

from spark_cluster.errors import Failed
from spark_cluster.lab.breakages.model import Breakage, by_state, keep, peer, script, sh
from spark_cluster.lab.layout import USER
from spark_cluster.lab.node import LabNode

XID = (
    "NVRM: Xid (PCI:000f:01:00): {number}, pid=2011, name=nvidia-smi, Timeout after 6s of waiting "
    "for RPC response from GPU0 GSP!"
)
NO_MEMORY = (
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)"
)
ORPHAN = "lab-orphan"
HOLD_MIB = 64
PACKAGE = """Package: mlnx-fw-updater
Version: 24.10-1.1.4.0
Architecture: all
Maintainer: lab
Description: stand-in for the lab: flashes nothing
"""
TAILSCALE = """#!/bin/sh
echo '{"RunSSH": true, "CorpDNS": true}'
"""

AHEAD_S = 300
DATE = f"""#!/bin/sh
test "$*" = +%s.%N || exec /usr/bin/date "$@"
echo "$(($(/usr/bin/date +%s) + {AHEAD_S})).0"
"""


def kernel_says(*lines: str) -> str:
    """A script that writes lines into the journal as the kernel's."""
    return "\n".join(f"echo '{line}' | logger -t kernel" for line in lines) + "\nsleep 0.2"


def forget_journal(node: LabNode) -> None:
    """The journal cannot lose single lines: this boot's goes whole."""
    sh(node, "journalctl --rotate --quiet; sleep 1.2; journalctl --vacuum-time=1s --quiet")


def orphan(node: LabNode) -> None:
    """A process with an engine's title whose parent is process 1, with some memory."""
    held = f"import time; held = b'x' * ({HOLD_MIB} << 20); time.sleep(1e6)"
    start = f'exec -a VLLM::EngineCore python3 -c "{held}"'
    sh(node, 'systemd-run --quiet --collect --unit="$1" -- bash -c "$2"', ORPHAN, start)


def stop_orphan(node: LabNode) -> None:
    sh(node, "systemctl stop $1 2>/dev/null || true", ORPHAN)


def flasher(node: LabNode) -> None:
    """mlnx-fw-updater as a real, empty package, not held."""
    folder = node.root / "var/lib/lab/package/DEBIAN"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "control").write_text(PACKAGE)
    build = "cd /var/lib/lab && dpkg-deb --build package new.deb && dpkg -i new.deb"
    sh(node, f"{build} && rm -r new.deb package")


def power_cut(node: LabNode) -> None:
    node.poweroff(orderly=False)
    node.boot()


def in_order(node: LabNode) -> None:
    node.reboot()


def same_machine_id(node: LabNode) -> None:
    other = (peer(node).root / "etc/machine-id").read_text()
    keep(node, "same-machine-id", "/etc/machine-id").write_text(other)


def same_host_keys(node: LabNode) -> None:
    """A further key, the same on both; the one that the lab is known by stays."""
    name = "/etc/ssh/ssh_host_ecdsa_key"
    if not (node.root / name.lstrip("/")).exists():
        sh(node, "ssh-keygen -q -t ecdsa -N '' -f $1", f"{name}.new")
        for end in ("", ".pub"):
            made = node.root / f"{name.lstrip('/')}.new{end}"
            for one in (node, peer(node)):
                target = keep(one, "same-host-keys", f"{name}{end}")
                target.write_text(made.read_text())
                target.chmod(0o600 if not end else 0o644)
            made.unlink()


def newer_system(node: LabNode) -> None:
    path = keep(node, "other-system", "/etc/dgx-release")
    path.write_text(path.read_text() + '\nDGX_OTA_VERSION="7.6.0"\n')


def no_names(node: LabNode) -> None:
    path = keep(node, "no-names", "/etc/hosts")
    path.write_text(f"127.0.0.1 localhost\n127.0.1.1 {node.name}\n")


def swaps_much(node: LabNode) -> None:
    sh(node, "sysctl -q -w vm.swappiness=60")
    node.set_state(swap_total_kb=16777212)


def swaps_little(node: LabNode) -> None:
    sh(node, "sysctl -q -w vm.swappiness=10")
    node.set_state(swap_total_kb=None)


def tailscale(node: LabNode) -> None:
    path = keep(node, "tailscale-ssh", "/usr/local/sbin/tailscale")
    path.write_text(TAILSCALE)
    path.chmod(0o755)


def clock_ahead(node: LabNode) -> None:
    """The clock is this machine's: only what `date` says is changed."""
    path = keep(node, "clock-ahead", "/usr/local/sbin/date")
    path.write_text(DATE)
    path.chmod(0o755)


def must_have(node: LabNode, unit: str) -> None:
    """Raise Failed unless a unit exists."""
    if "not-found" in sh(node, "systemctl show -P LoadState $1", unit):
        raise Failed(f"there is no {unit}", where=node.name, hint="spark-cluster -i lab provision")


def stop_docker(node: LabNode) -> None:
    must_have(node, "docker.service")
    sh(node, "systemctl stop docker.socket docker.service")


def stop_earlyoom(node: LabNode) -> None:
    must_have(node, "earlyoom.service")
    sh(node, "systemctl stop earlyoom")


def join_group(node: LabNode) -> None:
    must_have(node, "docker.service")
    keep(node, "docker-group", "/etc/group")
    keep(node, "docker-group", "/etc/gshadow")
    sh(node, "gpasswd -a $1 docker", USER)


BREAKAGES = (
    by_state(
        "nvml-mismatch",
        "the driver was updated, a reboot is pending",
        ("driver.library-match",),
        nvml_error="Driver/library version mismatch",
    ),
    by_state("no-gpu", "nvidia-smi finds no device", ("driver.gpu-present",), gpu_present=False),
    by_state(
        "driver-not-loaded", "the driver is not loaded", ("driver.gpu-present",),
        driver_loaded=False,
    ),
    by_state(
        "other-driver", "this node has another driver", ("pair.driver",),
        driver_version="580.95.05",
    ),
    by_state(
        "kernel-7", "kernel 7.0.0-1019 without kho=off",
        ("driver.kho", "driver.known-bad", "pair.kernel"), kernel="7.0.0-1019-nvidia",
    ),
    by_state(
        "cma", "the kernel counts more free CMA memory than there is", ("driver.kho",),
        meminfo={"CmaTotal": 65536, "CmaFree": 70000},
    ),
    by_state(
        "other-kernel", "this node runs another kernel", ("pair.kernel",),
        kernel="6.17.0-1014-nvidia",
    ),
    by_state(
        "clocks-low", "611 MHz at full load, no reason shown", ("driver.clocks",),
        utilization=96, sm_clock_mhz=611, power_w=14.2, pstate="P0",
    ),
    by_state(
        "firmware-failed", "the last USB-PD update failed", ("driver.firmware-update",),
        firmware_update_error="failed to run update on reboot: expected 0x00000507 and got "
        "0x00000500",
    ),
    by_state(
        "other-firmware", "this node has another USB-PD firmware", ("pair.system-firmware",),
        firmware_versions={"USB-PD": "0x00000507"},
    ),
    by_state(
        "memory-low", "2.4 GiB of memory are left", ("memory.available",),
        mem_available_kb=2_500_000,
    ),
    by_state(
        "fragmented", "free memory is in small blocks only", ("memory.fragmentation",),
        free_blocks="81231 40211 20102 9021 3021 811 120 27 5 0 0 0 0 0",
    ),
    Breakage(
        "swap", "swap is in use, swappiness 60", ("memory.swap",), swaps_much, swaps_little
    ),
    Breakage(
        "xid-119", "the GPU's processor timed out (Xid 119)", ("driver.gpu-present",),
        act=script(kernel_says(XID.format(number=119))), undo=forget_journal,
    ),
    Breakage(
        "xid-79", "the GPU fell off the bus (Xid 79)", ("driver.xid",),
        act=script(kernel_says(XID.format(number=79))), undo=forget_journal,
    ),
    Breakage(
        "no-memory", "the driver was refused memory five times", ("memory.refused",),
        act=script(kernel_says(*[NO_MEMORY] * 5)), undo=forget_journal,
    ),
    Breakage(
        "reboot-pending", "packages ask for a reboot", ("driver.reboot",),
        act=script("echo libc6 | tee /run/reboot-required.pkgs; "
                                 "echo '*** System restart required ***' > /run/reboot-required"),
        undo=script("rm -f /run/reboot-required /run/reboot-required.pkgs"),
    ),
    Breakage(
        "power-cut", "the power was cut (reboots the node)", ("driver.power-off",),
        act=power_cut, undo=in_order,
    ),
    Breakage(
        "mlnx-fw-updater", "mlnx-fw-updater is installed and not held", ("driver.mlnx-hold",),
        act=flasher, undo=script("dpkg --purge mlnx-fw-updater"),
    ),
    Breakage(
        "orphan", "an engine's process without a parent holds memory", ("memory.orphan",),
        act=orphan, undo=stop_orphan,
    ),
    Breakage(
        "earlyoom-off", "earlyoom does not run", ("memory.earlyoom",),
        act=stop_earlyoom, undo=script("systemctl start earlyoom"),
    ),
    Breakage(
        "docker-off", "Docker does not run", ("serving.docker",),
        act=stop_docker, undo=script("systemctl start docker"),
    ),
    Breakage(
        "docker-group", "the login user is in the group docker", ("serving.docker-group",),
        act=join_group,
    ),
    Breakage(
        "tailscale-ssh", "Tailscale SSH is on", ("system.tailscale-ssh",), act=tailscale,
    ),
    Breakage(
        "clock-ahead", f"this node's clock is {AHEAD_S} s ahead", ("pair.clock",),
        act=clock_ahead, node="spark2",
    ),
    Breakage("no-names", "/etc/hosts names no peer", ("pair.names",), act=no_names),
    Breakage(
        "same-machine-id", "both nodes have one machine id", ("pair.machine-id",),
        act=same_machine_id, node="spark2",
    ),
    Breakage(
        "same-host-keys", "both nodes have one SSH host key", ("pair.host-keys",),
        act=same_host_keys, node="spark2",
    ),
    Breakage(
        "other-system", "this node has a newer DGX OS", ("pair.os",), act=newer_system,
        node="spark2",
    ),
)  # fmt: skip
