"""What a container of ours may do, whatever its image and whatever runs in it.

Of Docker's fourteen default capabilities an engine needs one: root in the container reads models
and writes folders that belong to other users (DAC_OVERRIDE). RDMA locks memory (IPC_LOCK), which
Docker does not give by itself. Tried with vLLM and Ray over two nodes in the lab.
"""

from __future__ import annotations

READ_OTHERS = "DAC_OVERRIDE"
ENGINE = (READ_OTHERS, "IPC_LOCK")
"""Capabilities of an engine's container."""

DROPPED = ("ALL",)
SECURITY = ("no-new-privileges",)
"""Values of `--cap-drop` and `--security-opt`."""


def options(*capabilities: str) -> tuple[str, ...]:
    """Return the options of `docker run` that leave a container these capabilities only."""
    return (
        *(word for one in DROPPED for word in ("--cap-drop", one)),
        *(word for one in capabilities for word in ("--cap-add", one)),
        *(word for one in SECURITY for word in ("--security-opt", one)),
    )
