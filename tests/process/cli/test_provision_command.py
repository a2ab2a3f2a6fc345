"""`provision` as a shell sees it, without nodes: what is refused, and with which status."""

from __future__ import annotations

import pytest


@pytest.fixture
def provision(program, closed_port, monkeypatch):
    """`provision("--json", PW="x")` on a node where no sshd listens, with variables."""
    (program.folder / "home/.ssh").mkdir(parents=True)
    program.put("inventory.yaml", f"nodes: {{a: {{address: 127.0.0.1, port: {closed_port}}}}}\n")

    def run(*words, **environment):
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            return program("provision", *words)

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
