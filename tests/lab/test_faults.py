"""Faults around the tool: the message, the exit status, and what is left behind.

Each fault goes through the command line, on real nodes. The nodes stay from one test to the next;
each test repairs what it broke, and `quiet` holds at its end.
"""

import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commandline import CommandLine, until
from small_disk import small_disk
from waiting import HANG_S

from spark_cluster.engine.names import SERVER
from spark_cluster.node.containers import RESTART_LIMIT
from spark_cluster_lab import Lab, LabNode
from spark_cluster_lab.layout import USER

pytestmark = pytest.mark.lab

LOCK = "/run/spark-cluster/locks/run"
AGENT = "spark-cluster-agen[t]"
SUDOERS = f"/etc/sudoers.d/{USER}"

MARK = """
def main(play):
    play.apply(play.nodes, [File("/srv/mark", content="mark\\n")])
"""
LONG = """
def main(play):
    play.apply(
        [n for n in play.nodes if n.name == "spark2"] if ONLY2 else play.nodes,
        [
            File("/srv/first", content="first\\n"),
            Command("a long one", ("sleep", "991"), timeout_s=1200),
            File("/srv/last", content="last\\n"),
        ],
    )
"""


@pytest.fixture(scope="module")
def fresh_lab(lab: Lab) -> Lab:
    lab.up(2, fresh=True)
    return lab


@pytest.fixture
def user(fresh_lab: Lab, tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.fixture(autouse=True)
def nothing_left(lab: Lab) -> Iterator[None]:
    """After each test: no agent, no lock, nothing half-written on any node."""
    yield
    for node in lab.nodes:
        quiet(node)
        node.run(["rm", "-f", "/srv/first", "/srv/last", "/srv/mark"])


def quiet(node: LabNode) -> None:
    until(lambda: not agents(node), what=f"the agent on {node.name} is gone")
    assert not is_locked(node)
    staged = ["find", "/etc", "/srv", "/var/lib/spark-cluster", "-xdev", "-name", ".*.????????"]
    assert node.run(staged, check=False).stdout == ""


def agents(node: LabNode) -> str:
    return node.run(["pgrep", "-f", AGENT], check=False).stdout


def is_locked(node: LabNode) -> bool:
    shell = f"test ! -e {LOCK} || flock -n {LOCK} true"
    return node.run(["sh", "-c", shell], check=False).returncode != 0


def is_there(node: LabNode, path: str) -> bool:
    return node.run(["test", "-e", path], check=False).returncode == 0


def runs(node: LabNode, pattern: str) -> bool:
    return node.run(["pgrep", "-f", pattern], check=False).returncode == 0


def only_one(document: dict[str, Any]) -> None:
    """Keep the first node of an inventory."""
    document["nodes"] = {"spark1": document["nodes"]["spark1"] | {"roles": ["head"]}}


def refused_with(user: CommandLine, status: int, *said: str, words: tuple[str, ...] = ()) -> None:
    """The same error for people and as a document, before anything was changed."""
    command = words or ("playbook", user.playbook(MARK))
    ran = user(*command, status=status)
    for text in said:
        assert text in ran.err + ran.out, ran.printed
    document = user.json(*command, status=status)
    assert document["ok"] is False
    told = " ".join(document["error"].values())
    for text in said:
        assert text in told, document


# --- who it is, and becoming root --------------------------------------------------------------


def test_changed_host_key(user, lab, spark2):
    known = user.home / "known_hosts"
    known.write_text(lab.known_hosts_path.read_text())

    def change(document: dict[str, Any]) -> None:
        document["ssh"]["known_hosts"] = "known_hosts"

    user = user.with_inventory("reinstalled", change)
    spark2.reset(new_host_keys=True)
    try:
        ran = user("--limit", "spark2", "playbook", user.playbook(MARK), status=3)
        assert "THE HOST KEY HAS CHANGED" in ran.printed
        assert "trust --replace --limit spark2" in ran.printed
        assert not is_there(spark2, "/srv/mark")
        before = known.read_text()
        refused = user("trust", "--yes", "--limit", "spark2", status=1)
        assert "--replace" in refused.printed
        assert known.read_text() == before
        user("trust", "--replace", "--yes", "--limit", "spark2")
        assert len(known.read_text().splitlines()) == 2
        user("--limit", "spark2", "playbook", user.playbook(MARK))
    finally:
        lab.trust()


@contextmanager
def sudo_asks(node: LabNode) -> Iterator[None]:
    path = node.root / SUDOERS.lstrip("/")
    rule = path.read_text()
    path.write_text(rule.replace("NOPASSWD:", ""))
    try:
        yield
    finally:
        path.write_text(rule)


def incorrect_attempts(node: LabNode) -> list[str]:
    """Return how many wrong passwords each refused sudo of this boot got."""
    told = node.run(["journalctl", "-b", "--no-pager", "-o", "cat", "-t", "sudo"]).stdout
    return re.findall(r"(\d+) incorrect password attempt", told)


def test_a_wrong_sudo_password_is_tried_once(user, spark1):
    """A right one is that of test_first_up.py and test_python_api.py."""

    def change(document: dict[str, Any]) -> None:
        only_one(document)
        document["become"] = {"password": {"env": "LAB_SUDO"}}

    wrong = user.with_inventory("wrong", change).with_environment(LAB_SUDO="hunter2")
    alone = user.with_inventory("alone", only_one)
    with sudo_asks(spark1):
        refused_with(alone, 1, "sudo asks for the password of nvidia", "become.password")
        before = len(incorrect_attempts(spark1))
        refused_with(wrong, 1, "sudo does not accept the password of nvidia", "become.password")
        until(lambda: len(incorrect_attempts(spark1)) == before + 2, what="sudo's own record")
        tries = incorrect_attempts(spark1)[before:]
        assert tries == ["1", "1"], "what came after the password was tried too"
        assert not is_there(spark1, "/srv/mark")


# --- in the middle of a run --------------------------------------------------------------------


def begun(user: CommandLine, *nodes: LabNode, only2: bool = False) -> Any:
    """A run that is in its long command on these nodes."""
    path = user.playbook(f"ONLY2 = {only2}\n{LONG}")
    started = user.start("playbook", path, "--json")
    for node in nodes:
        until(lambda n=node: runs(n, "^sleep 991"), what=f"{node.name} is at work")
    return started


def test_node_unplugged_in_the_middle(user, spark1, spark2):
    text = """
def main(play):
    def work(node):
        if node.name == "spark2":
            return [File("/srv/first", content="1"), Command("a long one", ("sleep", "991"))]
        return [Command("a short one", ("sleep", "4")), File("/srv/last", content="done")]

    play.together(*[lambda n=n: play.apply(n, work(n)) for n in play.nodes])
"""
    started = user.start("playbook", user.playbook(text))
    until(lambda: runs(spark2, "^sleep 991"), what="spark2 is at work")
    spark2.unplug()
    pulled = time.monotonic()
    try:
        ran = started.end(status=3)
        assert time.monotonic() - pulled < HANG_S, "found, and looked for in vain"
        assert "spark2" in ran.printed
        assert "the connection was lost" in ran.printed
        assert "run the same command again" in ran.printed
        assert is_there(spark1, "/srv/last"), "the other node's work is done"
        # Nobody is told on the node: it notices by itself that the laptop is silent.
        until(lambda: not agents(spark2), what="the lock is free")
        assert time.monotonic() - pulled < HANG_S, "the work there had sixteen minutes to go"
        assert not is_locked(spark2)
        assert not runs(spark2, "^sleep 991")
    finally:
        spark2.plug()
    spark2.wait()
    document = user.json("playbook", user.playbook(MARK))
    assert document["changed"] == 2


def test_replugged_in_the_middle_of_nothing(user, spark2):
    """A cable that was out for a few seconds costs nothing."""
    started = user.start(
        "playbook",
        user.playbook("""
def main(play):
    play.apply(play.nodes, [Command("some work", ("sleep", "9")), File("/srv/mark", content="x")])
"""),
    )
    until(lambda: runs(spark2, "^sleep 9$"), what="spark2 is at work")
    spark2.unplug()
    time.sleep(4)
    spark2.plug()
    ran = started.end(status=0)
    assert "FAILED" not in ran.printed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_in_a_command(user, spark1, spark2, number):
    started = begun(user, spark1, spark2)
    started.interrupt(number)
    asked = time.monotonic()
    ran = started.end(status=130)
    assert time.monotonic() - asked < HANG_S
    assert "interrupted" in ran.err
    assert "spark1 was at Command:a long one" in ran.err
    assert "Run the same command again to continue" in ran.err
    assert ran.document["ok"] is False
    for node in (spark1, spark2):
        quiet(node)
        assert not runs(node, "^sleep 991")
        assert is_there(node, "/srv/first")
        assert not is_there(node, "/srv/last")
    record = [json.loads(line) for line in user.record.read_text().splitlines()]
    assert record[-1]["event"] == "RunFinished"
    assert record[-1]["ok"] is False


def test_interrupted_in_a_package_manager(user, spark1):
    """apt is never torn: it finishes, and the next run waits for it and finds its work done. That
    it asks dpkg for architectures is no work yet."""
    install = """
def main(play):
    play.apply(play.nodes, [Package("docker.io", also=("docker-cli",))])
"""
    user = user.with_inventory("one", only_one)
    started = user.start("playbook", user.playbook(install))
    at_work = "^/usr/bin/dpkg .*--(unpack|configure)"
    until(lambda: runs(spark1, at_work), what="dpkg is at work", every=0.05)
    started.interrupt()
    ran = started.end(status=130)
    assert "a package manager or an image pull finishes there by itself" in ran.err
    until(lambda: not agents(spark1), what="the agent does not wait for apt")
    user.json("playbook", user.playbook(install))
    assert spark1.run(["dpkg", "--audit"]).stdout == ""
    shown = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Abbrev}", "docker.io"]
    assert "docker.io ii" in spark1.run(shown).stdout
    assert user.json("playbook", user.playbook(install))["changed"] == 0


def test_two_runs_at_once(user, spark2):
    first = begun(user, spark2, only2=True)
    other = ("-l", "spark2", "playbook", user.playbook(MARK, "other.py"))
    said = ("another run is in progress there", "`playbook play`", "since", "wait until it has")
    refused_with(user, 1, *said, words=other)
    assert user.json("ping")["nodes"][1]["reachable"] is True, "looking is always allowed"
    assert user.json(*other, "--check")["ok"] is True
    first.interrupt()
    first.end(status=130)
    quiet(spark2)
    user(*other)


# --- disks that are full -----------------------------------------------------------------------


WRITES = 'def main(play):\n    play.apply(play.nodes, [File("{}", content="{}" * {})])\n'


def test_no_room_for_the_journal(user, spark1):
    """A change that cannot be journaled is not made."""
    user = user.with_inventory("one", only_one)
    journal = "/var/lib/spark-cluster/journal"
    user("playbook", user.playbook(WRITES.format("/srv/mark", "old", 1)))
    with small_disk(spark1, journal, "4k"):
        spark1.run(["dd", "if=/dev/zero", f"of={journal}/x", "bs=4k", "count=1"])
        new = user.playbook(WRITES.format("/srv/mark", "new", 1))
        said = f"no space left on the disk of {journal}"
        refused_with(user, 1, said, words=("playbook", new))
        assert spark1.run(["cat", "/srv/mark"]).stdout == "old"


# --- the link and the power, while serving -----------------------------------------------------


def test_server_that_cannot_start(user, detected):
    user.recipe("lab-paris", ("enforce-eager: true\n", "enforce-eager: true\n  no-such-flag: 1\n"))
    with detected("server-ends") as fault:  # the server takes half a minute to fail
        fault.said_in(user("up", "--tp", "1", status=1).printed)
    told = user.status()
    assert told["state"] == "failed"
    assert any("the server is exited" in p for p in told["problems"])
    user("down")
    assert user.status()["state"] == "stopped"


def test_fabric_cable_pulled_while_serving(user, spark2, detected):
    """/health still returns 200: status looks further. Repaired, it continues as if nothing was."""
    user("up", "--tp", "2")
    try:
        with detected("link-cut") as fault:
            spark2.unplug_fabric()
            fault.said_in(user("status", status=5).out)
    finally:
        spark2.plug_fabric()
    until(lambda: user.status()["state"] == "serving", what="it serves again", every=1)


@pytest.mark.soak
def test_both_nodes_rebooted_while_serving(user, spark1, spark2):
    user("up", "--tp", "2")
    assert user.json("status")["state"] == "serving"
    for node in (spark1, spark2):
        node.reboot(wait=False)
    for node in (spark1, spark2):
        node.wait()
    until(lambda: user.status()["state"] == "serving", what="it serves again by itself", every=1)
    show = ["systemctl", "show", "-P", "ActiveEnterTimestampMonotonic"]
    for node in (spark1, spark2):
        guarded, docker = (
            int(node.run([*show, unit]).stdout)
            for unit in ("spark-cluster-firewall.service", "docker.service")
        )
        assert 0 < guarded < docker, "there is no moment without the firewall"
    document = user.json("up", "--tp", "2")
    assert document["changed"] == 0, user.verdicts()["change"]
    assert "Paris" in document["answer"]
    assert re.fullmatch(r"http://10\.89\.0\.11:8000/v1", document["endpoint"])
    user("down")


def started_again(node: LabNode) -> tuple[str, int]:
    """Return the state of the server's container, and how often Docker started it again."""
    shown = node.run(["docker", "inspect", "-f", "{{.State.Status}} {{.RestartCount}}", SERVER])
    status, times = shown.stdout.split()
    return status, int(times)


def test_a_server_that_ends_at_each_start_is_stopped_without_the_laptop(user, spark1):
    """P16: after a reboot its start fails; it stays stopped, and each command says why."""
    user("up", "--tp", "1")
    spark1.run(["sh", "-c", "echo { > /srv/models/paris/config.json"])
    spark1.reboot()

    def stopped() -> int:
        status, times = started_again(spark1)
        return times if status == "exited" and times >= RESTART_LIMIT else 0

    times = until(stopped, what="it is stopped", every=1)
    spark1.reboot()
    assert started_again(spark1)[0] == "exited", "Docker starts it at boot neither"
    first, *_, last = user.status()["problems"]
    assert first.startswith(f"the server is stopped after {times} restarts")
    assert last.startswith(f"the server has been restarted {times} times, its log says: ")
    found = user.start("doctor").end(status=None)
    assert f"{SERVER} is stopped after {times} restarts (status" in found.printed
    up = user("up", "--tp", "1").printed
    assert f"{SERVER} is stopped after {times} restarts: " in up
    assert user.status()["state"] == "serving"
    user("down")
    assert spark1.run(["systemctl", "cat", "spark-cluster-start-limit"], check=False).returncode
