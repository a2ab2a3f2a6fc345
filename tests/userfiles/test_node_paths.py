"""Which folders of a node a container may have."""

from __future__ import annotations

import pytest

from spark_cluster.userfiles.node_paths import why_refused

REFUSED = (
    "/",
    "//",
    "/./",
    "/etc",
    "/etc/ssh",
    "/root",
    "/root/",
    "/root/.ssh",
    "/home",
    "/home/me",
    "/home/me/.ssh",
    "/home/./me/.aws",
    "~",
    "~/.ssh",
    "$HOME",
    "${HOME}/.ssh",
    "/var",
    "/var/lib",
    "/var/run/docker.sock",
    "/run",
    "/run/docker.sock",
    "/proc",
    "/sys",
    "/dev",
    "/dev/sda",
    "/boot",
    "/var/lib/docker",
    "/var/lib/docker/volumes",
    "/var/lib/spark-cluster",
    "/data/docker.sock",
    "/srv/../etc",
)
ALLOWED = (
    "/srv/models",
    "/opt/vllm",
    "/mnt/x",
    "/ai/models",
    "/home/me/models",
    "/root/.cache/huggingface",
    "~/models",
    "~/.cache/vllm",
    "/dev/shm",
    "/dev/infiniband",
    "/tmp",
    "/var/lib/models",
    "/etcetera",
)


@pytest.mark.parametrize("path", REFUSED)
def test_refused(path: str) -> None:
    assert why_refused(path, read_only=True)
    assert why_refused(path, read_only=False)


@pytest.mark.parametrize("path", ALLOWED)
def test_allowed(path: str) -> None:
    assert not why_refused(path, read_only=True)
    assert not why_refused(path, read_only=False)


@pytest.mark.parametrize("path", ["/usr", "/usr/local/cuda", "/lib", "/etc/localtime", "/bin"])
def test_allowed_to_be_read(path: str) -> None:
    assert not why_refused(path, read_only=True)
    assert why_refused(path, read_only=False)
