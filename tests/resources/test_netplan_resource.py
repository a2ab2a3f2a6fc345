"""Netplan: validated before, proven after, put back when the node is not reached any more."""

import subprocess

import pytest

from spark_cluster.agent.host import Cancelled
from spark_cluster.resources import InvalidResource, Netplan
from spark_cluster.resources import netplan as module

PATH = "/etc/netplan/40-cx7.yaml"
TWINS = {"enp1s0f1np1": "192.168.177.11/24", "enP2p1s0f1np1": "192.168.178.11/24"}
CONTENT = "".join(f"# {name} {address} 9000\n" for name, address in TWINS.items())
OLD = "# enp1s0f1np1 10.9.9.9/24 1500\n"
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
    host.ask_for_proof = node.put
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


def as_wanted(node):
    return {n: v for n, v in links(node).items() if n in TWINS} == {
        name: ([address], 9000) for name, address in TWINS.items()
    }


def test_addresses_come_and_stay(network):
    assert network.check(WANTED).verdict == "change"
    assert apply(network).verdict == "change"
    assert as_wanted(network)
    assert network.path(PATH).stat().st_mode & 0o777 == 0o600
    assert timers(network) == {}
    assert not list(network.path("/run/spark-cluster").glob("**/before"))
    assert apply(network).verdict == "ok"


def test_the_timer_is_there_before_anything_is_applied(network):
    apply(network)
    assert [c[:2] for c in verbs(network)] == [
        ["systemd-run", "--quiet"],
        ["netplan", "generate"],
        ["netplan", "apply"],
    ]


@pytest.mark.parametrize("drift", [{"mtu": 1500}, {"addresses": []}, {"addresses": ["1.2.3.4/8"]}])
def test_drift_is_repaired(network, drift):
    apply(network)
    with network.state("network") as state:
        state["links"]["enp1s0f1np1"].update(drift)
    assert network.check(WANTED).verdict == "change"
    assert apply(network).verdict == "change"
    assert as_wanted(network)
    assert apply(network).verdict == "ok"


def test_not_valid_is_never_put_in_place(network):
    network.put(PATH, OLD, mode=0o600)
    broken = Netplan(PATH, content="BROKEN", addresses=TWINS, mtu=9000)
    result = apply(network, broken)
    assert result.verdict == "failed"
    assert "does not accept" in result.error
    assert network.path(PATH).read_text() == OLD
    assert ["netplan", "apply"] not in verbs(network)
    assert timers(network) == {}


@pytest.mark.parametrize("before", [OLD, None])
@pytest.mark.parametrize("why", ["mute", "refuses", "unreached"])
def test_the_old_file_comes_back(network, before, why):
    if before:
        network.put(PATH, before, mode=0o600)
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
    path = network.path(PATH)
    assert (path.read_text() if path.exists() else None) == before
    assert links(network)["enp1s0f1np1"] == ((["10.9.9.9/24"], 1500) if before else ([], 1500))
    assert timers(network) == {}


@pytest.mark.parametrize("before", [OLD, None])
def test_a_node_that_is_cut_off_puts_it_back_by_itself(network, before):
    """The laptop is gone in the middle: the timer's script is what is left."""
    if before:
        network.put(PATH, before, mode=0o600)
    host = network.host()
    host.ask_for_proof = lambda _path: host.processes.cancelled.set()
    with pytest.raises(Cancelled):
        network.apply(WANTED, host=host)
    assert as_wanted(network)
    ((unit, argv),) = timers(network).items()
    assert unit == "spark-cluster-rollback-etc-netplan-40-cx7-yaml"
    environment = {"PATH": f"{network.bin}:/usr/bin:/bin"}
    subprocess.run(argv, check=True, env=environment)
    path = network.path(PATH)
    assert (path.read_text() if path.exists() else None) == before
    assert links(network)["enp1s0f1np1"] == ((["10.9.9.9/24"], 1500) if before else ([], 1500))
    (left,) = network.path("/run/spark-cluster/rollback").iterdir()
    assert left.read_text().strip() == host.run_id


def test_a_change_that_nobody_confirmed_is_not_taken_for_done(network):
    network.put(PATH, OLD, mode=0o600)
    host = network.host()
    host.ask_for_proof = lambda _path: host.processes.cancelled.set()
    with pytest.raises(Cancelled):
        network.apply(WANTED, host=host)
    result = network.check(WANTED)
    assert result.event["changes"] == {"rollback": ["pending", "none"]}
    assert network.apply(WANTED, host=network.host()).verdict == "failed"
    assert network.path(PATH).read_text() == OLD, "back to what was there before both"
    assert apply(network).verdict == "change"
    assert as_wanted(network)
    assert timers(network) == {}


def test_it_is_validated_together_with_the_files_that_are_there(network):
    network.put("/run/netplan/90-theirs.yaml", "BROKEN")
    result = apply(network)
    assert result.verdict == "failed"
    assert "90-theirs.yaml" in result.error
    assert not network.path(PATH).exists()


def test_the_run_that_was_cut_off_goes_on_and_does_not_do_it_again(network):
    """Once the old file is back the laptop is connected again, and sends the same document."""
    network.put(PATH, OLD, mode=0o600)
    host = network.host()
    assert network.apply(WANTED, host=host).verdict == "failed"
    before = verbs(network)
    again = reached(network)
    again.run_id = host.run_id
    result = network.apply(WANTED, host=again)
    assert "could not be reached any more" in result.error
    assert verbs(network) == before
    assert apply(network).verdict == "change", "another run may try"


def test_no_such_interface(network):
    other = Netplan(PATH, content="x", addresses={"eth7": "10.0.0.1/24"}, mtu=1500)
    assert "there is no interface eth7" in apply(network, other).error


def test_only_under_etc_netplan():
    with pytest.raises(InvalidResource, match="under /etc/netplan"):
        Netplan("/etc/network/x.yaml", content="", addresses={}, mtu=1500)
