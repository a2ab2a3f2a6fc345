"""HostsEntry, SshKey, MachineId, HostKeys, Swap: what makes a node itself."""

import re
import shutil
import stat
import subprocess

import pytest

from spark_cluster.resources import Directory, HostKeys, InvalidResource, MachineId, SshKey

needs_keygen = pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen here")


# --- keys -------------------------------------------------------------------------------------


KEY = "/etc/mesh/id"


def owner(node):
    return node.path("/").owner()


@needs_keygen
def test_key_is_made_once(node):
    folder, key = Directory("/etc/mesh", mode=0o700), SshKey(KEY, owner=owner(node), comment="me")
    assert [r.verdict for r in node.results(folder, key, check=True)] == ["change", "change"]
    assert [r.verdict for r in node.results(folder, key)] == ["change", "change"]
    private, public = node.path(KEY).read_bytes(), node.path(f"{KEY}.pub").read_text()
    assert public.startswith("ssh-ed25519 ")
    assert public.strip().endswith(" me")
    assert stat.S_IMODE(node.path(KEY).stat().st_mode) == 0o600
    assert sorted(p.name for p in node.path("/etc/mesh").iterdir()) == ["id", "id.pub"]
    assert node.apply(key).verdict == "ok"
    assert node.path(KEY).read_bytes() == private


@needs_keygen
def test_drift_of_a_key_is_repaired(node):
    node.path("/etc/mesh").mkdir(parents=True)
    key = SshKey(KEY, owner=owner(node))
    node.apply(key)
    private, public = node.path(KEY).read_bytes(), node.path(f"{KEY}.pub").read_text().split()[:2]
    for spoil in (
        lambda: node.path(KEY).chmod(0o644),
        lambda: node.path(f"{KEY}.pub").unlink(),
        lambda: node.put(f"{KEY}.pub", "ssh-ed25519 AAAA other\n"),
    ):
        spoil()
        node.must_converge(key)
        assert node.path(KEY).read_bytes() == private
        assert node.path(f"{KEY}.pub").read_text().split()[:2] == public


# --- what images of makers share ----------------------------------------------------------------


SHARED = "a" * 32


def test_machine_id_of_another_is_replaced(node):
    node.put("/etc/machine-id", SHARED + "\n", mode=0o444)
    node.put("/var/lib/dbus/machine-id", SHARED + "\n")
    assert node.apply(MachineId(taken=("b" * 32,))).verdict == "ok"
    mine = MachineId(taken=(SHARED, "b" * 32))
    node.must_change(mine)
    text = node.path("/etc/machine-id").read_text()
    assert re.fullmatch("[0-9a-f]{32}\n", text)
    assert text.strip() != SHARED
    assert node.path("/var/lib/dbus/machine-id").read_text() == text
    assert node.apply(mine).verdict == "ok"


@needs_keygen
def test_only_shared_host_keys_are_made_again(node, shared):
    folder, shared = node.path("/etc/ssh"), shared[0]
    own = (folder / "ssh_host_ecdsa_key.pub").read_bytes()
    keys = HostKeys(taken=(shared,))
    node.must_change(keys)
    new = (folder / "ssh_host_ed25519_key.pub").read_text()
    assert new.split()[1] != shared.split()[1]
    assert new.split()[2] == "root@spark2"
    assert (folder / "ssh_host_ecdsa_key.pub").read_bytes() == own
    assert stat.S_IMODE((folder / "ssh_host_ed25519_key").stat().st_mode) == 0o600
    assert len(list(folder.iterdir())) == 4
    assert node.apply(keys).verdict == "ok"


@pytest.fixture
def shared(node):
    """The public host keys of a node, of two kinds, made ready by one that must not have them."""
    node.put("/etc/hostname", "spark2\n")
    folder = node.path("/etc/ssh")
    folder.mkdir(parents=True)
    for kind in ("ed25519", "ecdsa"):
        file = folder / f"ssh_host_{kind}_key"
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", file], check=True)
    return tuple((folder / f"ssh_host_{k}_key.pub").read_text() for k in ("ed25519", "ecdsa"))


@needs_keygen
def test_host_keys_are_made_ready_and_then_put_into_force(node, shared):
    folder = node.path("/etc/ssh")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    ready = HostKeys(taken=shared, prepare=True)
    node.must_change(ready)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()} == before
    made = folder / "spark-cluster-next"
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    new = {kind: (made / kind / "key.pub").read_text() for kind in ("ed25519", "ecdsa")}
    assert sorted(path.name for path in made.iterdir()) == ["ecdsa", "ed25519"]
    assert node.apply(ready).verdict == "ok", "the same ones are ready when a run was cut"
    assert node.apply(HostKeys(taken=shared)).verdict == "change"
    for kind, public in new.items():
        assert (folder / f"ssh_host_{kind}_key.pub").read_text() == public
        private = folder / f"ssh_host_{kind}_key"
        argv = ["ssh-keygen", "-y", "-f", private]
        shown = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
        assert shown.split()[:2] == public.split()[:2]
    assert not made.exists()
    assert node.apply(HostKeys(taken=shared)).verdict == "ok"


@needs_keygen
def test_host_keys_go_on_where_a_run_was_cut(node, shared):
    """A kind in force and one not; half a key ready; all in force with the others left behind."""
    folder, made = node.path("/etc/ssh"), node.path("/etc/ssh/spark-cluster-next")
    (made / "ecdsa").mkdir(parents=True)
    (made / "ecdsa" / "key").write_text("half of one")
    node.apply(HostKeys(taken=shared, prepare=True))
    new = {kind: (made / kind / "key.pub").read_text() for kind in ("ed25519", "ecdsa")}
    for suffix in ("", ".pub"):
        there = folder / f"ssh_host_ed25519_key{suffix}"
        there.write_bytes((made / "ed25519" / f"key{suffix}").read_bytes())
    node.apply(HostKeys(taken=shared))
    assert (folder / "ssh_host_ecdsa_key.pub").read_text() == new["ecdsa"]
    assert (folder / "ssh_host_ed25519_key.pub").read_text() == new["ed25519"]
    for kind in new:
        (made / kind).mkdir(parents=True)
        for name in ("key", "key.pub"):
            (made / kind / name).write_text("left")
    assert node.apply(HostKeys(taken=shared)).verdict == "change"
    assert not made.exists()
    assert (folder / "ssh_host_ecdsa_key.pub").read_text() == new["ecdsa"]


def test_no_text_for_lists():
    for resource in (MachineId, HostKeys):
        with pytest.raises(InvalidResource, match="list"):
            resource(taken="a")
