"""The playbook `provision`, against a play that only notes what it is asked to do."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases import cases
from factories import read_inventory
from role_samples import a_spark, together

from spark_cluster.config.project import Project
from spark_cluster.engine import link_check
from spark_cluster.errors import Failed, SparkClusterError
from spark_cluster.runner import host_key_change
from spark_cluster.runner.events import Options, Result, Selection
from spark_cluster.runner.play import Applied, RoleCall
from spark_cluster.runner.session import Output

PROJECT = Project()
PLAYBOOK = PROJECT.load_playbook("provision")
INVENTORY = """\
nodes:
  spark1: {address: 10.89.0.11, roles: [head]}
  spark2: {address: 10.89.0.12}
"""
EVERYTHING = [
    "bootstrap", "drivers", "network", "ssh_mesh", "copies", "memory", "power", "containers",
    "caches",
]  # fmt: skip
SMI = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.142"


class Play:
    """Record the calls of `apply`; the nodes' commands always end with `status`."""

    project, verified = PROJECT, True

    def __init__(self, nodes, inventory, *, check=False, changes=(), status=0, output="") -> None:
        self.nodes, self.inventory, self.check = nodes, inventory, check
        self.changes, self.status, self.output = list(changes), status, output
        self.connections, self.options = self, Options(check=check)
        self.applied, self.notes, self.ran, self.refreshed, self.steps = [], [], [], 0, []
        self.announced, self.out = {"spark2": ["ssh-ed25519 SHA256:x"]}, {}

    def role(self, name, /, **given):
        return RoleCall(name, given)

    def apply(self, nodes, *what, fail_fast=True):
        assert not fail_fast, "one node's failure does not stop the other"
        self.applied.append(what)
        self.steps.append("apply")
        changed = self.changes.pop(0) if self.changes else {}
        results = {n.name: {} for n in self.nodes}
        for node, ids in changed.items():
            results[node] = {i: Result(node, "role", i, "change") for i in ids}
        for node in results.values():
            node["Command:firmware state"] = Result("n", "r", "c", "ok", output=self.output)
        return Applied(results)

    def refresh(self, nodes, *, fail_fast=True):
        self.refreshed += 1

    def forget_replaced(self, name):
        self.steps.append(f"look at {name}")

    def announce(self, name):
        self.steps.append(f"announce {name}")
        if isinstance(self.announced, SparkClusterError):
            raise self.announced
        return Path("/home/me/.ssh/known_hosts"), self.announced.get(name, [])

    def verify(self, name):
        self.steps.append(f"verify {name}")
        if isinstance(self.verified, SparkClusterError):
            raise self.verified
        return self.verified

    @contextlib.contextmanager
    def stage(self, name):
        yield

    def on_each(self, nodes, job):
        return {node.name: job(node) for node in nodes}

    def session(self, node):
        def run(argv, *, timeout=60.0):
            self.ran.append((node.name, list(argv)))
            if isinstance(self.status, SparkClusterError):
                raise self.status
            return Output(self.status, self.output, "")

        def submit(_op, *, commands, timeout=60.0):
            told = {name: vars(run(argv)) for name, argv in commands.items()}
            return SimpleNamespace(wait=lambda: {"commands": told})

        return SimpleNamespace(run=run, submit=submit)

    def note(self, text, *, warning=False, node=None):
        self.notes.append((node.name if node else "", text))


def names(what):
    return [w.name if isinstance(w, RoleCall) else w for w in what]


@pytest.fixture(autouse=True)
def host_keys(monkeypatch):
    """The host keys of this play: nothing is connected to."""
    for name in ("announce", "verify", "forget_replaced"):
        monkeypatch.setattr(
            host_key_change, name, lambda play, node, of=name: getattr(play, of)(node)
        )


@pytest.fixture
def inventory(tmp_path):
    path = tmp_path / "inventory.yaml"
    path.write_text(INVENTORY)
    return read_inventory(path)


@pytest.fixture
def play(inventory):
    return lambda *nodes, **options: Play(
        list(nodes) or together(a_spark(), a_spark(1)), inventory, **options
    )


def test_nothing_to_change_is_one_document_and_one_turn_of_pings(play):
    run = play()
    done = PLAYBOOK.function(run)
    assert [names(what) for what in run.applied] == [EVERYTHING]
    assert run.refreshed == 0
    pings = sorted((node, argv[0]) for node, argv in run.ran)
    assert pings == [("spark1", "ping")] * 4 + [("spark2", "ping")] * 4
    assert (done.failures, done.notes, run.notes) == ({}, {}, [])
    assert run.applied[0][3].given == {"peers": ("spark1", "spark2")}


def test_one_node_has_no_link(tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text("nodes: {spark1: {address: 10.89.0.11}}\n")
    run = Play(together(a_spark()), read_inventory(path))
    PLAYBOOK.function(run)
    assert names(run.applied[0]) == [
        n for n in EVERYTHING if n not in ("network", "ssh_mesh", "copies")
    ]
    assert run.ran == []


def test_after_a_change_facts_are_asked_for_again_and_all_is_applied_again(play):
    run = play(changes=[{"spark2": ["SshKey:/etc/x", "User:nvidia", "MachineId:/etc/machine-id"]}])
    done = PLAYBOOK.function(run)
    again = [name for name in EVERYTHING if name != "drivers"]
    assert [names(what) for what in run.applied] == [EVERYTHING, again]
    assert run.refreshed == 2
    assert len(done.notes["spark2"]) == 2
    assert [node for node, _ in run.notes] == ["spark2", "spark2"]


def test_check_mode_only_looks(play):
    run = play(check=True, changes=[{"spark1": ["Netplan:/etc/x"]}])
    PLAYBOOK.function(run, bandwidth=True)
    assert (len(run.applied), run.refreshed, run.ran, run.notes) == (1, 0, [], [])
    new = play(*together(a_spark(), a_spark(1, mesh_key="")), check=True)
    PLAYBOOK.function(new)
    assert "spark2 will get a key" in new.notes[0][1]


def test_a_peer_that_is_not_in_the_run_is_reported(play):
    run = play(a_spark(1))
    assert "without spark1 in this run" in PLAYBOOK.function(run).notes["spark2"][0]
    assert "spark-cluster provision for all nodes" in run.notes[0][1]
    broken = play(a_spark(1))
    broken.out = {"spark1": Failed("no")}
    assert PLAYBOOK.function(broken).notes == {}, "its own error has been shown"


@pytest.mark.parametrize(
    ("selection", "told"),
    [
        (Selection(tags=frozenset({"memory"})), False),
        (Selection(tags=frozenset({"ssh_mesh"})), True),
        (Selection(skip_tags=frozenset({"ssh_mesh"})), True),
        (Selection(skip_tags=frozenset({"ssh_mesh", "network"})), False),
    ],
)
def test_a_peer_matters_only_to_what_is_between_nodes(play, selection, told):
    run = play(a_spark(1))
    run.options = Options(selection=selection)
    assert bool(PLAYBOOK.function(run).notes) is told


def test_options_reach_their_roles(play):
    run = play()
    PLAYBOOK.function(run, allow_reboot=True, laptop_keys={"spark1": "ssh-ed25519 A"})
    bootstrap, drivers, *_ = run.applied[0]
    assert bootstrap.given == {"laptop_keys": {"spark1": "ssh-ed25519 A"}}
    assert drivers.given == {"allow_reboot": True}


@pytest.fixture
def sharing(play):
    shared = {"host_keys": ("ssh-ed25519 SAME",)}
    return play(*together(a_spark(**shared), a_spark(1, **shared)))


def test_new_host_keys_are_announced_before_they_are_in_force(sharing):
    done = PLAYBOOK.function(sharing)
    assert [names(what) for what in sharing.applied] == [["bootstrap"], ["bootstrap"], EVERYTHING]
    assert sharing.applied[0][0].given == {"prepare_host_keys": True}
    assert sharing.applied[1][0].given == {}
    assert sharing.steps == [
        "look at spark1", "look at spark2",
        "apply", "announce spark1", "announce spark2", "apply", "verify spark2", "apply",
    ]  # fmt: skip
    assert "/home/me/.ssh/known_hosts" in done.notes["spark2"][0]
    assert "spark1" not in done.notes


def test_keys_that_the_laptop_cannot_write_down_are_not_put_into_force(sharing):
    sharing.announced = Failed("cannot be written: No space left on device")
    with pytest.raises(Failed, match="No space left"):
        PLAYBOOK.function(sharing)
    assert [names(what) for what in sharing.applied] == [["bootstrap"]]


def test_new_host_keys_that_are_not_shown(sharing):
    sharing.verified = False
    assert "reload ssh" in PLAYBOOK.function(sharing).notes["spark2"][1]


def test_a_node_that_is_not_reached_with_its_new_host_keys(sharing):
    sharing.verified = Failed("refused the connection")
    failures = PLAYBOOK.function(sharing).failures["spark2"]
    assert [error.message for error in failures] == ["refused the connection"]


def test_check_mode_leaves_known_hosts_alone(sharing):
    sharing.check = True
    PLAYBOOK.function(sharing)
    assert sharing.steps == ["apply"]


def test_packets_that_do_not_get_through(play):
    run = play(status=1, output="100% packet loss")
    done = PLAYBOOK.function(run)
    assert [e.exit_code for e in done.failures["spark1"]] == [5, 5]
    assert len(done.failures["spark2"]) == 2
    assert "packet loss" in run.notes[0][1]


def test_a_node_that_is_lost_while_it_is_looked_at(play):
    done = PLAYBOOK.function(play(status=Failed("the connection was lost")))
    assert {len(errors) for errors in done.failures.values()} == {1}


def test_a_driver_that_does_not_answer(play):
    run = play(*together(a_spark(gpu=None, nvml_error=SMI), a_spark(1)))
    done = PLAYBOOK.function(run)
    assert list(done.failures) == ["spark1"]
    assert "version mismatch" in done.failures["spark1"][0].message
    assert "--allow-reboot" in done.failures["spark1"][0].hint


def test_a_pinned_kernel_that_does_not_run(tmp_path):
    path = tmp_path / "inventory.yaml"
    pins = 'settings: {drivers: {pins: {linux-image-6.17.0-1008-nvidia: "1"}}}\n'
    path.write_text(INVENTORY + pins)
    nodes = together(
        *(a_spark(i, packages={"linux-image-6.17.0-1008-nvidia": "1"}) for i in (0, 1))
    )
    failure = PLAYBOOK.function(Play(nodes, read_inventory(path))).failures["spark1"][0]
    assert failure.message.startswith("kernel 6.17.0-1014-nvidia runs")
    assert "--allow-reboot" in failure.hint
    assert "GRUB_DEFAULT" in failure.hint, "a reboot alone takes the newest kernel again"


def test_known_bad_is_said(play):
    run = play(*together(a_spark(kernel="6.17.0-1008-nvidia"), a_spark(1)))
    assert "6.17.0-1008" in PLAYBOOK.function(run).notes["spark1"][0]


def test_bandwidth_is_measured_when_the_link_was_changed_and_the_tools_are_there(play, monkeypatch):

    monkeypatch.setattr(link_check, "measure", lambda server, client, hop: 13.0)
    changes = [{"spark1": ["Netplan:/etc/netplan/99-spark-cluster.yaml"]}]
    tools = {"packages": {"perftest": "1"}}
    both = together(a_spark(**tools), a_spark(1, **tools))
    done = PLAYBOOK.function(play(*both, changes=changes))
    assert [(str(b.hop)[:6], b.verdict) for b in done.bandwidth] == [("spark1", "degraded")] * 2
    assert "from AC for 60 s" in done.notes["spark1"][0]
    assert PLAYBOOK.function(play(changes=changes)).bandwidth == []
    assert PLAYBOOK.function(play(*both)).bandwidth == []
    assert len(PLAYBOOK.function(play(*both), bandwidth=True).bandwidth) == 2


# --- firmware ---------------------------------------------------------------------------------

DEVICES = json.dumps(cases(__file__, "firmware.json"))


def test_firmware_is_reported(play):
    done = PLAYBOOK.function(play(output=DEVICES))
    assert done.firmware["spark1"]["Embedded Controller"] == "0x03000302"


@pytest.mark.parametrize("output", ["", "not json", "[]", '{"Devices": [3]}'])
def test_firmware_that_fwupd_does_not_tell(play, output):
    assert PLAYBOOK.function(play(output=output)).failures == {}


def test_firmware_is_updated_only_when_asked_and_never_the_connectx(play):
    nodes = together(a_spark(packages={"fwupd": "2.0.20"}), a_spark(1))
    assert len(run_with(play, nodes).applied) == 1
    run = run_with(play, nodes, firmware=True)
    ((resources,),) = run.applied[1:]
    assert [r.id for r in resources] == [
        "Command:firmware of UEFI Device Firmware: 0x02009b0b to 0x02009c00",
        "File:/run/reboot-required",
        "Reboot:new firmware",
    ]
    assert resources[0].argv[:3] == ("fwupdmgr", "update", "a1")
    assert resources[0].long
    assert not resources[2].allowed


def test_firmware_without_fwupd_is_reported(play):
    nodes = together(a_spark(packages={"fwupd": "2.0.20"}), a_spark(1))
    run = run_with(play, nodes, firmware=True)
    assert [text for node, text in run.notes if node == "spark2"] == [
        "fwupd is not installed: its firmware was not checked"
    ]


def test_check_mode_tells_which_firmware_and_writes_none(play):
    nodes = together(a_spark(packages={"fwupd": "2.0.20"}), a_spark(1, packages={"fwupd": "2"}))
    run = run_with(play, nodes, check=True, firmware=True)
    assert [argv for _, argv in run.ran] == [["fwupdmgr", "get-updates", "--json"]] * 2
    assert "0x02009b0b to 0x02009c00" in run.applied[1][0][0].id
    assert not any("unplug" in text for _, text in run.notes)
    assert "fwupdmgr refresh" in run.notes[0][1]


def run_with(play, nodes, *, check=False, **options):
    run = play(*nodes, output=DEVICES, check=check)
    PLAYBOOK.function(run, **options)
    return run
