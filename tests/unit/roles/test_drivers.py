"""drivers: pins, holds, what is known to be bad, a reboot only for what needs one."""

import pytest
from role_samples import a_spark, one

from spark_cluster.config.facts import Gpu, awaiting_reboot, load_pins
from spark_cluster.config.project import Project

DRIVER, VERSION = "nvidia-driver-580-open", "580.142-0ubuntu1"
KNOWN = load_pins(Project().find("roles", "drivers") / "pins.json")


@pytest.mark.parametrize("name", sorted(KNOWN.sets))
def test_sets_that_ship_hold_nothing_known_to_be_bad(name):
    assert KNOWN.pinned(KNOWN.sets[name], a_spark(packages={}).facts) == []
    assert KNOWN.sets[name]


def test_a_kernel_that_needs_kho_off_is_repaired(role):
    node = a_spark(kernel="7.0.0-1019-nvidia", cmdline="quiet")
    assert one(role("drivers", node, packages=()), "Package").package == "nvidia-spark-grub-kho"
    assert one(role("drivers", node), "Reboot").triggers() == ("Package:nvidia-spark-grub-kho",)
    assert [b.id for b in KNOWN.running(node.facts)] == ["kernel-7.0.0-1019-kho"]
    repaired = a_spark(kernel="7.0.0-1019-nvidia", cmdline="quiet kho=off")
    assert KNOWN.running(repaired.facts) == []


def test_known_good_and_torn(role):
    assert KNOWN.known_good(a_spark().facts) == "kernel 6.17.0-1014 with driver 580.142"
    assert KNOWN.known_good(a_spark(kernel="6.11.0-1016-nvidia").facts) is None
    torn = a_spark(
        gpu=None, nvml_error="No devices were found", packages={DRIVER: "580.173.02-0ubuntu1"}
    )
    assert [b.id for b in KNOWN.running(torn.facts)] == ["driver-580.173.02-torn"]
    works = a_spark(gpu=Gpu("NVIDIA GB10", "12.1", "580.173.02"))
    assert KNOWN.running(works.facts) == []


def test_what_is_installed_but_does_not_run_yet():
    facts = a_spark(packages={DRIVER: "580.159.03-1", "linux-image-6.17.0-1021-nvidia": "1"}).facts
    wanted = {DRIVER: "580.159.03-1", "linux-image-6.17.0-1021-nvidia": "1", "other": "2"}
    assert awaiting_reboot(wanted, facts) == [
        "driver 580.142 runs, 580.159.03-1 is installed",
        "kernel 6.17.0-1014-nvidia runs, 6.17.0-1021-nvidia is installed",
    ]
    assert awaiting_reboot({DRIVER: VERSION}, a_spark(packages={DRIVER: VERSION}).facts) == []
    by_prefix = awaiting_reboot({DRIVER: "580.159*"}, facts)
    assert by_prefix == ["driver 580.142 runs, 580.159.03-1 is installed"]
