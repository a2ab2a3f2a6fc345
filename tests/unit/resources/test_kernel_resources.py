"""Sysctl, KernelModule, Hostname and DiskSpace."""

import errno
from pathlib import Path

import pytest

from spark_cluster.resources import (
    DiskSpace,
    Hostname,
    KernelModule,
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


def test_sysctl_now_and_at_boot_and_then_left(kernel):
    result = kernel.check(SWAPPINESS)
    assert result.verdict == "change"
    assert "+vm.swappiness = 1" in result.diff
    assert kernel.apply(SWAPPINESS).verdict == "change"
    assert kernel.path("/proc/sys/vm/swappiness").read_text() == "1\n"
    assert kernel.path(FILE).read_text().endswith("\nvm.swappiness = 1\n")
    assert kernel.apply(SWAPPINESS).verdict == "ok"


@pytest.mark.parametrize(
    ("drift", "changed"),
    [
        (("/proc/sys/vm/swappiness", "60\n"), "live"),
        ((FILE, "vm.swappiness = 60\n"), "at_boot"),
        ((FILE, "nonsense\n"), "at_boot"),
    ],
)
def test_sysctl_drift_of_either_is_repaired(kernel, drift, changed):
    kernel.apply(SWAPPINESS)
    kernel.put(*drift)
    result = kernel.apply(SWAPPINESS)
    assert set(result.event["changes"]) == {changed}
    assert kernel.apply(SWAPPINESS).verdict == "ok"


def test_sysctl_white_space_does_not_matter(kernel):
    setting = Sysctl("net.ipv4.tcp_rmem", "4096 131072  6291456")
    assert set(kernel.apply(setting).event["changes"]) == {"at_boot"}
    assert kernel.apply(setting).verdict == "ok"
    own = kernel.put("/etc/sysctl.d/10-own.conf", "net/ipv4/tcp_rmem=1\n-vm.swappiness=1")
    assert kernel.apply(setting).verdict == "ok"
    assert own.read_text().startswith("net")


def test_sysctl_with_a_dot_of_its_own(kernel):
    path = kernel.put("/proc/sys/net/ipv4/conf/eth0.10/rp_filter", "0\n")
    for setting in (
        Sysctl("net/ipv4/conf/eth0.10/rp_filter", "1"),
        Sysctl("net.ipv4.conf.eth0/10.rp_filter", "1"),
    ):
        path.write_text("0\n")
        assert kernel.apply(setting).verdict == "change"
        assert path.read_text() == "1\n"
        assert kernel.apply(setting).verdict == "ok"
        text = kernel.path(setting.file).read_text()
        assert text.endswith("net/ipv4/conf/eth0.10/rp_filter = 1\n")


def test_sysctl_that_a_later_file_overrides(kernel):
    kernel.put("/etc/sysctl.d/99-site.conf", "vm.swappiness = 60\n")
    result = kernel.apply(SWAPPINESS)
    assert "at boot /etc/sysctl.d/99-site.conf sets vm.swappiness to 60" in result.error
    assert "take that line out" in result.error
    kernel.put("/etc/sysctl.d/99-site.conf", "vm.swappiness = 1\n")
    assert kernel.apply(SWAPPINESS).verdict == "ok"
    # A file of the same name under /etc hides one of /usr/lib.
    kernel.put("/usr/lib/sysctl.d/99-vendor.conf", "vm.swappiness = 10\n")
    kernel.put("/etc/sysctl.d/99-vendor.conf", "")
    assert kernel.apply(SWAPPINESS).verdict == "ok"


def test_sysctl_that_the_kernel_does_not_have(kernel):
    result = kernel.apply(Sysctl("vm.swapiness", "1"))
    assert "the kernel has no setting vm.swapiness" in result.error
    assert "did you mean swappiness?" in result.error
    assert "kernel module" in kernel.apply(Sysctl("net.bridge.nf-call", "1")).error
    bridge = "/proc/sys/net/bridge/nf-call"
    module = KernelModule("br_netfilter", makes=(f"path:{bridge}",))
    result = kernel.check(module, Sysctl("net.bridge.nf-call", "1"))
    assert (result.verdict, result.reason) == ("unknown", "after: KernelModule:br_netfilter")


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

PEERMEM = KernelModule("nvidia-peermem")


def test_module_is_loaded_now_and_at_boot_and_then_left(kernel):
    kernel.must_change(PEERMEM)
    assert kernel.path("/sys/module/nvidia_peermem").is_dir()
    file = kernel.path("/etc/modules-load.d/60-spark-cluster-nvidia_peermem.conf")
    assert file.read_text().endswith("\nnvidia-peermem\n")
    assert kernel.apply(PEERMEM).verdict == "ok"
    file.unlink()
    assert set(kernel.apply(PEERMEM).event["changes"]) == {"at_boot"}
    kernel.path("/sys/module/nvidia_peermem").rmdir()
    assert set(kernel.apply(PEERMEM).event["changes"]) == {"loaded"}
    assert kernel.apply(PEERMEM).verdict == "ok"


def test_module_is_taken_out(kernel):
    kernel.apply(PEERMEM)
    gone = KernelModule("nvidia-peermem", loaded=False, persistent=False)
    assert [kernel.apply(gone).verdict for _ in "ab"] == ["change", "ok"]
    assert not kernel.path("/sys/module/nvidia_peermem").exists()
    kernel.apply(PEERMEM)
    with kernel.state("kernel") as state:
        state["used"] = ["nvidia-peermem"]
    assert "nvidia-peermem is in use" in kernel.apply(gone).error


def test_module_that_is_not_there_or_built_in(kernel):
    result = kernel.apply(KernelModule("mlx5_ib"))
    assert "the running kernel has no module mlx5_ib" in result.error
    assert "rebooted" in result.error
    kernel.put("/lib/modules/7.0.0/modules.builtin", "kernel/drivers/infiniband/hw/mlx5-ib.ko\n")
    assert kernel.apply(KernelModule("mlx5_ib", persistent=None)).verdict == "ok"


# -- Hostname --------------------------------------------------------------------------------------


def test_hostname_now_and_at_boot_and_then_left(kernel):
    name = Hostname("spark1")
    result = kernel.check(name)
    assert result.verdict == "change"
    assert "-localhost\n+spark1" in result.diff
    assert kernel.apply(name).verdict == "change"
    assert kernel.path("/etc/hostname").read_text() == "spark1\n"
    assert kernel.path("/proc/sys/kernel/hostname").read_text() == "spark1\n"
    assert kernel.apply(name).verdict == "ok"
    kernel.put("/etc/hostname", "# a comment\nother\n")
    assert set(kernel.apply(name).event["changes"]) == {"at_boot"}
    kernel.put("/proc/sys/kernel/hostname", "other\n")
    assert set(kernel.apply(name).event["changes"]) == {"live"}


def test_hostname_that_cannot_be_set(kernel):
    with kernel.state("kernel") as state:
        state["nameless"] = True
    assert "you must be root" in kernel.apply(Hostname("spark1")).error


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
