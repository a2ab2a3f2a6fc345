"""Two GPUs that this machine has not: device files, and an nvidia-smi that lists them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NVIDIA_SMI = """#!/usr/bin/env python3
import os, sys

GPUS = [("GPU-{0}".format(str(n) * 8), n, "00000000:0{0}:00.0".format(n + 1)) for n in (0, 1)]
here = [gpu for gpu in GPUS if os.path.exists("/dev/nvidia{0}".format(gpu[1]))]
asked = [word.split("=", 1) for word in sys.argv[1:]]
if ["-L"] in asked:
    for index, (uuid, _, _) in enumerate(here):
        print("GPU {0}: NVIDIA Fake (UUID: {1})".format(index, uuid))
for name, *rest in asked:
    if name == "--query-gpu":
        for index, (uuid, _, bus) in enumerate(here):
            known = {"index": index, "uuid": uuid, "pci.bus_id": bus, "name": "NVIDIA Fake",
                     "memory.total": 81559, "memory.used": 0, "memory.free": 81559,
                     "compute_cap": "9.0", "driver_version": "580.159.04"}
            print(", ".join(str(known.get(field, "[N/A]")) for field in rest[0].split(",")))
"""
DEVICES = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")


def why_not() -> str:
    """Return why GPUs cannot be made up here; empty when they can."""
    return "this machine has GPUs of its own" if shutil.which("nvidia-smi") else ""


@contextmanager
def fake_gpus(folder: Path) -> Iterator[Path]:
    """Make them; returns the folder with nvidia-smi, for PATH."""
    program = folder / "nvidia-smi"
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    files = [Path("/dev", name) for name in DEVICES]
    made = [file for file in files if not file.exists()]
    for file in made:
        file.touch()
    try:
        yield folder
    finally:
        for file in made:
            file.unlink()
