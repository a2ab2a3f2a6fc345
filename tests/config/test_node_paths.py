"""Which folders of a node a container may have."""

from __future__ import annotations

import pytest

from spark_cluster.config.node_paths import why_no_data, why_refused

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
    "/var/lib/cloud/scripts/per-boot",
    "/var/lib/kubelet",
    "/var/lib/NetworkManager",
    "/var/lib/systemd/credential.secret",
    "/var/backups",
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


READ_ONLY = (
    "/usr",
    "/usr/local/cuda",
    "/lib",
    "/etc/localtime",
    "/bin",
    "/var/lib/dpkg",
    "/var/cache",
    "/var/cache/apt/archives",
    "/var/lib/snapd",
    "/snap",
    "/opt",
    "/opt/cni/bin",
)


@pytest.mark.parametrize("path", READ_ONLY)
def test_allowed_to_be_read(path: str) -> None:
    assert not why_refused(path, read_only=True)
    assert why_refused(path, read_only=False)


DATA = (
    "/srv",
    "/srv/models/google--gemma-4-31B-it",
    "//srv//models/",
    "/data",
    "/data/hf",
    "/ai/vllm-cache",
    "/models",
    "/mnt/nvme/models",
    "/media/me/disk",
    "/opt/vllm",
    "/tmp/x",
    "/var/tmp/x",
    "/var/lib/models",
    "/var/cache/huggingface",
    "/var/cache/spark-cluster/engine",
    "/home/me/models",
    "/home/me/.cache/huggingface",
    "/root/.cache/huggingface",
    "~/models",
    "$HOME/.cache/vllm",
    "/dev/shm",
    "/dev/infiniband",
)
NO_DATA = (
    "/",
    "/mnt",
    "/media",
    "/opt",
    "/tmp",
    "/var/tmp",
    "/var/cache",
    "/var/cache/apt/archives",
    "/var/cache/ldconfig",
    "/var/lib/dpkg/info",
    "/var/lib/cloud/scripts/per-boot",
    "/var/lib/whatever",
    "/var/log",
    "/snap",
    "/nowhere",
    "/etcetera",
    "/srvs",
    "/home",
    "/home/me",
    "/home/me/.ssh",
    "/home/me/.cache",
    "/home/me/.cache/pip",
    "/home/me/bin",
    "/srv/../var/lib/dpkg",
    "/srv/home/me/.ssh",
    "/data/docker",
    "/mnt/nvme/docker/overlay2",
    "/opt/cni/bin",
    "/usr/local",
)


@pytest.mark.parametrize("path", DATA)
def test_a_folder_for_data(path: str) -> None:
    assert not why_no_data(path)


@pytest.mark.parametrize("path", NO_DATA)
def test_no_folder_for_data(path: str) -> None:
    assert why_no_data(path)


@pytest.mark.parametrize("path", ["/nowhere", "/nowhere/sub", "//nowhere/", "/data/docker/x"])
def test_a_folder_that_was_named(path: str) -> None:
    assert not why_no_data(path, ("/nowhere/", "/data/docker"))


@pytest.mark.parametrize("path", ["/nowhere/../etc", "/nowheres", "/", "/no"])
def test_not_what_is_next_to_it(path: str) -> None:
    assert why_no_data(path, ("/nowhere",))
