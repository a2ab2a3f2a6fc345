"""Driver, kernel, container toolkit and CUDA at the versions that the inventory pins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from spark_cluster.config.facts import KnownBad, load_pins
from spark_cluster.config.schema import Schema
from spark_cluster.config.topology import Node, render
from spark_cluster.config.yamlfile import did_you_mean
from spark_cluster.errors import Refused
from spark_cluster.node import paths
from spark_cluster.resources import Command, File, Hold, Package, Reboot, Resource

TEMPLATES = Path(__file__).parent / "templates"
PINS = Path(__file__).parent / "pins.json"
PREFERENCES = paths.DRIVER_PREFERENCES
BOOTED = ("nvidia-driver-", "nvidia-kernel-", "nvidia-dkms-", "nvidia-spark-grub-", "linux-")
"""What packages are called that are in force after a reboot only."""

REBOOT_REQUIRED = "/run/reboot-required"
FIRMWARE = "firmware state"
"""Title of the reading command whose output is fwupd's list of devices."""


class Settings(Schema):
    """Settings of the role `drivers`. Without pins nothing is installed or upgraded."""

    pins: dict[str, str] = Field(default={})
    """package to version, as `apt-cache policy` shows it: nvidia-driver-580-open,
    linux-image-6.17.0-1021-nvidia, nvidia-container-toolkit, cuda-toolkit-13-0. A version may end
    in *; with * in its name a pin only tells apt what to prefer (libnvidia-*: 580.126.09*)"""
    set: str | None = None
    """pins that ship with this role, by name, added to `pins`: known-good is driver 580.142, which
    is known to be good with kernel 6.17.0-1014 (see its pins.json)"""
    hold: bool = True
    """hold the pinned packages, so that only this role changes them"""
    never: tuple[str, ...] = ("mlnx-fw-updater",)
    """packages that no upgrade may bring or change; this one flashes the ConnectX-7 and is reported
    to brick it"""
    packages: tuple[str, ...] | None = None
    """further packages, at any version; null takes rdma-core and perftest on DGX OS"""
    allow_known_bad: bool = False
    """install a pinned version that is known not to work"""
    repair: bool = True
    """install the package that repairs a known-bad combination of kernel and driver, where there is
    one"""
    firmware: Literal["report", "none"] = "report"
    """check the firmware with fwupd, where that is installed"""
    allow_reboot: bool = False
    """reboot when that is needed; `provision --allow-reboot`"""

    @field_validator("set")
    @classmethod
    def _known_set(cls, name: str | None) -> str | None:
        if name is not None and name not in load_pins(PINS).sets:
            raise ValueError(
                f"found {name!r}; {did_you_mean(name, load_pins(PINS).sets, 'pin sets')}"
            )
        return name

    @property
    def pinned(self) -> dict[str, str]:
        """The pins of the chosen set, and those of the inventory, which win."""
        chosen = load_pins(PINS).sets[self.set] if self.set is not None else {}
        return {**chosen, **self.pins}


def role(node: Node, settings: Settings) -> Iterator[Resource]:
    """Preferences, packages, holds; a reboot when they need one; the firmware's state."""
    pins = load_pins(PINS)
    if not settings.allow_known_bad:
        _must_not_be_known_bad(pins.pinned(settings.pinned, node.facts), node.name)
    yield _preferences(settings)
    packages = list(_packages(node, settings))
    if settings.repair:
        wanted = [b.install for b in pins.running(node.facts) if b.install]
        packages += [Package(name) for name in dict.fromkeys(wanted)]
    yield from packages
    yield from _holds(node, settings)
    if "mismatch" in node.facts.nvml_error:
        # Someone upgraded the driver and did not reboot; the file is removed at the next boot.
        yield File(REBOOT_REQUIRED, content="*** System restart required ***\n")
    yield Reboot(
        "what drivers ask for",
        when_changed=tuple(p for p in packages if p.package.startswith(BOOTED)),
        allowed=settings.allow_reboot,
        required=False,
    )
    if settings.firmware == "report" and "fwupd" in node.facts.packages:
        argv = ("fwupdmgr", "get-devices", "--json")
        yield Command(FIRMWARE, argv, reads=True, also_ok=(1, 2, 3))


def _must_not_be_known_bad(found: Iterable[KnownBad], node: str) -> None:
    """Refuse what is known not to work; what is only suspected may be pinned.

    Raises:
        Refused: a pin has a known issue of severity error.
    """
    for bad in found:
        from spark_cluster.issues.entries import catalogue  # slow to import, seldom needed

        issue = catalogue()[bad.issue]
        if issue.severity == "error":
            raise Refused(
                f"{bad.found}: {issue.title}: {issue.cause}",
                where=f"{node}: drivers.pins",
                hint=issue.fix_on(node),
            )


def exact(settings: Settings) -> dict[str, str]:
    """The pins that name one package; those are installed."""
    return {name: version for name, version in settings.pinned.items() if "*" not in name}


def _preferences(settings: Settings) -> File:
    return File(
        PREFERENCES,
        content=render(TEMPLATES, "apt.pref.j2", pins=settings.pinned, never=settings.never),
    )


def _packages(node: Node, settings: Settings) -> Iterator[Package]:
    for name, version in exact(settings).items():
        yield Package(name, version=version, change_held=True)
    more = settings.packages
    if more is None:
        dgx = node.facts.dgx_version is not None and node.facts.os.startswith("ubuntu")
        more = ("rdma-core", "perftest") if dgx else ()
    if more:
        yield Package(more[0], also=tuple(more[1:]))


def _holds(node: Node, settings: Settings) -> Iterator[Hold]:
    """Yield the holds; packages that are not installed are kept away by the preferences."""
    names = list(exact(settings)) if settings.hold else []
    names += [name for name in settings.never if name in node.facts.packages]
    if names:
        first, *also = dict.fromkeys(names)
        yield Hold(first, also=tuple(also))
