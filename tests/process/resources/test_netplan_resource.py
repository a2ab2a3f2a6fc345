"""Netplan: validated before, proven after, restored when the node is not reached any more."""

import contextlib
import os
import re
import shlex
import shutil
import subprocess

import pytest

from spark_cluster.node.host import Host
from spark_cluster.node.processes import KILL_GRACE, TERM_GRACE, Cancelled, TooLong
from spark_cluster.resources import Netplan
from spark_cluster.resources import netplan as module

PATH = "/etc/netplan/99-spark-cluster.yaml"
TWINS = {"enp1s0f1np1": "192.168.177.11/24", "enP2p1s0f1np1": "192.168.178.11/24"}
CONTENT = "".join(f"# {name} {address} 9000\n" for name, address in TWINS.items())
OLD = "# enp1s0f1np1 10.9.9.9/24 1500\n"
OTHERS = (1, 2) if os.geteuid() == 0 else (os.getuid(), os.getgid())
"""Whose the old file is; only root can give it away."""

WANTED = Netplan(PATH, content=CONTENT, addresses=TWINS, mtu=9000, confirm_within_s=0.3)


@pytest.fixture
def network(node, monkeypatch):
    node.install("network")
    monkeypatch.setattr(module, "WAIT_S", 0.3)
    monkeypatch.setattr(module, "SETTLE_S", 0.0)
    node.path("/etc/netplan").mkdir(parents=True)
    node.put("/etc/netplan/10-management.yaml", "# enP7s7 10.0.0.5/24 1500\n", mode=0o600)
    with node.state("network") as state:
        state["links"] = {n: {"addresses": [], "mtu": 1500} for n in ("enP7s7", *TWINS)}
    return node


def reached(node, **options):
    """A host whose laptop leaves the proof that it is asked for."""
    host = node.host(**options)
    host.verify_login = node.put
    return host


def apply(node, resource=WANTED):
    return node.apply(resource, host=reached(node))


def links(node):
    with node.state("network") as state:
        return {name: (link["addresses"], link["mtu"]) for name, link in state["links"].items()}


def timers(node):
    with node.state("network") as state:
        return dict(state.get("timers", {}))


def verbs(node):
    return [c[:2] for c in node.calls("network") if c[0] in ("netplan", "systemd-run")]


def nothing_armed(node):
    """Neither what was there before is kept, nor is there a unit that would put it back."""
    units = list(node.path("/etc/systemd/system").rglob("*spark-cluster*"))
    kept = list(node.path("/var/lib/spark-cluster/rollback").glob("**/before"))
    return (units, kept, timers(node)) == ([], [], {})


class AgentKilled(BaseException):
    """Stands for SIGKILL or a power cut: the agent does nothing any more."""


def cut_off(node, resource=WANTED):
    """Apply it and kill the agent before the laptop has confirmed; return the run's id."""

    def killed(_path):
        raise AgentKilled

    host = node.host()
    host.verify_login = killed
    with pytest.raises(AgentKilled):
        node.apply(resource, host=host)
    return host.run_id


def cancelled_in(node, monkeypatch, argv):
    """Apply it with a laptop that is gone from this command on; return the run's id.

    Args:
        argv: how the command begins; None for the wait for the new connection.
    """
    host = node.host()
    run = Host.run
    host.verify_login = lambda _path: host.processes.cancel()

    def is_cancelled(self, command, **options):
        if self is host and argv is not None and tuple(command[: len(argv)]) == argv:
            host.processes.cancel()
        return run(self, command, **options)

    monkeypatch.setattr(Host, "run", is_cancelled)
    with pytest.raises(Cancelled):
        node.apply(WANTED, host=host)
    return host.run_id


def run_alone(node, argv):
    """Run a command as the node's own systemd does, without an agent."""
    path = f"{node.bin}:/usr/bin:/bin"
    subprocess.run(["env", f"PATH={path}", *argv], check=True, env={"PATH": path}, timeout=120)


def power_cycle(node):
    """Switch it off and on: /run and its timers are gone, then what is wanted at boot is done."""
    shutil.rmtree(node.path("/run"), ignore_errors=True)
    with node.state("network") as state:
        state["timers"] = {}
    for link in node.path("/etc/systemd/system/sysinit.target.wants").iterdir():
        unit = link.read_text()
        condition = re.search("^ConditionPathExists=(.*)$", unit, re.M)[1]
        if os.path.exists(condition):
            argv = shlex.split(re.search("^ExecStart=(.*)$", unit, re.M)[1])
            run_alone(node, argv)
    node.install("network")
    run_alone(node, ["netplan", "apply"])  # what networkd does as it starts


@pytest.fixture(params=[0o600, 0o644, None], ids=["a file", "one for all", "none"])
def before(network, request):
    """The rights of the file that was there, or that there was none."""
    if request.param:
        os.chown(network.put(PATH, OLD, mode=request.param), *OTHERS)
    return request.param


def is_as_before(node, mode):
    path = node.path(PATH)
    if mode is None:
        return not path.exists() and links(node)["enp1s0f1np1"] == ([], 1500)
    status, link = path.stat(), links(node)["enp1s0f1np1"]
    rights = (status.st_mode & 0o7777, status.st_uid, status.st_gid)
    return (path.read_text(), link, rights) == (OLD, (["10.9.9.9/24"], 1500), (mode, *OTHERS))


def as_wanted(node):
    return {n: v for n, v in links(node).items() if n in TWINS} == {
        name: ([address], 9000) for name, address in TWINS.items()
    }


@pytest.mark.parametrize("why", ["mute", "refuses", "unreached"])
def test_the_old_file_comes_back(network, before, why):
    with network.state("network") as state:
        if why == "mute":
            state["mute"] = ["enP2p1s0f1np1"]
        elif why == "refuses":
            state["refuses"] = True
    host = network.host() if why == "unreached" else reached(network)
    result = network.apply(WANTED, host=host)
    assert result.verdict == "failed"
    said = {
        "mute": "enP2p1s0f1np1 has None",
        "refuses": "networkd",
        "unreached": "could not be reached",
    }
    assert said[why] in result.error
    assert is_as_before(network, before)
    assert timers(network) == {}


def test_a_node_that_is_cut_off_puts_it_back_by_itself(network, before):
    """The agent is killed in the middle: the timer's script is what is left."""
    run = cut_off(network)
    assert as_wanted(network)
    ((unit, argv),) = timers(network).items()
    assert unit == "spark-cluster-rollback-etc-netplan-99-spark-cluster-yaml"
    run_alone(network, argv)
    assert is_as_before(network, before)
    (left,) = network.path("/var/lib/spark-cluster/rollback").iterdir()
    assert left.read_text().strip() == run
    assert nothing_armed_but(network, unit)


@pytest.mark.parametrize("argv", [None, ("netplan", "apply")], ids=["confirm", "apply"])
def test_a_laptop_that_is_gone_has_the_old_file_restored_at_once(
    network, monkeypatch, before, argv
):
    """The laptop gives up long before the timer runs out."""
    run = cancelled_in(network, monkeypatch, argv)
    assert is_as_before(network, before)
    assert nothing_armed(network)
    again = reached(network)
    again.run_id = run
    assert "could not be reached any more" in network.apply(WANTED, host=again).error
    assert apply(network).verdict == "change", "another run may try"


def test_a_laptop_that_is_gone_before_the_file_is_in_place(network, monkeypatch):
    network.put(PATH, OLD, mode=0o600)
    cancelled_in(network, monkeypatch, ("netplan", "generate"))
    assert network.path(PATH).read_text() == OLD
    assert ["netplan", "apply"] not in verbs(network)
    assert nothing_armed(network)


@pytest.mark.parametrize("argv", [("systemctl",), ("systemd-run",)], ids=["stop", "start"])
def test_a_laptop_that_is_gone_while_the_timer_is_set(network, monkeypatch, argv):
    """An earlier change that was not confirmed never stays without a timer."""
    network.put(PATH, OLD, mode=0o600)
    cut_off(network)
    network.put(PATH, "# another one\n", mode=0o600)
    cancelled_in(network, monkeypatch, argv)
    assert network.path(PATH).read_text() == OLD
    assert links(network)["enp1s0f1np1"] == (["10.9.9.9/24"], 1500)
    assert nothing_armed(network)


def test_a_laptop_that_is_gone_once_it_has_confirmed(network, monkeypatch):
    """A change that was confirmed stays: its timer is stopped all the same."""
    host = network.host()

    def confirms(path):
        network.put(path)
        host.processes.cancel()

    host.verify_login = confirms
    with contextlib.suppress(Cancelled):
        network.apply(WANTED, host=host)
    assert as_wanted(network)
    assert nothing_armed(network)


def nothing_armed_but(node, timer):
    """As after the script: the timer itself is systemd's to forget."""
    with node.state("network") as state:
        state["timers"].pop(timer, None)
    return nothing_armed(node)


def test_a_power_cycle_before_the_timer_runs_out_brings_the_old_file_back(network, before):
    cut_off(network)
    assert as_wanted(network)
    power_cycle(network)
    assert is_as_before(network, before)
    assert nothing_armed(network)
    assert network.check(WANTED).verdict == "change", "a file that nobody confirmed is not done"
    power_cycle(network)
    assert is_as_before(network, before)


@pytest.mark.parametrize("steps", range(1, 9))
def test_a_power_cut_while_it_is_restored_at_boot(network, steps):
    """The script is ended after each of its steps: the next boot does the rest."""
    network.put(PATH, OLD, mode=0o644)
    cut_off(network)
    (folder,) = network.path("/var/lib/spark-cluster/rollback").iterdir()
    script = (folder / "rollback").read_text()
    lines = script.splitlines(keepends=True)
    places = [i for i, x in enumerate(lines) if x.lstrip().startswith(("cp", "sync", "mv", "echo"))]
    places += [i for i, x in enumerate(lines) if x.startswith(("rm", "cd /"))]
    if steps <= len(places):
        place = sorted(places)[steps - 1]
        cut = "".join([*lines[: place + 1], "kill -9 $$\n", *lines[place + 1 :]])
        subprocess.run(["sh", "-c", cut], check=False, timeout=120)
    power_cycle(network)
    assert network.path(PATH).read_text() == OLD
    assert network.path(PATH).stat().st_mode & 0o777 == 0o644


def test_what_was_confirmed_stays_over_a_power_cycle(network):
    network.put(PATH, OLD, mode=0o644)
    assert apply(network).verdict == "change"
    power_cycle(network)
    assert as_wanted(network)
    assert apply(network).verdict == "ok"


def test_the_timer_acts_while_netplan_apply_hangs(network, before, monkeypatch):
    """A file that the timer has restored stays: the agent does not restore it a second time."""
    run, hung = Host.run, []

    def hangs(host, argv, **options):
        if tuple(argv) != ("netplan", "apply") or hung:
            return run(host, argv, **options)
        hung.append(argv)
        (timer,) = timers(network).values()
        run_alone(network, timer)
        raise TooLong("netplan: not done after 60 s")

    monkeypatch.setattr(Host, "run", hangs)
    result = apply(network)
    assert "netplan: not done after 60 s" in result.error
    assert is_as_before(network, before)
    assert any("timer has restored the old configuration" in note for note in network.notes)


def test_the_timer_waits_longer_than_all_limits_together(network, monkeypatch):
    limits, run = {}, Host.run

    def listens(host, argv, *, timeout=60.0, **options):
        if timers(network):
            limits[tuple(argv[:2])] = timeout + TERM_GRACE + KILL_GRACE
        return run(host, argv, timeout=timeout, **options)

    monkeypatch.setattr(Host, "run", listens)
    assert apply(network).verdict == "change"
    del limits["systemctl", "stop"]  # that is how the timer ends
    assert set(limits) == {("netplan", "generate"), ("netplan", "apply"), ("ip", "-j")}
    (started,) = [c for c in network.calls("network") if c[0] == "systemd-run"]
    (after_s,) = [float(a.partition("=")[2]) for a in started if a.startswith("--on-active=")]
    waits_s = module.WAIT_S + module.SETTLE_S + WANTED.confirm_within_s
    assert after_s > sum(limits.values()) + waits_s


def test_a_change_that_no_one_confirmed_is_not_taken_for_done(network):
    network.put(PATH, OLD, mode=0o600)
    cut_off(network)
    result = network.check(WANTED)
    assert result.event["changes"] == {"rollback": ["pending", "none"]}
    assert network.apply(WANTED, host=network.host()).verdict == "failed"
    assert network.path(PATH).read_text() == OLD, "back to what was there before both"
    assert apply(network).verdict == "change"
    assert as_wanted(network)
    assert timers(network) == {}
