"""The base tree of a node: a small Debian or Ubuntu with systemd and sshd, as a fresh Spark has."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from spark_cluster_lab.artefact import Artefact
from spark_cluster_lab.layout import PASSWORD, USER, Layout
from spark_cluster_lab.machine import CA_BUNDLE, Distribution
from spark_cluster_lab.shell import output, run

DEBIAN_RELEASE = "trixie"
PACKAGES = [
    "systemd", "systemd-sysv", "systemd-resolved", "dbus", "openssh-server", "python3",
    "iproute2", "sudo", "netplan.io", "rsync", "ca-certificates", "iputils-ping", "curl",
    "procps", "ethtool", "iptables", "kmod", "libpam-systemd", "pciutils", "util-linux-extra",
]  # fmt: skip
ENABLED = ("systemd-networkd.service", "systemd-resolved.service", "ssh.service")
MASKED = [
    "systemd-udevd.service", "systemd-udevd-kernel.socket", "systemd-udevd-control.socket",
    "systemd-udev-trigger.service", "systemd-networkd-wait-online.service", "getty.target",
    "console-getty.service", "systemd-timesyncd.service", "apt-daily.timer",
    "apt-daily-upgrade.timer", "dpkg-db-backup.timer",
]  # fmt: skip
APT_OPTIONS = re.compile(r"^Acquire::(https?::|Check-|Retries|Languages|Max-ValidTime)")
SETUP = f"""set -eu
useradd --create-home --shell /bin/bash --uid 1000 {USER}
echo '{USER}:{PASSWORD}' | chpasswd
install -m 440 /dev/null /etc/sudoers.d/{USER}
echo '{USER} ALL=(ALL) NOPASSWD:ALL' > /etc/sudoers.d/{USER}
systemctl --quiet enable {" ".join(ENABLED)}
systemctl --quiet mask {" ".join(MASKED)}
apt-get update --quiet
apt-get clean
rm -f /etc/ssh/ssh_host_* /etc/netplan/*
ln -sf ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf
: > /etc/machine-id
"""


def base_tree(layout: Layout, machine: Distribution) -> Artefact:
    """The base tree for this machine's family."""
    distribution = machine.at(DEBIAN_RELEASE) if machine.family == "debian" else machine
    options = apt_options()
    recipe = "\n".join([*PACKAGES, SETUP, distribution.sources(), options, "2"])
    logs = layout.prepared

    def build(tree: Path) -> None:
        bootstrap(tree, distribution, PACKAGES, logs / "base.log")
        (tree / "etc/apt/apt.conf.d/90lab").write_text(options)
        (tree / "etc/dpkg/dpkg.cfg.d/lab").write_text("force-unsafe-io\n")
        (tree / "etc/environment").write_text(
            'PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"\n'
        )
        resolver = tree / "etc/resolv.conf"
        resolver.unlink(missing_ok=True)  # a link of systemd-resolved's, to nothing yet
        shutil.copyfile("/etc/resolv.conf", resolver)
        with (logs / "base.log").open("a") as log:
            log.write("-- setting up\n")
        run(["chroot", tree, "sh", "-c", SETUP], log=logs / "base.log")

    return Artefact(layout.prepared, "base", recipe, build, usual_s=40, usual_mb=310)


def bootstrap(tree: Path, source: Distribution, packages: list[str], log: Path) -> None:
    """Put a minimal system into a directory, from the mirror that this machine uses.

    What mmdebstrap mounts there is in a namespace of its own: it leaves /sys behind when something
    else, such as a program that adds up sizes, is in it at the wrong moment.
    """
    log.unlink(missing_ok=True)
    command: list[str | Path] = ["mmdebstrap", "--mode=root", "--variant=minbase"]
    command += [f"--keyring={source.keyring}", f"--include={','.join(packages)}"]
    command += [f"--aptopt={option}" for option in apt_options().splitlines()]
    command += ["--dpkgopt=force-unsafe-io", source.release, tree, "-"]
    own_mounts = ["unshare", "--mount", "--propagation", "private"]
    run([*own_mounts, *command], log=log, stdin=source.sources())
    its_own = ("apt.conf.d/99mmdebstrap", "sources.list", "sources.list.d/*")
    for path in (path for pattern in its_own for path in (tree / "etc/apt").glob(pattern)):
        path.unlink()
    (tree / "etc/dpkg/dpkg.cfg.d/99mmdebstrap").unlink(missing_ok=True)
    (tree / "etc/apt/sources.list.d" / f"{source.family}.sources").write_text(source.sources())
    keyring = tree / source.keyring.relative_to("/")
    if not keyring.exists():
        keyring.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source.keyring, keyring)
    if CA_BUNDLE.exists():
        shutil.copyfile(CA_BUNDLE, tree / CA_BUNDLE.relative_to("/"))
        local = tree / "usr/local/share/ca-certificates"
        local.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(CA_BUNDLE, local / "machine.crt")


def apt_options() -> str:
    """Settings of this machine's apt (proxies, validity) that a node needs to reach its mirror."""
    lines = output(["apt-config", "dump"]).splitlines()
    return "".join(f"{line}\n" for line in lines if APT_OPTIONS.match(line))
