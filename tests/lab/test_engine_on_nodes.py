"""The engine on real nodes: reboots, cut lines, power cuts, full disks, locks, and taking back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from commandline import CommandLine, Started, until

from spark_cluster.errors import Failed
from spark_cluster.runner.wire import LOST_AFTER
from spark_cluster_lab import Lab, LabNode

pytestmark = pytest.mark.lab

REBOOT = """
def main(play):
    play.on_each(play.nodes, lambda node: play.apply(node, [
        File("/etc/engine-before", content="1"),
        Reboot("a test", pending_when=("/run/engine-test",), allowed=True,
               timeout_s={timeout} if node.name == "spark1" else 600),
        File("/etc/engine-after", content="2"),
    ], fail_fast=False))
    play.apply(play.nodes, [File("/etc/engine-later", content="3")], fail_fast=False)
"""
ONE = "\ndef main(play):\n    play.apply(play.nodes, [{resources}])\n"
SLOW = 'DPkg::Pre-Invoke {"sleep 12";};'


@pytest.fixture(scope="module")
def shell(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    return CommandLine(tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True)
def tidy(lab: Lab) -> Iterator[None]:
    """Nodes that are up, without what these tests make."""

    def clean() -> None:
        for node in lab.nodes:
            node.plug()
            node.boot()
            node.run(["sh", "-c", "umount -q /mnt/engine /var/cache/apt/archives; true"])
            node.run(["sh", "-c", "rm -rf /etc/engine-* /etc/apt/apt.conf.d/99engine /mnt/engine"])

    clean()
    yield
    clean()


def boot_id(node: LabNode) -> str:
    return node.ssh("cat /proc/sys/kernel/random/boot_id").stdout


def text(node: LabNode, path: str) -> str:
    return node.run(["cat", path]).stdout


def journal(shell: CommandLine) -> str:
    """The id of the last run."""
    return shell.record.stem


def one(shell: CommandLine, resources: str, *words: str) -> tuple[str, ...]:
    """The words that run a playbook of some resources."""
    return ("playbook", shell.playbook(ONE.format(resources=resources)), *words)


def counts(document: dict[str, Any], node: str) -> tuple[int, int, int]:
    found = document["nodes"][node]
    return found["ok"], found["change"], found["failed"]


# -- reboots --------------------------------------------------------------------------------------


def test_reboot_in_the_middle_of_a_play(shell, spark1, spark2):
    before = {node.name: boot_id(node) for node in (spark1, spark2)}
    for node in (spark1, spark2):
        node.run(["touch", "/run/engine-test"])
    play = shell.playbook(REBOOT.format(timeout=600))
    checked = shell.json("playbook", play, "--check")
    assert checked["changed"] == 8
    document = shell.json("playbook", play)
    for node in (spark1, spark2):
        assert counts(document, node.name) == (0, 4, 0)
        assert boot_id(node) != before[node.name]
        assert text(node, "/etc/engine-after") == "2"
    again = shell.json("playbook", play)
    assert again["changed"] == 0
    assert counts(again, "spark1") == (4, 0, 0)


def test_a_node_that_does_not_come_back_and_one_that_goes_on(shell, spark1, spark2):
    spark1.run(["touch", "/run/engine-test"])
    started = shell.start("playbook", shell.playbook(REBOOT.format(timeout=15)))
    until(lambda: spark1.state != "running" or not _answers(spark1), what="it goes down")
    spark1.poweroff(orderly=False)
    ran = started.end(status=3)
    assert "did not come back within 15 s" in ran.printed
    assert "from AC for 60 s" in ran.printed
    assert text(spark2, "/etc/engine-later") == "3"
    spark1.boot()
    document = shell.json("playbook", shell.playbook(REBOOT.format(timeout=600)))
    assert counts(document, "spark1") == (2, 2, 0)


def _answers(node: LabNode) -> bool:
    try:
        return node.ssh("true", check=False, timeout=60).returncode == 0
    except Failed:  # it went down in the middle of it
        return False


# -- the line is cut while apt runs ---------------------------------------------------------------


@pytest.fixture
def slow_apt(shell, spark1) -> tuple[str, ...]:
    """Words of a run that installs a package on the first node, which takes some seconds."""
    spark1.run(["apt-get", "-qq", "-y", "remove", "tree"], check=False)
    conf = f"echo '{SLOW}' > /etc/apt/apt.conf.d/99engine"
    spark1.run(["sh", "-c", conf])
    return (*one(shell, 'Package("tree")'), "--limit", "spark1")


def _unit(node: LabNode) -> str:
    """The unit that apt runs in."""
    argv = ["systemctl", "list-units", "--plain", "--no-legend", "spark-cluster-*.service"]
    return node.run(argv, check=False).stdout.strip()


def _at_work(started: Started, node: LabNode) -> None:
    until(lambda: _unit(node) or started.process.poll() is not None, what="apt has its unit")
    assert started.process.poll() is None, started.process.communicate()
    time.sleep(1)


def test_ssh_cut_in_the_middle_of_an_apt_run(shell, spark1, slow_apt):
    started = shell.start(*slow_apt, "--json")
    _at_work(started, spark1)
    spark1.unplug()
    time.sleep(LOST_AFTER + 3)  # shorter, and TCP itself makes up for it
    spark1.plug()
    document = started.end(status=0)
    assert document.document["changed"] in (0, 1)  # the second look may find it installed
    assert "connected again" in shell.record.read_text()
    assert "install ok installed" in text_of_package(spark1)


def test_a_run_that_was_killed_is_picked_up_by_the_next_one(shell, spark1, slow_apt):
    before = _folders(spark1)  # of work whose node was rebooted under it, in another test
    started = shell.start(*slow_apt)
    _at_work(started, spark1)
    started.process.kill()
    started.process.communicate()
    ran = shell(*slow_apt)
    assert "apt-get is still running there since" in ran.printed
    assert "install ok installed" in text_of_package(spark1)
    assert _folders(spark1) == before
    assert shell.json(*slow_apt)["changed"] == 0


def test_ctrl_c_leaves_apt_at_work(shell, spark1, slow_apt):
    started = shell.start(*slow_apt)
    _at_work(started, spark1)
    started.interrupt()
    ran = started.end(status=130)
    assert "a package manager or an image pull finishes there by itself" in ran.printed
    assert _unit(spark1)
    shell(*slow_apt)
    assert "install ok installed" in text_of_package(spark1)


def _folders(node: LabNode) -> set[str]:
    """Units whose result nobody has taken."""
    return set(node.run(["ls", "/var/lib/spark-cluster/units"]).stdout.split())


def text_of_package(node: LabNode) -> str:
    return node.run(["dpkg", "-s", "tree"]).stdout


def test_secrets_of_long_work_are_in_no_unit(shell, spark1):
    resources = (
        'Command("long", ("sh", "-c", "cat > /etc/engine-in; sleep 6"), long=True, '
        'creates="/etc/engine-in", stdin=Secret("hunter2-long"), env={"T": Secret("hunter3-long")})'
    )
    started = shell.start(*one(shell, resources), "--limit", "spark1")
    _at_work(started, spark1)
    (unit,) = (line.split()[0] for line in _unit(spark1).splitlines())
    shown = spark1.ssh(["systemctl", "show", unit]).stdout
    files = spark1.ssh(["sh", "-c", "ls /var/lib/spark-cluster/units; ps -eo args"], check=False)
    assert "hunter" not in shown + files.stdout
    started.end(status=0)
    assert text(spark1, "/etc/engine-in") == "hunter2-long"


# -- faults ---------------------------------------------------------------------------------------


def test_power_lost_in_the_middle_of_writing_a_file(shell, spark1):
    spark1.run(["sh", "-c", "echo old > /etc/engine-file"])
    wait = '("sh", "-c", "test -e /etc/engine-quick || sleep 120", "{}")'
    resources = f'File("/etc/engine-file", content="new " * 5000, validate_with={wait})'
    words = (*one(shell, resources), "--limit", "spark1")
    started = shell.start(*words)
    staged = ["sh", "-c", "ls -A /etc | grep '^[.]engine-file'"]
    until(lambda: spark1.run(staged, check=False).stdout, what="the new file is next to")
    spark1.poweroff(orderly=False)
    started.interrupt()
    started.end(status=None)  # interrupted, unless the end of the check came back just before
    spark1.boot()
    assert text(spark1, "/etc/engine-file") == "old\n"
    spark1.run(["touch", "/etc/engine-quick"])
    assert shell.json(*words)["changed"] == 1
    assert text(spark1, "/etc/engine-file") == "new " * 5000
    assert spark1.run(staged, check=False).stdout == "", "what the crash left is gone"
    assert shell.json("revert", journal(shell))["ok"] is True
    assert text(spark1, "/etc/engine-file") == "old\n"


def test_a_full_disk(shell, spark1):
    spark1.run(["mkdir", "-p", "/mnt/engine"])
    spark1.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt/engine"])
    spark1.run(["sh", "-c", "echo old > /mnt/engine/f"])
    resources = 'File("/mnt/engine/f", content="x" * 200000)'
    ran = shell(*one(shell, resources), "--limit", "spark1", status=1)
    assert "no space left on the disk of /mnt/engine" in ran.printed
    assert spark1.run(["ls", "-A", "/mnt/engine"]).stdout == "f\n"
    assert text(spark1, "/mnt/engine/f") == "old\n"


def test_apt_on_a_full_disk(shell, spark1):
    spark1.run(["apt-get", "-qq", "-y", "remove", "tree"], check=False)
    spark1.run(["apt-get", "-qq", "clean"])
    options = ["-o", "size=16k", "tmpfs", "/var/cache/apt/archives"]
    spark1.run(["mount", "-t", "tmpfs", *options])
    ran = shell(*one(shell, 'Package("tree")'), "--limit", "spark1", status=1)
    assert "the disk is full" in ran.printed or "no space left" in ran.printed.lower()


def test_a_held_dpkg_lock_is_waited_for(shell, spark1):
    spark1.run(["apt-get", "-qq", "-y", "remove", "tree"], check=False)
    hold = (
        "import fcntl, os, time; f = open('/var/lib/dpkg/lock-frontend', 'w')\n"
        "fcntl.lockf(f, fcntl.LOCK_EX); open('/etc/engine-held', 'w')\n"
        "while os.path.exists('/etc/engine-held'): time.sleep(0.1)"
    )
    spark1.run(["systemd-run", "--quiet", "--collect", "python3", "-c", hold])
    until(lambda: spark1.run(["ls", "/etc/engine-held"], check=False).stdout, what="the lock")
    started = shell.start(*one(shell, 'Package("tree")'), "--limit", "spark1")
    until(lambda: "waiting for python3" in _record(shell), what="the run waits for the lock")
    spark1.run(["rm", "/etc/engine-held"])
    started.end(status=0)
    assert "install ok installed" in text_of_package(spark1)


def _record(shell: CommandLine) -> str:
    """Return the events of the last run that began, so far."""
    records = sorted((shell.home / "state/spark-cluster/runs").glob("*.jsonl"))
    return records[-1].read_text() if records else ""


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


def test_a_run_is_taken_back_byte_for_byte(shell, spark1):
    spark1.run(["sh", "-c", MAKE])
    before, name = spark1.run(TREE).stdout, text(spark1, "/etc/hostname")
    try:
        assert shell.json(*one(shell, CHANGES), "--limit", "spark1")["changed"] == 7
        run, after = journal(shell), spark1.run(TREE).stdout
        listed = shell.json("history", "--limit", "spark1")["runs"][0]
        assert (listed["run"], listed["nodes"]["spark1"]["changes"]) == (run, 7)
        assert "File:/etc/engine-f" in shell("history", run, "--limit", "spark1").out
        checked = shell("revert", run, "--check", "--diff", "--limit", "spark1")
        assert "-new" in checked.out
        assert "+old" in checked.out
        assert spark1.run(TREE).stdout == after
        document = shell.json("revert", run, "--limit", "spark1")
        assert spark1.run(TREE).stdout == before
        assert text(spark1, "/etc/hostname") == name
        left = {item["what"] for item in document["nodes"]["spark1"]["left"]}
        assert left == {"Hostname:renamed", "Command:it"}
        shell("revert", document["run"], "--limit", "spark1")
        assert spark1.run(TREE).stdout == after
    finally:
        spark1.run(["sh", "-c", f"echo {name.strip()} > /etc/hostname; hostname {name.strip()}"])


def test_what_was_changed_since_is_refused(shell, spark1):
    spark1.run(["sh", "-c", MAKE])
    shell(*one(shell, CHANGES.replace('Hostname("renamed"), ', "")), "--limit", "spark1")
    run = journal(shell)
    spark1.run(["sh", "-c", "echo mine >> /etc/engine-f"])
    left = spark1.run(TREE).stdout
    ran = shell("revert", run, "--limit", "spark1", status=1)
    assert "/etc/engine-f was changed since, by something other than spark-cluster" in ran.printed
    assert spark1.run(TREE).stdout == left


def test_step_wants_a_terminal(shell):
    ran = shell(*one(shell, 'File("/etc/engine-x", content="")'), "--step", status=2)
    assert "there is no terminal to ask on" in ran.printed
