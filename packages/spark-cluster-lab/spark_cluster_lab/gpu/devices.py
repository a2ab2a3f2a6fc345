"""The GPUs of this machine, and the device files that a node with one of them needs."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from spark_cluster.errors import Failed, UsageError
from spark_cluster_lab.machine import which
from spark_cluster_lab.shell import run

QUERY = ("index", "uuid", "pci.bus_id", "name", "memory.total")
DEV = Path("/dev")
DEVICES = Path("/proc/devices")
DRIVER = Path("/proc/driver/nvidia/gpus")
OWN_FILE = re.compile(r"nvidia\d+")
"""The device file of one GPU; the other nvidia* files are of all."""

NEEDED = ("nvidiactl", "nvidia-uvm")
ANSWERS_WITHIN_S = 60.0


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine.

    Attributes:
        index: as nvidia-smi counts them.
        minor: the number in the name of its device file.
        memory_mib: of its own; None where it shares the machine's.
    """

    index: int
    minor: int
    uuid: str
    bus_id: str
    name: str
    memory_mib: int | None

    @property
    def device(self) -> str:
        """Return the name of its file in /dev."""
        return f"nvidia{self.minor}"

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return asdict(self)


def parse(printed: str, driver: Path = DRIVER) -> list[Gpu]:
    """Return the GPUs in the lines of `nvidia-smi --query-gpu` without header and units."""
    found = []
    for line in printed.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) != len(QUERY) or not words[0].isdigit():
            continue
        index, uuid, bus_id, name, memory = words
        minor = device_minor(bus_id, driver)
        mib = int(memory) if memory.isdigit() else None
        found.append(
            Gpu(int(index), int(index) if minor is None else minor, uuid, bus_id, name, mib)
        )
    return found


def device_minor(bus_id: str, driver: Path = DRIVER) -> int | None:
    """Return the driver's number for a GPU; None where the driver does not say it.

    nvidia-smi writes the PCI domain with 8 digits, the driver's folder with 4.
    """
    folder = driver / re.sub(r"^0000(?=[0-9A-Fa-f]{4}:)", "", bus_id).lower()
    try:
        text = (folder / "information").read_text()
    except OSError:
        return None
    found = re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else None


def gpus() -> list[Gpu]:
    """Return the GPUs of this machine.

    Raises:
        UsageError: there is none, or no nvidia-smi.
    """
    program = which("nvidia-smi")
    if program is None:
        raise UsageError(
            "a lab of GPUs needs an NVIDIA GPU: this machine has no nvidia-smi",
            hint="install the driver, or put the folder of nvidia-smi into PATH; "
            "without a GPU, `spark-cluster lab up` simulates Sparks",
        )
    argv = [program, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    done = run(argv, check=False, timeout=ANSWERS_WITHIN_S)
    found = parse(done.stdout)
    if done.returncode or not found:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise UsageError(
            f"a lab of GPUs needs an NVIDIA GPU: nvidia-smi shows none ({said[0][:200]})"
            if said
            else "a lab of GPUs needs an NVIDIA GPU: nvidia-smi shows none",
            hint="`nvidia-smi -L` must list one",
        )
    return found


def assign(found: list[Gpu], nodes: int | None, *, share: bool = False) -> list[Gpu]:
    """Return the GPU of each node: the first ones, and in turns where nodes share.

    Args:
        nodes: how many; None: one for each GPU.
        share: nodes may have the same GPU.

    Raises:
        UsageError: there are more nodes than GPUs, and they may not share.
    """
    count = len(found) if nodes is None else nodes
    if count > len(found) and not share:
        there = "1 GPU" if len(found) == 1 else f"{len(found)} GPUs"
        raise UsageError(
            f"--nodes {count}: this machine has {there}, and each node gets one",
            hint=f"--nodes {len(found)}, or --share-gpu for nodes that share a GPU and its memory",
        )
    return [found[number % len(found)] for number in range(count)]


def make_uvm(dev: Path, known: Path = DEVICES) -> None:
    """Make the files of unified memory, as the first program that uses CUDA would; nodes cannot.

    Their major number is the kernel's choice.
    """
    if program := which("nvidia-modprobe"):
        run([program, "-u", "-c", "0"], check=False, timeout=ANSWERS_WITHIN_S)
    found = re.search(r"^\s*(\d+) nvidia-uvm$", known.read_text(), re.MULTILINE)
    for minor, name in enumerate(("nvidia-uvm", "nvidia-uvm-tools")):
        if found and not (dev / name).exists():
            os.mknod(dev / name, stat.S_IFCHR, os.makedev(int(found[1]), minor))
            (dev / name).chmod(0o666)


def device_files(gpu: Gpu, dev: Path = DEV) -> list[str]:
    """Return the names in /dev that a node with that GPU gets.

    Raises:
        Failed: one that it cannot do without is not there.
    """
    if not (dev / "nvidia-uvm").exists():
        make_uvm(dev)
    for name in (gpu.device, *NEEDED):
        if not (dev / name).exists():
            raise Failed(
                f"there is no {dev / name}",
                where=f"GPU {gpu.index}",
                hint="the first program that uses CUDA makes it: run one as root, "
                "or `nvidia-modprobe -u -c 0`",
            )
    names = sorted(path.name for path in dev.glob("nvidia*"))
    return [name for name in names if name == gpu.device or not OWN_FILE.fullmatch(name)]
