"""memory, power, containers, caches."""

from dataclasses import replace

import pytest
from pydantic import ValidationError
from role_samples import a_spark, ids, one

from spark_cluster.config.project import Project
from spark_cluster.config.schema import meanings

HELPER = "/usr/local/sbin/spark-drop-caches"

# --- memory -----------------------------------------------------------------------------------


def test_memory_as_it_comes(role):
    resources = role("memory", a_spark())
    assert ids(resources) == [
        "Sysctl:vm.swappiness",
        "Package:earlyoom",
        "File:/etc/default/earlyoom",
        "Service:earlyoom",
        f"File:{HELPER}",
        "File:/etc/sudoers.d/91-spark-cluster-drop-caches",
    ]
    assert one(resources, "File", "/etc/default/earlyoom").content.splitlines()[1] == (
        "EARLYOOM_ARGS=\"-r 3600 -m 2 -s 100,100 --prefer '(vllm|VLLM|ray|python3)' "
        "--avoid '(systemd|sshd|dockerd)'\""
    )
    assert one(resources, "Service").triggers() == ("File:/etc/default/earlyoom",)


def test_free_swap_masks_earlyoom_only_where_a_user_says_so(role):
    """P08: GPU memory is pinned, so that free swap stays above any percentage but 100."""
    of = {p: role("memory", a_spark(), earlyoom_swap_percent=p) for p in (80, 100)}
    options = {p: one(made, "File", "/etc/default/earlyoom").content for p, made in of.items()}
    assert " -s 80 " in options[80]
    assert " -s 100,100 " in options[100], "SIGKILL has a limit of its own, half as high"


def test_the_sudo_rule_is_for_one_command_without_arguments(role):
    rule = one(role("memory", a_spark()), "File", "/etc/sudoers.d")
    assert rule.content.splitlines()[1:] == [f'nvidia ALL=(root) NOPASSWD: {HELPER} ""']
    assert (rule.mode, rule.validate_with) == (0o440, ("visudo", "-cf", "{}"))
    helper = one(role("memory", a_spark()), "File", HELPER)
    assert (helper.mode, helper.owner) == (0o755, "root")
    assert "echo 3 > /proc/sys/vm/drop_caches" in helper.content


def test_memory_settings(role):
    nothing = {"swap": "keep", "earlyoom": False, "drop_caches": False}
    assert role("memory", a_spark(), **nothing) == []
    assert ids(role("memory", a_spark(), **nothing | {"swap": "off"})) == ["Swap:off"]
    headless = role("memory", a_spark(), **nothing, headless=True)
    assert ids(headless) == ["Command:boot into multi-user.target", "Service:display-manager"]
    assert headless[1].running is False
    assert ids(role("memory", a_spark(), **nothing, headless=False)) == [
        "Command:boot into graphical.target"
    ]


@pytest.mark.parametrize("text", ["it's", 'a"b', r"a\b", "", "a\nb"])
def test_earlyoom_is_given_no_broken_quotes(role, text):
    with pytest.raises(ValidationError):
        role("memory", a_spark(), earlyoom_avoid=text)
    assert role("memory", a_spark(), earlyoom_avoid="(^|/)(sshd|X org)$")


# --- power ------------------------------------------------------------------------------------


def test_the_clock_cap_comes_with_every_boot(role):
    unit, service, cap = role("power", a_spark())
    assert (cap.unit, cap.max_mhz) == ("spark-clock-cap", 2100)
    assert unit.path == "/etc/systemd/system/spark-clock-cap.service"
    assert "ExecStart=/usr/bin/nvidia-smi -lgc 300,2100\n" in unit.content
    assert "ExecStartPre=-/usr/bin/nvidia-smi -pm 1\n" in unit.content
    assert "WantedBy=multi-user.target" in unit.content
    assert (service.running, service.enabled) == (True, True)
    assert service.triggers() == (unit.id,)


def test_other_clocks(role):
    settings = {"min_mhz": 210, "max_mhz": 1800, "persistence": False}
    unit, _, cap = role("power", a_spark(), **settings)
    assert cap.max_mhz == 1800
    assert "-lgc 210,1800\n" in unit.content
    assert "-pm 1" not in unit.content
    with pytest.raises(ValidationError, match="above max_mhz"):
        role("power", a_spark(), min_mhz=2000, max_mhz=1000)


def test_with_a_driver_that_does_not_answer_it_is_for_the_next_boot(role):
    _, service = role("power", a_spark(gpu=None))
    assert (service.running, service.enabled) == (None, True)


def test_no_cap_any_more(role):
    service, unit = role("power", a_spark(), clock_cap=False)
    assert (service.running, service.enabled, unit.state) == (False, False, "absent")


# --- containers -------------------------------------------------------------------------------


def test_docker_as_it_comes(role):
    resources = role("containers", a_spark())
    assert ids(resources) == [
        "DiskSpace:/var/lib/docker",
        "Package:docker-ce",
        "Directory:/etc/docker",
        "JsonKeys:/etc/docker/daemon.json",
        "Service:docker",
        "Directory:/etc/systemd/logind.conf.d",
        "File:/etc/systemd/logind.conf.d/60-spark-cluster.conf",
        "Service:systemd-logind",
    ]
    assert one(resources, "JsonKeys").keys == {
        "log-driver": "json-file",
        "log-opts": {"max-size": "50m", "max-file": "3"},
    }
    made = set(one(resources, "Package").makes)
    assert {"command:docker", "unit:docker.service", "group:docker"} <= made
    docker = one(resources, "Service", "docker")
    assert docker.triggers() == ("JsonKeys:/etc/docker/daemon.json",)
    assert not docker.allow_restart
    assert {"name=^spark-vllm(-.+)?$", "name=^spark-ray$"} <= set(docker.in_use)
    assert one(role("containers", a_spark(), allow_restart=True), "Service", "docker").allow_restart


def test_logind_is_told_to_leave_semaphores_alone(role):
    """P02: without ending a session, and only where the setting does not leave it."""
    resources = role("containers", a_spark())
    drop_in, logind = one(resources, "File"), one(resources, "Service", "systemd-logind")
    assert drop_in.content.endswith("[Login]\nRemoveIPC=no\n")
    assert (logind.running, logind.reload, logind.triggers()) == (None, True, (drop_in.id,))
    assert "logind" not in str(ids(role("containers", a_spark(), keep_ipc=False)))


def test_the_group_docker_is_given_only_when_asked_for(role):
    """Its members are root on the node."""
    assert not [r for r in role("containers", a_spark()) if "User" in r.id]
    root = replace(a_spark(), user="root")
    assert not [r for r in role("containers", root, users=True) if "User" in r.id]
    user = one(role("containers", a_spark(), users=True), "User")
    assert (user.id, user.groups) == ("User:nvidia", ("docker",))
    project = Project()
    settings = project.load_role("containers").settings_model
    assert "root on the node" in meanings(settings)["users"]


@pytest.mark.parametrize(
    ("os", "packages"),
    [("debian 13", ["docker.io", "docker-cli"]), ("ubuntu 24.04", ["docker.io"])],
)
def test_docker_of_the_distribution(role, os, packages):
    node = a_spark(os=os, packages={}, dgx_version=None)
    package = one(role("containers", node), "Package")
    assert [package.package, *package.also] == packages


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        ({"docker-ce": "29"}, ["docker-ce", "nvidia-container-toolkit"]),
        ({}, ["docker.io", "nvidia-container-toolkit"]),
    ],
)
def test_the_toolkit_comes_with_docker_on_dgx_os(role, packages, expected):
    package = one(role("containers", a_spark(packages=packages)), "Package")
    assert [package.package, *package.also] == expected
    by_hand = one(role("containers", a_spark(packages=packages), packages=("podman",)), "Package")
    assert (by_hand.package, by_hand.also) == ("podman", ())


def test_data_root_and_more_keys(role):
    resources = role(
        "containers",
        a_spark(),
        data_root="/data/docker",
        daemon={"live-restore": True, "log-driver": "local"},
        min_free_gib=100,
    )
    assert (one(resources, "DiskSpace").path, one(resources, "DiskSpace").free_gib) == (
        "/data/docker",
        100,
    )
    keys = one(resources, "JsonKeys").keys
    assert keys["data-root"] == "/data/docker"
    assert (keys["live-restore"], keys["log-driver"]) == (True, "local")


def test_the_image_store_is_changed_only_when_asked(role):
    """P05: the images that are there would not be seen any more."""
    assert "features" not in one(role("containers", a_spark()), "JsonKeys").keys
    off = {"features": {"containerd-snapshotter": False}}
    resources = role("containers", a_spark(), daemon=off)
    assert one(resources, "JsonKeys").keys["features"] == off["features"]
    service = one(resources, "Service", "docker")
    assert (service.triggers(), service.allow_restart) == (
        ("JsonKeys:/etc/docker/daemon.json",),
        False,
    )


def test_nothing_but_docker(role):
    resources = role(
        "containers", a_spark(), log_max_size="", min_free_gib=0, cdi=False, keep_ipc=False
    )
    assert ids(resources) == ["Package:docker-ce", "Service:docker"]
    assert one(resources, "Service").triggers() == ()


def test_the_gpu_is_described_where_the_toolkit_has_not_done_it(role):
    with_toolkit = {"docker-ce": "29", "nvidia-container-toolkit": "1.19.0-1"}
    command = one(role("containers", a_spark(packages=with_toolkit)), "Command")
    assert command.argv[-2:] == command.unless[-2:] == ("/etc/cdi", "/var/run/cdi")
    broken = a_spark(packages=with_toolkit, gpu=None)
    assert "Command" not in str(ids(role("containers", broken))), "it would ask the driver"


# --- caches -----------------------------------------------------------------------------------


def test_caches_as_they_come(role):
    resources = role("caches", a_spark())
    assert ids(resources)[:2] == [
        "DiskSpace:/var/cache/spark-cluster/engine",
        "Directory:/var/cache/spark-cluster/engine",
    ]
    assert {d.owner for d in resources[1:]} == {"root"}


def test_caches_on_a_disk_of_their_own(role):
    resources = role(
        "caches", a_spark(), root="/data/c", mount_point="/data", owner="nvidia", min_free_gib=0
    )
    assert ids(resources)[0] == "Command:/data is mounted"
    assert resources[0].argv == ("mountpoint", "/data")
    assert resources[0].reads
    assert {d.owner for d in resources[1:]} == {"nvidia"}
