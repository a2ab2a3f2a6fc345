"""The gathering of facts: one question to a node's agent, and the facts from its answer.

Netplan's files are read on the laptop, by the YAML library; a file of the user's is never written.
The rules are those of netplan(5): a file in /run hides one of the same name in /etc, and that one
in /lib; files are merged in the order of their names, addresses are added up, and of other keys the
last one counts.
"""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

from spark_cluster.config import fact_parsers
from spark_cluster.config.facts import (
    Facts,
    GivenAddress,
    Interface,
    Memory,
    NetplanDefinition,
    NetplanFiles,
    Process,
)
from spark_cluster.config.yamlfile import Key, Sourced, parse
from spark_cluster.errors import InvalidFile
from spark_cluster.node import nvidia_smi, paths

NETPLAN_FOLDERS = ("/lib/netplan", "/etc/netplan", "/run/netplan")
"""A file hides one of the same name in a folder before its own."""

MANAGED = "# Managed by spark-cluster"
"""How the files begin that roles write."""

LONGEST_NETPLAN = 64 * 1024
"""Characters of one file; netplan files have a few hundred."""

CONNECTX = "mlx5_core"
"""The driver of a ConnectX-7's interfaces."""

_TRUE = ("true", "yes", "on", "y")
_GROUPS = ("bonds", "bridges")


def netplan_files(
    files: Mapping[str, str], interfaces: Sequence[Interface], connectx: Collection[str] = ()
) -> NetplanFiles:
    """Return what netplan files give the interfaces of a node; whatever a node sends, none raises.

    Args:
        files: path to text.
        interfaces: those of the node.
        connectx: names of the ConnectX-7's interfaces.
    """
    sources: list[Sourced] = []
    unreadable = []
    paths = _in_force(files)
    for path in paths:
        try:
            if len(files[path]) > LONGEST_NETPLAN:
                raise InvalidFile(f"longer than {LONGEST_NETPLAN} characters", where=path)
            if files[path].strip():
                sources.append(parse(files[path], Path(path), "netplan file", lenient=True))
        except InvalidFile as error:
            unreadable.append(f"{error.where}: {error.message.splitlines()[0]}")
    own = tuple(path for path in paths if files[path].startswith(MANAGED))
    matched = _matched(sources, interfaces, connectx)
    found = [d for source in sources for d in _definitions(source, matched, own)]
    return NetplanFiles(tuple(found), tuple(paths), own, tuple(unreadable))


def _in_force(files: Mapping[str, str]) -> list[str]:
    """Return the paths that netplan reads, in its order."""
    found: dict[str, str] = {}
    for folder in NETPLAN_FOLDERS:
        found.update({name: path for path in files if (name := _name_in(folder, path))})
    return [found[name] for name in sorted(found)]


def _name_in(folder: str, path: str) -> str:
    """Return the name of a file directly in a folder; empty for another one."""
    name = path.removeprefix(f"{folder}/")
    return "" if name == path or "/" in name else name


def _matched(
    sources: Iterable[Sourced], interfaces: Sequence[Interface], connectx: Collection[str]
) -> dict[str, list[str]]:
    """Return each definition's id with the interfaces that it configures.

    Its `match` may be in another file than its addresses.
    """
    merged: dict[str, dict[str, Any]] = {}
    for source in sources:
        for name, body in _kind(source, "ethernets").items():
            merged.setdefault(name, {}).update(_mapping(body))
    return {
        name: [one.name for one in interfaces if _is_for(name, body, one, connectx)]
        for name, body in merged.items()
    }


def _definitions(
    source: Sourced, matched: Mapping[str, Sequence[str]], own: Collection[str]
) -> Iterator[NetplanDefinition]:
    """Yield what one file says of each interface."""
    path = str(source.path)
    ethernets = _kind(source, "ethernets")
    found: dict[str, tuple[Key, str]] = {
        name: (("network", "ethernets", name), "") for name in ethernets
    }
    for kind in _GROUPS:
        for group, body in _kind(source, kind).items():
            for member in _items(_mapping(body).get("interfaces")):
                found[str(member)] = (("network", kind, group), f"{kind.removesuffix('s')} {group}")
    for name, (key, member_of) in found.items():
        body = _mapping(ethernets.get(name))
        names = matched.get(name, [name])
        for interface in names:
            yield NetplanDefinition(
                file=path,
                line=source.origin(key).line,
                id=name,
                interface=interface,
                shared=len(names) > 1,
                ours=path in own,
                addresses=tuple(_addresses(source, key, body)),
                keys=tuple(body),
                dhcp4=_is_true(body.get("dhcp4")),
                mtu=body["mtu"] if type(body.get("mtu")) is int else None,
                member_of=member_of,
            )


def _kind(source: Sourced, kind: str) -> Mapping[str, Any]:
    """Return the definitions of a kind, such as `ethernets`."""
    return _mapping(_mapping(source.data.get("network")).get(kind))


def _is_for(
    name: str, body: Mapping[str, Any], interface: Interface, connectx: Collection[str]
) -> bool:
    """Return whether a definition configures an interface: by its name, or by `match`."""
    if "match" not in body:
        return interface.name == name
    have = {
        "name": interface.name,
        "macaddress": interface.mac,
        "driver": CONNECTX if interface.name in connectx else "",
    }
    return all(
        any(_fits(have.get(what, ""), str(pattern), what) for pattern in _items(patterns))
        for what, patterns in _mapping(body["match"]).items()
    )


def _fits(value: str, pattern: str, what: str) -> bool:
    """Return whether a value fits a pattern of `match`; that of a MAC address is none."""
    if what == "macaddress":
        return value.lower() == pattern.lower()
    return fnmatchcase(value, pattern)


def _addresses(source: Sourced, key: Key, body: Mapping[str, Any]) -> Iterator[GivenAddress]:
    """Yield the IPv4 addresses of a definition: text, or a mapping of an address to its options."""
    for place, item in enumerate(_items(body.get("addresses"))):
        text = next(iter(item), "") if isinstance(item, dict) else item
        with contextlib.suppress(ValueError):
            yield GivenAddress(
                IPv4Interface(str(text)), source.origin((*key, "addresses", place)).line
            )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _items(value: Any) -> Sequence[Any]:
    """Return a list as it is, and another value as a list of it."""
    if value is None:
        return ()
    return value if isinstance(value, list) else (value,)


def _is_true(value: object) -> bool:
    """Return whether netplan reads a value as true (`yes` and `on` are text in YAML 1.2)."""
    return value is True or str(value).lower() in _TRUE


COMPUTE_APPS = nvidia_smi.APPS
NETPLAN = {f"netplan {folder}": f"{folder}/*.yaml" for folder in NETPLAN_FOLDERS}

SOURCES: Mapping[str, Mapping[str, Any]] = {
    **tomllib.loads(Path(__file__).with_name("fact_sources.toml").read_text(encoding="utf-8")),
    "mesh_key": {"path": f"{paths.MESH_KEY}.pub"},
    **{name: {"tree": glob} for name, glob in NETPLAN.items()},
}
"""What the facts are made of, by name; see the file."""

COMMANDS = {
    name: tuple(tuple(each) if isinstance(each, list) else each for each in source["argv"])
    for name, source in SOURCES.items()
    if "argv" in source
}
FILES, TREES = (
    {name: str(source[kind]) for name, source in SOURCES.items() if kind in source}
    for kind in ("path", "tree")
)
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
    gids = fact_parsers.gid_indexes(
        {k: v for name in TREES for k, v in trees.get(name, {}).items()}
    )
    dpkg = (commands.get("dpkg") or {"stdout": ""})["stdout"]
    machine = answer["machine"]
    interfaces = fact_parsers.ip_addr(_out(commands, "ip"))
    hcas_of = tuple(
        replace(hca, gid_index=gids.get(hca.name))
        for hca in fact_parsers.ibdev2netdev(hcas) or fact_parsers.rdma_link(hcas)
    )
    configured = netplan_files(
        {k: v for name in NETPLAN for k, v in trees.get(name, {}).items()},
        interfaces,
        {hca.interface for hca in hcas_of},
    )
    return Facts(
        hostname=machine["hostname"],
        os=fact_parsers.os_name(files["os"]),
        kernel=machine["kernel"],
        arch=machine["arch"],
        python=machine["python"],
        cpus=machine["cpus"],
        boot_id=files["boot_id"],
        machine_id=files["machine_id"],
        memory=fact_parsers.meminfo(files["meminfo"]),
        disk_total_bytes=machine["disk_total"],
        disk_free_bytes=machine["disk_free"],
        gpu=None if smi_fails else fact_parsers.gpu(_out(commands, "gpu")),
        nvml_error=(smi["stdout"] + smi["stderr"]).strip() if smi_fails else hangs,
        dgx_version=fact_parsers.dgx_version(files["dgx"]),
        interfaces=interfaces,
        hcas=hcas_of,
        docker=_out(commands, "docker").strip() or None,
        packages=fact_parsers.dpkg(dpkg),
        held=fact_parsers.dpkg_held(dpkg),
        cmdline=files["cmdline"],
        reboot_required=answer["files"].get("reboot_required") is not None,
        host_keys=fact_parsers.public_keys(trees.get("host_keys", {}).values()),
        mesh_key=next(iter(fact_parsers.public_keys([files["mesh_key"]])), ""),
        local_ports=fact_parsers.port_range(files["local_ports"]),
        ssh_ports=fact_parsers.ssh_ports(_out(commands, "sshd"), _out(commands, "ssh_sockets")),
        given_addresses=tuple(
            given.address for d in configured.definitions if d.ours for given in d.addresses
        ),
        netplan=configured,
    )


def memory(answer: Mapping[str, Any]) -> tuple[tuple[Process, ...] | None, Memory]:
    """Processes and memory in an answer to `MEMORY`; None when nvidia-smi does not answer."""
    apps = answer["commands"]["apps"]
    known = apps is not None and apps["status"] == 0
    processes = fact_parsers.compute_apps(apps["stdout"]) if known else None
    return processes, fact_parsers.meminfo(answer["files"]["meminfo"] or "")


def _out(commands: Mapping[str, Any], name: str) -> str:
    done = commands.get(name)
    return str(done["stdout"]) if done is not None and done["status"] == 0 else ""
