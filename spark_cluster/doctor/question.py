"""The question to a node: one exchange for everything that the checks need."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from spark_cluster.config.caches import CACHE_ROOT
from spark_cluster.config.ports import EnginePorts
from spark_cluster.engine import firewall, ray
from spark_cluster.engine.names import PAUSE, PROGRAMS
from spark_cluster.engine.runtime import JOURNAL
from spark_cluster.facts import gather
from spark_cluster.known_issues.entries import shipped
from spark_cluster.node import container_gpu, unit_state
from spark_cluster.node.nvidia_smi import THROTTLE
from spark_cluster.resources import docker
from spark_cluster.resources.unit import FOLDER

LOG_LINES = 20000
"""How many lines at the end of a program's log are looked through."""

KEPT_LINES = 20
"""How many lines with a word are kept, the last ones."""

FIND_TOOLS = 'for tool in "$@"; do command -v "$tool" >/dev/null && echo "$tool"; done; true'
SSH_FOLDER = 'stat -c "%F %U %a" "$(getent passwd "$1" | cut -d: -f6)/.ssh"'

VERSIONS_CODE = """\
import importlib.metadata as metadata
for name in ("ray", "vllm"):
    try:
        print(f"{name}={metadata.version(name)}")
    except metadata.PackageNotFoundError:
        pass
"""

SCRIPTS = Path(__file__).with_name("scripts")
"""Small shell scripts that a node runs to answer several questions in one process. Each prints
plain text and ends with status 0 unless what it asks did not answer at all."""


@cache
def script(name: str) -> str:
    """Return a script's text, with the constants that it reads and the files that it sources."""
    text = _sourced(name)
    values = {"LOG_LINES": LOG_LINES, "KEPT_LINES": KEPT_LINES, "PAUSE": PAUSE}
    given = {**values, "PROGRAMS": " ".join(PROGRAMS)}
    lines = (f"{key}={shlex.quote(str(given[key]))}\n" for key in given if f"${key}" in text)
    return "".join(lines) + text


def _sourced(name: str) -> str:
    if name == "journal":
        return f'journal() {{ {JOURNAL} --lines "$LOG_LINES" --output short-iso-precise --utc; }}\n'
    text = (SCRIPTS / f"{name}.sh").read_text(encoding="utf-8")
    return re.sub(r"^\. ([a-z]+)\.sh\n", lambda found: _sourced(found[1]), text, flags=re.MULTILINE)


def shell(text: str, *words: str) -> tuple[str, ...]:
    """Return the argument list of a script; `words` are its `$1`, `$2` ..."""
    return ("sh", "-c", text, "doctor", *words)


GPU_LOAD = ",".join(("utilization.gpu", "clocks.sm", "power.draw", *THROTTLE.values()))
PSTORE = ("/sys/fs/pstore", "/var/lib/systemd/pstore")
TOOLS = (
    *("nvidia-smi", "docker", "tailscale", "fwupdmgr", "ib_write_bw", "ping"),
    *("journalctl", "dpkg-query", "systemctl", "busctl", "awk", "find", "nft"),
)
"""Whose absence explains why there is no answer."""

UNITS = ("docker", "earlyoom", "avahi-daemon", "spark-clock-cap", "dgx-dashboard-admin")

BUS = ("busctl", "--auto-start=no", "--timeout=5")
LOGIND = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
AVAHI = ("org.freedesktop.Avahi", "/", "org.freedesktop.Avahi.Server")

KERNEL_CHECK = re.compile(r"kernel\.|driver\.xid|memory\.refused")
OF_FAULTS = ("pc : ", "Comm: ", "[15b3:", "Out of memory: Killed")
"""Of the kernel's log besides faults: where it was and for whom, and functions of a ConnectX-7."""


@dataclass(frozen=True)
class NodeSource:
    """A source of the question.

    Attributes:
        label: how a person would ask for it.
        argv: a command, or several of which the first counts that is there.
        path: a file.
        tree: a glob of files.
        request: an HTTP request of the node to one of its own services.
        tool: the program that a command needs.
    """

    label: str
    argv: tuple[Any, ...] = ()
    path: str = ""
    tree: str = ""
    tool: str = ""
    request: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """The parameters of the questions.

    Attributes:
        user: the login user.
        log_words: what to look for in the logs of the engine's programs.
        model_paths: folders of models next to the usual ones.
        cache_root: folder of the engine's caches.
        dashboard: port of Ray's dashboard on the head's loopback.
        own: what checks of the project want to be looked at.
    """

    user: str = "root"
    log_words: Sequence[str] = ()
    model_paths: Sequence[str] = ()
    cache_root: str = CACHE_ROOT
    dashboard: int = EnginePorts().dashboard
    own: Mapping[str, NodeSource] = field(default_factory=dict)


def sources(context: Context) -> dict[str, NodeSource]:
    """Return all sources by name."""
    return {**context.own, **_of_facts(), **_hardware(), **_engine(context), **_system(context)}


def question(context: Context) -> dict[str, Any]:
    """Return the request for the agent's `gather`."""
    found = sources(context)
    return {
        "commands": {name: s.argv for name, s in found.items() if s.argv},
        "files": {name: s.path for name, s in found.items() if s.path},
        "trees": {name: s.tree for name, s in found.items() if s.tree},
        "requests": {name: dict(s.request) for name, s in found.items() if s.request},
    }


def kernel_words() -> tuple[str, ...]:
    """Return what is looked for in the kernel's log: the signs of what its checks find."""
    about = [i for i in shipped().values() if any(map(KERNEL_CHECK.match, i.checks))]
    return tuple(dict.fromkeys([*(sign.has for issue in about for sign in issue.log), *OF_FAULTS]))


def _of_facts() -> dict[str, NodeSource]:
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
        name: NodeSource(labels.get(name, str(argv[0])), argv=argv, tool=tools.get(name, ""))
        for name, argv in gather.COMMANDS.items()
    }
    files = {name: NodeSource(path, path=path) for name, path in gather.FILES.items()}
    return (
        asked | files | {name: NodeSource(glob, tree=glob) for name, glob in gather.TREES.items()}
    )


def _hardware() -> dict[str, NodeSource]:
    smi = "nvidia-smi"
    history, devices = (("fwupdmgr", what, "--json") for what in ("get-history", "get-devices"))
    load = (smi, f"--query-gpu={GPU_LOAD}", "--format=csv,noheader,nounits")
    infiniband = "/sys/class/infiniband/*"
    return {
        "load": NodeSource("nvidia-smi: load, clock, power", argv=load, tool=smi),
        "apps": NodeSource(
            "nvidia-smi --query-compute-apps", argv=tuple(gather.COMPUTE_APPS), tool=smi
        ),
        "holders": NodeSource("/proc of GPU processes", argv=shell(script("holders")), tool=smi),
        "history": NodeSource("fwupdmgr get-history", argv=history, tool="fwupdmgr"),
        "devices": NodeSource("fwupdmgr get-devices", argv=devices, tool="fwupdmgr"),
        "cdi": NodeSource(
            "CDI specifications",
            argv=shell(container_gpu.SPECIFICATIONS, *container_gpu.FOLDERS),
        ),
        "nvrm": NodeSource("/proc/driver/nvidia/version", path="/proc/driver/nvidia/version"),
        "fw_ver": NodeSource("firmware of the HCAs", tree=f"{infiniband}/fw_ver"),
        "board_id": NodeSource("PSID of the HCAs", tree=f"{infiniband}/board_id"),
        "width": NodeSource("PCIe width", tree=f"{infiniband}/device/current_link_width"),
        "speed": NodeSource("/sys/class/net/*/speed", tree="/sys/class/net/*/speed"),
        "pci": NodeSource("PCI bus", tree="/sys/bus/pci/devices/*/vendor"),
    }


def _engine(context: Context) -> dict[str, NodeSource]:
    asked = ray.question(context.dashboard)
    scripted = {
        "containers": ("docker container inspect", shell(script("containers"))),
        "images": ("docker image inspect", shell(script("images"))),
        "gpu_access": ("control groups of containers", shell(container_gpu.ACCESS)),
        "logs": ("logs of the engine's containers", shell(script("logs"), *context.log_words)),
        "versions": (
            "Ray and vLLM in the containers",
            shell(script("versions"), VERSIONS_CODE),
        ),
    }
    return {
        **{n: NodeSource(label, argv=argv, tool="docker") for n, (label, argv) in scripted.items()},
        "image_store": NodeSource("docker info", argv=tuple(docker.STORE), tool="docker"),
        **{
            name: NodeSource(f"systemctl show {name}", argv=tuple(unit_state.question(name)))
            for name in PROGRAMS
        },
        "unit_logs": NodeSource(
            "journal of the engine's units",
            argv=shell(script("unit-logs"), FOLDER, *context.log_words),
            tool="journalctl",
        ),
        "ray": NodeSource(f"Ray's State API ({asked['url']})", request=asked),
        "firewall": NodeSource("nft list table", argv=firewall.LIST, tool="nft"),
        "models": NodeSource(
            "model folders",
            argv=shell(script("models"), context.cache_root, *context.model_paths),
            tool="find",
        ),
    }


def _system(context: Context) -> dict[str, NodeSource]:
    properties = ("systemctl", "show", "-p", "Id,LoadState,ActiveState,UnitFileState")
    previous = ("journalctl", "-b", "-1", "-n", "60", "--no-pager", "-o", "short-iso")
    words = kernel_words()
    commands = {
        "tools": ("which tools are there", shell(FIND_TOOLS, *TOOLS), ""),
        "kernel_log": (
            "kernel's log of this boot",
            shell(script("kernel"), "0", *words),
            "journalctl",
        ),
        "previous_kernel": (
            "kernel's log of the boot before this one",
            shell(script("kernel"), "-1", *words),
            "journalctl",
        ),
        "pstore": (", ".join(PSTORE), shell(script("pstore"), *PSTORE, *words), "find"),
        "remove_ipc": (
            "RemoveIPC of logind",
            (*BUS, "get-property", *LOGIND, "RemoveIPC"),
            "busctl",
        ),
        "avahi": ("host name of avahi", (*BUS, "call", *AVAHI, "GetHostName"), "busctl"),
        "previous": ("end of the boot before this one", previous, "journalctl"),
        "units": ("systemctl", (*properties, *(f"{u}.service" for u in UNITS)), "systemctl"),
        "earlyoom": ("arguments of earlyoom", shell(script("earlyoom")), "systemctl"),
        "page_size": ("getconf PAGESIZE", ("getconf", "PAGESIZE"), ""),
        "tailscale": ("tailscale debug prefs", ("tailscale", "debug", "prefs"), "tailscale"),
        "ssh_folder": ("~/.ssh", shell(SSH_FOLDER, context.user), ""),
        "clock": ("the clock", ("date", "+%s.%N"), ""),
    }
    files = {
        "kernel": "/proc/sys/kernel/osrelease",
        "swaps": "/proc/swaps",
        "buddyinfo": "/proc/buddyinfo",
        "swappiness": "/proc/sys/vm/swappiness",
        "group": "/etc/group",
        "hosts": "/etc/hosts",
        "reboot_packages": "/var/run/reboot-required.pkgs",
        "init": "/proc/1/comm",
        "mstflint_access": "/sys/module/mstflint_access/initstate",
        "firewall_kept": firewall.KEPT,
    }
    return {
        **{
            n: NodeSource(label, argv=argv, tool=tool)
            for n, (label, argv, tool) in commands.items()
        },
        **{name: NodeSource(path, path=path) for name, path in files.items()},
    }
