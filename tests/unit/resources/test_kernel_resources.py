"""Sysctl and DiskSpace: what is no case of kinds/."""

import errno
from pathlib import Path

import pytest

from spark_cluster.resources import Sysctl


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.EINVAL, "the kernel refuses the value"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "may not be written"),
    ],
)
def test_sysctl_that_cannot_be_set(node, monkeypatch, number, text):
    node.put("/proc/sys/vm/swappiness", "60\n")
    write = Path.write_text

    def refuse(path, *args, **options):
        if path.name == "swappiness":
            raise OSError(number, "no", str(path))
        return write(path, *args, **options)

    monkeypatch.setattr(Path, "write_text", refuse)
    result = node.apply(Sysctl("vm.swappiness", "1"))
    assert "vm.swappiness = 1: " in result.error
    assert text in result.error
    assert not node.path("/etc/sysctl.d/60-spark-cluster-vm.swappiness.conf").exists()
