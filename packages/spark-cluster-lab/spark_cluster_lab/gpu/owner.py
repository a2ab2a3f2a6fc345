"""Which lab of GPUs the machine has: bridges, rules and namespaces have the same names in each.

Kept in /run, as the kernel keeps them: until the machine is switched off.
"""

from __future__ import annotations

from pathlib import Path

from spark_cluster.node import durable
from spark_cluster_lab.network import NETNS

RUN = Path("/run/spark-cluster-lab-gpus")


def lock() -> Path:
    """Return the lock of whoever changes a lab of GPUs, whatever its folder."""
    return RUN / "lock"


def recorded() -> Path | None:
    """Return the folder of the lab that the machine has; None without one."""
    try:
        text = (RUN / "owner").read_text().strip()
    except FileNotFoundError:
        return None
    return Path(text) if text else None


def other(state: Path) -> Path | None:
    """Return the folder of another lab that the machine has; None without one."""
    found = recorded()
    return found if found != state.resolve() else None


def claim(state: Path) -> None:
    """Note that the machine has the lab of this folder."""
    RUN.mkdir(exist_ok=True)
    durable.write_file(RUN / "owner", f"{state.resolve()}\n".encode())


def release() -> None:
    """Note that the machine has no lab of GPUs."""
    (RUN / "owner").unlink(missing_ok=True)


# --- network namespaces, whose names others might use too --------------------------------------


def remember(name: str) -> None:
    """Note that the lab has made a network namespace."""
    RUN.mkdir(exist_ok=True)
    durable.write_file(RUN / name, _identity(name).encode())


def is_ours(name: str) -> bool:
    """Return whether there is a namespace of that name, and it is one that the lab has made."""
    try:
        return (RUN / name).read_text() == _identity(name)
    except FileNotFoundError:
        return False


def forget(name: str) -> None:
    """Note that the lab's namespace of that name is gone."""
    (RUN / name).unlink(missing_ok=True)


def _identity(name: str) -> str:
    about = (NETNS / name).stat()
    return f"{about.st_dev} {about.st_ino}\n"
