"""Real nodes on which something hangs: the lock, the limits of units, and `doctor`."""

import signal
from collections.abc import Iterator

import pytest
from commandline import CommandLine, until

from spark_cluster_lab import LabNode

pytestmark = pytest.mark.lab

STUBBORN = "trap '' TERM; while :; do sleep 993; done"
PLAY = """
def main(play):
    play.apply(play.nodes, [{resource}])
"""


@pytest.fixture(autouse=True)
def tidy(spark1: LabNode) -> Iterator[None]:
    """No stand-in that hangs, and nothing of what was started."""
    yield
    spark1.run(["umount", "-q", "/usr/bin/nvidia-smi"], check=False)
    spark1.run(["rm", "-f", "/run/hangs"])
    for pid in stubborn(spark1).split():
        spark1.run(["kill", "-9", pid], check=False)


def stubborn(node: LabNode) -> str:
    """Return the processes of the command that ignores SIGTERM."""
    return node.run(["pgrep", "-f", "sleep 99[3]"], check=False).stdout.strip()


def units(node: LabNode) -> set[str]:
    return set(node.run(["ls", "/var/lib/spark-cluster/units"], check=False).stdout.split())


def lock_is_free(node: LabNode) -> bool:
    argv = ["flock", "-n", "/run/spark-cluster/locks/run", "true"]
    return node.run(argv, check=False).returncode == 0


def words(user: CommandLine, resource: str) -> tuple[str, ...]:
    return ("playbook", user.playbook(PLAY.format(resource=resource)), "--limit", "spark1")


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.soak), signal.SIGINT]
)
def test_a_laptop_that_is_gone_frees_the_node(user, spark1, number):
    """Killed, suspended (the connection stays), interrupted; with the limits as they ship.

    A suspended one takes as long as the node waits for a silent laptop; so does one whose cable is
    out, in test_faults.py, and short limits are in tests/process/agent/test_laptop_gone.py.
    """
    run = words(user, f'Command("stubborn", ("sh", "-c", {STUBBORN!r}), creates="/none")')
    started = user.start(*run)
    until(lambda: stubborn(spark1), what="the command")
    assert not lock_is_free(spark1)
    started.process.send_signal(number)
    until(lambda: lock_is_free(spark1), what="the node's lock")
    until(lambda: not stubborn(spark1), what="the end of the command")
    started.process.kill()
    started.process.communicate()
    assert user.json(*words(user, 'Command("true", ("true",), reads=True)'))["ok"]


def test_the_limit_of_a_unit_ends_all_of_it(user, spark1):
    """Also what took a session of its own and does not take SIGTERM."""
    script = "trap '' TERM; (setsid sleep 993 &) ; while :; do sleep 993; done"
    resource = f'Command("long", ("sh", "-c", {script!r}), creates="/none", long=True, timeout_s=5)'
    before = units(spark1)  # others may have left the result of work that no laptop asked for
    ran = user(*words(user, resource), status=1)
    assert "sh: not done after 5 s" in ran.printed
    assert not stubborn(spark1)
    assert units(spark1) <= before


def test_doctor_does_not_hang_on_a_gpu_that_does(user, spark1):
    spark1.run(["sh", "-c", 'printf "$0" > /run/hangs', f"#!/bin/sh\n{STUBBORN}\n"])
    spark1.run(["chmod", "755", "/run/hangs"])
    spark1.run(["mount", "--bind", "/run/hangs", "/usr/bin/nvidia-smi"])
    ran = user.json("--limit", "spark1", "doctor", status=5)
    (finding,) = (f for f in ran["checks"] if f["id"] == "driver.gpu-present")
    assert finding["status"] == "fail"
    assert "nvidia-smi: not done after 20 s" in finding["found"]
    assert not any("no nvidia-smi" in f["found"] for f in ran["checks"])
    assert not stubborn(spark1)
