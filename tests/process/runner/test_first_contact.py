"""Passwords of a login and of sudo, connections that are begun once, and the laptop's key."""

import getpass
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fabric
import paramiko
import pytest
from free_ports import free_port
from own_sshd import Answered, way_to
from password_sshd import PASSWORD, PasswordSshd
from waiting import HANG_S, until

from spark_cluster.cli.opened import public_key
from spark_cluster.config.extension import Prompts
from spark_cluster.config.inventory import InventoryNode
from spark_cluster.config.inventory_schema import BecomeEntry
from spark_cluster.config.secret import SecretReference
from spark_cluster.errors import Unreachable
from spark_cluster.runner.dialer import Dialer, SshConnection, Target
from spark_cluster.runner.ssh import Connection
from spark_cluster.runner.ssh_route import route

ME = getpass.getuser()


class Server(PasswordSshd):
    """Counts the keys that it was offered, too."""

    keys = 0

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self.keys += 1
        return super().check_auth_publickey(username, key)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def wanted(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    known = tmp_path / "known_hosts"
    line = f"[127.0.0.1]:{server.port} {server.key.get_name()} {server.key.get_base64()}\n"
    known.write_text(line)
    key = tmp_path / "key"
    paramiko.RSAKey.generate(2048).write_private_key_file(str(key))
    return way_to(user="me", port=server.port, identity_file=key, known_hosts=known)


def but(target: Target, **other: object) -> Target:
    return replace(target, node=replace(target.node, **other))


@pytest.mark.parametrize("named", [True, False])
def test_the_password_is_for_when_no_key_is_accepted(server, wanted, tmp_path, named):
    """Keys come first: the named one, or the usual ones."""
    if not named:
        (tmp_path / ".ssh").mkdir()
        wanted.node.identity_file.rename(tmp_path / ".ssh/id_rsa")
        wanted = but(wanted, identity_file=None)
    connection = SshConnection(but(wanted, login_password=Answered(PASSWORD)))
    assert connection.open().transport.is_active()
    assert server.keys > 0
    assert server.passwords == [PASSWORD]
    connection.close()


def test_a_user_without_any_key(server, wanted):
    """paramiko has nothing to try then, and says so in words of its own."""
    wanted.node.identity_file.unlink()
    none = but(wanted, identity_file=None)
    with pytest.raises(Unreachable, match="accepts none") as caught:
        SshConnection(none).open()
    assert "--ask-password" in caught.value.hint
    connection = SshConnection(but(none, login_password=Answered(PASSWORD)))
    assert connection.open().transport.is_active()
    assert server.passwords == [PASSWORD]
    connection.close()


def test_a_wrong_password(server, wanted):
    with pytest.raises(Unreachable, match="does not accept the password") as caught:
        SshConnection(but(wanted, login_password=Answered("no"))).open()
    assert "no" not in caught.value.message.split()[-1]
    assert set(server.passwords) == {"no"}


def test_no_password_for_a_host_that_is_not_known(server, wanted):
    wanted.node.known_hosts.write_text("")
    with pytest.raises(Unreachable, match="host key"):
        SshConnection(but(wanted, login_password=Answered(PASSWORD))).open()
    assert server.passwords == []


@pytest.mark.parametrize(
    "use",
    [
        lambda target: SshConnection(target).open(),
        lambda target: Connection(route(target), shared=False).shown_key(),
    ],
    ids=["login", "trust"],
)
def test_no_password_for_a_jump_host(server, wanted, use):
    """It is the node's; whoever runs the host on the way must not learn it."""
    jump = f"me@127.0.0.1:{server.port}"
    through = but(wanted, address="10.0.0.1", jump=jump, login_password=Answered(PASSWORD))
    with pytest.raises(Unreachable, match="accepts none"):
        use(through)
    assert server.keys > 0, "it was asked to let us through"
    assert server.passwords == []


def test_it_is_the_sudo_password_too(monkeypatch):
    monkeypatch.setenv("FIRST", PASSWORD)
    node = InventoryNode(
        "spark1", "10.0.0.1", 0, "head", login_password=SecretReference(env="FIRST")
    )
    assert Dialer().target(node).login_password() == PASSWORD
    assert Dialer().target(node).sudo_password() == PASSWORD
    assert Dialer().target(replace(node, login_password=None)).sudo_password() is None
    assert PASSWORD not in repr(node)


def test_fabric_gets_the_password_that_sudo_asks_for(target, trusted, monkeypatch):
    """Root needs none, so another user stands for it here."""
    given = []
    monkeypatch.setattr(fabric.Connection, "sudo", lambda *_, **options: given.append(options))
    connection = SshConnection(target(sudo_password="secret"))
    login = connection.fabric(owned=False)
    login.user = "someone"
    login.sudo("id")
    connection.close()
    assert given == [{"password": "secret"}]


def test_a_connection_that_was_begun_is_taken_once(sshd, trusted):
    node = InventoryNode(
        "spark1", "127.0.0.1", 0, "head", user=ME, port=sshd.port, identity_file=sshd.key,
        connect_timeout_s=HANG_S,
    )  # fmt: skip
    dialer = Dialer()
    with dialer.begun([node]):
        first, second = dialer.dial(node), dialer.dial(node)
        assert (first._login is not None, second._login) == (True, None)
        first.close()
    with dialer.begun([replace(node, port=free_port())]), pytest.raises(Unreachable) as caught:
        dialer.dial(node)
    assert "refused the connection" in caught.value.message
    with dialer.begun([node]):
        left = dialer._begun["spark1"][0]
        left.open()
    until(lambda: left._login is None)


# -- what two inventories of one process do not share ----------------------------------------------


def test_a_password_is_not_offered_to_a_node_of_that_name_in_another_inventory(monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(getpass, "getpass", lambda what: f"typed for {what}")
    node = InventoryNode(
        "spark1", "192.0.2.1", 0, "head", become=BecomeEntry(password=SecretReference(prompt=True))
    )
    mine, theirs = Dialer(), Dialer()
    mine.remember_password("spark1", "secret")
    assert mine.target(node).sudo_password() == "secret"
    assert theirs.target(node).sudo_password() == "typed for the sudo password of spark1: "


def test_an_answer_is_asked_for_once(monkeypatch):
    questions = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(getpass, "getpass", lambda what: questions.append(what) or "x")
    prompts = Prompts()
    assert [prompts.ask("the API key"), prompts.ask("the API key")] == ["x", "x"]
    prompts.forget()
    assert prompts.ask("the API key") == "x"
    assert questions == ["the API key: "] * 2


def test_the_laptops_key(tmp_path):
    node = InventoryNode("spark1", "10.0.0.1", 0, "head")
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/id_rsa.pub").write_text("ssh-rsa AAA me\n")
    assert public_key(node, search=True, home=tmp_path) == "ssh-rsa AAA me"
    (tmp_path / ".ssh/id_ed25519.pub").write_text("ssh-ed25519 BBB me\n")
    assert public_key(node, search=True, home=tmp_path) == "ssh-ed25519 BBB me"
    assert public_key(node, search=False, home=tmp_path) is None, "it has keys of its own"
    named = replace(node, identity_file=tmp_path / "other")
    assert public_key(named, search=True, home=tmp_path) is None
    (tmp_path / "other.pub").write_text("ssh-ed25519 CCC\n")
    assert public_key(named, search=False) == "ssh-ed25519 CCC"
    in_agent = replace(node, identity_file=tmp_path / "other.pub")
    assert public_key(in_agent, search=False) == "ssh-ed25519 CCC"
    (tmp_path / "other.pub").write_bytes("ssh-ed25519 CCC jörg".encode("latin-1"))
    assert (public_key(named, search=False) or "").startswith("ssh-ed25519 CCC j")
