"""Memory before and while weights load: what is done to it, said of it, and what ends a load."""

from collections.abc import Iterator

import pytest
from commandline import WAIT_S, CommandLine, Started, until

from spark_cluster_lab import Lab, LabNode

pytestmark = pytest.mark.lab

UP = ("up", "--tp", "2")
SETTINGS = ("drop_caches", "compact_memory")
SMALL_BLOCKS = "81231 40211 20102 9021 3021 811 120 27 5 0 0 0 0 0"
SHORT_KIB = 3_000_000
"""2.9 GiB: below where a load is ended, and above where earlyoom acts (2 % are 2.4 GiB)."""


@pytest.fixture(scope="module")
def user(user: CommandLine) -> CommandLine:
    user("provision", timeout=WAIT_S)
    return user


@pytest.fixture(autouse=True)
def as_they_were(lab: Lab) -> Iterator[None]:
    yield
    for node in lab.nodes:
        node.set_state(mem_available_kb=None, meminfo=None, free_blocks=None)


def forget(lab: Lab) -> None:
    """Have the nodes show which settings of the kernel are written from now on."""
    for node in lab.nodes:
        for name in SETTINGS:
            node.run(["sh", "-c", f"echo none > /proc/sys/vm/{name}"])


def written(lab: Lab) -> dict[str, list[str]]:
    look = "for name; do echo $(cat /proc/sys/vm/$name); done"
    asked = ["sh", "-c", look, "look", *SETTINGS]
    return {node.name: node.run(asked).stdout.split() for node in lab.nodes}


def guards(lab: Lab) -> list[str]:
    """Return the guards' units, processes and files on all nodes."""
    look = (
        "systemctl list-units --all --plain --no-legend 'spark-cluster-load-guard*'; "
        "pgrep -af '[l]oad_watch'; ls -d /run/spark-cluster/load-guard 2>/dev/null; true"
    )
    return [ln for n in lab.nodes for ln in n.run(["sh", "-c", look]).stdout.splitlines()]


def loads(user: CommandLine, lab: Lab) -> Started:
    """Begin `up`, and return when its load is guarded on both nodes."""
    user("down")
    started = user.start(*UP)

    def guarded() -> bool:  # by a unit; what makes room before it runs the same program
        assert started.process.poll() is None, started.process.communicate()
        asked = ["systemctl", "list-units", "--plain", "--no-legend", "spark-cluster-load-guard*"]
        return all(node.run(asked).stdout for node in lab.nodes)

    until(guarded, what="the load is guarded")
    return started


def container(node: LabNode, name: str) -> str:
    asked = ["docker", "container", "inspect", "-f", "{{.State.Status}} {{.RestartCount}}", name]
    return node.run(asked, check=False).stdout.strip()


def test_caches_are_dropped_before_a_fixed_share_is_served(user, lab):
    """P07: and never where it serves already; P06: fragmented memory is said before the load."""
    forget(lab)
    user(*UP, "--check")
    assert written(lab) == {"spark1": ["none"] * 2, "spark2": ["none"] * 2}
    lab.node("spark2").set_state(free_blocks=SMALL_BLOCKS)
    said = " ".join(user(*UP).printed.split())
    assert "0.0 of 1.5 GiB free memory in blocks of 16 MiB or more" in said
    assert written(lab) == {"spark1": ["3", "1"], "spark2": ["3", "1"]}
    assert guards(lab) == []
    forget(lab)
    assert user.json(*UP)["changed"] == 0
    assert written(lab) == {"spark1": ["none"] * 2, "spark2": ["none"] * 2}
    user("down")


def test_a_load_that_takes_all_memory_is_ended_with_its_reason(user, lab, spark1, spark2):
    """P06: the node answers still, and Docker does not start it again."""
    started = loads(user, lab)
    spark2.set_state(mem_available_kb=SHORT_KIB)
    said = " ".join(started.end(status=1).printed.split())
    assert "the load was ended before the node ran out of memory: 2." in said
    assert "spark2" in said
    assert container(spark2, "spark-ray").startswith("exited")
    assert container(spark1, "spark-vllm").startswith("exited")
    assert guards(lab) == []
    user("down")


def test_a_load_without_a_laptop_is_guarded_and_down_leaves_nothing(user, lab):
    """P06: neither process, unit nor file."""
    started = loads(user, lab)
    started.process.kill()
    started.process.communicate()
    log = lab.node("spark1").run(["docker", "logs", "spark-vllm"])
    loaded = "startup complete" in log.stdout + log.stderr  # a small model is fast
    assert guards(lab) or loaded, log.stdout + log.stderr
    user("down")
    until(lambda: not guards(lab), what="the guards have ended")
