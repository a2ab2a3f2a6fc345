"""The playbook `provision` on nodes whose roles only leave a file: what is applied in which order,
new host keys, what is proven of the link, firmware."""

import base64
import json
import re
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from factories import SHIPPED, put
from fake_programs import Said
from piped_cluster import ROLE, Make, PipedCluster, PipedNode
from resource_samples import public_key

from spark_cluster.engine import link_check
from spark_cluster.engine.provisioning import Provisioned, link_changed, read_applied
from spark_cluster.errors import Failed, Unreachable, UsageError
from spark_cluster.node import paths
from spark_cluster.runner.events import Event, Options, Result, Selection
from spark_cluster.runner.play import Applied

ROLES = [
    "bootstrap", "drivers", "network", "ssh_mesh", "copies", "memory", "power", "containers",
    "caches",
]  # fmt: skip
AGAIN = [name for name in ROLES if name != "drivers"]
PINS = SHIPPED.load_role("drivers").path.parent / "pins.json"
GIDS = "/sys/class/infiniband/rocep1s0f1/ports/1"
DEVICES = json.dumps(cases(__file__, "firmware.json"))
STATE = """\
    from spark_cluster.resources import Command
    yield Command("firmware state", ("fwupdmgr", "get-devices"), reads=True)
"""
"""What the role `drivers` asks fwupd besides."""


@pytest.fixture
def make(piped_cluster: Make) -> Make:
    """`make("spark1")`: nodes on which all is in order, two if none is named."""

    def nodes(*names: str, **options: Any) -> PipedCluster:
        cluster = piped_cluster(*names, **options)
        cluster.marked(*ROLES)
        put(cluster.project / "roles/drivers/pins.json", PINS.read_text())
        for node in cluster.nodes.values():
            node.programs["ping"] = lambda *_: ""
        return cluster

    return nodes


def has_packages(node: PipedNode, **versions: str) -> None:
    """Have packages on a node; `_` stands for `-` in their names."""
    rows = (f"{name.replace('_', '-')}\t{one}\tinstalled\n" for name, one in versions.items())
    text = "".join(rows)
    node.programs["dpkg-query"] = lambda *_: text


def changed(node: str, *ids: str) -> Applied:
    """What is applied when these resources of a node are changed."""
    return Applied({node: {one: Result(node, "role", one, "change") for one in ids}})


def test_after_a_change_all_is_applied_again_and_the_next_run_changes_nothing(make):
    cluster = make()

    def asked() -> tuple[int, int]:
        """How often the head was asked for its facts, and sent pings."""
        smi = [words for words in cluster.head.calls("nvidia-smi") if "query-gpu" in words[0]]
        return len(smi), len(cluster.head.calls("ping"))

    done = cluster.run("provision")
    assert cluster.roles() == cluster.roles("spark2") == [*ROLES, *AGAIN]
    assert cluster.settings("ssh_mesh").peers == ("spark1", "spark2")
    assert asked() == (3, 2), "its facts again after each change; a small and a full-size packet"
    sent = sorted(" ".join(words) for words in cluster.head.calls("ping"))
    assert sent[1].endswith("-M do -s 8972 -I 192.168.177.11 192.168.177.12"), "it is not cut"
    cluster.events.clear()
    again = cluster.run("provision")
    assert (cluster.roles(), asked()) == (ROLES, (3, 4))
    assert (done.failures, done.notes, again.notes, cluster.notes) == ({}, {}, {}, [])


def test_one_node_has_no_link(make):
    cluster = make("spark1")
    cluster.run("provision")
    assert {*ROLES} - {*cluster.roles()} == {"network", "ssh_mesh", "copies"}
    assert cluster.head.calls("ping") == []


def test_what_follows_from_a_change_is_told(make):
    cluster, done = make(), Provisioned()
    ids = ("SshKey:/etc/x", "User:nvidia", "MachineId:/etc/machine-id")
    read_applied(cluster.play, changed("spark2", *ids), done)
    assert (list(done.notes), len(done.notes["spark2"])) == (["spark2"], 2)


def test_check_mode_only_looks(make):
    cluster = make(options=Options(check=True))
    cluster.head.put(f"{paths.MESH_KEY}.pub", public_key())
    cluster.run("provision", bandwidth=True)
    assert (cluster.roles(), cluster.head.calls("ping")) == (ROLES, [])
    assert cluster.notes[0].startswith("spark2 will get a key")
    cluster.play.options.selection = Selection(tags=frozenset({"memory"}))
    cluster.run("provision")
    assert sum("will get a key" in note for note in cluster.notes) == 1, "not of another role"


def test_a_peer_that_is_not_in_the_run_matters_only_to_what_is_between_nodes(make):
    cluster = make()
    cluster.play.connections.nodes = {"spark2": cluster.play.inventory.nodes["spark2"]}
    (note,) = cluster.run("provision").notes["spark2"]
    assert note.startswith("without spark1 in this run")
    assert "spark-cluster provision for all nodes" in cluster.notes[0]
    mesh, link = frozenset({"ssh_mesh"}), frozenset({"ssh_mesh", "network"})
    for selection, told in (
        (Selection(tags=frozenset({"memory"})), False),
        (Selection(tags=mesh), True),
        (Selection(skip_tags=mesh), True),
        (Selection(skip_tags=link), False),
    ):
        cluster.play.options = Options(selection=selection)
        assert bool(cluster.run("provision").notes) is told
    cluster.play.options, cluster.play.out["spark1"] = Options(), Failed("no")
    assert cluster.run("provision").notes == {}, "its own error has been shown"


def test_a_misspelt_tag_is_refused_before_anything_changes_with_firmware_too(make):
    tags = frozenset({"memory", "contaners"})
    cluster = make(options=Options(selection=Selection(tags=tags)))
    with pytest.raises(UsageError, match="contaners: nothing in this run"):
        cluster.run("provision", firmware=True)
    assert cluster.roles() == []
    for known in (Selection(tags=frozenset({"playbook"})), Selection(start_at="Command:firmware*")):
        cluster.play.options = Options(selection=known)
        cluster.run("provision", firmware=True)


def test_options_reach_their_roles(make):
    cluster, keys = make(), {"spark1": public_key()}
    cluster.run("provision", allow_reboot=True, allow_restart=True, laptop_keys=keys)
    assert cluster.settings("bootstrap").laptop_keys == keys
    assert cluster.settings("drivers").allow_reboot
    assert cluster.settings("containers").allow_restart


# -- host keys that two nodes share ----------------------------------------------------------------

OLD, NEW = public_key(), public_key(fill=b"b")
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"


class Sharing:
    """Two nodes with one host key, of which the second has another one ready.

    Attributes:
        known: the laptop's known_hosts.
        in_force: is called when the ready key is put into force on the second node.
        applied: of each application of `bootstrap`: whether it is to make keys ready, and whether
            the laptop has written one down.
    """

    def __init__(self, cluster: PipedCluster, home: Path) -> None:
        self.cluster, self.second = cluster, cluster.nodes["spark2"]
        self.known = home / ".ssh/known_hosts"
        self.in_force: Callable[[], object] = lambda: self.shows(NEW)
        self.applied: list[tuple[bool, bool]] = []
        for node in cluster.nodes.values():
            node.put(HOST_KEY, OLD)
        self.second.put(f"{paths.NEXT_HOST_KEYS}/ed25519/key.pub", NEW)
        self.shows(OLD)
        cluster.on_event = self._told

    def shows(self, key: str) -> None:
        """Have sshd of the second node show a key."""
        self.second.put(HOST_KEY, key)
        self.second.host_key = lambda: base64.b64decode(key.split()[1])

    def _told(self, event: Event) -> None:
        if getattr(event, "role", "") == "bootstrap" and getattr(event, "resources", 0):
            prepares = self.cluster.settings("bootstrap", "spark2").prepare_host_keys
            self.applied.append((prepares, self.known.exists()))
            if event.node == "spark2" and not prepares:
                self.in_force()


@pytest.fixture
def sharing(make, tmp_path, monkeypatch):
    made = Sharing(make(), tmp_path / "home")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return made


def test_new_host_keys_are_written_down_before_they_are_in_force(sharing):
    notes = sharing.cluster.run("provision").notes
    assert sharing.applied[:4] == [(True, False)] * 2 + [(False, True)] * 2
    (told,) = notes["spark2"]
    assert f"are in {sharing.known} now" in told
    assert list(notes) == ["spark2"]
    (line,) = sharing.known.read_text().splitlines()
    assert line.endswith(NEW), "it was seen, and replaces nothing any more"


def test_keys_that_the_laptop_cannot_write_down_are_not_put_into_force(sharing):
    sharing.known.mkdir(parents=True)
    with pytest.raises(Failed, match="not a regular file"):
        sharing.cluster.run("provision")
    assert sharing.cluster.roles() == ["bootstrap"]


def test_new_host_keys_that_are_not_shown(sharing):
    sharing.in_force = lambda: None
    assert "reload ssh" in sharing.cluster.run("provision").notes["spark2"][1]


def test_a_node_that_is_not_reached_with_its_new_host_keys(sharing):
    def refuses() -> bytes:
        raise Unreachable("refused the connection")

    sharing.in_force = lambda: setattr(sharing.second, "host_key", refuses)
    (error,) = sharing.cluster.run("provision").failures["spark2"]
    assert error.message == "refused the connection"


def test_check_mode_leaves_known_hosts_alone(sharing):
    sharing.cluster.play.options = Options(check=True)
    sharing.cluster.run("provision")
    assert (sharing.cluster.roles(), sharing.known.exists()) == (ROLES, False)


# -- what is proven --------------------------------------------------------------------------------


def loses_all(_words: list[str], _stdin: str) -> Said:
    return Said("1 packets transmitted, 0 received, 100% packet loss\n", status=1)


def loses_large_ones(words: list[str], _stdin: str) -> Said:
    return Said(status=int(int(words[words.index("-s") + 1]) > 1500))


@pytest.mark.parametrize(
    ("ping", "said"),
    [
        (loses_all, "no packet gets from spark1 enp1s0f1np1 .*, 100% packet loss"),
        (loses_large_ones, "packets of 9000 bytes do not get from spark1 enp1s0f1np1 .*small ones"),
    ],
)
def test_packets_that_do_not_get_through(make, ping, said):
    cluster = make()
    for node in cluster.nodes.values():
        node.programs["ping"] = ping
    failures = cluster.run("provision").failures
    assert [error.exit_code for name in cluster.nodes for error in failures[name]] == [5, 5]
    assert re.search(said, cluster.notes[0])


@pytest.mark.skipif(Path("/usr/bin/ping").exists(), reason="this machine's is found instead")
def test_a_node_without_ping(make):
    cluster = make()
    (cluster.head.root / "usr/local/bin/ping").unlink()
    (failure,) = cluster.run("provision").failures["spark1"]
    assert failure.message.endswith("there is no ping on the node")


def test_the_first_packet_may_be_lost(make):
    cluster, number = make(), count()
    cluster.head.programs["ping"] = lambda *_: Said(status=int(next(number) == 0))
    assert (cluster.run("provision").failures, next(number)) == ({}, 4)


def test_a_node_that_is_lost_while_it_is_looked_at(make):
    cluster = make()
    cluster.head.programs["ping"] = lambda *_: cluster.head.lose() or ""
    assert {name: len(found) for name, found in cluster.run("provision").failures.items()} == {
        "spark1": 1
    }


def test_a_driver_that_does_not_answer_and_is_known_to_be_bad(make):
    cluster = make()
    cluster.head.programs["nvidia-smi"] = lambda *_: Said("No devices were found\n", status=6)
    has_packages(cluster.head, nvidia_driver_580_open="580.173.02-1")
    done = cluster.run("provision")
    ((name, (failure,)),) = done.failures.items()
    assert (name, "No devices were found" in failure.message) == ("spark1", True)
    assert "--allow-reboot" in failure.hint
    assert "driver 580.173.02" in done.notes["spark1"][0]


def test_a_pinned_kernel_that_does_not_run(make):
    pins = 'settings: {drivers: {pins: {linux-image-6.17.0-1008-nvidia: "1"}}}\n'
    cluster = make("spark1", more=pins)
    has_packages(cluster.head, **{"linux-image-6.17.0-1008-nvidia": "1"})
    (failure,) = cluster.run("provision").failures["spark1"]
    assert failure.message.startswith("kernel ")
    assert "--allow-reboot" in failure.hint
    assert "GRUB_DEFAULT" in failure.hint, "a reboot alone takes the newest kernel again"


def test_bandwidth_is_measured_on_request_where_the_tools_are(make, monkeypatch):
    monkeypatch.setattr(link_check.time, "sleep", lambda _: None)
    cluster = make()
    prints = [" 65536  3739900  0.00  13.0  0.186973\n"]
    for node in cluster.nodes.values():
        node.programs["ib_write_bw"] = lambda *_: prints[0]
        node.put(f"{GIDS}/gids/3", "0000:0000:0000:0000:0000:ffff:c0a8:b10b\n")
        node.put(f"{GIDS}/gid_attrs/types/3", "RoCE v2\n")
    assert cluster.run("provision", bandwidth=True).bandwidth == []
    said = "the link was not measured: ib_write_bw (perftest) is not on spark1, spark2"
    assert cluster.notes.count(said) == 1
    for node in cluster.nodes.values():
        has_packages(node, perftest="1")
    cluster.play.refresh(cluster.play.nodes)
    done = cluster.run("provision", bandwidth=True)
    assert [(str(one.hop)[:6], one.verdict) for one in done.bandwidth] == [("spark1", "degraded")]
    assert "from AC for 60 s" in done.notes["spark1"][0]
    (client,) = cluster.head.calls("ib_write_bw")
    assert client == [*cluster.nodes["spark2"].calls("ib_write_bw")[0], "192.168.177.12"]
    assert " ".join(client).startswith("-d rocep1s0f1 -x 3 ")
    assert cluster.run("provision").bandwidth == []
    assert cluster.notes.count(said) == 1
    prints[0] = "Couldn't allocate MR\n"
    (failure,) = cluster.run("provision", bandwidth=True).failures["spark1"]
    assert failure.message.endswith(prints[0].strip())
    assert link_changed(changed("spark1", "Netplan:/etc/netplan/99-spark-cluster.yaml"))


@pytest.mark.parametrize(
    ("gbits", "verdict"), [(111.7, "good"), (92.0, "good"), (60.0, "low"), (13.0, "degraded")]
)
def test_which_bandwidth_is_good(gbits, verdict):
    assert link_check.Bandwidth(None, gbits).verdict == verdict


# -- firmware --------------------------------------------------------------------------------------


@pytest.fixture
def flashing(make):
    """`flashing()`: two nodes, of which the first has fwupd."""

    def nodes(devices: str = DEVICES, **options: Any) -> PipedCluster:
        cluster = make(**options)
        put(cluster.project / "roles/drivers/__init__.py", ROLE.format(name="drivers") + STATE)
        for node in cluster.nodes.values():
            node.programs["fwupdmgr"] = lambda *_: devices
        has_packages(cluster.head, fwupd="2.0.20")
        return cluster

    return nodes


@pytest.mark.parametrize("devices", [DEVICES, "", "not json", "[]", '{"Devices": [3]}'])
def test_firmware_is_reported_and_updated_only_when_asked(flashing, devices):
    cluster = flashing(devices)
    done = cluster.run("provision")
    versions = done.firmware.get("spark1", {})
    known = "0x03000302" if devices == DEVICES else None
    assert (versions.get("Embedded Controller"), done.failures) == (known, {})
    assert not [words for words in cluster.head.calls("fwupdmgr") if words[0] != "get-devices"]


def test_never_the_firmware_of_the_connectx(flashing):
    cluster = flashing()
    cluster.run("provision", firmware=True)
    flashed = [words[1] for words in cluster.head.calls("fwupdmgr") if words[0] == "update"]
    assert flashed == ["a1"]
    assert cluster.applied()[-3:] == [
        "spark1 Command:firmware of UEFI Device Firmware: 0x02009b0b to 0x02009c00",
        "spark1 File:/run/reboot-required",
        "spark1 Reboot:new firmware",
    ]
    assert "spark1: do not unplug it until it is back: firmware is being written" in cluster.notes
    assert "spark2: fwupd is not installed: its firmware was not checked" in cluster.notes


def test_check_mode_tells_which_firmware_and_writes_none(flashing):
    cluster = flashing(options=Options(check=True))
    cluster.run("provision", firmware=True)
    words = [" ".join(one) for one in cluster.head.calls("fwupdmgr")]
    assert words == ["get-devices", "get-updates --json"]
    (would,) = cluster.applied("Command:firmware of")
    assert would.endswith("0x02009b0b to 0x02009c00")
    assert not any("unplug" in note for note in cluster.notes)
    assert any("fwupdmgr refresh" in note for note in cluster.notes)
