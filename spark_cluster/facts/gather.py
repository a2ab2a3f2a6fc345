"""The gathering of facts: one question to a node's agent, and the facts from its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spark_cluster.facts import netplan, parsers
from spark_cluster.facts.model import Facts, Memory, Process
from spark_cluster.node import nvidia_smi, paths

GPU_QUERY = (
    "name,compute_cap,driver_version,temperature.gpu,power.draw,clocks.sm,memory.used,memory.free"
)
COMPUTE_APPS = nvidia_smi.APPS

PACKAGES = (
    "docker-ce",
    "docker.io",
    "nvidia-container-toolkit",
    "nvidia-driver-*",
    "linux-image-*",
    "cuda-toolkit-*",
    "nvidia-spark-*",
    "mlnx-fw-updater",
    "fwupd",
    "rdma-core",
    "perftest",
    "chrony",
    "systemd-timesyncd",
    "avahi-daemon",
)
"""Packages (or patterns) that roles decide by."""

MESH_KEY = paths.MESH_KEY
"""The key with which a node logs in to the others, made by the role `ssh_mesh`."""

COMMANDS: dict[str, tuple[str, ...] | tuple[tuple[str, ...], ...]] = {
    "gpu": ("nvidia-smi", f"--query-gpu={GPU_QUERY}", "--format=csv,noheader,nounits"),
    "ip": ("ip", "-j", "addr"),
    "hcas": (("ibdev2netdev",), ("rdma", "link")),  # the first that is there
    "sshd": ("sshd", "-T"),
    "ssh_sockets": ("systemctl", "show", "--property=Listen", "ssh.socket", "sshd.socket"),
    "docker": ("docker", "version", "--format", "{{.Server.Version}}"),
    "dpkg": (
        "dpkg-query",
        "-W",
        "-f",
        "${Package}\t${Version}\t${db:Status-Status}\t${db:Status-Want}\n",
        *PACKAGES,
    ),
}
FILES = {
    "os": "/etc/os-release",
    "dgx": "/etc/dgx-release",
    "meminfo": "/proc/meminfo",
    "boot_id": "/proc/sys/kernel/random/boot_id",
    "machine_id": "/etc/machine-id",
    "cmdline": "/proc/cmdline",
    "reboot_required": "/var/run/reboot-required",
    "mesh_key": f"{MESH_KEY}.pub",
    "local_ports": "/proc/sys/net/ipv4/ip_local_port_range",
}
NETPLAN = {f"netplan {folder}": f"{folder}/*.yaml" for folder in netplan.FOLDERS}
TREES = {
    "host_keys": "/etc/ssh/ssh_host_*_key.pub",
    **NETPLAN,
    **{
        f"{what}{digits}": f"/sys/class/infiniband/*/ports/1/{folder}/{digits}"
        for what, folder in (("gids", "gids"), ("types", "gid_attrs/types"))
        for digits in ("?", "1?")  # a table has 128 entries and more, nearly all of them empty
    },
}
MEMORY = {"commands": {"apps": COMPUTE_APPS}, "files": {"meminfo": "/proc/meminfo"}}
"""The question for `vram`: who holds GPU memory, and what the whole node has."""


def question() -> dict[str, Any]:
    """Return the request for the agent's `gather`."""
    return {"commands": COMMANDS, "files": FILES, "trees": TREES}


def facts(answer: Mapping[str, Any]) -> Facts:
    """The facts in an agent's answer to `question()`."""
    files = {name: (answer["files"].get(name) or "").strip() for name in FILES}
    commands = answer["commands"]
    smi = commands.get("gpu")
    smi_fails = smi is not None and smi["status"] != 0
    hangs = str(answer.get("late", {}).get("gpu", ""))
    hcas = _out(commands, "hcas")
    trees = answer.get("trees", {})
    gids = parsers.gid_indexes({k: v for name in TREES for k, v in trees.get(name, {}).items()})
    dpkg = (commands.get("dpkg") or {"stdout": ""})["stdout"]
    machine = answer["machine"]
    interfaces = parsers.ip_addr(_out(commands, "ip"))
    hcas_of = tuple(
        replace(hca, gid_index=gids.get(hca.name))
        for hca in parsers.ibdev2netdev(hcas) or parsers.rdma_link(hcas)
    )
    configured = netplan.read(
        {k: v for name in NETPLAN for k, v in trees.get(name, {}).items()},
        interfaces,
        {hca.interface for hca in hcas_of},
    )
    return Facts(
        hostname=machine["hostname"],
        os=parsers.os_name(files["os"]),
        kernel=machine["kernel"],
        arch=machine["arch"],
        python=machine["python"],
        cpus=machine["cpus"],
        boot_id=files["boot_id"],
        machine_id=files["machine_id"],
        memory=parsers.meminfo(files["meminfo"]),
        disk_total_bytes=machine["disk_total"],
        disk_free_bytes=machine["disk_free"],
        gpu=None if smi_fails else parsers.gpu(_out(commands, "gpu")),
        nvml_error=(smi["stdout"] + smi["stderr"]).strip() if smi_fails else hangs,
        dgx_version=parsers.dgx_version(files["dgx"]),
        interfaces=interfaces,
        hcas=hcas_of,
        docker=_out(commands, "docker").strip() or None,
        packages=parsers.dpkg(dpkg),
        held=parsers.dpkg_held(dpkg),
        cmdline=files["cmdline"],
        reboot_required=answer["files"].get("reboot_required") is not None,
        host_keys=parsers.public_keys(trees.get("host_keys", {}).values()),
        mesh_key=next(iter(parsers.public_keys([files["mesh_key"]])), ""),
        local_ports=parsers.port_range(files["local_ports"]),
        ssh_ports=parsers.ssh_ports(_out(commands, "sshd"), _out(commands, "ssh_sockets")),
        given_addresses=tuple(
            given.address for d in configured.definitions if d.ours for given in d.addresses
        ),
        netplan=configured,
    )


def memory(answer: Mapping[str, Any]) -> tuple[tuple[Process, ...] | None, Memory]:
    """Processes and memory in an answer to `MEMORY`; None when nvidia-smi does not answer."""
    apps = answer["commands"]["apps"]
    known = apps is not None and apps["status"] == 0
    processes = parsers.compute_apps(apps["stdout"]) if known else None
    return processes, parsers.meminfo(answer["files"]["meminfo"] or "")


def _out(commands: Mapping[str, Any], name: str) -> str:
    done = commands.get(name)
    return str(done["stdout"]) if done is not None and done["status"] == 0 else ""
