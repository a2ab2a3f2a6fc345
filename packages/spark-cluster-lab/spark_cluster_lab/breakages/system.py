"""Breakages of driver, memory, packages and services, and of what makes two nodes a pair."""

from __future__ import annotations

from spark_cluster_lab.breakages.model import Breakage, by_state, keep, peer, script, sh
from spark_cluster_lab.layout import USER
from spark_cluster_lab.node import LabNode

XID = (
    "NVRM: Xid (PCI:000f:01:00): {number}, pid=2011, name=nvidia-smi, Timeout after 6s of waiting "
    "for RPC response from GPU0 GSP!"
)
NO_MEMORY = (
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)"
)
ORPHAN = "lab-orphan"
USERS_ENGINE = "lab-users-engine"
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

KERNEL_LOGS = "/var/lib/lab/kernel"
JOURNALCTL = f"""#!/bin/sh
case " $* " in
  *" --dmesg --boot 0 "*) cat {KERNEL_LOGS}/*.log 2>/dev/null; true ;;
  *) exec /usr/bin/journalctl "$@" ;;
esac
"""
FATAL = "pcieport 0000:00:00.0: AER: Uncorrectable (Fatal) error message received from 0000:01:00.0"
OOPS = (
    "Unable to handle kernel NULL pointer dereference at virtual address 0000000000000008",
    "CPU: 6 UID: 0 PID: 3312 Comm: VLLM::Worker_TP Tainted: G OE 6.17.0-1031-nvidia",
    "pc : nvme_setup_rw+0x30/0x1f0",
)
LOGIND = "/etc/systemd/logind.conf.d/99-lab.conf"
RELOAD = "systemctl reload systemd-logind"
CDI = """---
cdiVersion: 0.5.0
containerEdits:
  mounts:
  - containerPath: /usr/lib/aarch64-linux-gnu/libcuda.so.580.65.06
    hostPath: /usr/lib/aarch64-linux-gnu/libcuda.so.580.65.06
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: all
kind: nvidia.com/gpu
"""

AHEAD_S = 300
DATE = f"""#!/bin/sh
test "$*" = +%s.%N || exec /usr/bin/date "$@"
echo "$(($(/usr/bin/date +%s) + {AHEAD_S})).0"
"""


def kernel_says(name: str, what: str, finds: tuple[str, ...], *said: str) -> Breakage:
    """A breakage in which the kernel logs lines.

    The nodes' kernel is this machine's, and journald takes nothing else for a kernel: what theirs
    would have logged is what their `journalctl` prints of it.
    """
    path = f"{KERNEL_LOGS}/{name}.log"
    stamp = "$(date --utc +%FT%T.%6N+00:00) $(hostname) kernel: "

    def act(node: LabNode) -> None:
        journalctl = node.root / "usr/local/sbin/journalctl"
        journalctl.write_text(JOURNALCTL)
        journalctl.chmod(0o755)
        printed = "; ".join(f'echo "{stamp}{line}"' for line in said)
        sh(node, f"mkdir -p {KERNEL_LOGS}; {{ {printed}; }} >{path}")

    return Breakage(name, what, finds, act, script(f"rm -f {path}"))


def orphan(node: LabNode, unit: str = ORPHAN, user: str = "root") -> None:
    """A process with an engine's title whose parent is process 1, with some memory."""
    held = f"import time; held = b'x' * ({HOLD_MIB} << 20); time.sleep(1e6)"
    start = f'exec -a VLLM::EngineCore python3 -c "{held}"'
    run = 'systemd-run --quiet --collect --unit="$1" --uid="$2" -- bash -c "$3"'
    sh(node, run, unit, user, start)


def stop_orphan(node: LabNode) -> None:
    sh(node, "systemctl stop $1 2>/dev/null || true", ORPHAN)


def removed_ipc(node: LabNode) -> None:
    """The default of logind in force, and an engine of the login user's outside a container."""
    sh(
        node,
        f"mkdir -p $(dirname {LOGIND}); printf '[Login]\\nRemoveIPC=yes\\n' >{LOGIND}; {RELOAD}",
    )
    orphan(node, USERS_ENGINE, USER)


def kept_ipc(node: LabNode) -> None:
    sh(node, f"systemctl stop $1 2>/dev/null; rm -f {LOGIND}; {RELOAD}", USERS_ENGINE)


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


def described_before(node: LabNode) -> None:
    keep(node, "cdi-stale", "/etc/cdi/nvidia.yaml").write_text(CDI)


def clock_ahead(node: LabNode) -> None:
    """The clock is this machine's: only what `date` says is changed."""
    path = keep(node, "clock-ahead", "/usr/local/sbin/date")
    path.write_text(DATE)
    path.chmod(0o755)


def join_group(node: LabNode) -> None:
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
    Breakage(
        "cdi-stale", "the CDI specification is of an older driver", ("driver.cdi",),
        act=described_before,
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
    kernel_says(
        "xid-119", "the GPU's processor timed out (Xid 119)", ("driver.gpu-present",),
        XID.format(number=119),
    ),
    kernel_says(
        "xid-79", "the GPU fell off the bus (Xid 79)", ("driver.xid",),
        XID.format(number=79),
    ),
    kernel_says(
        "no-memory", "the driver was refused memory five times", ("memory.refused",),
        *[NO_MEMORY] * 5,
    ),
    kernel_says("pcie-fatal", "the ConnectX-7 reports a fatal PCIe error", ("kernel.pcie",), FATAL),
    kernel_says("oops", "the kernel crashed while a file was read", ("kernel.fault",), *OOPS),
    Breakage(
        "remove-ipc", "logind removes the semaphores of a user's engine", ("system.remove-ipc",),
        act=removed_ipc, undo=kept_ipc,
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
        act=script("systemctl stop earlyoom"), undo=script("systemctl start earlyoom"),
        unit="earlyoom.service",
    ),
    Breakage(
        "docker-off", "Docker does not run", ("serving.docker",),
        act=script("systemctl stop docker.socket docker.service"),
        undo=script("systemctl start docker"), unit="docker.service",
    ),
    Breakage(
        "docker-group", "the login user is in the group docker", ("serving.docker-group",),
        act=join_group, unit="docker.service",
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
