"""`provision` as a shell sees it, without nodes: what is refused, and with which status."""

from __future__ import annotations

import socket

import pytest
from program import Program

INVENTORY = """\
nodes:
  spark1: {address: 127.0.0.1, port: PORT, roles: [head]}
  spark2: {address: 127.0.0.2, port: PORT}
settings:
  SETTINGS
"""


@pytest.fixture
def provision(tmp_path, monkeypatch):
    """`provision("--json", settings="{...}")` on two nodes where no sshd listens."""
    (tmp_path / "home/.ssh").mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    program = Program(tmp_path, monkeypatch)

    def run(*words, settings="{}", **environment):
        text = INVENTORY.replace("PORT", str(port)).replace("SETTINGS", settings)
        (tmp_path / "inventory.yaml").write_text(text)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        done = program("provision", *words)
        for name in environment:
            monkeypatch.delenv(name)
        return done

    return run


def test_a_password_needs_a_key_to_install(provision, tmp_path):
    done = provision("--password-env", "PW", PW="x")
    assert done.returncode == 2
    assert "no SSH key" in done.stderr
    assert "ssh-keygen" in done.stderr
    (tmp_path / "home/.ssh/id_ed25519.pub").write_text("ssh-ed25519 AAAA me\n")
    assert provision("--password-env", "PW", PW="x").returncode == 3


def test_a_password_that_no_one_can_be_asked_for(provision, tmp_path):
    (tmp_path / "home/.ssh/id_ed25519.pub").write_text("ssh-ed25519 AAAA me\n")
    done = provision("--ask-password")
    assert done.returncode == 2
    assert "no terminal" in done.stderr
    unset = provision("--password-env", "PW")
    assert unset.returncode == 2
    assert "PW is not set" in unset.stderr
