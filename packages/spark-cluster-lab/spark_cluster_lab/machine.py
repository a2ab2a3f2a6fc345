"""The machine that the lab runs on: what it must be, its package mirror, its name server."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spark_cluster.errors import Failed, UsageError
from spark_cluster_lab.shell import output, run

Progress = Callable[[str], None]

TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "iptables": "iptables",
    "iptables-save": "iptables",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "nsenter": "util-linux",
    "setsid": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "umount": "mount",
    "mkfs.ext4": "e2fsprogs",
    "tar": "tar",
    "dpkg-deb": "dpkg",
}
"""Every program that the lab calls on this machine, and the package that has it."""

TEST_TOOLS = {
    "sshd": "openssh-server",
    "ssh-agent": "openssh-client",
    "ssh-add": "openssh-client",
    "zstd": "zstd",
    "haproxy": "haproxy",
    "openssl": "openssl",
    "curl": "curl",
    "nft": "nftables",
    "docker-registry": "docker-registry",
    "git": "git",
    "zsh": "zsh",
    "fish": "fish",
    "chromium": "chromium",
}
"""What the tests call beyond that. Installed, but neither started nor enabled."""

DEBIAN_ONLY = {"chromium"}
"""Packages that Ubuntu has as snaps only; tests that want their programs are skipped without."""

TEST_SERVICES = {
    "openssh-server": ("ssh.service", "ssh.socket"),
    "haproxy": ("haproxy.service",),
    "docker-registry": ("docker-registry.service",),
}

STAY_OFF = {"SYSTEMD_OFFLINE": "1", "RUNLEVEL": "1", "PREVLEVEL": "N"}
"""Has apt install servers without starting them, which would open this machine to the network:
systemctl starts nothing (systemd's ENVIRONMENT.md), and invoke-rc.d takes the runlevel for that of
one user (runlevel(8)). Unlike a policy-rc.d, nothing of it is left where the installation is
killed."""

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KEYRINGS = {
    "debian": Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    "ubuntu": Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg"),
}
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


def require_root_on_linux() -> None:
    """Raises:
    UsageError: the lab cannot work here.
    """
    if sys.platform != "linux":
        raise UsageError(
            f"the lab needs Linux (this is {platform.system()})",
            hint="Run it on a Linux machine; everything but `lab` works from here.",
        )
    if os.geteuid() != 0:
        raise UsageError(
            "the lab needs root: it boots systems and makes network namespaces",
            hint="Run the same command with sudo.",
        )


def missing_packages(*, tests: bool = False) -> list[str]:
    """Packages that the lab (with `tests`, also the tests) needs and this machine lacks."""
    tools = TOOLS | TEST_TOOLS if tests else TOOLS
    missing = {package for tool, package in tools.items() if not which(tool)}
    if missing & DEBIAN_ONLY and not _is_debian():
        missing -= DEBIAN_ONLY
    return sorted(missing)


def _is_debian() -> bool:
    try:
        return platform.freedesktop_os_release().get("ID") == "debian"
    except OSError:
        return False


def which(tool: str) -> str | None:
    """Return where a program is; a user's PATH may leave out the folders of administration."""
    return shutil.which(tool) or shutil.which(tool, path=SYSTEM_PATH)


def install_missing_tools(progress: Progress, *, tests: bool = False) -> None:
    """Install what the lab needs from the machine's own packages.

    Raises:
        UsageError: this machine has no apt.
        Failed: apt could not install them.
    """
    missing = missing_packages(tests=tests)
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise UsageError(
            f"the lab needs {', '.join(missing)}", hint="Install them with this machine's packages."
        )
    progress(f"installing on this machine: {' '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-q"], env=environment)
    install = ["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing]
    services = [unit for package in missing for unit in TEST_SERVICES.get(package, ())]
    run(install, env={**environment, **STAY_OFF} if services else environment)
    if services and shutil.which("systemctl"):
        run(["systemctl", "--quiet", "disable", *services], check=False)


@dataclass(frozen=True)
class Distribution:
    """A Debian or Ubuntu release, and where this machine gets its packages from."""

    family: str
    release: str
    mirror: str
    security_mirror: str

    @property
    def keyring(self) -> Path:
        return KEYRINGS[self.family]

    @property
    def components(self) -> str:
        return "main" if self.family == "debian" else "main universe"

    def sources(self) -> str:
        """The node's apt sources, in deb822 form."""
        blocks = [(self.mirror, f"{self.release} {self.release}-updates")]
        if self.security_mirror:
            blocks.append((self.security_mirror, f"{self.release}-security"))
        return "\n".join(
            f"Types: deb\nURIs: {uri}\nSuites: {suites}\nComponents: {self.components}\n"
            f"Signed-By: {self.keyring}\n"
            for uri, suites in blocks
        )

    def at(self, release: str) -> Distribution:
        return Distribution(self.family, release, self.mirror, self.security_mirror)


def this_distribution() -> Distribution:
    """Return this machine's distribution, from os-release and its apt configuration."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    family, codename = release.get("ID", ""), release.get("VERSION_CODENAME", "")
    if family not in KEYRINGS or not codename:
        raise UsageError(
            f"the lab runs on Debian and Ubuntu (this is {release.get('PRETTY_NAME', 'neither')})"
        )
    targets = output(["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)"])
    mirror, security = pick_mirrors(targets, codename)
    if not mirror:
        raise Failed(
            f"apt on this machine knows no mirror for {codename}",
            where="/etc/apt",
            hint="`apt-get indextargets` lists what it knows.",
        )
    return Distribution(family, codename, mirror, security)


def pick_mirrors(targets: str, codename: str) -> tuple[str, str]:
    """The sites of a release and of its security updates, from lines of site and suite.

    >>> pick_mirrors("http://a/debian trixie\\nhttp://a/sec trixie-security", "trixie")
    ('http://a/debian', 'http://a/sec')
    """
    sites: dict[str, str] = {}
    for line in targets.splitlines():
        site, _, suite = line.partition(" ")
        sites.setdefault(suite.strip(), site)
    return sites.get(codename, ""), sites.get(f"{codename}-security", "")


def name_servers() -> list[str]:
    """Name servers of this machine that a node can reach too (none on the loopback)."""
    for path in (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf")):
        if path.exists():
            found = re.findall(r"^nameserver\s+(\S+)", path.read_text(), re.MULTILINE)
            usable = [server for server in found if not server.startswith(("127.", "::1"))]
            if usable:
                return usable
    return []
