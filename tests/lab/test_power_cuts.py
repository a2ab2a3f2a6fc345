"""Power cuts of a node that lose unsynced writes: the next run repairs, nothing is half-written.

The first node gets a disk of its own (`disk.py` of the lab). Where the machine cannot have
one, these tests are skipped.
"""

import contextlib
import json
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import CommandLine, Started, until

from spark_cluster.node.durable import is_temporary
from spark_cluster_lab import Lab, LabNode, disk

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(bool(disk.why_not()), reason=f"no power cuts: {disk.why_not()}"),
]

SAMPLE = (11, 12, 13)
"""Seeds of single cuts."""

SOAK_CUTS = 50
WITHIN_S = 0.6
"""Seconds, from a run's first journal entry, within which the power is cut."""

BIG = "0123456789abcdef" * (1 << 18)  # 4 MiB
PLAY = f"""
BIG = "0123456789abcdef" * {1 << 18}

def main(play):
    play.apply(play.nodes, [
        File("/etc/cut/replaced", content="new\\n" * 500, mode=0o600),
        File("/etc/cut/big", content=BIG),
        File("/etc/cut/made", content="made\\n"),
        File("/etc/cut/removed", state="absent"),
        Directory("/etc/cut/folder", state="absent"),
        Directory("/etc/cut/new/deep", mode=0o750),
        File("/etc/cut/new/deep/file", content="deep\\n"),
        File("/etc/cut/token", content=Secret("hunter2-of-now")),
        Line("/etc/cut/list", line="two"),
        JsonKeys("/etc/cut/keys.json", keys={{"log": {{"max": 3}}}}),
        HostsEntry("cut-test", address="192.0.2.1"),
    ])
"""
SET_UP = (Path(__file__).parent / "programs/before_cut.sh").read_text()
NEW = {
    "replaced": b"new\n" * 500,
    "big": BIG.encode(),
    "made": b"made\n",
    "removed": None,
    "folder/x/y": None,
    "new/deep/file": b"deep\n",
    "token": b"hunter2-of-now",
    "list": b"one\ntwo\n",
}


@pytest.fixture(scope="module")
def node(lab: Lab) -> Iterator[LabNode]:
    """The first node, with a disk of its own."""
    node = lab.node("spark1")
    node.reset(own_disk=True)
    lab.trust()
    yield node
    node.reset()
    lab.trust()


@pytest.fixture(scope="module")
def shell(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    return CommandLine(tmp_path_factory.mktemp("home"))


def text(node: LabNode, path: str) -> str:
    return node.run(["cat", path]).stdout


def cut(node: LabNode, started: Started | None = None) -> None:
    """Cut the power, end what was at work on the laptop, and switch it on again."""
    node.cut_power()
    if started is not None:
        started.process.kill()
        started.process.communicate()
    node.boot()


def files(node: LabNode) -> dict[str, bytes | None]:
    """Return the content of the tests' folder, links as their target."""
    folder = node.root / "etc/cut"
    found: dict[str, bytes | None] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = str(path.readlink()).encode()
        elif path.is_file():
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def temporary(node: LabNode) -> list[Path]:
    folders = [node.root / "etc", node.root / "var/lib/spark-cluster"]
    return [p for folder in folders for p in folder.rglob("*") if is_temporary(p.name)]


def journals(node: LabNode) -> set[str]:
    folder = node.root / "var/lib/spark-cluster/journal"
    return {p.name for p in folder.iterdir()} if folder.is_dir() else set()


# -- the cut itself ------------------------------------------------------------------------------


def test_a_power_cut_loses_what_was_not_synced_and_nothing_else(node):
    node.run(["sh", "-c", "echo kept > /root/synced; sync /root/synced /root"])
    node.run(["sh", "-c", "echo lost > /root/not-synced; head -c 999999 /dev/zero > /root/large"])
    assert text(node, "/root/not-synced") == "lost\n"
    cut(node)
    assert text(node, "/root/synced") == "kept\n"
    left = [p.stat().st_size for p in (node.root / "root").iterdir() if p.name != "synced"]
    assert "lost" not in node.run(["cat", "/root/not-synced"], check=False).stdout
    assert 999999 not in left


NETPLAN = "/etc/netplan/10-management.yaml"
CUT_OFF = """
NEW = '''network:
  version: 2
  ethernets:
    enP7s7: {{addresses: [{address}]}}
'''

def main(play):
    play.apply(play.nodes, [
        Netplan("{path}", content=NEW, addresses={{"enP7s7": "{address}"}}, mtu=1500,
                confirm_within_s=600),
    ])
"""


def test_a_power_cycle_of_a_node_that_a_netplan_change_cut_off(node, shell):
    """Long before the timer runs out: the old file is in force at the next boot, and reached."""
    node.run(["sh", "-c", f"chmod 644 {NETPLAN}; sync {NETPLAN}"])
    old = text(node, NETPLAN)
    play = CUT_OFF.format(path=NETPLAN, address="10.99.0.5/24")
    words = ("playbook", shell.playbook(play, "cut-off.py"), "--limit", "spark1")
    started = shell.start(*words)
    until(lambda: "10.99.0.5/24" in node.run(["ip", "-4", "addr"]).stdout, 120, "it is cut off")
    node.run(["pkill", "-KILL", "-f", "spark-cluster-agen[t]"])  # or it puts it back itself
    assert node.ssh("true", check=False, timeout=60).returncode != 0
    assert "10.99.0.5" in text(node, NETPLAN)
    cut(node, started)  # it boots, and is reached over its old address
    assert text(node, NETPLAN) == old
    assert node.run(["stat", "-c", "%a", NETPLAN]).stdout == "644\n"
    units = node.run(["systemctl", "list-units", "--all", "--plain", "spark-cluster-*"]).stdout
    assert "failed" not in units
    left = node.run(
        ["find", "/etc/systemd", "/var/lib/spark-cluster/rollback", "-name", "*restore*"]
    )
    assert left.stdout == ""
    assert shell.json(*words, "--check")["changed"] == 1, "nobody has confirmed it"
    node.reboot()
    assert text(node, NETPLAN) == old


# -- runs ----------------------------------------------------------------------------------------


def must_be_whole(node: LabNode, old: dict[str, bytes | None]) -> None:
    """Each file is the old or the new one."""
    found = files(node)
    for name, new in NEW.items():
        assert found.get(name) in (old.get(name), new), f"{name} is neither old nor new"
    keys = json.loads(found["keys.json"] or b"")
    assert keys in ({"a": 1}, {"a": 1, "log": {"max": 3}})
    strangers = {n for n in found.keys() - NEW.keys() if not is_temporary(n.split("/")[-1])}
    assert all(n.startswith("folder/") or n == "keys.json" or is_inside(n) for n in strangers)


def is_inside(name: str) -> bool:
    """Return whether it is in a folder that was on its way out."""
    return any(is_temporary(part) for part in name.split("/"))


def cut_runs(node: LabNode, shell: CommandLine, cuts: int, seed: int) -> None:
    """Cut runs at random moments, each followed by a run that repairs, and take all of it back."""
    dice = random.Random(seed)
    words = ("playbook", shell.playbook(PLAY, "cut.py"), "--limit", "spark1")
    node.run(["sh", "-c", SET_UP])
    old = files(node)
    changed_hosts = text(node, "/etc/hosts")
    at_work = 0
    for number in range(cuts):
        print(f"cut {number + 1} of {cuts}")
        before = journals(node)
        started = shell.start(*words)
        if dice.random() < 0.8:
            until(lambda b=before: journals(node) - b, 120, "it has begun", every=0.002)
            time.sleep(dice.uniform(0, WITHIN_S))
        else:
            time.sleep(dice.uniform(0, 2))
        at_work += started.process.poll() is None and bool(journals(node) - before)
        cut(node, started)
        must_be_whole(node, old)
        shell.json("history", "--limit", "spark1")
        shell.json(*words)
        assert {k: v for k, v in files(node).items() if k in NEW} == {
            k: v for k, v in NEW.items() if v is not None
        }
        assert shell.json(*words)["changed"] == 0
        assert temporary(node) == []
        revert_all(node, shell, before, dice if (number + seed) % 2 else None)
        assert files(node) == old
        assert text(node, "/etc/hosts") == changed_hosts
    print(f"{at_work} of {cuts} cuts hit a run at work")
    assert at_work >= cuts // 5, "most cuts came after the run"


def revert_all(
    node: LabNode, shell: CommandLine, before: set[str], dice: random.Random | None
) -> None:
    """Revert what the runs did, the last first; with `dice`, the power is cut meanwhile."""
    for run in sorted(journals(node) - before, reverse=True):
        folder = node.root / "var/lib/spark-cluster/journal" / run
        if not (folder / "changes.jsonl").exists():
            continue
        words = ("revert", run, "--limit", "spark1")
        if dice is not None:
            known = journals(node)
            started = shell.start(*words)
            with contextlib.suppress(AssertionError):  # a run that changed nothing
                until(lambda k=known: journals(node) - k, 20, "it has begun", every=0.002)
            time.sleep(dice.uniform(0, WITHIN_S))
            cut(node, started)
        shell.json(*words)
    (node.root / "etc/cut/token").unlink(missing_ok=True)  # as a secret it is not put back


@pytest.mark.parametrize("seed", SAMPLE)
def test_a_run_and_its_revert_whose_power_is_cut(node, shell, seed):
    cut_runs(node, shell, 1, seed)


@pytest.mark.soak
def test_many_runs_and_reverts_whose_power_is_cut(node, shell):
    cut_runs(node, shell, SOAK_CUTS, seed=1)


# -- provision and up ----------------------------------------------------------------------------

PROVISION = ("provision", "--limit", "spark1")
UP = ("up", "--tp", "2")


def as_fresh(lab: Lab, node: LabNode) -> None:
    """A fresh node, all of it on its disk: what a cut takes is the run's."""
    node.reset(own_disk=True)
    lab.trust()
    node.run(["sync"])


def must_be_repaired(node: LabNode, shell: CommandLine, *words: str) -> None:
    """The next run goes through, the one after it changes nothing, and no scraps are left."""
    shell.json("history", "--limit", "spark1")
    shell(*words, timeout=900)
    assert shell.json(*words, timeout=900)["changed"] == 0
    assert node.run(["dpkg", "--audit"]).stdout == ""
    assert temporary(node) == []
    assert node.run(["systemctl", "--failed", "--plain", "--no-legend"]).stdout == ""


def cut_from_fresh(
    lab: Lab, node: LabNode, shell: CommandLine, cuts: int, words: tuple[str, ...], seed: int
) -> None:
    """Cut runs from fresh at random moments of the time that one takes; most are cut at work."""
    dice = random.Random(seed)
    as_fresh(lab, node)
    begun = time.monotonic()
    shell(*words, timeout=900)
    usual_s = time.monotonic() - begun
    at_work = 0
    for number in range(cuts):
        as_fresh(lab, node)
        moment_s = dice.uniform(0.5, usual_s)
        started = shell.start(*words)
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.process.wait(moment_s)
        alive = started.process.poll() is None
        cut(node, started)
        at_work += alive and bool(journals(node))
        print(f"cut {number + 1} of {cuts} after {moment_s:.1f} s, {at_work} at work so far")
        must_be_repaired(node, shell, *words)
    assert at_work >= cuts // 2


@pytest.mark.soak
def test_provision_whose_power_is_cut(lab, node, shell):
    cut_from_fresh(lab, node, shell, SOAK_CUTS // 2 + 5, PROVISION, seed=4)


@pytest.mark.soak
def test_up_whose_power_is_cut(lab, node, shell):
    shell("provision", timeout=900)
    try:
        cut_from_fresh(lab, node, shell, SOAK_CUTS // 2 - 5, UP, seed=5)
    finally:
        shell("down", timeout=300)
