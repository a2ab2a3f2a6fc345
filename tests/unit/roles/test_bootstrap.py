"""bootstrap: who may log in, the name, an identity of its own, the clock."""

from role_samples import a_spark

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "D" * 43


def test_keys_of_the_laptop_and_more(role):
    settings = {"laptop_keys": {"spark1": KEY + " me", "spark2": KEY}, "authorized_keys": (KEY,)}
    keys = [r for r in role("bootstrap", a_spark(), **settings) if r.id.startswith("Authorized")]
    assert [k.key for k in keys] == [KEY + " me", KEY]
    settings["authorized_keys"] = (KEY + " me\n",)
    assert len([r for r in role("bootstrap", a_spark(), **settings) if "SHA256" in r.id]) == 1
