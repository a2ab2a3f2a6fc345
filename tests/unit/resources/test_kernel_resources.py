"""Sysctl, KernelModule, Hostname and DiskSpace."""

import errno
from pathlib import Path

import pytest

from spark_cluster.resources import (
    DiskSpace,
    Sysctl,
)

SWAPPINESS = Sysctl("vm.swappiness", "1")
FILE = "/etc/sysctl.d/60-spark-cluster-vm.swappiness.conf"


@pytest.fixture
def kernel(node):
    node.install("kernel")
    node.put("/proc/sys/vm/swappiness", "60\n")
    node.put("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n")
    node.put("/proc/sys/kernel/hostname", "localhost\n")
    node.put("/proc/sys/kernel/osrelease", "7.0.0\n")
    node.put("/etc/hostname", "localhost\n")
    with node.state("kernel") as state:
        state["modules"] = ["nvidia-peermem", "br_netfilter"]
    return node


# -- Sysctl ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.EINVAL, "the kernel refuses the value"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "may not be written"),
    ],
)
def test_sysctl_that_cannot_be_set(kernel, monkeypatch, number, text):
    write = Path.write_text

    def refuse(path, *args, **options):
        if path.name == "swappiness":
            raise OSError(number, "no", str(path))
        return write(path, *args, **options)

    monkeypatch.setattr(Path, "write_text", refuse)
    result = kernel.apply(SWAPPINESS)
    assert f"vm.swappiness = 1: {text}" in result.error.replace("it ", "").replace(
        "the kernel's settings are ", ""
    )
    assert not kernel.path(FILE).exists()


# -- KernelModule ----------------------------------------------------------------------------------


# -- Hostname --------------------------------------------------------------------------------------


# -- DiskSpace -------------------------------------------------------------------------------------


def test_disk_space(node):
    enough = DiskSpace("/srv/models", 1e-6)
    node.must_be_ok(enough)
    node.path("/srv").mkdir()
    for result in (
        node.apply(DiskSpace("/srv/models", 9e5, purpose="the model")),
        node.check(DiskSpace("/srv/models", 9e5, purpose="the model")),
    ):
        assert result.verdict == "failed"
        assert "the disk of /srv/models has " in result.error
        assert "900000 GiB are needed for the model" in result.error
        assert "`du -xh /srv |" in result.error
