"""Names of the engine's programs: of a container, or of a unit."""

from __future__ import annotations

import re

SERVER, RAY = "spark-vllm", "spark-ray"
"""The engine's server (whatever engine it is), and Ray."""

PROGRAMS = (SERVER, RAY)

PAUSE = "spark-pause"
"""Container whose process ids Ray's head and the servers next to it share, as the containers of a
pod share those of its pause container. It ends with Ray, not with a crash of either."""

TITLE = re.compile(r"VLLM::(EngineCor|Worker)|ray::|RayWorker|sglang::")
"""Beginning of the titles of an engine's own processes, as nvidia-smi shows them."""


def server_name(instance: str = "") -> str:
    """Return the name of a server's program; of one of several models it has its instance."""
    return f"{SERVER}-{instance}" if instance else SERVER


def instance_of(name: str) -> str:
    """Return the instance that a server's program has in its name; empty for one without."""
    return name.removeprefix(SERVER).removeprefix("-")
