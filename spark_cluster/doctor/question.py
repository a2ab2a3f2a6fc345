"""What a node is asked: one question, one exchange, everything that the checks look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_cluster.doctor import scripts
from spark_cluster.doctor.scripts import shell
from spark_cluster.facts import gather
from spark_cluster.ports import EnginePorts
from spark_cluster.serving import firewall
from spark_cluster.serving.engine import CACHE_ROOT
from spark_cluster.serving.ray_state import TOKEN_FILE

GPU_LOAD = (
    "utilization.gpu,clocks.sm,power.draw,clocks_event_reasons.sw_power_cap,"
    "clocks_event_reasons.hw_slowdown,clocks_event_reasons.hw_thermal_slowdown,"
    "clocks_event_reasons.sw_thermal_slowdown"
)
KERNEL_WORDS = r"Xid|NV_ERR_NO_MEMORY|mlx5_core.*(fatal|health|failed)|Out of memory: Killed"
TOOLS = (
    *("nvidia-smi", "docker", "tailscale", "fwupdmgr", "ib_write_bw", "ping", "curl"),
    *("journalctl", "dpkg-query", "systemctl", "awk", "find", "nft"),
)
"""Whose absence explains why there is no answer."""

UNITS = ("docker", "earlyoom", "avahi-daemon", "spark-clock-cap")


@dataclass(frozen=True)
class Source:
    """Something that is looked at.

    Attributes:
        label: how a person would ask for it.
        argv: a command, or several of which the first counts that is there.
        path: a file.
        tree: a glob of files.
        tool: the program that a command needs.
    """

    label: str
    argv: tuple[Any, ...] = ()
    path: str = ""
    tree: str = ""
    tool: str = ""


@dataclass(frozen=True)
class Context:
    """What the questions depend on.

    Attributes:
        user: the login user.
        log_words: what to look for in the engine containers' logs.
        model_paths: folders of models beside the usual ones.
        cache_root: folder of the engine's caches.
        dashboard: port of Ray's dashboard on the head's loopback.
    """

    user: str = "root"
    log_words: Sequence[str] = ()
    model_paths: Sequence[str] = ()
    cache_root: str = CACHE_ROOT
    dashboard: int = EnginePorts().dashboard


def sources(context: Context) -> dict[str, Source]:
    """Everything that is looked at, by name."""
    return {**_of_facts(), **_hardware(), **_engine(context), **_system(context)}


def question(context: Context) -> dict[str, Any]:
    """What the agent's `gather` is asked."""
    found = sources(context)
    return {
        "commands": {name: s.argv for name, s in found.items() if s.argv},
        "files": {name: s.path for name, s in found.items() if s.path},
        "trees": {name: s.tree for name, s in found.items() if s.tree},
    }


def _of_facts() -> dict[str, Source]:
    """The question whose answer makes the facts."""
    labels = {
        "gpu": "nvidia-smi",
        "ip": "ip addr",
        "hcas": "ibdev2netdev, rdma link",
        "docker": "docker version",
        "dpkg": "dpkg-query",
    }
    tools = {"gpu": "nvidia-smi", "docker": "docker", "dpkg": "dpkg-query"}
    asked = {
        name: Source(labels.get(name, str(argv[0])), argv=argv, tool=tools.get(name, ""))
        for name, argv in gather.COMMANDS.items()
    }
    files = {name: Source(path, path=path) for name, path in gather.FILES.items()}
    return asked | files | {name: Source(glob, tree=glob) for name, glob in gather.TREES.items()}


def _hardware() -> dict[str, Source]:
    smi = "nvidia-smi"
    history, devices = (("fwupdmgr", what, "--json") for what in ("get-history", "get-devices"))
    load = (smi, f"--query-gpu={GPU_LOAD}", "--format=csv,noheader,nounits")
    infiniband = "/sys/class/infiniband/*"
    return {
        "load": Source("nvidia-smi: load, clock, power", argv=load, tool=smi),
        "apps": Source(
            "nvidia-smi --query-compute-apps", argv=tuple(gather.COMPUTE_APPS), tool=smi
        ),
        "holders": Source("/proc of GPU processes", argv=shell(scripts.HOLDERS), tool=smi),
        "history": Source("fwupdmgr get-history", argv=history, tool="fwupdmgr"),
        "devices": Source("fwupdmgr get-devices", argv=devices, tool="fwupdmgr"),
        "nvrm": Source("/proc/driver/nvidia/version", path="/proc/driver/nvidia/version"),
        "fw_ver": Source("firmware of the HCAs", tree=f"{infiniband}/fw_ver"),
        "board_id": Source("PSID of the HCAs", tree=f"{infiniband}/board_id"),
        "width": Source("PCIe width", tree=f"{infiniband}/device/current_link_width"),
        "speed": Source("/sys/class/net/*/speed", tree="/sys/class/net/*/speed"),
        "pci": Source("PCI bus", tree="/sys/bus/pci/devices/*/vendor"),
    }


def _engine(context: Context) -> dict[str, Source]:
    ray = f"http://127.0.0.1:{context.dashboard}/api/v0/nodes"
    scripted = {
        "containers": ("docker container inspect", shell(scripts.CONTAINERS)),
        "images": ("docker image inspect", shell(scripts.IMAGES)),
        "logs": ("logs of the engine's containers", shell(scripts.LOGS, *context.log_words)),
        "versions": (
            "Ray and vLLM in the containers",
            shell(scripts.VERSIONS, scripts.VERSIONS_CODE),
        ),
    }
    return {
        **{n: Source(label, argv=argv, tool="docker") for n, (label, argv) in scripted.items()},
        "ray": Source(
            f"Ray's State API ({ray})", argv=shell(scripts.RAY, TOKEN_FILE, ray), tool="curl"
        ),
        "firewall": Source("nft list table", argv=firewall.LIST, tool="nft"),
        "models": Source(
            "model folders",
            argv=shell(scripts.MODELS, context.cache_root, *context.model_paths),
            tool="find",
        ),
    }


def _system(context: Context) -> dict[str, Source]:
    properties = ("systemctl", "show", "-p", "Id,LoadState,ActiveState,UnitFileState")
    previous = ("journalctl", "-b", "-1", "-n", "60", "--no-pager", "-o", "short-iso")
    commands = {
        "tools": ("which tools are there", shell(scripts.TOOLS, *TOOLS), ""),
        "kernel_log": (
            "kernel's log of this boot",
            shell(scripts.KERNEL, KERNEL_WORDS),
            "journalctl",
        ),
        "previous": ("end of the boot before this one", previous, "journalctl"),
        "units": ("systemctl", (*properties, *(f"{u}.service" for u in UNITS)), "systemctl"),
        "tailscale": ("tailscale debug prefs", ("tailscale", "debug", "prefs"), "tailscale"),
        "ssh_folder": ("~/.ssh", shell(scripts.SSH_FOLDER, context.user), ""),
        "clock": ("the clock", ("date", "+%s.%N"), ""),
    }
    files = {
        "kernel": "/proc/sys/kernel/osrelease",
        "swaps": "/proc/swaps",
        "swappiness": "/proc/sys/vm/swappiness",
        "group": "/etc/group",
        "hosts": "/etc/hosts",
        "reboot_packages": "/var/run/reboot-required.pkgs",
        "init": "/proc/1/comm",
        "firewall_kept": firewall.KEPT,
    }
    return {
        **{n: Source(label, argv=argv, tool=tool) for n, (label, argv, tool) in commands.items()},
        **{name: Source(path, path=path) for name, path in files.items()},
    }
