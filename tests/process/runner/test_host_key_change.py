"""New host keys of a known node: whatever is cut in between, the laptop reaches it with either.

A real sshd shows the old key, then the new one; each step is followed by a connection.
"""

import base64
import getpass

import pytest
from own_sshd import SSHD, keygen, public, start_sshd, way_to

from spark_cluster.config.facts import Facts
from spark_cluster.config.inventory import InventoryNode
from spark_cluster.errors import Failed, SparkClusterError
from spark_cluster.node import paths
from spark_cluster.runner import host_key_change
from spark_cluster.runner.connections import Connections
from spark_cluster.runner.dialer import SshConnection
from spark_cluster.runner.events import Bus
from spark_cluster.runner.known_hosts import PublicKey, known_hosts_line

ME = getpass.getuser()
KEY = PublicKey(b"\0\0\0\x0bssh-ed25519")


class Site:
    """A node whose sshd can be given another host key, on the same port."""

    def __init__(self, folder, known):
        self.folder, self.known = folder, known
        self.old, self.new = keygen(folder / "old"), keygen(folder / "new")
        self.server = None

    def show(self, key):
        """Have sshd show this key, as after a reload."""
        port = self.server.port if self.server else 0
        if self.server:
            self.server.stop()
        for suffix in ("", ".pub"):
            (self.folder / f"host_key{suffix}").write_bytes(
                (key.parent / f"{key.name}{suffix}").read_bytes()
            )
        (self.folder / "host_key").chmod(0o600)
        self.server = start_sshd(self.folder, port=port)

    @property
    def target(self):
        options = {"user": ME, "port": self.server.port, "identity_file": self.server.key}
        return way_to(connect_timeout_s=60.0, **options)

    def is_reached(self):
        connection = SshConnection(self.target)
        try:
            connection.open()
        except SparkClusterError:
            return False
        finally:
            connection.close()
        return True

    def announce(self):
        return host_key_change.announce_keys(self.target, [public(self.new)], [public(self.old)])

    def forget(self, on_disk=None):
        """As seen over a connection of now, with this key on the node's disk."""
        connection = SshConnection(self.target)
        shown = connection.open().transport.get_remote_server_key().asbytes()
        connection.close()
        key = public(on_disk or self.folder / "host_key")
        return host_key_change.forget_keys(self.target, shown, lambda: [key])


@pytest.fixture
def site(tmp_path, home):
    if SSHD is None:
        pytest.skip("no sshd here (package openssh-server)")
    made = Site(tmp_path, home / ".ssh/known_hosts")
    made.show(made.old)
    made.known.write_text(f"github.com,[127.0.0.1]:{made.server.port} {public(made.old)} mine\n")
    yield made
    made.server.stop()


def test_each_step_leaves_the_node_reachable(site):
    name = f"[127.0.0.1]:{site.server.port}"
    assert site.is_reached()
    path, said = site.announce()
    assert path == site.known
    assert said[0].startswith("ssh-ed25519 SHA256:")
    assert site.is_reached(), "the old key is in force still"
    assert site.forget() == [], "the new one was not seen yet"
    assert site.forget(on_disk=site.new) == [], "nor when sshd was not reloaded"
    before = site.known.read_text()
    site.announce()
    assert site.known.read_text() == before, "a run that was cut and comes again"
    site.show(site.new)
    assert site.is_reached(), "cut after the reload: the next run gets in"
    assert len(site.forget()) == 1
    assert site.known.read_text() == (
        f"github.com {public(site.old)} mine\n{name} {public(site.new)}\n"
    )
    assert site.is_reached()
    assert site.forget() == []
    site.show(site.old)
    assert not site.is_reached(), "the key that others hold too is good for nothing now"


def test_a_key_whose_kind_holds_more_lines(home):
    """The node made its key files: what they name themselves is not taken on trust."""
    kind = b"x\n@cert-authority * ssh-ed25519 AAAA\n#"
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in (kind, b"a" * 32))
    key = f"ssh-ed25519 {base64.b64encode(blob).decode()}"
    known = home / ".ssh/known_hosts"
    known.write_text("github.com ssh-ed25519 AAAA\n")
    with pytest.raises(Failed, match="not a type of host key"):
        host_key_change.announce_keys(way_to(), [key], [])
    assert known.read_text() == "github.com ssh-ed25519 AAAA\n"


@pytest.mark.parametrize("host", ["a b", "a\n@revoked *", "*", "a,b", "!a", "@a", "#a", "|1|x", ""])
def test_a_host_that_would_be_more_than_a_name(host):
    with pytest.raises(Failed, match="not a name for known_hosts"):
        known_hosts_line(host, KEY)


@pytest.mark.parametrize("host", ["spark1", "10.0.0.1", "[10.0.0.1]:22022", "fe80::1%eth0", "a_b"])
def test_a_line_of_known_hosts(host):
    assert known_hosts_line(host, KEY) == f"{host} ssh-ed25519 AAAAC3NzaC1lZDI1NTE5".encode()


def test_nowhere_to_write_it(site, home):
    (home / ".ssh/config").write_text("Host *\n UserKnownHostsFile none\n")
    with pytest.raises(Failed, match="UserKnownHostsFile is none"):
        site.announce()


class Agent:
    """Answers `gather` with what is in a folder."""

    def __init__(self, site):
        self.site = site

    def request(self, op, *, trees):
        ((name, pattern),) = trees.items()
        new = pattern == f"{paths.NEXT_HOST_KEYS}/*/key.pub"
        return {
            "trees": {name: {"x": public(self.site.new if new else self.site.folder / "host_key")}}
        }


def connected(site):
    node = InventoryNode(
        "spark1", "127.0.0.1", 0, "head", user=ME, port=site.server.port,
        identity_file=site.server.key,
    )  # fmt: skip
    connections = Connections({"spark1": node}, Bus(), "r", command="test", change=True)
    connections._sessions["spark1"] = Agent(site)
    connections._connections["spark1"] = connections.dialer.dial(node)
    return connections


def test_connections_do_it_over_what_they_have_verified(site):
    connections = connected(site)
    connections.facts["spark1"] = Facts(hostname="n", host_keys=(public(site.old),))
    assert not host_key_change.forget_replaced(connections, "spark1")
    path, prints = host_key_change.announce(connections, "spark1")
    assert (path, len(prints)) == (site.known, 1)
    assert not host_key_change.verify(connections, "spark1"), "the old one is shown"
    connections._connections["spark1"].open()
    site.show(site.new)
    assert host_key_change.verify(connections, "spark1")
    assert "spark-cluster" not in site.known.read_text()
    connections._connections["spark1"].close()
    assert site.is_reached()


def test_the_next_run_removes_what_a_run_that_was_cut_has_left(site):
    site.announce()
    site.show(site.new)
    connections = connected(site)
    assert host_key_change.forget_replaced(connections, "spark1")
    connections._connections["spark1"].close()
    assert public(site.old) in site.known.read_text(), "github.com's"
    assert f"[127.0.0.1]:{site.server.port} {public(site.old)}" not in site.known.read_text()
