"""ssh_mesh: keys of their own, names on the fabric, host keys that the laptop has verified."""

from dataclasses import replace

import pytest
from role_samples import a_spark, ids, one, together

OWN = ["Directory:/etc/spark-cluster/mesh", "SshKey:/etc/spark-cluster/mesh/id_ed25519"]


def test_two_nodes(role):
    first, _ = together(a_spark(), a_spark(1))
    resources = role("ssh_mesh", first, peers=("spark1", "spark2"))
    assert ids(resources) == [
        *OWN,
        "HostsEntry:spark1-fabric",
        "HostsEntry:spark2-fabric",
        "HostsEntry:spark2",
        *(r.id for r in resources if r.id.startswith("AuthorizedKey:nvidia")),
        "File:/etc/ssh/spark-cluster-known-hosts",
        "File:/etc/ssh/ssh_config.d/40-spark-cluster.conf",
    ]
    assert one(resources, "SshKey").owner == "nvidia"
    assert one(resources, "HostsEntry", "spark2-fabric").address == "192.168.177.12"
    keys = [r for r in resources if r.id.startswith("AuthorizedKey:nvidia")]
    assert [k.key for k in keys] == [
        f"{a_spark().facts.mesh_key} spark-cluster-mesh-spark1",
        f"{a_spark(1).facts.mesh_key} spark-cluster-mesh-spark2",
    ]
    assert all(k.sole for k in keys), "the key of a node that was wiped goes"
    assert {k.own_comments for k in keys} == {"spark-cluster-mesh-"}, "a node may be renamed"
    rest = ("no-agent-forwarding", "no-port-forwarding", "no-X11-forwarding")
    assert [k.options for k in keys] == [
        ('from="192.168.177.11,192.168.178.11,10.89.0.11,127.0.0.0/8,::1"', *rest),
        ('from="192.168.177.12,192.168.178.12,10.89.0.12"', *rest),
    ]
    known = one(resources, "File", "/etc/ssh/spark-cluster-known-hosts").content
    assert known.splitlines()[2:] == [
        "spark-cluster-spark1 ssh-ed25519 HOST1",
        "spark-cluster-spark2 ssh-ed25519 HOST2",
    ]
    assert one(resources, "File", "/etc/ssh/ssh_config.d").content.split("\n\n")[2] == (
        "Host spark2 spark2-fabric 192.168.177.12 192.168.178.12\n"
        "    User nvidia\n"
        "    IdentityFile /etc/spark-cluster/mesh/id_ed25519\n"
        "    IdentitiesOnly yes\n"
        "    HostKeyAlias spark-cluster-spark2\n"
        "    GlobalKnownHostsFile /etc/ssh/ssh_known_hosts /etc/ssh/spark-cluster-known-hosts\n"
        "    StrictHostKeyChecking yes\n"
    )


@pytest.mark.parametrize(
    "second",
    [None, a_spark(1, mesh_key=""), a_spark(1, host_keys=()), a_spark(1, linked=False)],
)
def test_only_the_own_key_until_all_are_known(role, second):
    """Or a run with --limit would take away what a run on all has put in."""
    node = together(a_spark(), second)[0] if second else together(a_spark())[0]
    assert ids(role("ssh_mesh", node, peers=("spark1", "spark2"))) == OWN


def test_no_limits(role):
    first, second = a_spark(), replace(a_spark(1), address="spark2.lan")
    (node, _) = together(first, second)
    free = [r for r in role("ssh_mesh", node, restrict=False) if r.id.startswith("Authorized")]
    assert [k.options for k in free] == [(), ()], "earlier limits go"
    keys = [r for r in role("ssh_mesh", node) if r.id.startswith("Authorized")]
    assert keys[1].options[0] == 'from="192.168.177.12,192.168.178.12"'


def test_alone(role):
    assert ids(role("ssh_mesh", together(a_spark())[0])) == OWN


def test_plain_names_can_be_left_to_others(role):
    node = together(a_spark(), a_spark(1))[0]
    names = [
        r.host for r in role("ssh_mesh", node, plain_names=False, suffix="-x") if "Hosts" in r.id
    ]
    assert names == ["spark1-x", "spark2-x"]


def test_each_logs_in_as_the_others_user(role):
    first, second = a_spark(), replace(a_spark(1), user="ubuntu")
    resources = role("ssh_mesh", together(first, second)[0])
    assert "User ubuntu\n" in one(resources, "File", "/etc/ssh/ssh_config.d").content
    assert {r.user for r in resources if r.id.startswith("Authorized")} == {"nvidia"}
