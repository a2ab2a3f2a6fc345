"""Connections that are begun before the inventory has been checked."""

from __future__ import annotations

import getpass
from dataclasses import replace

import fabric
import pytest
from free_ports import free_port
from waiting import HANG_S

from spark_cluster.errors import Unreachable
from spark_cluster.runner import head_start
from spark_cluster.runner.head_start import Agent
from spark_cluster.runner.transport import SshConnection, Target, over

ME = getpass.getuser()
AGENT = Agent("early", become=False)


@pytest.fixture
def target(sshd, trusted) -> Target:
    return Target("spark1", "127.0.0.1", ME, sshd.port, sshd.key, connect_timeout_s=HANG_S)


@pytest.fixture
def channels(monkeypatch):
    """The command lines that were started over SSH."""
    started = []
    channel = SshConnection.channel

    def counted(self, argv):
        started.append(list(argv))
        return channel(self, argv)

    monkeypatch.setattr(SshConnection, "channel", counted)
    return started


def said_by(connection, label):
    session = connection.session(label, become=False)
    try:
        return session.run(["echo", "x"], timeout=HANG_S).stdout
    finally:
        session.close()
        connection.close()


def test_an_agent_that_was_begun_is_used(target, channels):
    head_start.begin([target], AGENT)
    connection = head_start.connection(replace(target, sudo_password=lambda: "secret"))
    assert connection.target.sudo_password() == "secret"
    assert said_by(connection, "early") == "x\n"
    assert len(channels) == 1


def test_fabric_gets_the_passwords_that_are_known_later(target, monkeypatch):
    """What was begun early knows none; root needs none, so another user stands for it here."""
    given = []
    monkeypatch.setattr(fabric.Connection, "sudo", lambda *_, **options: given.append(options))
    head_start.begin([target])
    connection = head_start.connection(replace(target, sudo_password=lambda: "secret"))
    login = over(connection, "spark1", owned=False)
    login.user = "someone"
    login.sudo("id")
    connection.close()
    assert given == [{"password": "secret"}]


def test_another_label_is_another_agent(target, channels):
    head_start.begin([target], AGENT)
    assert said_by(head_start.connection(target), "late") == "x\n"
    assert [argv[-1] for argv in channels] == ["early", "late"]


def test_one_that_was_begun_serves_once(target, channels):
    head_start.begin([target])
    first = head_start.connection(target)
    assert head_start.connection(target) is not first
    first.close()
    assert channels == []


def test_another_target_is_not_served_by_it(target):
    head_start.begin([target])
    other = head_start.connection(replace(target, user="someone-else"))
    assert other._login is None
    head_start.connection(target).close()


def test_its_error_is_that_of_the_connection(target):
    wrong = replace(target, port=free_port())
    head_start.begin([wrong], AGENT)
    with pytest.raises(Unreachable, match="refused the connection"):
        head_start.connection(wrong)
