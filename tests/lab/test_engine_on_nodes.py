"""The engine on real nodes: reboots, cut lines, power cuts, full disks, locks, and taking back."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from commandline import CommandLine, Started, until

from spark_cluster.runner.session import LOST_AFTER
from spark_cluster_lab import Lab, LabNode

pytestmark = pytest.mark.lab

REBOOT = """
def main(play):
    play.on_each(play.nodes, lambda node: play.apply(node, [
        File("/etc/engine-before", content="1"),
        Reboot("a test", pending_when=("/run/engine-test",), allowed=True),
        File("/etc/engine-after", content="2"),
    ], fail_fast=False))
    play.apply(play.nodes, [File("/etc/engine-later", content="3")], fail_fast=False)
"""
ONE = "\ndef main(play):\n    play.apply(play.nodes, [{resources}])\n"
SLOW = 'DPkg::Pre-Invoke {"sleep 12";};'


@pytest.fixture(autouse=True)
def tidy(lab: Lab) -> Iterator[None]:
    """Nodes that are up, without what these tests make."""

    def clean() -> None:
        for node in lab.nodes:
            node.plug()
            node.boot()
            node.run(["sh", "-c", "rm -rf /etc/engine-* /etc/apt/apt.conf.d/99engine"])

    clean()
    yield
    clean()


def boot_id(node: LabNode) -> str:
    return node.ssh("cat /proc/sys/kernel/random/boot_id").stdout


def text(node: LabNode, path: str) -> str:
    return node.run(["cat", path]).stdout


def journal(user: CommandLine) -> str:
    """The id of the last run."""
    return user.record.stem


def one(user: CommandLine, resources: str, *words: str) -> tuple[str, ...]:
    """The words that run a playbook of some resources."""
    return ("playbook", user.playbook(ONE.format(resources=resources)), *words)


def counts(document: dict[str, Any], node: str) -> tuple[int, int, int]:
    found = document["nodes"][node]
    return found["ok"], found["change"], found["failed"]


# -- reboots --------------------------------------------------------------------------------------


def test_reboot_in_the_middle_of_a_play(user, spark1, spark2):
    before = {node.name: boot_id(node) for node in (spark1, spark2)}
    for node in (spark1, spark2):
        node.run(["touch", "/run/engine-test"])
    play = user.playbook(REBOOT)
    checked = user.json("playbook", play, "--check")
    assert checked["changed"] == 8
    document = user.json("playbook", play)
    for node in (spark1, spark2):
        assert counts(document, node.name) == (0, 4, 0)
        assert boot_id(node) != before[node.name]
        assert text(node, "/etc/engine-after") == "2"
    again = user.json("playbook", play)
    assert again["changed"] == 0
    assert counts(again, "spark1") == (4, 0, 0)


# -- the line is cut while apt runs ---------------------------------------------------------------


@pytest.fixture
def slow_apt(user, spark1) -> tuple[str, ...]:
    """Words of a run that installs a package on the first node, which takes some seconds."""
    spark1.run(["apt-get", "-qq", "-y", "remove", "tree"], check=False)
    conf = f"echo '{SLOW}' > /etc/apt/apt.conf.d/99engine"
    spark1.run(["sh", "-c", conf])
    return (*one(user, 'Package("tree")'), "--limit", "spark1")


def _unit(node: LabNode) -> str:
    """The unit that apt runs in."""
    argv = ["systemctl", "list-units", "--plain", "--no-legend", "spark-cluster-*.service"]
    return node.run(argv, check=False).stdout.strip()


def _at_work(started: Started, node: LabNode) -> None:
    until(lambda: _unit(node) or started.process.poll() is not None, what="apt has its unit")
    assert started.process.poll() is None, started.process.communicate()
    time.sleep(1)


def test_ssh_cut_in_the_middle_of_an_apt_run(user, spark1, slow_apt):
    started = user.start(*slow_apt, "--json")
    _at_work(started, spark1)
    spark1.unplug()
    time.sleep(LOST_AFTER + 3)  # shorter, and TCP itself makes up for it
    spark1.plug()
    document = started.end(status=0)
    assert document.document["changed"] in (0, 1)  # the second look may find it installed
    assert "connected again" in user.record.read_text()
    assert "install ok installed" in text_of_package(spark1)


def test_a_run_that_was_killed_is_picked_up_by_the_next_one(user, spark1, slow_apt):
    before = _folders(spark1)  # of work whose node was rebooted under it, in another test
    started = user.start(*slow_apt)
    _at_work(started, spark1)
    started.process.kill()
    started.process.communicate()
    ran = user(*slow_apt)
    assert "apt-get is still running there since" in ran.printed
    assert "install ok installed" in text_of_package(spark1)
    assert _folders(spark1) == before
    assert user.json(*slow_apt)["changed"] == 0


def _folders(node: LabNode) -> set[str]:
    """Units whose result nobody has taken."""
    return set(node.run(["ls", "/var/lib/spark-cluster/units"]).stdout.split())


def text_of_package(node: LabNode) -> str:
    return node.run(["dpkg", "-s", "tree"]).stdout


def test_secrets_of_long_work_are_in_no_unit(user, spark1):
    resources = (
        'Command("long", ("sh", "-c", "cat > /etc/engine-in; sleep 6"), long=True, '
        'creates="/etc/engine-in", stdin=Secret("hunter2-long"), env={"T": Secret("hunter3-long")})'
    )
    started = user.start(*one(user, resources), "--limit", "spark1")
    _at_work(started, spark1)
    (unit,) = (line.split()[0] for line in _unit(spark1).splitlines())
    shown = spark1.ssh(["systemctl", "show", unit]).stdout
    files = spark1.ssh(["sh", "-c", "ls /var/lib/spark-cluster/units; ps -eo args"], check=False)
    assert "hunter" not in shown + files.stdout
    started.end(status=0)
    assert text(spark1, "/etc/engine-in") == "hunter2-long"


# -- faults ---------------------------------------------------------------------------------------


def test_power_lost_in_the_middle_of_writing_a_file(user, spark1):
    spark1.run(["sh", "-c", "echo old > /etc/engine-file"])
    wait = '("sh", "-c", "test -e /etc/engine-quick || sleep 120", "{}")'
    resources = f'File("/etc/engine-file", content="new " * 5000, validate_with={wait})'
    words = (*one(user, resources), "--limit", "spark1")
    started = user.start(*words)
    staged = ["sh", "-c", "ls -A /etc | grep '^[.]engine-file'"]
    until(lambda: spark1.run(staged, check=False).stdout, what="the new file is next to")
    spark1.poweroff(orderly=False)
    started.interrupt()
    started.end(status=None)  # interrupted, unless the end of the check came back just before
    spark1.boot()
    assert text(spark1, "/etc/engine-file") == "old\n"
    spark1.run(["touch", "/etc/engine-quick"])
    assert user.json(*words)["changed"] == 1
    assert text(spark1, "/etc/engine-file") == "new " * 5000
    assert spark1.run(staged, check=False).stdout == "", "what the crash left is gone"
    assert user.json("revert", journal(user))["ok"] is True
    assert text(spark1, "/etc/engine-file") == "old\n"


# -- taking back ----------------------------------------------------------------------------------

TREE = ["sh", "-c", "cd /etc && find engine-* -printf '%p %y %m %u %g %l\\n' | sort; "]
TREE[2] += "find engine-* -type f -exec sha256sum {} + | sort"
MAKE = "mkdir -p /etc/engine-d/x; echo a > /etc/engine-d/x/a; ln -s x/a /etc/engine-d/l; "
MAKE += "echo old > /etc/engine-f; chown nvidia:nvidia /etc/engine-f; chmod 4750 /etc/engine-f"
CHANGES = (
    'Directory("/etc/engine-d", state="absent"), File("/etc/engine-f", content="new"), '
    'Directory("/etc/engine-n/m", mode=0o700), File("/etc/engine-n/m/f", content="x"), '
    'Line("/etc/engine-n/m/f", line="y"), Hostname("renamed"), Command("it", ("true",))'
)


def test_a_run_is_taken_back_byte_for_byte(user, spark1):
    spark1.run(["sh", "-c", MAKE])
    before, name = spark1.run(TREE).stdout, text(spark1, "/etc/hostname")
    try:
        assert user.json(*one(user, CHANGES), "--limit", "spark1")["changed"] == 7
        run, after = journal(user), spark1.run(TREE).stdout
        listed = user.json("history", "--limit", "spark1")["runs"][0]
        assert (listed["run"], listed["nodes"]["spark1"]["changes"]) == (run, 7)
        assert "File:/etc/engine-f" in user("history", run, "--limit", "spark1").out
        checked = user("revert", run, "--check", "--diff", "--limit", "spark1")
        assert "-new" in checked.out
        assert "+old" in checked.out
        assert spark1.run(TREE).stdout == after
        document = user.json("revert", run, "--limit", "spark1")
        assert spark1.run(TREE).stdout == before
        assert text(spark1, "/etc/hostname") == name
        left = {item["what"] for item in document["nodes"]["spark1"]["left"]}
        assert left == {"Hostname:renamed", "Command:it"}
        user("revert", document["run"], "--limit", "spark1")
        assert spark1.run(TREE).stdout == after
    finally:
        spark1.run(["sh", "-c", f"echo {name.strip()} > /etc/hostname; hostname {name.strip()}"])


def test_what_was_changed_since_is_refused(user, spark1):
    spark1.run(["sh", "-c", MAKE])
    user(*one(user, CHANGES.replace('Hostname("renamed"), ', "")), "--limit", "spark1")
    run = journal(user)
    spark1.run(["sh", "-c", "echo mine >> /etc/engine-f"])
    left = spark1.run(TREE).stdout
    ran = user("revert", run, "--limit", "spark1", status=1)
    assert "/etc/engine-f was changed since, by something other than spark-cluster" in ran.printed
    assert spark1.run(TREE).stdout == left
