"""bootstrap: who may log in, the name, an identity of its own, the clock."""

from role_samples import a_spark, ids, one, together

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "D" * 43


def test_keys_of_the_laptop_and_more(role):
    settings = {"laptop_keys": {"spark1": KEY + " me", "spark2": KEY}, "authorized_keys": (KEY,)}
    keys = [r for r in role("bootstrap", a_spark(), **settings) if r.id.startswith("Authorized")]
    assert [k.key for k in keys] == [KEY + " me", KEY]
    settings["authorized_keys"] = (KEY + " me\n",)
    assert len([r for r in role("bootstrap", a_spark(), **settings) if "SHA256" in r.id]) == 1


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
