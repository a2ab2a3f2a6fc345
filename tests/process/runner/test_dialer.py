"""Connections to the nodes of an inventory, and the passwords that are asked for them."""

from __future__ import annotations

import getpass
from dataclasses import replace

import fabric
import pytest
from free_ports import free_port
from waiting import HANG_S, until

from spark_cluster.config.extension import Prompts
from spark_cluster.config.inventory import InventoryNode
from spark_cluster.config.inventory_schema import BecomeEntry
from spark_cluster.config.secret import SecretReference
from spark_cluster.errors import Unreachable
from spark_cluster.runner.dialer import Dialer, SshConnection, Target

ME = getpass.getuser()


@pytest.fixture
def target(sshd, trusted) -> Target:
    return Target("spark1", "127.0.0.1", ME, sshd.port, sshd.key, connect_timeout_s=HANG_S)


def test_fabric_gets_the_password_that_sudo_asks_for(target, monkeypatch):
    """Root needs none, so another user stands for it here."""
    given = []
    monkeypatch.setattr(fabric.Connection, "sudo", lambda *_, **options: given.append(options))
    connection = SshConnection(replace(target, sudo_password=lambda: "secret"))
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
