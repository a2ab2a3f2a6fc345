"""ssh_mesh where nodes are unlike; the rest is in cases/ssh_mesh.json."""

from dataclasses import replace

import pytest
from role_samples import a_spark, ids, one, together

OWN = ["Directory:/etc/spark-cluster/mesh", "SshKey:/etc/spark-cluster/mesh/id_ed25519"]


@pytest.mark.parametrize("second", [None, a_spark(1, mesh_key=""), a_spark(1, host_keys=())])
def test_only_the_own_key_until_all_are_known(role, second):
    """Or a run with --limit would take away what a run on all has put in."""
    node = together(a_spark(), second)[0] if second else together(a_spark())[0]
    assert ids(role("ssh_mesh", node, peers=("spark1", "spark2"))) == OWN


def test_a_node_known_by_its_name_only(role):
    (node, _) = together(a_spark(), replace(a_spark(1), address="spark2.lan"))
    keys = [r for r in role("ssh_mesh", node) if r.id.startswith("Authorized")]
    assert keys[1].options[0] == 'from="192.168.177.12,192.168.178.12"'


def test_each_logs_in_as_the_others_user(role):
    first, second = a_spark(), replace(a_spark(1), user="ubuntu")
    resources = role("ssh_mesh", together(first, second)[0])
    assert "User ubuntu\n" in one(resources, "File", "/etc/ssh/ssh_config.d").content
    assert {r.user for r in resources if r.id.startswith("Authorized")} == {"nvidia"}
