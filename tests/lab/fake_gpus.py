"""Two GPUs that this machine has not: device files, and an nvidia-smi that lists them."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NVIDIA_SMI = Path(__file__).parent / "programs/nvidia-smi"
DEVICES = ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")


def why_not() -> str:
    """Return why GPUs cannot be made up here; empty when they can."""
    return "this machine has GPUs of its own" if shutil.which("nvidia-smi") else ""


@contextmanager
def fake_gpus(folder: Path) -> Iterator[Path]:
    """Make them; returns the folder with nvidia-smi, for PATH."""
    shutil.copy(NVIDIA_SMI, folder)
    files = [Path("/dev", name) for name in DEVICES]
    made = [file for file in files if not file.exists()]
    for file in made:
        file.touch()
    try:
        yield folder
    finally:
        for file in made:
            file.unlink()
