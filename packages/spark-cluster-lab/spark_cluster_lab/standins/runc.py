"""runc, found before the real one on the PATH of dockerd and containerd.

It takes out of a container's specification what this node may not do (capabilities outside the
bounding set, raised limits), and shows the container the node's memory, HCAs and nvidia-smi.
"""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import Any

REAL = ("/usr/sbin/runc", "/usr/bin/runc")
SHOWN = {
    "/run/lab/meminfo": "/proc/meminfo",
    "/usr/bin/nvidia-smi": "/usr/bin/nvidia-smi",
    "/usr/local/lib/spark-lab": "/usr/local/lib/spark-lab",
    "/var/lib/lab": "/var/lib/lab",
}
READ_ONLY = ["/proc/sys/vm", "/proc/sys/kernel", "/proc/sys/fs", "/proc/sysrq-trigger"]
CAPABILITIES = [
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID",
    "SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW",
    "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT",
    "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD",
    "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG",
    "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE",
]  # fmt: skip


def bounding_set() -> set[str]:
    status = Path("/proc/self/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in status if line.startswith("CapBnd:"))
    return {f"CAP_{name}" for bit, name in enumerate(CAPABILITIES) if mask >> bit & 1}


def limit(process: dict[str, Any], allowed: set[str]) -> None:
    """Take out of a process what this node cannot give."""
    for kind, names in (process.get("capabilities") or {}).items():
        process["capabilities"][kind] = [name for name in names if name in allowed]
    for wanted in process.get("rlimits") or []:
        hard = resource.getrlimit(getattr(resource, wanted["type"]))[1]
        if "CAP_SYS_RESOURCE" not in allowed and hard != resource.RLIM_INFINITY:
            wanted["hard"] = min(wanted["hard"], hard)
            wanted["soft"] = min(wanted["soft"], wanted["hard"])


def show(spec: dict[str, Any]) -> None:
    """Add the stand-ins to a container's mounts."""
    linux = spec["linux"]
    taken = {mount["destination"] for mount in spec.get("mounts", [])}
    own_network = any(n["type"] == "network" and not n.get("path") for n in linux["namespaces"])
    if not linux.get("readonlyPaths"):  # privileged: keep the machine's settings out of reach
        linux["readonlyPaths"] = READ_ONLY
    shown = SHOWN | ({} if own_network else {"/sys/class": "/sys/class"})
    spec.setdefault("mounts", []).extend(
        {"destination": target, "type": "bind", "source": source, "options": ["rbind", "ro"]}
        for source, target in shown.items()
        if target not in taken and Path(source).exists()
    )


def edit(argv: list[str]) -> None:
    """Change the specification files that a call of runc names."""
    allowed = bounding_set()
    if "--bundle" in argv:
        path = Path(argv[argv.index("--bundle") + 1]) / "config.json"
        spec = json.loads(path.read_text())
        limit(spec["process"], allowed)
        show(spec)
        path.write_text(json.dumps(spec))
    if "--process" in argv:
        path = Path(argv[argv.index("--process") + 1])
        process = json.loads(path.read_text())
        limit(process, allowed)
        path.write_text(json.dumps(process))


def main(argv: list[str]) -> int:
    if {"create", "run", "exec"} & set(argv):
        edit(argv)
    real = next(path for path in REAL if Path(path).exists())
    os.execv(real, ["runc", *argv])  # noqa: S606  it becomes the real one
