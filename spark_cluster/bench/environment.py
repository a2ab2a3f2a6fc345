"""Facts of nodes and images for a record that `up` does not need, asked once a server."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from spark_cluster.bench import image_pins
from spark_cluster.bench.run_folder import number, printable
from spark_cluster.engine.deployment import Server
from spark_cluster.engine.names import SERVER
from spark_cluster.errors import SparkClusterError
from spark_cluster.node.images import parse_images, question
from spark_cluster.runner.session import Session
from spark_cluster.topology import Node

ASK_S = 30.0
"""Seconds that an answer may take."""

LONGEST = 200
"""Characters of an answer that are kept."""

TRIES = 9

ROUND_TRIP = "spark_cluster.node.probes.round_trip"

VERSIONS = """\
import ctypes, importlib.metadata as metadata
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
def of_library():
    found = ctypes.c_int()
    try:
        ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(found))
    except (OSError, AttributeError):
        return ""
    code = found.value
    if code < 10000:
        return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"
nccl = next(filter(None, map(version, ("nvidia-nccl-cu13", "nvidia-nccl-cu12"))), "")
for name, found in (("torch", version("torch")), ("nccl", nccl or of_library())):
    if found:
        print(f"{name}={found}")
"""
"""Without importing torch, which takes seconds and memory next to the server. NCCL is a package
that torch has brought, or a library of the system, whose number is as NCCL_VERSION of nccl.h."""

FIRMWARE = "/sys/class/infiniband/*/fw_ver"
BIOS = {
    "vendor": "/sys/class/dmi/id/bios_vendor",
    "version": "/sys/class/dmi/id/bios_version",
    "date": "/sys/class/dmi/id/bios_date",
}


@dataclass(frozen=True)
class Firmware:
    """Firmware of a node.

    Attributes:
        link: of the ConnectX, each version once; empty when it is not known.
        bios: vendor, version and date; empty when it cannot be read.
    """

    link: str = ""
    bios: str = ""


def round_trip_ms(session: Session, url: str) -> float | None:
    """Return the median round trip from a node to a server, in ms; None when it is not known.

    Args:
        session: with the node from which the load comes.
        url: of the server.
    """
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    words = [str(parts.hostname), str(port), str(TRIES)]
    try:
        found = number(float(_output(session, words, program=ROUND_TRIP)))
    except ValueError:
        return None
    return None if found is None or found < 0 else round(found, 4)


def program_versions(session: Session, server: Server) -> dict[str, str]:
    """Return the versions of torch and NCCL that the engine's programs use, where they tell."""
    if server.runtime == "docker":
        python = ["docker", "exec", SERVER, "python3"]
    else:
        python = [f"{server.venv}/bin/python"]
    lines = (
        line.partition("=") for line in _output(session, [*python, "-c", VERSIONS]).split("\n")
    )
    return {name: _short(value) for name, _, value in lines if name in ("torch", "nccl") and value}


def repo_digest(session: Session, image_id: str, reference: str) -> str:
    """Return `NAME@sha256:...` under which a registry has an image; empty where none has it.

    Args:
        image_id: as Docker on the node names it.
        reference: under which it was started: the registry's name for it counts, not another's.
    """
    if not image_id:
        return ""
    try:
        (image,) = parse_images(_output(session, question(image_id)))
    except ValueError:  # it is not there, or Docker is down
        return ""
    return image_pins.of_repository(image.digests, reference)


def firmware(session: Session, node: Node) -> Firmware:
    """Return the firmware of a node, as far as it can be read."""
    drivers = {
        link.interface: ("ethtool", "-i", link.interface) for link in node.links if link.interface
    }
    try:
        answer = session.request(
            "gather", commands=drivers, files=BIOS, trees={"firmware": FIRMWARE}
        )
    except SparkClusterError:  # no reason not to measure
        return Firmware()
    return firmware_of(answer)


def firmware_of(answer: Mapping[str, Any]) -> Firmware:
    """Return the firmware in an answer of a node's agent."""
    versions = [str(text) for text in answer.get("trees", {}).get("firmware", {}).values()]
    if not any(text.strip() for text in versions):
        done = answer.get("commands", {}).values()
        versions = [_of_driver(one["stdout"]) for one in done if one and one["status"] == 0]
    known = sorted({_short(text) for text in versions if text.strip()})
    files = answer.get("files", {})
    bios = [_short(str(files[name])) for name in BIOS if files.get(name)]
    return Firmware(", ".join(known), " ".join(filter(None, bios)))


def _of_driver(text: str) -> str:
    """Return `28.45.4028` of `firmware-version: 28.45.4028 (NVD0000000087)`."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "firmware-version" and value.split():
            return value.split()[0]
    return ""


def _short(text: str) -> str:
    return printable(text.strip())[:LONGEST]


def _output(session: Session, argv: list[str], *, program: str = "") -> str:
    """Return what a command, or a program of ours, prints; empty when it fails."""
    with contextlib.suppress(SparkClusterError):
        done = session.run(argv, timeout=ASK_S, program=program)
        if done.status == 0:
            return done.stdout.strip()
    return ""
