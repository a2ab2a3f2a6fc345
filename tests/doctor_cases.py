"""Sick nodes: for each check at least one that it finds, and which the lab cannot produce.

A case is the id of the check, what differs from the healthy node of `doctor_samples`, the status,
and words of what was found.
"""

from __future__ import annotations

import json
from typing import Any

from doctor_samples import (
    HCAS,
    KERNEL_LOG,
    NFT,
    UNITS,
    inspected,
    interface,
    interfaces,
    logged,
    ray_nodes,
    trees,
    with_env,
)

from spark_cluster.doctor import serving
from spark_cluster.issues.entries import for_check


def links(*rows: dict[str, Any]) -> str:
    """`ip -j addr` of node 1 with some interfaces replaced."""
    replaced = {row["ifname"]: row for row in rows}
    return json.dumps([replaced.get(row["ifname"], row) for row in interfaces(1)])


def sysfs(tree: str, hca: str, value: str) -> dict[str, str]:
    known = trees(1)[tree]
    return {path: value if f"/{hca}/" in path else text for path, text in known.items()}


SWAP = "Filename Type Size Used Priority\n/swap.img file 16777212 0 -2\n"
FRAGMENTED = (
    "Node 0, zone   Normal  81231  40211  20102   9021   3021    811    120     27      5      0"
    "      0\n"
)
ONE_DOWN = HCAS.replace("enP2p1s0f1np1 (Up)", "enP2p1s0f1np1 (Down)")
ALL_DOWN = HCAS.replace("(Up)", "(Down)")
FAILED_UPDATE = json.dumps(
    {
        "Devices": [
            {
                "Name": "USB-PD",
                "UpdateState": 3,
                "UpdateError": "failed to run update on reboot: expected 0x00000507 and got "
                "0x00000500",
            }
        ]
    }
)
NO_RDMA = inspected(1, "spark-ray", HostConfig__Devices=[])
XID_119 = (
    "2026-11-20T10:00:00+00:00 spark-2a60 kernel: NVRM: Xid (PCI:000f:01:00): 119, pid=2011, "
    "name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU0 GSP!\n"
)
NO_MEMORY = (
    "2026-11-20T10:00:00+00:00 spark-2a60 kernel: NVRM: nvCheckOkFailedNoLog: Check failed: Out "
    "of memory [NV_ERR_NO_MEMORY] (0x00000051)\n"
)
ORPHAN = "4242 1 0::/system.slice/worker.service 0 node systemd\n"


def kernel(*said: str) -> str:
    """Lines of the kernel as the journal prints them, a second apart."""
    stamp = "2026-11-20T15:00:{:02}.000000+00:00 spark-2a60 kernel: {}\n"
    return KERNEL_LOG + "".join(stamp.format(n, line) for n, line in enumerate(said))


FATAL = "pcieport 0000:00:00.0: AER: Uncorrectable (Fatal) error message received from 0000:01:00.0"
CORRECTED = "mlx5_core 0000:01:00.1: PCIe Bus Error: severity=Corrected, type=Physical Layer"
OOPS = (
    "Unable to handle kernel NULL pointer dereference at virtual address 0000000000000008",
    "CPU: 6 UID: 0 PID: 3312 Comm: VLLM::Worker_TP Tainted: G           OE      6.17.0-1031-nvidia",
    "pc : nvme_setup_rw+0x30/0x1f0",
)
PANIC = (
    "Unable to handle kernel paging request at virtual address dead000000000120",
    "pc : mst_ioctl+0x2f4/0x9c0 [mstflint_access]",
    "Kernel panic - not syncing: Oops: Fatal exception",
)
REPLUGGED = "pci 0000:01:00.0: [15b3:1021] type 00 class 0x020000 PCIe Endpoint"
KILLED = "2026-11-19T22:01:10+00:00 spark vllm[9]: serving\n"
OTHER_CUDA = "/usr/lib/aarch64-linux-gnu/libcuda.so.580.95.05"
STALE = f"/etc/cdi/nvidia.yaml\n/etc/cdi/nvidia.yaml\t{OTHER_CUDA}\n"

SICK: list[tuple[str, dict[str, Any], str, str]] = [
    ("link.connectx-present", {"hcas": "", "pci": {"/x": "0x10de"}}, "fail", "none of its"),
    ("link.connectx-present", {"hcas": ""}, "fail", "on the PCI bus, but"),
    ("link.connectx-present", {"hcas": HCAS[:84]}, "warn", "2 of 4 functions"),
    ("link.port-up", {"hcas": ALL_DOWN}, "fail", "all 4 functions (Down)"),
    ("link.port-up", {"hcas": ONE_DOWN}, "fail", "only enp1s0f1np1 up"),
    ("link.port-up", {"hcas": HCAS.replace("enp1s0f0np0 (Down)", "enp1s0f0np0 (Up)")}, "fail",
     "3 functions"),
    ("link.rate", {"speed": {"/sys/class/net/enp1s0f1np1/speed": "100000",
                             "/sys/class/net/enP2p1s0f1np1/speed": "100000"}}, "fail",
     "100000 Mb/s"),
    ("link.pcie-width", {"width": sysfs("width", "roceP2p1s0f1", "2")}, "warn", "roceP2p1s0f1 x2"),
    ("link.twin-address", {"ip": links(interface("enP2p1s0f1np1"))}, "fail",
     "enP2p1s0f1np1 has no IPv4 address"),
    ("link.twin-address", {"ip": links(interface("enP2p1s0f1np1"), interface("enp1s0f1np1"))},
     "fail", "enp1s0f1np1 and enP2p1s0f1np1 have no"),
    ("link.twins-one-subnet", {"ip": links(interface("enP2p1s0f1np1", "192.168.177.21/24"))},
     "fail", "both in 192.168.177.0/24"),
    ("link.mtu", {"ip": links(interface("enP2p1s0f1np1", "192.168.178.11/24", mtu=1500))}, "warn",
     "enP2p1s0f1np1 1500; the inventory says 9000"),
    ("link.gid", {"gids?": {}}, "fail",
     "rocep1s0f1 has none of 192.168.177.11"),
    ("link.subnet-overlap", {"ip": links(interface("enP7s7", "192.168.177.99/16"))}, "fail",
     "enP7s7 192.168.177.99/16 overlap"),
    ("link.firmware", {"fw_ver": sysfs("fw_ver", "rocep1s0f0", "28.47.1088")}, "fail",
     "28.47.1088 (NVD0000000087)"),
    ("driver.library-match", {"gpu": ("Failed to initialize NVML: Driver/library version mismatch\n"
                                      "NVML library version: 580.126\n", 18)}, "fail",
     "Driver/library version mismatch"),
    ("driver.library-match", {"nvrm": "Module for aarch64  580.95.05  Release Build"}, "fail",
     "library 580.126.09, module 580.95.05"),
    ("driver.gpu-present", {"gpu": ("No devices were found\n", 6)}, "fail", "No devices"),
    ("driver.gpu-present", {"kernel_log": XID_119}, "fail", "Xid 119 1 times"),
    ("driver.gpu-present", {"gpu": ("NVIDIA-SMI has failed because it couldn't communicate with "
                                    "the NVIDIA driver.\n", 9)}, "fail", "couldn't communicate"),
    ("driver.gpu-present", {"late": {"gpu": "nvidia-smi: not done after 20 s"}}, "fail",
     "not done after 20 s"),
    ("driver.xid", {"kernel_log": XID_119.replace("119", "79")}, "warn", "Xid 79"),
    ("driver.kho", {"kernel": "7.0.0-1019-nvidia\n"}, "fail", "without kho=off"),
    ("driver.kho", {"meminfo": "MemTotal: 9 kB\nCmaTotal: 65536 kB\nCmaFree: 70000 kB\n"}, "fail",
     "CmaFree 70000 kB is more"),
    ("driver.known-bad", {"kernel": "7.0.0-1019-nvidia\n"}, "fail", "kernel 7.0.0-1019-nvidia"),
    ("driver.known-bad", {"kernel": "6.17.0-1008-nvidia\n"}, "warn", "kernel 6.17.0-1008"),
    ("driver.reboot", {"reboot_required": "*** System restart required ***\n",
                       "reboot_packages": "linux-image-6.17.0-1026-nvidia\nlibc6\n"}, "warn",
     "libc6, linux-image-6.17.0-1026-nvidia"),
    ("driver.clocks", {"load": "96, 611, 14.20, Not Active, Not Active, Not Active, Not Active"},
     "fail", "96 % busy, 611 MHz, 14.2 W"),
    ("driver.clocks", {"load": "96, 800, 14.20, Active, Not Active, Not Active, Not Active"},
     "warn", "throttled"),
    ("driver.power-off", {"previous": "2026-11-19T22:01:10+00:00 spark vllm[9]: serving\n"}, "warn",
     "ended abruptly, at 2026-11-19T22:01:10"),
    ("driver.power-off", {"previous": "2026-11-19T22:01:10+00:00 spark vllm[9]: serving\n",
                          "units": UNITS.replace("cap.service\nLoadState=loaded\nActiveState="
                                                 "active", "cap.service\nActiveState=inactive")},
     "warn", "ended abruptly"),
    ("driver.power-off", {"previous": KILLED + KILLED.replace("vllm[9]: serving", "systemd[9]: "
                          "Reached target poweroff.target") + KILLED.replace("serving", "Journal "
                          "stopped")}, "warn", "ended abruptly"),
    ("driver.power-off", {"previous": KILLED.replace("serving", "no boot: not available")}, "warn",
     "ended abruptly"),
    ("driver.power-off", {"previous": KILLED, "previous_kernel": kernel(*PANIC)}, "warn",
     "mst_ioctl+0x2f4/0x9c0 [mstflint_access]"),
    ("driver.power-off", {"previous_kernel": kernel(FATAL)}, "warn", "AER: Uncorrectable (Fatal)"),
    ("driver.power-off", {"previous": ("", 1, "no persistent journal was found"),
                          "pstore": "==> /sys/fs/pstore/dmesg-efi_pstore-1\n"
                          + "".join(f"<4>[  812.1] {line}\n" for line in OOPS)}, "warn",
     "in nvme_setup_rw+0x30/0x1f0; process VLLM::Worker_TP"),
    ("kernel.pcie", {"kernel_log": kernel(FATAL, FATAL)}, "fail",
     "0000:01:00.0: Uncorrectable (Fatal) 2 times"),
    ("kernel.pcie", {"kernel_log": kernel(FATAL.replace("(Fatal)", "(Non-Fatal)"))}, "warn",
     "0000:01:00.0: Uncorrectable (Non-Fatal) once"),
    ("kernel.pcie", {"kernel_log": kernel(*[CORRECTED] * 20)}, "warn",
     "0000:01:00.1: Corrected 20 times"),
    ("kernel.fault", {"kernel_log": kernel(*OOPS)}, "fail",
     "in nvme_setup_rw+0x30/0x1f0; process VLLM::Worker_TP"),
    ("kernel.fault", {"kernel_log": kernel(*PANIC)}, "fail", "[mstflint_access]"),
    ("kernel.fault", {"kernel_log": kernel("INFO: task python3:9 blocked for more than 122 seconds"
                                           ".")}, "warn", "task python3:9 blocked"),
    ("kernel.mstflint", {"kernel_log": kernel(REPLUGGED)}, "warn",
     "0000:01:00.0 left the PCI bus since boot"),
    ("kernel.mstflint", {"pci": {"/sys/bus/pci/devices/000f:01:00.0/vendor": "0x10de"}}, "warn",
     "dgx-dashboard-admin runs mstflint every hour"),
    ("driver.firmware-update", {"history": FAILED_UPDATE}, "fail", "expected 0x00000507"),
    ("driver.mlnx-hold", {"dpkg": "mlnx-fw-updater\t24.10\tinstalled\tinstall\n"}, "fail",
     "installed and not held"),
    ("driver.cdi", {"cdi": STALE}, "fail", f"nvidia.yaml names {OTHER_CUDA}, not there"),
    ("driver.cdi", {"cdi": STALE + STALE.splitlines()[1]}, "fail", " and 1 other paths, not there"),
    ("driver.cdi", {"cdi": f"{STALE}/var/run/cdi/nvidia.yaml\n"}, "warn",
     "/var/run/cdi/nvidia.yaml goes before it"),
    ("driver.cdi", {"cdi": "/etc/cdi/nvidia.yaml\n\t/dev/nvidia1\n"}, "warn",
     "no CDI specification names /dev/nvidia1"),
    ("memory.available", {"meminfo": "MemTotal: 127601228 kB\nMemAvailable: 2097152 kB\n"}, "fail",
     "2.0 of 121.7 GiB"),
    ("memory.available", {"meminfo": "MemTotal: 127601228 kB\nMemAvailable: 5242880 kB\n"}, "warn",
     "5.0 of 121.7 GiB"),
    ("memory.orphan", {"apps": "4242, VLLM::EngineCore, 99000\n", "holders": ORPHAN}, "fail",
     "PID 4242 VLLM::EngineCore 99000 MiB"),
    ("memory.swap", {"swaps": SWAP}, "warn",
     "/swap.img in use, swappiness 60"),
    ("memory.earlyoom", {"units": UNITS.replace("earlyoom.service\nLoadState=loaded",
                                                "earlyoom.service\nLoadState=not-found")}, "warn",
     "not installed"),
    ("memory.earlyoom", {"units": UNITS.replace("=active", "=failed")}, "warn", "is failed"),
    ("memory.earlyoom", {"earlyoom": "earlyoom\0-m\x002\0-s\x0080\0", "swaps": SWAP},
     "warn", "-s 80"),
    ("memory.fragmentation", {"buddyinfo": FRAGMENTED, "containers": "[]", "logs": ""}, "warn",
     "0.0 of 1.5 GiB free memory in blocks of 4 MiB or more"),
    ("memory.refused", {"kernel_log": NO_MEMORY * 5}, "fail", "NV_ERR_NO_MEMORY 5 times"),
    ("memory.refused", {"kernel_log": "x kernel: Out of memory: Killed process 9 (python3)\n"},
     "warn", "killed python3"),
    ("serving.docker", {"docker": ("", 1, "Cannot connect to the Docker daemon")}, "fail",
     "Cannot connect"),
    ("serving.docker", {"tools": "nvidia-smi\n", "docker": None}, "warn", "not installed"),
    ("serving.gpu-access", {"gpu_access": "a kept x.scope\nvllm lost y.scope\n"}, "fail",
     "vllm: started with the GPU, and may not open it"),
    ("serving.gpu-access", {"gpu_access": "vllm unknown-to-systemd y.scope\n"}, "warn",
     "vllm: loses the GPU when systemd next reloads"),
    ("serving.image-store", {"docker": "29.5.0\n", "image_store":
                             '[["driver-type","io.containerd.snapshotter.v1"]]\n'}, "warn",
     "Docker 29.5.0 with containerd image store"),
    ("serving.docker-group", {"group": "docker:x:988:nvidia\n"}, "warn",
     "nvidia is in the group docker, and so is root"),
    ("serving.docker-group", {"context": {"docker_users": True}}, "fail",
     "nvidia is not in the group docker"),
    ("serving.containers", {"containers": inspected(1, "spark-vllm", State__Status="exited",
                                                    State__ExitCode=1)}, "fail",
     "spark-vllm is exited (status 1)"),
    ("serving.containers", {"containers": inspected(1, "spark-vllm", State__Status="exited",
                                                    State__ExitCode=1, RestartCount=5)}, "fail",
     "spark-vllm is stopped after 5 restarts (status 1)"),
    ("serving.containers", {"containers": inspected(1, "spark-vllm", RestartCount=3)}, "warn",
     "restarted 3 times"),
    ("serving.containers", {"containers": inspected(1, "spark-vllm", RestartCount=1)}, "warn",
     "restarted once"),
    ("serving.rdma-device", {"containers": NO_RDMA}, "fail", "spark-ray was started without"),
    ("serving.memlock", {"containers": inspected(1, "spark-ray", HostConfig__Ulimits=None)}, "fail",
     "spark-ray: default"),
    ("serving.hcas", {"containers": with_env(1, "spark-ray", NCCL_IB_HCA="rocep1s0f1")}, "fail",
     "leaves roceP2p1s0f1 out"),
    ("serving.hcas", {"containers": with_env(1, "spark-ray", NCCL_IB_DISABLE="1")}, "fail",
     "NCCL_IB_DISABLE=1"),
    ("serving.gid-index", {"containers": with_env(1, "spark-ray", NCCL_IB_GID_INDEX="5")}, "fail",
     "NCCL_IB_GID_INDEX='5' is not a RoCE v2"),
    ("serving.gid-index", {"containers": with_env(1, "spark-ray", NCCL_IB_GID_INDEX="")}, "fail",
     "NCCL_IB_GID_INDEX='' is not a RoCE v2"),
    ("serving.gid-index", {"containers": with_env(1, "spark-ray", NCCL_IB_GID_INDEX="3")}, "warn",
     "right today"),
    ("serving.address", {"containers": with_env(1, "spark-ray", VLLM_HOST_IP="192.168.1.163")},
     "fail", "VLLM_HOST_IP=192.168.1.163 is not an address of the link"),
    ("serving.address", {"containers": with_env(1, "spark-ray", NCCL_SOCKET_IFNAME="enP7s7")},
     "fail", "enP7s7 is not an interface of the link"),
    ("serving.address", {"containers": with_env(1, "spark-vllm", VLLM_HOST_IP=None)}, "warn",
     "no VLLM_HOST_IP"),
    ("serving.ray-nodes", {"ray": ray_nodes("192.168.177.11")}, "fail", "1 of 2 nodes"),
    ("serving.ray-monitor",
     {"containers": with_env(1, "spark-ray", RAY_memory_monitor_refresh_ms=None)}, "warn",
     "spark-ray: RAY_memory_monitor"),
    ("serving.firewall", {"firewall": ("", 1, "No such file or directory")}, "fail",
     "it is not in force"),
    ("serving.firewall", {"firewall": NFT.replace("[]}", "[1]}")}, "fail", "rules were changed"),
    ("serving.firewall", {"containers": inspected(1, "spark-ray", Config__Labels={
        "spark-cluster.tp": "2"})}, "warn", "there is no firewall"),
    ("serving.image-arch", {"images": json.dumps(
        [{"Id": json.loads(inspected(1, ""))[0]["Image"], "Architecture": "amd64"}])},
     "fail", "its image is for amd64, the node is arm64"),
    ("serving.vram-visible", {"apps": ""}, "fail", "lists no process"),
    ("serving.vram-visible", {"apps": "", "init": "bash\n"}, "fail", "process 1 is bash"),
    ("serving.load-time", {"logs": logged("Loading weights took 371.35 seconds")}, "warn", "371 s"),
    ("system.remove-ipc", {"holders": ORPHAN.replace(" 0 node", " 1000 node")}, "warn",
     "PID 4242 of uid 1000"),
    ("system.disk", {"disk_free": 10 * 2**30}, "warn", "10 of 3632 GiB free"),
    ("system.disk", {"disk_free": 2**30}, "fail", "1 of 3632 GiB free"),
    ("system.tailscale-ssh", {"tools": "tailscale\ndocker\n",
                              "tailscale": '{"RunSSH": true, "CorpDNS": true}'}, "warn", "is on"),
    ("system.ssh-folder", {"ssh_folder": ("", 1, "stat: cannot statx '/home/nvidia/.ssh': "
                                          "No such file or directory")}, "fail", "has no ~/.ssh"),
    ("system.ssh-folder", {"ssh_folder": "directory root 700\n"}, "fail", "belongs to root"),
]  # fmt: skip

SICK += [
    (search.id, {"logs": logged(issue.samples[0])}, "fail", issue.samples[0][-40:])
    for search in serving.SEARCHES
    for issue in search.issues
]


SICK += [
    (id, {source: kernel(sample)}, status if issue.severity == "error" else "warn", sample[10:28])
    for id, source, status in (
        ("kernel.fault", "kernel_log", "fail"),
        ("driver.power-off", "previous_kernel", "warn"),
    )
    for issue in for_check(id)
    for sample in issue.samples
]


NOT_PRODUCED: dict[str, str] = {
    "link.rdma-rate": "there is no RDMA without the hardware",
    "link.cabling": "it takes three nodes: tests/lab/test_more_nodes.py cables them in a ring",
    "pair.same-port": "the lab's cable cannot be moved to the other port",
    "kernel.mstflint": "the nodes' kernel, with its modules, is this machine's",
    "serving.image-store": "Debian's Docker is older than 29.5",
    "system.disk": "the nodes' disk is this machine's",
    "system.ssh-folder": "it would lock the lab out of its own node",
}
"""Checks whose trouble no breakage of the lab produces, each with the reason."""
