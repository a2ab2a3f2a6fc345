"""Docker: installed, running, with the GPU, with logs that end.

Members of the group docker are root on the node: `docker run -v /:/host` asks for no password. So
the login user is put into it only where the inventory says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from spark_cluster.config.schema import Schema
from spark_cluster.config.topology import Node
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.node import confinement, paths
from spark_cluster.resources import (
    Command,
    Directory,
    DiskSpace,
    File,
    JsonKeys,
    Package,
    Resource,
    Service,
    User,
)

DEBIAN = ("docker.io", "docker-cli")
TOOLKIT = "nvidia-container-toolkit"
DAEMON = "/etc/docker/daemon.json"
LOGIND = """\
# Managed by spark-cluster (role containers, keep_ipc): changes here are overwritten.
[Login]
RemoveIPC=no
"""
SERVING = (
    *("docker", "ps", "--format", "{{.Names}}"),
    *("--filter", f"name=^{SERVER}(-.+)?$", "--filter", f"name=^{RAY}$"),
)
"""Prints which of the engine's containers run."""


class Settings(Schema):
    """Settings of the role `containers`."""

    packages: tuple[str, ...] | None = None
    """apt packages; null takes docker-ce where it is (DGX OS ships it), else the distribution's
    docker.io, and on DGX OS nvidia-container-toolkit"""
    users: bool = False
    """put the login user into the group docker, whose members are root on the node without a
    password; nothing of ours needs it. Every login from then on is in it; a shell that is open
    already joins with `newgrp docker`"""
    log_max_size: str = "50m"
    """size of a container's log at which it is rotated; '' leaves it"""
    log_files: int = Field(default=3, ge=1)
    """number of logs kept of a container"""
    data_root: str | None = None
    """folder for images and containers, on the disk with room; null leaves it. What is in the old
    one is not moved"""
    min_free_gib: float = Field(default=5.0, ge=0)
    """GiB that must be free for images; 0 disables the check"""
    allow_restart: bool = False
    """restart Docker for new settings although that ends the engine that serves; `provision
    --allow-restart`"""
    daemon: dict[str, Any] = Field(
        default={}, description=f"more keys of {DAEMON}; existing keys that are not named stay"
    )
    cdi: bool = True
    """a CDI specification of the GPU as its driver is now, where the NVIDIA container toolkit is
    installed"""
    keep_ipc: bool = True
    """RemoveIPC=no for logind, which otherwise deletes the semaphores of a container that has --ipc
    host and a user's uid when that user logs out; false leaves it"""


def role(node: Node, settings: Settings) -> Iterator[Resource]:
    """The packages, the daemon's settings, the GPU, the service, the group."""
    first, *also = settings.packages or _packages(node)
    if settings.min_free_gib:
        folder = settings.data_root or "/var/lib/docker"
        yield DiskSpace(folder, settings.min_free_gib, purpose="container images")
    yield Package(
        first,
        also=tuple(also),
        makes=(
            "command:docker",
            "unit:docker.service",
            "group:docker",
            "path:/etc/docker",
        ),
    )
    keys = _daemon(settings)
    settled: tuple[Resource, ...] = ()
    if keys:
        yield Directory("/etc/docker")
        settled = (JsonKeys(DAEMON, keys=keys),)
        yield from settled
    if settings.cdi and TOOLKIT in node.facts.packages and node.facts.gpu is not None:
        yield _specification()
    yield Service(
        "docker",
        running=True,
        enabled=True,
        restart_when=settled,
        in_use=SERVING,
        allow_restart=settings.allow_restart,
    )
    if settings.keep_ipc:
        yield from _keep_ipc()
    if settings.users and node.user != "root":
        yield User(node.user, groups=("docker",))


def _packages(node: Node) -> tuple[str, ...]:
    if "docker-ce" in node.facts.packages:
        docker: tuple[str, ...] = ("docker-ce",)
    else:  # only Debian 13 and later split the client off
        docker = DEBIAN if node.facts.os.startswith("debian") else DEBIAN[:1]
    # Elsewhere no repository that is set up has it.
    dgx = node.facts.dgx_version is not None and node.facts.os.startswith("ubuntu")
    return (*docker, TOOLKIT) if dgx else docker


def _daemon(settings: Settings) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    if settings.log_max_size:
        rotation = {"max-size": settings.log_max_size, "max-file": str(settings.log_files)}
        keys = {"log-driver": "json-file", "log-opts": rotation}
    if settings.data_root:
        keys["data-root"] = settings.data_root
    return {**keys, **settings.daemon}


def _keep_ipc() -> Iterator[Resource]:
    """Sessions outlive a reload of logind, and a restart where it knows no reload (before 253)."""
    yield Directory(paths.LOGIND.rpartition("/")[0])
    drop_in = File(paths.LOGIND, content=LOGIND)
    yield drop_in
    yield Service("systemd-logind", running=None, restart_when=(drop_in,), reload=True)


def _specification() -> Resource:
    """Again after each change of the driver, whose libraries it names by their versions."""
    return Command(
        "describe the GPU for containers (CDI)",
        ("sh", "-c", confinement.DESCRIBE, "cdi", *confinement.FOLDERS),
        unless=("sh", "-c", confinement.DESCRIBED, "cdi", *confinement.FOLDERS),
    )
