"""The question to a node: one exchange for everything that the checks need."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

# Small shell scripts that a node runs to answer several questions in one process.
#
# Each prints plain text and ends with status 0 unless what it asks did not answer at all.

_FIELDS = "fields='{{{{.Names}}}} {{{{.Image}}}} {{{{.Command}}}}'\n"
_ENGINES = f"""\
{_FIELDS}all=$(docker ps {{all}} --no-trunc --format "$fields") || exit 1
names=$(printf '%s\\n' "$all" | grep -v '^{PAUSE} ' |
  grep -iE '(^|[^a-z])(vllm|ray|sglang)([^a-z]|$)' | cut -d' ' -f1)
"""
"""Containers that look like an engine's, by name, image or command; not only our own."""

FIND_TOOLS = 'for tool in "$@"; do command -v "$tool" >/dev/null && echo "$tool"; done; true'

CONTAINERS = (
    _ENGINES.format(all="-a")
    + """\
[ -n "$names" ] || { echo '[]'; exit 0; }
docker container inspect $names
"""
)

IMAGES = (
    _ENGINES.format(all="-a")
    + """\
[ -n "$names" ] || exit 0
docker container inspect -f '{{.Image}}' $names | sort -u |
  xargs docker image inspect
"""
)

LOG_LINES = 20000
"""How many lines at the end of a program's log are looked through."""

KEPT_LINES = 20
"""How many lines with a word are kept, the last ones."""

_KEEP = f"""\
keep() {{
  awk '
    BEGIN {{ for (i = 1; i < ARGC; i++) {{ key[i] = ARGV[i]; ARGV[i] = "" }}; keys = ARGC }}
    {{ for (i = 1; i < keys; i++) if (index($0, key[i])) {{
        kept[i "," count[i]++ % {KEPT_LINES}] = $0; break }} }}
    END {{ for (i = 1; i < keys; i++) for (j = 0; j < {KEPT_LINES}; j++)
        if ((i "," j) in kept) print kept[i "," j] }}' "$@"
}}
"""
"""Of standard input the last lines with each of the words that are asked for."""

LOGS = (
    _KEEP
    + _ENGINES.format(all="-a")
    + f"""\
for name in $names; do
  printf '==> %s\\n' "$name"
  docker logs --timestamps --tail {LOG_LINES} "$name" 2>&1 | keep "$@"
done
true
"""
)
"""The kept lines of each container's log."""

UNIT_LOGS = (
    _KEEP
    + f"""\
folder=$1
shift
journal() {{ {JOURNAL} --lines {LOG_LINES} --output short-iso-precise --utc; }}
for name in {" ".join(PROGRAMS)}; do
  file=$folder/$name.service
  [ -e "$file" ] || continue
  said=$(journal "$file" "$name") || exit 1
  printf '==> %s\\n' "$name"
  printf '%s\\n' "$said" | keep "$@"
done
true
"""
)
"""The kept lines of what our own units (runtime venv; `$1` is their folder) wrote."""

VERSIONS = (
    _ENGINES.format(all="")
    + """\
[ -n "$names" ] || exit 0
installed() (
  pid=$1
  path=$(tr '\\0' '\\n' <"/proc/$pid/environ" | sed -n 's/^PATH=//p')
  set -f; IFS=:; set -- $path; set +f
  for package in ray vllm; do
    for folder; do
      for found in "/proc/$pid/root${folder%/*}"/lib/python3*/*-packages/$package-*.dist-info; do
        [ -d "$found" ] || continue
        version=${found##*/$package-}
        printf '%s=%s\\n' "$package" "${version%.dist-info}"
        continue 3
      done
    done
  done
)
docker container inspect -f '{{.Name}} {{.State.Pid}}' $names | while read -r name pid; do
  name=${name#/}
  versions=$(installed "$pid" 2>/dev/null)
  [ -n "$versions" ] || versions=$(docker exec "$name" python3 -c "$1" </dev/null)
  printf '==> %s\\n%s\\n' "$name" "$versions"
done
true
"""
)
"""Read from the folders that pip writes, in the prefixes of the container's own PATH: a Python in
the container, which is asked where there is none, took 1.8 s on a busy node of the lab."""

VERSIONS_CODE = """\
import importlib.metadata as metadata
for name in ("ray", "vllm"):
    try:
        print(f"{name}={metadata.version(name)}")
    except metadata.PackageNotFoundError:
        pass
"""


HOLDERS = """\
pids=$(nvidia-smi --query-compute-apps=pid --format=csv,noheader) || exit $?
for pid in $pids; do
  [ -r "/proc/$pid/status" ] || continue
  parent=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status")
  uid=$(sed -n 's/^Uid:[[:space:]]*\\([0-9]*\\).*/\\1/p' "/proc/$pid/status")
  ipc=own
  if [ "$(readlink "/proc/$pid/ns/ipc")" = "$(readlink /proc/1/ns/ipc)" ]; then
    ipc=node
    [ "$(loginctl show-user "$uid" -p Linger --value 2>/dev/null)" = yes ] && ipc=lingers
  fi
  printf '%s %s %s %s %s %s\\n' "$pid" "$parent" "$(tail -n 1 "/proc/$pid/cgroup")" "$uid" \\
    "$ipc" "$(cat "/proc/$parent/comm" 2>/dev/null)"
done
true
"""
"""pid, parent's pid, control group, uid, IPC namespace (`own`; the `node`'s; `lingers`: the node's,
and logind never ends its user), parent's name."""

EARLYOOM = """\
pid=$(systemctl show -p MainPID --value earlyoom.service) || exit 1
[ "${pid:-0}" -eq 0 ] || cat "/proc/$pid/cmdline"
"""
"""How earlyoom was started, with NUL between its words."""

KERNEL = (
    _KEEP
    + f"""\
boot=$1
shift
log=$(journalctl --quiet --dmesg --boot "$boot" --lines {LOG_LINES} --no-pager \\
  --output short-iso-precise --utc 2>&1) || {{ printf '%s\\n' "$log" >&2; exit 1; }}
printf '%s\\n' "$log" | keep "$@" | sort -s -k 1,1
"""
)
"""What the kernel itself logged in a boot (`$1`: 0 or -1), the kept lines by time.

`--dmesg` asks for `_TRANSPORT=kernel`, which journald sets: anyone may log as `kernel`."""

READ_PSTORE = (
    _KEEP
    + """\
folder=$1 archive=$2
shift 2
booted=$(sed -n 's/^btime //p' /proc/stat)
{
  find "$folder" -type f -name '*dmesg*'
  find "$archive" -type f -name '*dmesg*' -newermt "@$booted"
} 2>/dev/null | sort | head -n 20 | while IFS= read -r file; do tail -c 65536 "$file"; done |
  keep "$@"
"""
)
"""What the kernel kept of a crash beyond the reboot: records of the firmware (`$1`), and those that
systemd-pstore took from there during this boot (`$2`)."""

MODELS = """\
hub=.cache/huggingface/hub/models--
caches=$1
shift
for folder in /srv/models/* "/root/$hub"* /home/*/"$hub"* \\
    "$caches"/huggingface/hub/models--* "$@"; do
  [ -d "$folder" ] || continue
  printf '==> %s\\n' "$folder"
  find -L "$folder" -name blobs -prune -o -type f -printf '%s %P\\n' | sort -k 2 | head -n 2000
done
true
"""
"""Files of every model that the node keeps, `$1` being the folder of the caches; a link whose
target is missing is none."""

SSH_FOLDER = 'stat -c "%F %U %a" "$(getent passwd "$1" | cut -d: -f6)/.ssh"'


def shell(script: str, *words: str) -> tuple[str, ...]:
    """The argument list of a script; `words` are its `$1`, `$2` ..."""
    return ("sh", "-c", script, "doctor", *words)


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
        "holders": NodeSource("/proc of GPU processes", argv=shell(HOLDERS), tool=smi),
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
        "containers": ("docker container inspect", shell(CONTAINERS)),
        "images": ("docker image inspect", shell(IMAGES)),
        "gpu_access": ("control groups of containers", shell(container_gpu.ACCESS)),
        "logs": ("logs of the engine's containers", shell(LOGS, *context.log_words)),
        "versions": (
            "Ray and vLLM in the containers",
            shell(VERSIONS, VERSIONS_CODE),
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
            argv=shell(UNIT_LOGS, FOLDER, *context.log_words),
            tool="journalctl",
        ),
        "ray": NodeSource(f"Ray's State API ({asked['url']})", request=asked),
        "firewall": NodeSource("nft list table", argv=firewall.LIST, tool="nft"),
        "models": NodeSource(
            "model folders",
            argv=shell(MODELS, context.cache_root, *context.model_paths),
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
            shell(KERNEL, "0", *words),
            "journalctl",
        ),
        "previous_kernel": (
            "kernel's log of the boot before this one",
            shell(KERNEL, "-1", *words),
            "journalctl",
        ),
        "pstore": (", ".join(PSTORE), shell(READ_PSTORE, *PSTORE, *words), "find"),
        "remove_ipc": (
            "RemoveIPC of logind",
            (*BUS, "get-property", *LOGIND, "RemoveIPC"),
            "busctl",
        ),
        "avahi": ("host name of avahi", (*BUS, "call", *AVAHI, "GetHostName"), "busctl"),
        "previous": ("end of the boot before this one", previous, "journalctl"),
        "units": ("systemctl", (*properties, *(f"{u}.service" for u in UNITS)), "systemctl"),
        "earlyoom": ("arguments of earlyoom", shell(EARLYOOM), "systemctl"),
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
