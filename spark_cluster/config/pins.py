"""Known-good and known-bad combinations of kernel and driver: data, and what matches a node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from spark_cluster.config.facts import Facts


@dataclass(frozen=True)
class Bad:
    """A combination that is known not to work.

    Attributes:
        id: of the rule.
        issue: id of the known issue, which has its severity, cause and fix.
        found: what is asked for or runs, with its version.
        install: a package that repairs it after a reboot; empty when none does.
    """

    id: str
    issue: str
    found: str
    install: str = ""


@dataclass(frozen=True)
class Pins:
    """The known combinations of kernel and driver, as in `roles/drivers/pins.json`.

    Attributes:
        sets: pins (package to version) that go together, by the name of the set.
    """

    good: tuple[Mapping[str, Any], ...]
    rules: tuple[Mapping[str, Any], ...]
    sets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def running(self, facts: Facts) -> list[Bad]:
        """Return the known-bad versions among those that a node runs now."""
        shown = f"kernel {facts.kernel}, driver {driver(facts) or 'none'}"
        return [_bad(r, shown) for r in self.rules if "pin" not in r and _runs(r, facts)]

    def pinned(self, pins: Mapping[str, str], facts: Facts) -> list[Bad]:
        """Return the known-bad versions of those asked for; installed versions do not count."""
        found = []
        for rule in (r for r in self.rules if "pin" in r):
            for package, version in pins.items():
                fits = fnmatchcase(version, rule.get("version", "*"))
                there = facts.packages.get(package) == version
                if fnmatchcase(package, rule["pin"]) and fits and not there:
                    found.append(_bad(rule, f"{package} {version}"))
        return list(dict.fromkeys(found))

    def known_good(self, facts: Facts) -> str | None:
        """The name of the known-good combination that a node runs."""
        return next((str(good["name"]) for good in self.good if _runs(good, facts)), None)


@cache
def load(path: Path) -> Pins:
    """The data in a file."""
    data = json.loads(path.read_text())
    sets = {name: found["pins"] for name, found in data.get("sets", {}).items()}
    return Pins(tuple(data["known_good"]), tuple(data["known_bad"]), sets)


def driver(facts: Facts) -> str:
    """The driver's version: what runs, else what is installed; empty when there is none."""
    if facts.gpu is not None:
        return facts.gpu.driver
    names = sorted(name for name in facts.packages if name.startswith("nvidia-driver-"))
    return facts.packages[names[-1]] if names else ""


def waiting(pins: Mapping[str, str], facts: Facts) -> list[str]:
    """Pinned packages that are installed but not what runs; a reboot brings them into force."""
    found = []
    for package, version in pins.items():
        installed = facts.packages.get(package)
        if installed is None or not fnmatchcase(installed, version):
            continue
        upstream = installed.rpartition(":")[2]
        kernel = package.removeprefix("linux-image-")
        if package.startswith("nvidia-driver-") and facts.gpu is not None:
            if not upstream.startswith(facts.gpu.driver):
                found.append(f"driver {facts.gpu.driver} runs, {installed} is installed")
        elif kernel != package and kernel[:1].isdigit() and facts.kernel != kernel:
            found.append(f"kernel {facts.kernel} runs, {kernel} is installed")
    return found


def _runs(rule: Mapping[str, Any], facts: Facts) -> bool:
    lacking = rule.get("cmdline_lacks")
    return (
        fnmatchcase(facts.kernel, rule.get("kernel", "*"))
        and fnmatchcase(driver(facts), rule.get("driver", "*"))
        and fnmatchcase(facts.nvml_error, rule.get("nvml", "*"))
        and (lacking is None or lacking not in facts.cmdline.split())
    )


def _bad(rule: Mapping[str, Any], found: str) -> Bad:
    return Bad(rule["id"], rule["issue"], found, rule.get("install", ""))
