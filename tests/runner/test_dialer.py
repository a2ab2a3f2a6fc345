"""Connections that are begun before the inventory has been checked, and what is asked for them."""

from __future__ import annotations

import getpass
from dataclasses import replace

import fabric
import pytest
from free_ports import free_port
from waiting import HANG_S

from spark_cluster.config.inventory import InventoryNode
from spark_cluster.config.inventory_schema import BecomeEntry
from spark_cluster.config.prompts import Prompts
from spark_cluster.config.secret import Secret
from spark_cluster.errors import Unreachable
from spark_cluster.runner.dialer import Dialer, Target
from spark_cluster.runner.ssh import Connection

ME = getpass.getuser()


@pytest.fixture
def target(sshd, trusted) -> Target:
    return Target("spark1", "127.0.0.1", ME, sshd.port, sshd.key, connect_timeout_s=HANG_S)


@pytest.fixture
def dialer() -> Dialer:
    return Dialer()


@pytest.fixture
def channels(monkeypatch):
    """The command lines that were started over SSH."""
    started = []
    channel = Connection.channel

    def counted(self, argv):
        started.append(list(argv))
        return channel(self, argv)

    monkeypatch.setattr(Connection, "channel", counted)
    return started


def said_by(connection, label):
    session = connection.session(label, become=False)
    try:
        return session.run(["echo", "x"], timeout=HANG_S).stdout
    finally:
        session.close()
        connection.close()


def test_fabric_gets_the_passwords_that_are_known_later(dialer, target, monkeypatch):
    """What was begun early knows none; root needs none, so another user stands for it here."""
    given = []
    monkeypatch.setattr(fabric.Connection, "sudo", lambda *_, **options: given.append(options))
    dialer.begin([target])
    connection = dialer.connection(replace(target, sudo_password=lambda: "secret"))
    login = connection.fabric(owned=False)
    login.user = "someone"
    login.sudo("id")
    connection.close()
    assert given == [{"password": "secret"}]


def test_an_agent_that_was_begun_is_used(dialer, target, channels):
    dialer.begin([target], "early")
    connection = dialer.connection(replace(target, sudo_password=lambda: "secret"))
    assert connection.target.sudo_password() == "secret"
    assert said_by(connection, "early") == "x\n"
    assert len(channels) == 1


def test_another_label_is_another_agent(dialer, target, channels):
    dialer.begin([target], "early")
    assert said_by(dialer.connection(target), "late") == "x\n"
    assert [argv[-1] for argv in channels] == ["early", "late"]


def test_one_that_was_begun_serves_once(dialer, target, channels):
    dialer.begin([target])
    first = dialer.connection(target)
    assert dialer.connection(target) is not first
    first.close()
    assert channels == []


def test_another_target_is_not_served_by_it(dialer, target):
    dialer.begin([target])
    other = dialer.connection(replace(target, user="someone-else"))
    assert other._login is None
    dialer.connection(target).close()


def test_its_error_is_that_of_the_connection(dialer, target):
    wrong = replace(target, port=free_port())
    dialer.begin([wrong], "early")
    with pytest.raises(Unreachable, match="refused the connection"):
        dialer.connection(wrong)


# -- what two inventories of one process do not share ----------------------------------------------


def test_a_password_is_not_offered_to_a_node_of_that_name_in_another_inventory(monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(getpass, "getpass", lambda what: f"typed for {what}")
    node = InventoryNode(
        "spark1", "192.0.2.1", 0, "head", become=BecomeEntry(password=Secret(prompt=True))
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


def test_another_dialer_leaves_what_was_begun(target, channels):
    mine, theirs = Dialer(), Dialer()
    mine.begin([target], "early")
    theirs.begin([target])
    theirs.connection(target).close()
    assert said_by(mine.connection(target), "early") == "x\n"
    assert len(channels) == 1
