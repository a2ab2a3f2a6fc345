"""doctor on real nodes: trouble that the lab can produce is found, and none that is not there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import program
import pytest
from cases import cases
from commandline import WAIT_S, until

from spark_cluster.node import paths
from spark_cluster_lab import Lab
from spark_cluster_lab.breakage import BREAKAGES, break_, in_force, repair
from spark_cluster_lab.breakages.model import Breakage
from spark_cluster_lab.layout import IMAGE_TAG, USER

pytestmark = pytest.mark.lab

CHECKOUT = Path(__file__).parents[2]

GPU_PLAY = f"""
from spark_cluster.resources import Container


def main(play):
    ours = Container("lab-ours", "{IMAGE_TAG}", ("sleep", "infinity"), gpus="all")
    play.apply(play.nodes[0], [ours])
"""

NEEDS_SERVING = ("worker-stands-still", "firewall-flushed")


def spark(*words: str, timeout: float = WAIT_S) -> subprocess.CompletedProcess[str]:
    """`spark-cluster -i lab ...`, as a user runs it."""
    argv = [sys.executable, "-m", "spark_cluster", "-i", "lab", *words]
    return subprocess.run(
        argv, cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=timeout
    )


def doctor(*words: str) -> tuple[int, dict[tuple[str, str], str]]:
    """Exit status, and (check, node) to status of all that is not ok."""
    done = program.run("-i", "lab", "doctor", "--json", *words, cwd=CHECKOUT)
    assert done.stdout, done.stderr
    checks = json.loads(done.stdout)["checks"]
    assert set(checks[0]) >= {"id", "node", "status", "found", "cause", "fix"}
    told = {(c["id"], c["node"]): f"{c['status']}: {c['found']}" for c in checks}
    return done.returncode, {k: v for k, v in told.items() if not v.startswith("ok")}


@pytest.fixture(scope="module")
def ready(lab: Lab) -> Iterator[Lab]:
    """Fresh nodes, provisioned."""
    lab.up(2, fresh=True)
    lab.trust()
    done = spark("provision", timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
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


def test_provisioned_nodes_give_no_alarm(ready: Lab) -> None:
    status, problems = doctor()
    assert problems == {}
    assert status == 0


def test_nothing_of_a_healthy_link_is_taken_for_trouble(ready: Lab) -> None:
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
def test_what_is_broken_is_found_and_repaired(ready: Lab, broken: list[Breakage]) -> None:
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


def test_a_user_who_logs_as_the_kernel_is_not_believed(ready: Lab) -> None:
    """P09: under its name and facility, by syslog and by the journal's own socket."""
    node = ready.nodes[0]
    said = "pcieport 0000:00:00.0: AER: Uncorrectable (Fatal) error message received from 0000:01"
    node.ssh(["logger", "-t", "kernel", "-p", "kern.crit", said])
    node.ssh(f"echo '{said}' | systemd-cat -t kernel -p crit")
    until(lambda: node.run(["journalctl", "-t", "kernel"]).stdout.count("(Fatal)") == 2)
    assert doctor("--only", "kernel")[1] == {}


def test_semaphores_outlive_the_session_of_their_user(ready: Lab) -> None:
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


def test_break_and_repair_as_commands(ready: Lab) -> None:
    done = spark("lab", "break", "memory-low", "spark2")
    assert done.returncode == 0, done.stderr
    assert "spark-cluster -i lab doctor finds it" in done.stdout
    listed = json.loads(spark("--json", "lab", "break", "--list").stdout)["breakages"]
    assert [b["broken"] for b in listed if b["name"] == "memory-low"] == [["spark2"]]
    assert ("memory.available", "spark2") in doctor()[1]
    assert spark("lab", "repair", "memory-low").stdout == "memory-low on spark2\n"
    assert spark("lab", "repair").stdout == "nothing was broken\n"
    assert spark("lab", "break", "memry-low").returncode == 2


@pytest.mark.parametrize(
    "broken",
    [name for name, one in BREAKAGES.items() if one.probed and name not in NEEDS_SERVING],
    indirect=True,
)
def test_what_only_traffic_shows(ready: Lab, broken: list[Breakage]) -> None:
    wanted = {check for breakage in broken for check in breakage.probed}

    def found() -> bool:
        status, problems = doctor("--probe")
        wrong = {id for (id, _), text in problems.items() if not text.startswith("unknown")}
        return status == 5 and wanted <= wrong

    until(found, what=f"finding {wanted}")


def test_fixes_are_commands_that_repair(ready: Lab) -> None:
    """The fix that doctor names for drift of ours is `provision`, and that repairs it."""
    for name in ("mtu", "earlyoom-off", "no-names"):
        assert spark("lab", "break", name).returncode == 0
        checks = json.loads(spark("doctor", "--json").stdout)["checks"]
        found = [c for c in checks if c["id"] in BREAKAGES[name].finds and c["status"] != "ok"]
        assert found, name
        command = re.search(r"spark-cluster (provision(?: --[a-z]+ [^\s;]+)+)", found[0]["fix"])
        assert command, found[0]["fix"]
        done = spark(*command[1].split(), timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
    no_alarm()
    repair(ready)


def test_a_reload_of_systemd_leaves_the_gpu_to_containers(ready: Lab, tmp_path: Path) -> None:
    """P04: to ours, by their rules; to others, as systemd is told of them before we change things.

    `gpu-lost` is what a reload does to a container that has the GPU from the toolkit's hook.
    """
    node = ready.node("spark1")
    (tmp_path / "gpu.py").write_text(GPU_PLAY)
    check = ("serving.gpu-access", "spark1")
    lost = "fail: vllm-gpu-lost: started with the GPU, and may not open it"
    try:
        assert spark("lab", "break", "gpu-lost").returncode == 0
        assert doctor()[1][check] == lost
        done = spark("playbook", str(tmp_path / "gpu.py"), "--limit", "spark1")
        assert done.returncode == 0, done.stdout + done.stderr
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
def test_serving_nodes_give_no_alarm_and_one_that_stands_still_does(ready: Lab) -> None:
    done = spark("up", "--tp", "2", timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        no_alarm()
        assert doctor("--probe", "--only", "serving") == (0, {})
        assert spark("lab", "break", "worker-stands-still").returncode == 0
        status, problems = doctor("--probe", "--only", "serving.completion")
        assert status == 5
        assert "/health returns 200" in problems["serving.completion", "spark1+spark2"]
        repair(ready)
    finally:
        repair(ready)
        spark("down", timeout=WAIT_S)
