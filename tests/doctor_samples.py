"""Answers of two healthy Sparks that serve over their link, from captured texts."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_cluster.config.facts import load_pins
from spark_cluster.doctor.observations import Observations
from spark_cluster.resources import Unit
from spark_cluster.resources.nft_table import normalised

Answer = dict[str, Any]

PARTS = ("commands", "files", "trees", "requests")

PINS = load_pins(Path(__file__).parents[1] / "roles/drivers/pins.json")

DGX = """\
DGX_NAME="DGX Spark"
DGX_SWBUILD_VERSION="7.2.3"

DGX_OTA_VERSION="7.4.0"
DGX_OTA_DATE="Tue Feb 17 22:17:46 IST 2026"
"""
NVRM = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.126.09  Release Build  "
    "(dvs-builder@U22-I3-AF04-07-5)  Wed Jan  7 22:35:57 UTC 2026\n"
)
MEMINFO = """\
MemTotal:       127601228 kB
MemFree:        20123456 kB
MemAvailable:   21876544 kB
CmaTotal:         131072 kB
CmaFree:          120000 kB
SwapTotal:             0 kB
"""
BUDDYINFO = (
    "Node 0, zone     DMA    1    0    0    1    2    1    1    0    1    1    3\n"
    "Node 0, zone  Normal  812  402  201   90   30    8    5    3    2    4 5120\n"
)
HCAS = """\
rocep1s0f0 port 1 ==> enp1s0f0np0 (Down)
rocep1s0f1 port 1 ==> enp1s0f1np1 (Up)
roceP2p1s0f0 port 1 ==> enP2p1s0f0np0 (Down)
roceP2p1s0f1 port 1 ==> enP2p1s0f1np1 (Up)
"""
UNITS = """\
Id=docker.service
LoadState=loaded
ActiveState=active
UnitFileState=enabled

Id=earlyoom.service
LoadState=loaded
ActiveState=active
UnitFileState=enabled

Id=spark-clock-cap.service
LoadState=loaded
ActiveState=active
UnitFileState=enabled

Id=avahi-daemon.service
LoadState=not-found
ActiveState=inactive
UnitFileState=

Id=dgx-dashboard-admin.service
LoadState=loaded
ActiveState=active
UnitFileState=enabled
"""
FWUPD = {
    "Devices": [
        {"Name": "Embedded Controller", "Version": "0x03000302"},
        {"Name": "UEFI Device Firmware", "Version": "0x0200980f"},
        {"Name": "USB-PD", "Version": "0x00000516"},
    ]
}
PREVIOUS = """\
2026-11-19T22:01:10+00:00 spark-2a60 systemd[1]: Reached target poweroff.target - Power-Off.
2026-11-19T22:01:10+00:00 spark-2a60 systemd-journald[512]: Journal stopped
"""
KERNEL_LOG = """\
2026-11-20T14:00:01.100000+00:00 spark-2a60 kernel: pci 0000:01:00.0: [15b3:1021] type 00 class \
0x020000 PCIe Endpoint
2026-11-20T14:00:09.100000+00:00 spark-2a60 kernel: mstflint_access: loading out-of-tree module
"""
NFT = '{"nftables": [{"metainfo": {"version": "1.0.9"}}, {"rule": {"handle": 3, "expr": []}}]}'
TOOLS = (
    "nvidia-smi docker fwupdmgr ib_write_bw ping curl journalctl dpkg-query systemctl awk find nft"
)
IMAGE = "sha256:7c35b7d0b4a0ed7a3d0f8c2d0a4f4a5b6c7d8e9fa0b1c2d3e4f5a6b7c8d9e0f1"
IDS = {"spark-vllm": "a" * 64, "spark-ray": "b" * 64}
STARTED = "2026-11-20T14:03:30.123456789Z"
LOG = (
    "2026-11-20T14:05:33.366956123Z spark1:1674:1871 [0] NCCL INFO NET/IB : Using "
    "[0]rocep1s0f1:1/RoCE [1]roceP2p1s0f1:1/RoCE [RO]; OOB enp1s0f1np1:192.168.177.11<0>\n"
    "2026-11-20T14:05:34.000000001Z spark1:1674:1871 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] "
    "[send] via NET/IB/0\n"
    "2026-11-20T14:06:01.100000000Z (Worker_TP0 pid=1674) INFO 11-20 14:06:01 "
    "[default_loader.py:501] Loading weights took 64.02 seconds\n"
    "2026-11-20T14:08:01.200000000Z INFO:     Application startup complete.\n"
)


def ran(text: str, status: int = 0, stderr: str = "") -> dict[str, Any]:
    """A command that ran."""
    return {"status": status, "stdout": text, "stderr": stderr}


def interface(name: str, *addresses: str, mtu: int = 9000, up: bool = True) -> dict[str, Any]:
    """A row of `ip -j addr`."""
    infos = [
        {"family": "inet", "local": a.split("/")[0], "prefixlen": int(a.split("/")[1])}
        for a in addresses
    ]
    flags = ["BROADCAST", "UP", "LOWER_UP"] if up else ["BROADCAST", "UP", "NO-CARRIER"]
    return {"ifname": name, "mtu": mtu, "flags": flags, "addr_info": infos}


def interfaces(number: int) -> list[dict[str, Any]]:
    """Those of node 1 or 2."""
    return [
        interface("lo", "127.0.0.1/8", mtu=65536),
        interface("enP7s7", f"192.168.1.{162 + number}/24", mtu=1500),
        interface("enp1s0f0np0", mtu=1500, up=False),
        interface("enp1s0f1np1", f"192.168.177.{10 + number}/24"),
        interface("enP2p1s0f0np0", mtu=1500, up=False),
        interface("enP2p1s0f1np1", f"192.168.178.{10 + number}/24"),
        interface("docker0", "172.17.0.1/16", mtu=1500, up=False),
    ]


def gids(number: int) -> dict[str, dict[str, str]]:
    """The first ten entries of both twins' GID tables, as the trees of sysfs have them."""
    table: dict[str, dict[str, str]] = {"gids?": {}, "types?": {}, "gids1?": {}, "types1?": {}}
    for hca, third in (("rocep1s0f1", 177), ("roceP2p1s0f1", 178)):
        place = f"/sys/class/infiniband/{hca}/ports/1"
        address = f"0000:0000:0000:0000:0000:ffff:c0a8:{third:02x}{10 + number:02x}"
        for index, kind, value in (
            (0, "IB/RoCE v1", "fe80:0000:0000:0000:4ebb:47ff:fe2f:9113"),
            (1, "RoCE v2", "fe80:0000:0000:0000:4ebb:47ff:fe2f:9113"),
            (2, "IB/RoCE v1", address),
            (3, "RoCE v2", address),
        ):
            table["gids?"][f"{place}/gids/{index}"] = f"{value}\n"
            table["types?"][f"{place}/gid_attrs/types/{index}"] = f"{kind}\n"
    return table


def environment(number: int) -> dict[str, str]:
    """The engine's containers on a node, as Docker lists them."""
    return {
        "VLLM_HOST_IP": f"192.168.177.{10 + number}",
        "RAY_NODE_IP_ADDRESS": f"192.168.177.{10 + number}",
        "NCCL_SOCKET_IFNAME": "enp1s0f1np1",
        "GLOO_SOCKET_IFNAME": "enp1s0f1np1",
        "TP_SOCKET_IFNAME": "enp1s0f1np1",
        "NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1",
        "NCCL_IB_DISABLE": "0",
        "RAY_memory_monitor_refresh_ms": "0",
    }


def container(name: str, command: list[str], env: dict[str, str], **changes: Any) -> dict[str, Any]:
    """`docker container inspect`, as far as it is read."""
    ours = {"spark-cluster.tp": "2", "spark-cluster.model": "gemma-4-31b"}
    ours["spark-cluster.endpoint"] = "http://127.0.0.1:8000/v1"
    ours["spark-cluster.firewall"] = "present"
    found: dict[str, Any] = {
        "Id": IDS.get(name, "c" * 64),
        "Name": f"/{name}",
        "Image": IMAGE,
        "Path": command[0],
        "Args": command[1:],
        "RestartCount": 0,
        "State": {"Status": "running", "ExitCode": 0, "Error": "", "StartedAt": STARTED},
        "Config": {"Env": [f"{k}={v}" for k, v in env.items()], "Labels": ours},
        "HostConfig": {
            "Privileged": False,
            "Devices": [{"PathOnHost": "/dev/infiniband", "PathInContainer": "/dev/infiniband"}],
            "Ulimits": [{"Name": "memlock", "Hard": -1, "Soft": -1}],
        },
        "Mounts": [
            {"Type": "bind", "Source": "/srv/models/gemma", "Destination": "/srv/models/gemma"}
        ],
    }
    return found | changes


def containers(number: int) -> list[dict[str, Any]]:
    """Ray on both; the server on the first."""
    ray = ["ray", "start", "--block", f"--node-ip-address=192.168.177.{10 + number}"]
    ray += ["--head", "--port=6379"] if number == 1 else ["--address=192.168.177.11:6379"]
    found = [container("spark-ray", ray, environment(number))]
    if number == 1:
        serve = ["vllm", "serve", "/srv/models/gemma", "--max-model-len", "32768"]
        serve += ["--tensor-parallel-size", "2", "--enable-auto-tool-choice"]
        found.append(container("spark-vllm", serve, environment(number)))
    return found


def ray_nodes(*addresses: str, state: str = "ALIVE") -> str:
    """The reply of the dashboard's /api/v0/nodes."""
    nodes = [{"node_ip": address, "state": state} for address in addresses]
    return json.dumps({"result": True, "msg": "", "data": {"result": {"result": nodes}}})


def commands(number: int) -> dict[str, Any]:
    """Answers of the commands of node 1 or 2."""
    pid = 2065240 + number
    return {
        "gpu": ran("NVIDIA GB10, 12.1, 580.126.09, 45, 11.17, 2405\n"),
        "ip": ran(json.dumps(interfaces(number))),
        "hcas": ran(HCAS),
        "docker": ran("29.1.3\n"),
        "dpkg": ran(
            "docker-ce\t5:29.1.3-1\tinstalled\tinstall\n"
            "mlnx-fw-updater\t24.10-1.1.4.0\tinstalled\thold\n"
            "nvidia-driver-580-open\t580.126.09-0ubuntu1\tinstalled\tinstall\n"
        ),
        "cdi": ran("/var/run/cdi/nvidia.yaml\n"),
        "gpu_access": ran(f"spark-ray kept docker-{'b' * 64}.scope\n"),
        "image_store": ran('[["driver-type","io.containerd.snapshotter.v1"]]\n'),
        "load": ran("96, 2405, 62.40, Not Active, Not Active, Not Active, Not Active\n"),
        "apps": ran(f"{pid}, ray::RayWorkerWrapper, 102843\n"),
        "holders": ran(
            f"{pid} {pid - 100} 0::/system.slice/docker-{'b' * 64}.scope 0 node raylet\n"
        ),
        "history": ran('{"Devices" : []}\n'),
        "devices": ran(json.dumps(FWUPD)),
        "containers": ran(json.dumps(containers(number))),
        "images": ran(json.dumps([{"Id": IMAGE, "Architecture": "arm64"}])),
        "logs": ran("==> spark-ray\n" + (f"==> spark-vllm\n{LOG}" if number == 1 else "")),
        "versions": ran("==> spark-ray\nray=2.60.0\nvllm=0.32.0\n"),
        "unit_logs": ran(""),
        "spark-vllm": ran("", 1),
        "spark-ray": ran("", 1),
        "firewall": ran(NFT),
        "models": ran("==> /srv/models/gemma\n1024 config.json\n31457280000 model.safetensors\n"),
        "tools": ran(TOOLS.replace(" ", "\n") + "\n"),
        "kernel_log": ran(KERNEL_LOG),
        "previous": ran(PREVIOUS),
        "previous_kernel": ran(""),
        "pstore": ran(""),
        "remove_ipc": ran("b true\n"),
        "avahi": ran("", 1, "Call failed: The name org.freedesktop.Avahi was not provided"),
        "units": ran(UNITS),
        "earlyoom": ran("/usr/bin/earlyoom\0-m\x002\0-s\x00100,100\0"),
        "page_size": ran("4096\n"),
        "tailscale": None,
        "ssh_folder": ran("directory nvidia 700\n"),
        "clock": ran(f"1795183391.{number}23\n"),
    }


def requests(number: int) -> dict[str, Any]:
    """Answers of node 1's or 2's own HTTP services: Ray's dashboard is the head's."""
    if number == 1:
        return {"ray": {"status": 200, "body": ray_nodes("192.168.177.11", "192.168.177.12")}}
    return {"ray": {"status": 0, "body": "", "reason": "[Errno 111] Connection refused"}}


def files(number: int) -> dict[str, str | None]:
    """Files of node 1 or 2."""
    peer = 3 - number
    return {
        "os": 'ID=ubuntu\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\n',
        "dgx": DGX,
        "meminfo": MEMINFO,
        "boot_id": f"0f1e2d3c-0000-4000-8000-00000000000{number}\n",
        "machine_id": f"{number}c4c4544004b3510804cb4c04f4e3232\n"[:33],
        "nvrm": NVRM,
        "kernel": "6.17.0-1021-nvidia\n",
        "cmdline": "BOOT_IMAGE=/boot/vmlinuz-6.17.0-1021-nvidia root=UUID=x ro quiet\n",
        "swaps": "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n",
        "swappiness": "60\n",
        "buddyinfo": BUDDYINFO,
        "group": "root:x:0:\nsudo:x:27:nvidia\ndocker:x:988:\n",
        "hosts": f"127.0.0.1 localhost\n127.0.1.1 spark{number}\n"
        f"192.168.177.{10 + peer} spark{peer}-fabric\n",
        "reboot_required": None,
        "reboot_packages": None,
        "init": "systemd\n",
        "mstflint_access": "live\n",
        "firewall_kept": normalised(NFT),
    }


def trees(number: int) -> dict[str, dict[str, str]]:
    """Trees of node 1 or 2."""
    hcas = ("rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0", "roceP2p1s0f1")
    class_ = "/sys/class/infiniband"
    return {
        **gids(number),
        "fw_ver": {f"{class_}/{h}/fw_ver": "28.45.4028\n" for h in hcas},
        "board_id": {f"{class_}/{h}/board_id": "NVD0000000087\n" for h in hcas},
        "width": {f"{class_}/{h}/device/current_link_width": "4\n" for h in hcas},
        "speed": {
            "/sys/class/net/enP7s7/speed": "10000\n",
            "/sys/class/net/enp1s0f1np1/speed": "200000\n",
            "/sys/class/net/enP2p1s0f1np1/speed": "200000\n",
        },
        "pci": {"/sys/bus/pci/devices/0000:01:00.0/vendor": "0x15b3\n"},
        "host_keys": {
            "/etc/ssh/ssh_host_ed25519_key.pub": f"ssh-ed25519 AAAAC3Nza{number} root@spark\n"
        },
    }


def answer(number: int = 1) -> Answer:
    """All that node 1 (the head) or 2 answers."""
    return {
        "commands": commands(number),
        "files": files(number),
        "trees": trees(number),
        "requests": requests(number),
        "machine": {
            "python": "3.12.3",
            "cpus": 20,
            "arch": "aarch64",
            "kernel": "6.17.0-1021-nvidia",
            "hostname": f"spark{number}",
            "disk_total": 3_900_000_000_000,
            "disk_free": 3_500_000_000_000,
        },
    }


def seen(number: int = 1, *, context: dict[str, Any] | None = None, **changes: Any) -> Observations:
    """A node's observations; `changes` replaces answers by their source's name.

    A text for a command is what it printed, a pair (text, status) a failure; `late` has what the
    agent says of commands that hung.
    """
    told = copy.deepcopy(answer(number))
    told["late"] = changes.pop("late", {})
    for name, value in changes.items():
        place = next((told[part] for part in PARTS if name in told[part]),
                     told["machine"])  # fmt: skip
        if place is told["trees"] and value is None:
            place[name] = {}  # as where there is no such folder
        elif place is told["requests"] and isinstance(value, str):
            place[name] = {"status": 200, "body": value}
        else:
            place[name] = _as_ran(value) if place is told["commands"] else value
    options = {"user": "nvidia", "linked": True, "mtu": 9000, "pins": PINS} | (context or {})
    return Observations(f"spark{number}", told, **options)


def _as_ran(value: Any) -> Any:
    if isinstance(value, str):
        return ran(value)
    return ran(*value) if isinstance(value, tuple) else value


def inspected(number: int, name: str, **changes: Any) -> str:
    """The containers of a node as JSON with one of them changed (dotted keys reach inside)."""
    found = containers(number)
    for one in found:
        if one["Name"] == f"/{name}":
            for key, value in changes.items():
                *parents, last = key.split("__")
                place = one
                for parent in parents:
                    place = place[parent]
                place[last] = value
    return json.dumps(found)


def with_env(number: int, name: str, **variables: str | None) -> str:
    """The containers of a node with one's environment changed; None takes a variable away."""
    env = {k: v for k, v in (environment(number) | variables).items() if v is not None}
    return inspected(number, name, Config__Env=[f"{k}={v}" for k, v in env.items()])


def logged(text: str, *, name: str = "spark-vllm", at: str = "2026-11-20T15:00:00.5Z") -> str:
    """The logs of the head with one more line in one container's."""
    other = "spark-ray" if name == "spark-vllm" else "spark-vllm"
    return f"==> {other}\n==> {name}\n{at} {text}\n"


def on_gpus(number: int, **changes: Any) -> Observations:
    """Node 1 or 2 of `lab up --gpus`, an H100 each, that serve together in a virtual environment.

    As two such nodes answered in November 2026: no Docker, RDMA, fwupd or sshd; `fabric0` is the
    link that the inventory names.
    """
    address, env = f"10.90.1.{10 + number}", {"VLLM_HOST_IP": f"10.90.1.{10 + number}"}
    ray = ("ray", "start", "--block", f"--node-ip-address={address}")
    units = {"spark-ray": Unit("spark-ray", (*ray, "--head") if number == 1 else ray, env=env)}
    if number == 1:
        serve = ("vllm", "serve", "/srv/models/paris", "--tensor-parallel-size", "2")
        units["spark-vllm"] = Unit("spark-vllm", serve, env=env, labels={"spark-cluster.tp": "2"})
    known = "ActiveState=active\nNRestarts=0\nExecMainStartTimestamp=Wed 2026-11-25 09:02:38 UTC\n"
    told = {
        "gpu": "NVIDIA H100 80GB HBM3, 9.0, 580.159.04, 35, 121.11, 1980, 2147, 78923\n",
        "ip": json.dumps(
            [
                interface("eth0", f"10.90.0.{10 + number}/24", mtu=1500),
                interface("fabric0", f"{address}/24"),
            ]
        ),
        "nvrm": NVRM.replace("580.126.09", "580.159.04"),
        "ssh_folder": "directory root 700\n",
        "hcas": "",
        **dict.fromkeys(("history", "devices", "docker", "containers", "images", "logs")),
        "tools": "nvidia-smi\nsystemctl\njournalctl\nfind\nnft\n",
        "versions": "==> spark-ray\nray=2.60.0\nvllm=0.26.0\n",
        "models": "==> /srv/models/paris\n1024 config.json\n47310000 model.safetensors\n",
        **{name: unit.text + known for name, unit in units.items()},
        "ray": ray_nodes("10.90.1.11", "10.90.1.12"),
        **dict.fromkeys(("fw_ver", "board_id", "width", "host_keys", "gids?", "types?")),
        "pci": {"/sys/bus/pci/devices/0000:00:06.0/vendor": "0x10de\n"},
    }
    context = {"user": "root", "fabric": ("fabric0",)}
    return replace(seen(number, context=context, **{**told, **changes}), node=f"gpu{number}")
