"""drivers: pins, holds, what is known to be bad, a reboot only for what needs one."""

import pytest
from pydantic import ValidationError
from role_samples import a_spark, ids, one

from spark_cluster.config.facts import Gpu, awaiting_reboot, load_pins
from spark_cluster.config.project import Project
from spark_cluster.errors import Refused

DRIVER, VERSION = "nvidia-driver-580-open", "580.142-0ubuntu1"
KNOWN = load_pins(Project().find("roles", "drivers") / "pins.json")


def test_without_pins_nothing_is_installed_on_another_system(role):
    resources = role("drivers", a_spark(os="debian 13"))
    assert ids(resources) == [
        "File:/etc/apt/preferences.d/50-spark-cluster.pref",
        "Reboot:what drivers ask for",
    ]
    assert "Package: mlnx-fw-updater\nPin: release *\nPin-Priority: -1\n" in resources[0].content


def test_dgx_os_gets_the_tools_of_the_link(role):
    package = one(role("drivers", a_spark()), "Package")
    assert (package.package, package.also) == ("rdma-core", ("perftest",))
    assert one(role("drivers", a_spark()), "Reboot").when_changed == ()


def test_pins_are_installed_held_and_reboot_when_they_must(role):
    wanted = {DRIVER: VERSION, "cuda-toolkit-13-0": "13.0.1-1", "libnvidia-*": "580.142*"}
    resources = role("drivers", a_spark(), pins=wanted, packages=(), allow_reboot=True)
    assert ids(resources) == [
        "File:/etc/apt/preferences.d/50-spark-cluster.pref",
        f"Package:{DRIVER}",
        "Package:cuda-toolkit-13-0",
        f"Hold:{DRIVER}",
        "Reboot:what drivers ask for",
    ]
    assert one(resources, "Package", DRIVER).version == VERSION
    assert one(resources, "Package", DRIVER).change_held
    assert one(resources, "Hold").also == ("cuda-toolkit-13-0",)
    reboot = one(resources, "Reboot")
    assert reboot.triggers() == (f"Package:{DRIVER}",)
    assert (reboot.allowed, reboot.required) == (True, False)
    assert "Package: libnvidia-*\nPin: version 580.142*\nPin-Priority: 1001" in resources[0].content


def test_a_set_of_pins_that_ships(role):
    resources = role("drivers", a_spark(), set="known-good", packages=())
    driver = one(resources, "Package", DRIVER)
    assert driver.version == "580.142*"
    assert one(resources, "Package", "nvidia-container-toolkit").version == "1.19.0*"
    assert "Package: libnvidia-*\nPin: version 580.142*" in resources[0].content
    own = role("drivers", a_spark(), set="known-good", pins={DRIVER: VERSION}, packages=())
    assert one(own, "Package", DRIVER).version == VERSION, "the inventory's own pin wins"
    with pytest.raises(ValidationError, match="did you mean 'known-good'"):
        role("drivers", a_spark(), set="know-good")


@pytest.mark.parametrize("name", sorted(KNOWN.sets))
def test_sets_that_ship_hold_nothing_known_to_be_bad(name):
    assert KNOWN.pinned(KNOWN.sets[name], a_spark(packages={}).facts) == []
    assert KNOWN.sets[name]


def test_what_must_never_change_is_held_where_it_is_installed(role):
    node = a_spark(packages={"mlnx-fw-updater": "1"})
    assert one(role("drivers", node, packages=()), "Hold").package == "mlnx-fw-updater"
    assert not [i for i in ids(role("drivers", node, never=())) if i.startswith("Hold")]


def test_an_upgrade_without_a_reboot_asks_for_one(role):
    node = a_spark(gpu=None, nvml_error="Failed to initialize NVML: Driver/library mismatch")
    assert one(role("drivers", node), "File", "/run/reboot-required")


def test_firmware_is_read_where_fwupd_is(role):
    node = a_spark(packages={"fwupd": "2.0.20"})
    assert one(role("drivers", node), "Command").reads
    assert "Command" not in str(ids(role("drivers", node, firmware="none")))


@pytest.mark.parametrize(
    "wanted", [{"mlnx-fw-updater": "1"}, {DRIVER: "580.173.02-0ubuntu1"}, {"nvidia-driver-*": "*"}]
)
def test_known_bad_pins(role, wanted):
    if wanted == {"nvidia-driver-*": "*"}:
        assert role("drivers", a_spark(), pins=wanted)
        return
    with pytest.raises(Refused) as caught:
        role("drivers", a_spark(), pins=wanted)
    (name,) = wanted
    assert name in caught.value.message
    assert caught.value.hint
    assert role("drivers", a_spark(), pins=wanted, allow_known_bad=True)
    assert role("drivers", a_spark(packages=wanted), pins=wanted), "what is there is left alone"


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
