"""doctor on real nodes: trouble that the lab can produce is found, and none that is not there."""

import json
import re
from collections.abc import Iterator
from typing import Any

import program
import pytest
from cases import cases
from commandline import CHECKOUT, CommandLine, until

from spark_cluster.node import paths
from spark_cluster_lab import Lab
from spark_cluster_lab.breakage import BREAKAGES, break_, in_force, repair
from spark_cluster_lab.breakages.model import Breakage
from spark_cluster_lab.layout import IMAGE_TAG, USER

pytestmark = pytest.mark.lab

GPU_PLAY = f"""
def main(play):
    ours = Container("lab-ours", "{IMAGE_TAG}", ("sleep", "infinity"), gpus="all")
    play.apply(play.nodes[0], [ours])
"""

NEEDS_SERVING = ("worker-stands-still", "firewall-flushed")


def findings(*words: str) -> tuple[int, list[dict[str, str]]]:
    """Exit status and checks of `doctor`."""
    done = program.run("-i", "lab", "doctor", "--json", *words, cwd=CHECKOUT)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["checks"]


def doctor(*words: str) -> tuple[int, dict[tuple[str, str], str]]:
    """Exit status, and (check, node) to status of all that is not ok."""
    status, checks = findings(*words)
    assert set(checks[0]) >= {"id", "node", "status", "found", "cause", "fix"}
    told = {(c["id"], c["node"]): f"{c['status']}: {c['found']}" for c in checks}
    return status, {k: v for k, v in told.items() if not v.startswith("ok")}


@pytest.fixture(scope="module")
def ready(lab: Lab, user: CommandLine) -> Iterator[Lab]:
    """Fresh nodes, provisioned."""
    lab.up(2, fresh=True)
    lab.trust()
    user("provision", timeout=1200)
    yield lab
    repair(lab)


@pytest.fixture
def broken(ready: Lab, request: pytest.FixtureRequest) -> Iterator[list[Breakage]]:
    """The nodes broken as the parameter says (one name or several), and repaired afterwards."""
    names = request.param if isinstance(request.param, tuple) else (request.param,)
    for name in names:
        break_(ready, name)
    yield [BREAKAGES[name] for name in names]
    repair(ready)


def no_alarm() -> None:
    """Wait until what was changed shows (carriers, addresses, units) and doctor finds nothing."""
    problems: Any = None

    def quiet() -> bool:
        nonlocal problems
        problems = doctor()[1]
        return problems == {}

    try:
        until(quiet)
    except AssertionError:
        raise AssertionError(problems) from None


def test_provisioned_nodes_give_no_alarm(ready):
    status, problems = doctor()
    assert problems == {}
    assert status == 0


def test_nothing_of_a_healthy_link_is_taken_for_trouble(ready):
    status, problems = doctor("--probe", "--only", "link")
    assert not [text for text in problems.values() if not text.startswith("unknown")]
    assert ("link.full-size-ping", "spark1+spark2") not in problems
    assert status == 0


TOGETHER = (
    tuple(name for name in BREAKAGES if name.startswith("log-")),
    *map(tuple, cases(__file__, "together.json")),
)
"""Breakages that leave each other alone, so that one look finds them all."""

SINGLE = tuple(
    name
    for name, one in BREAKAGES.items()
    if one.finds and name not in NEEDS_SERVING and not any(name in group for group in TOGETHER)
)


@pytest.mark.parametrize(
    "broken", [*TOGETHER, *SINGLE], indirect=True, ids=lambda p: p if isinstance(p, str) else p[0]
)
def test_what_is_broken_is_found_and_repaired(ready, broken):
    wanted = {check for breakage in broken for check in breakage.finds}
    assert set(in_force(ready)) == {breakage.name for breakage in broken}
    missed: set[str] = set()

    def found() -> bool:
        missed.clear()
        missed.update(wanted - {id for id, _ in doctor()[1]})
        return not missed

    until(found, what=f"finding {wanted}")
    repair(ready)
    assert in_force(ready) == {}
    no_alarm()


def test_a_user_who_logs_as_the_kernel_is_not_believed(ready):
    """P09: under its name and facility, by syslog and by the journal's own socket."""
    node = ready.nodes[0]
    said = "pcieport 0000:00:00.0: AER: Uncorrectable (Fatal) error message received from 0000:01"
    node.ssh(["logger", "-t", "kernel", "-p", "kern.crit", said])
    node.ssh(f"echo '{said}' | systemd-cat -t kernel -p crit")
    until(lambda: node.run(["journalctl", "-t", "kernel"]).stdout.count("(Fatal)") == 2)
    assert doctor("--only", "kernel")[1] == {}


def test_semaphores_outlive_the_session_of_their_user(ready):
    """P02: after `provision`; without its drop-in logind deletes them."""
    node = ready.nodes[0]

    def log_in_and_out() -> bool:
        node.ssh("touch /dev/shm/sem.lab")
        until(lambda: USER not in node.run(["loginctl", "list-users"]).stdout)
        return node.run(["test", "-e", "/dev/shm/sem.lab"], check=False).returncode == 0

    assert log_in_and_out()
    node.run(["mv", paths.LOGIND, "/root/kept.conf"])
    node.run(["systemctl", "reload", "systemd-logind"])
    try:
        assert not log_in_and_out()
    finally:
        node.run(["mv", "/root/kept.conf", paths.LOGIND])
        node.run(["systemctl", "reload", "systemd-logind"])


def test_break_and_repair_as_commands(ready, user):
    done = user("lab", "break", "memory-low", "spark2")
    assert "spark-cluster -i lab doctor finds it" in done.out
    listed = user.json("lab", "break", "--list")["breakages"]
    assert [b["broken"] for b in listed if b["name"] == "memory-low"] == [["spark2"]]
    assert ("memory.available", "spark2") in doctor()[1]
    assert user("lab", "repair", "memory-low").out == "memory-low on spark2\n"
    assert user("lab", "repair").out == "nothing was broken\n"
    user("lab", "break", "memry-low", status=2)


@pytest.mark.parametrize(
    "broken",
    [name for name, one in BREAKAGES.items() if one.probed and name not in NEEDS_SERVING],
    indirect=True,
)
def test_what_only_traffic_shows(ready, broken):
    wanted = {check for breakage in broken for check in breakage.probed}

    def found() -> bool:
        status, problems = doctor("--probe")
        wrong = {id for (id, _), text in problems.items() if not text.startswith("unknown")}
        return status == 5 and wanted <= wrong

    until(found, what=f"finding {wanted}")


def test_fixes_are_commands_that_repair(ready, user):
    """The fix that doctor names for drift of ours is `provision`, and that repairs it."""
    for name in ("mtu", "earlyoom-off", "no-names"):
        user("lab", "break", name)
        _, checks = findings()
        found = [c for c in checks if c["id"] in BREAKAGES[name].finds and c["status"] != "ok"]
        assert found, name
        command = re.search(r"spark-cluster (provision(?: --[a-z]+ [^\s;]+)+)", found[0]["fix"])
        assert command, found[0]["fix"]
        user(*command[1].split())
    no_alarm()
    repair(ready)


def test_a_reload_of_systemd_leaves_the_gpu_to_containers(ready, user):
    """P04: to ours, by their rules; to others, as systemd is told of them before we change things.

    `gpu-lost` is what a reload does to a container that has the GPU from the toolkit's hook.
    """
    node = ready.node("spark1")
    check = ("serving.gpu-access", "spark1")
    lost = "fail: vllm-gpu-lost: started with the GPU, and may not open it"
    try:
        user("lab", "break", "gpu-lost")
        assert doctor()[1][check] == lost
        user("playbook", user.playbook(GPU_PLAY), "--limit", "spark1")
        for _ in range(2):
            assert check not in doctor()[1]
            node.run(["systemctl", "daemon-reload"])
        BREAKAGES["gpu-lost"].act(node)
        assert doctor()[1][check] == lost, "it is another container now; ours keeps it"
        node.run(["docker", "restart", "-t", "0", "vllm-gpu-lost"])
        assert check not in doctor()[1]
    finally:
        node.run(["docker", "rm", "-f", "lab-ours"], check=False)
        repair(ready)


@pytest.mark.soak
def test_serving_nodes_give_no_alarm_and_one_that_stands_still_does(ready, user):
    user("up", "--tp", "2")
    try:
        no_alarm()
        assert doctor("--probe", "--only", "serving") == (0, {})
        user("lab", "break", "worker-stands-still")
        status, problems = doctor("--probe", "--only", "serving.completion")
        assert status == 5
        assert "/health returns 200" in problems["serving.completion", "spark1+spark2"]
        repair(ready)
    finally:
        repair(ready)
        user("down")
