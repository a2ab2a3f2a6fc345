"""bootstrap: who may log in, the name, an identity of its own, the clock."""

from dataclasses import replace

import pytest
from role_samples import a_spark, ids, one, together

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "D" * 43


def test_as_it_comes(role):
    node = together(a_spark())[0]
    assert ids(role("bootstrap", node)) == [
        "HostsEntry:spark-1a60",
        "MachineId:/etc/machine-id",
        "HostKeys:/etc/ssh",
        "Service:ssh",
        "Service:systemd-timesyncd",
    ]


def test_keys_of_the_laptop_and_more(role):
    settings = {"laptop_keys": {"spark1": KEY + " me", "spark2": KEY}, "authorized_keys": (KEY,)}
    keys = [r for r in role("bootstrap", a_spark(), **settings) if r.id.startswith("Authorized")]
    assert [k.key for k in keys] == [KEY + " me", KEY]
    settings["authorized_keys"] = (KEY + " me\n",)
    assert len([r for r in role("bootstrap", a_spark(), **settings) if "SHA256" in r.id]) == 1


def test_sudo_only_when_asked_for_and_only_when_valid(role):
    resources = role("bootstrap", a_spark(), passwordless_sudo=True)
    rule = one(resources, "File", "/etc/sudoers.d/90-spark-cluster-nvidia")
    assert rule.content.endswith("nvidia ALL=(ALL:ALL) NOPASSWD: ALL\n")
    assert rule.validate_with == ("visudo", "-cf", "{}")
    assert (rule.mode, rule.owner) == (0o440, "root")


@pytest.mark.parametrize(
    ("user", "file", "word"),
    [
        ("some.body", "some%2ebody", "some.body"),
        ("Some", "Some", "Some"),
        ("ROOT_2", "ROOT_2", r"\x52OOT_2"),
        ("u@example.org", "u%40example%2eorg", r"u\x40example.org"),
        ("DOM\\user", "DOM%5cuser", r"DOM\x5cuser"),
    ],
)
def test_sudo_of_users_with_other_characters(role, user, file, word):
    """sudo ignores files with a dot in their name, and takes capital letters for an alias."""
    node = replace(a_spark(), user=user)
    rule = one(role("bootstrap", node, passwordless_sudo=True), "File", "/etc/sudoers.d/90")
    assert rule.path == f"/etc/sudoers.d/90-spark-cluster-{file}"
    assert rule.content.splitlines()[1] == f"{word} ALL=(ALL:ALL) NOPASSWD: ALL"
    rule = one(role("memory", node), "File", "/etc/sudoers.d")
    assert rule.content.splitlines()[1].startswith(f"{word} ALL=(root)")
    assert role("containers", node), "a group may have such a member"


@pytest.mark.parametrize(
    ("hostname", "name", "renamed"),
    [("keep", "spark-1a60", False), ("inventory", "spark1", True), ("box", "box", True)],
)
def test_hostname(role, hostname, name, renamed):
    resources = role("bootstrap", a_spark(), hostname=hostname)
    assert (f"Hostname:{name}" in ids(resources)) is renamed
    own = one(resources, "HostsEntry")
    assert (own.host, own.address, own.any_address) == (name, "127.0.1.1", True)


def test_a_name_that_two_nodes_share_goes_to_the_first(role):
    first, second = together(a_spark(hostname="spark-ffff"), a_spark(1, hostname="spark-ffff"))
    assert not [i for i in ids(role("bootstrap", first)) if i.startswith("Hostname")]
    assert one(role("bootstrap", second), "Hostname").hostname == "spark2"


def test_only_the_later_node_gets_a_new_identity(role):
    shared = {"machine_id": "a" * 32, "host_keys": ("ssh-ed25519 SAME", "ssh-rsa SAME2")}
    first, second = together(a_spark(**shared), a_spark(1, **shared))
    assert one(role("bootstrap", first), "MachineId").taken == ()
    assert one(role("bootstrap", first), "HostKeys").taken == ()
    resources = role("bootstrap", second)
    assert one(resources, "MachineId").taken == ("a" * 32,)
    assert one(resources, "HostKeys").taken == shared["host_keys"]
    assert one(resources, "Service", "ssh").triggers() == ("HostKeys:/etc/ssh",)
    assert one(resources, "Service", "ssh").running is None
    (ready,) = role("bootstrap", second, prepare_host_keys=True)
    assert (ready.prepare, ready.taken) == (True, shared["host_keys"])
    assert role("bootstrap", second, prepare_host_keys=True, unique_identity=False) == []
    left = role("bootstrap", second, unique_identity=False)
    assert not [i for i in ids(left) if i.startswith(("MachineId", "HostKeys"))]


@pytest.mark.parametrize(
    ("packages", "time", "unit"),
    [
        (("chrony", "systemd-timesyncd"), "auto", "chrony"),
        (("systemd-timesyncd",), "auto", "systemd-timesyncd"),
        ((), "auto", None),
        ((), "chrony", "chrony"),
        (("chrony",), "none", None),
    ],
)
def test_clock(role, packages, time, unit):
    node = a_spark(packages=dict.fromkeys(packages, "1"))
    units = [r.unit for r in role("bootstrap", node, time=time) if r.id.startswith("Service")]
    assert units == (["ssh", unit] if unit else ["ssh"])


def test_avahi_is_kept_off_the_link_only_where_that_is_asked_for(role):
    """P11: all ports of the ConnectX-7, up or down; nothing where avahi is not installed."""
    with_avahi = a_spark(packages={"avahi-daemon": "0.8"})
    assert "avahi" not in str(ids(role("bootstrap", with_avahi)))
    line, avahi = role("bootstrap", with_avahi, avahi_on_link=False)[-2:]
    ports = ",".join(hca.interface for hca in with_avahi.facts.hcas)
    assert (line.line, line.after) == (f"deny-interfaces={ports}", r"^\[server\]$")
    assert (avahi.running, avahi.triggers()) == (None, (line.id,))
    assert "avahi" not in str(ids(role("bootstrap", a_spark(), avahi_on_link=False)))
