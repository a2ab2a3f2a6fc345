"""Keys that an SSH agent holds: which agent is asked, and which of its keys is offered first."""

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from own_sshd import keygen
from waiting import until

from spark_cluster.errors import Unreachable
from spark_cluster.runner import ssh as module
from spark_cluster.runner.dialer import SshConnection
from spark_cluster.runner.ssh import KeysRefused

Ssh = Callable[..., SshConnection]
EMPTY = 1
"""What `ssh-add -l` ends with when the agent answers and has no keys."""
SIGN_REQUEST = 13
"""SSH_AGENTC_SIGN_REQUEST."""
MAX_AUTH_TRIES = 6
"""sshd's own limit."""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """`agent(key, ...)`: the socket of an agent that holds these keys."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*keys: Path) -> Path:
        sock = tmp_path / f"a b{len(started)}"  # a blank, as in that of 1Password
        argv = ["ssh-agent", "-D", "-a", str(sock)]
        started.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL))
        env = {**os.environ, "SSH_AUTH_SOCK": str(sock)}
        ask = partial(subprocess.run, ["ssh-add", "-l"], env=env, check=False, capture_output=True)
        until(lambda: ask().returncode == EMPTY)
        subprocess.run(["ssh-add", "-q", *map(str, keys)], env=env, check=True)
        return sock

    yield start
    for one in started:
        one.terminate()
        one.wait()


@pytest.fixture
def others(tmp_path: Path) -> list[Path]:
    """More keys than sshd lets one connection try."""
    return [keygen(tmp_path / f"other{n}") for n in range(MAX_AUTH_TRIES + 2)]


def logs_in(ssh: Ssh, **options: object) -> None:
    assert ssh(**{"identity_file": None, **options}).user


@pytest.mark.parametrize("named", ["{sock}", "$OTHER_AGENT", "SSH_AUTH_SOCK"])
def test_the_agent_of_ssh_config(ssh, sshd, trusted, home, agent, tmp_path, monkeypatch, named):
    """1Password, Secretive and gpg-agent are set up with IdentityAgent."""
    sock = agent(sshd.key)
    wrong = tmp_path / "none"
    monkeypatch.setenv("OTHER_AGENT", str(sock))
    monkeypatch.setenv("SSH_AUTH_SOCK", str(sock if named == "SSH_AUTH_SOCK" else wrong))
    (home / ".ssh/config").write_text(f'Host *\n IdentityAgent "{named.format(sock=sock)}"\n')
    logs_in(ssh)


@pytest.mark.parametrize("sock", ["none", "/dev/null"])
def test_no_agent_of_ssh_config(ssh, sshd, trusted, home, agent, monkeypatch, sock):
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent(sshd.key)))
    (home / ".ssh/config").write_text(f"Host *\n IdentityAgent {sock}\n")
    with pytest.raises(KeysRefused):
        ssh(identity_file=None).open()


@pytest.mark.parametrize("named", ["public", "locked", "locked without .pub", "inventory"])
def test_the_named_key_of_an_agent_comes_first(
    ssh, sshd, trusted, home, agent, others, monkeypatch, tmp_path, named
):
    """The agent has more keys than sshd lets one try; the file tells which of them it is."""
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent(*others, sshd.key)))
    file = tmp_path / "mine"
    if named == "public":
        shutil.copy(sshd.folder / "key.pub", file)
    else:
        shutil.copy(sshd.key, file)
        change = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(file)]
        subprocess.run(change, check=True, stdout=subprocess.DEVNULL)
    if named == "locked":
        shutil.copy(sshd.folder / "key.pub", tmp_path / "mine.pub")
    if named == "inventory":
        logs_in(ssh, identity_file=file)
        return
    (home / ".ssh/config").write_text(f"Host *\n IdentityFile {file}\n")
    logs_in(ssh)


def test_a_comment_of_a_key_may_be_any_bytes(ssh, sshd, trusted, agent, tmp_path, monkeypatch):
    """As an older Windows, or an editor of its, wrote them."""
    other = tmp_path / "other"
    argv = [b"ssh-keygen", b"-q", b"-t", b"ed25519", b"-N", b"", b"-C", b"j\xf6rg@pc", b"-f"]
    subprocess.run([*argv, os.fsencode(other)], check=True)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent(other, sshd.key)))
    logs_in(ssh)


def test_an_agent_that_gives_no_keys(ssh, trusted, agent, tmp_path, monkeypatch):
    """It is locked."""
    sock = agent(keygen(tmp_path / "other"))
    asked = tmp_path / "askpass"
    asked.write_text("#!/bin/sh\necho x\n")
    asked.chmod(0o755)
    env = {"SSH_AUTH_SOCK": str(sock), "SSH_ASKPASS": str(asked), "SSH_ASKPASS_REQUIRE": "force"}
    subprocess.run(["ssh-add", "-q", "-x"], env={**os.environ, **env}, check=True)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
    with pytest.raises(KeysRefused):
        ssh(identity_file=None).open()
    logs_in(ssh, identity_file=ssh().target.node.identity_file)


def test_an_agent_that_hangs(ssh, trusted, tmp_path, monkeypatch):
    """As one that is forwarded over a connection which is dead."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "hangs"))
        listener.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "hangs"))
        with pytest.raises(KeysRefused):
            ssh(identity_file=None, connect_timeout_s=2.0).open()


def test_only_the_named_keys(ssh, sshd, trusted, home, agent, others, monkeypatch):
    """The key of the node is in the agent, but another is named."""
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent(*others, sshd.key)))
    only = f"Host *\n IdentitiesOnly yes\n IdentityFile {others[0]}\n"
    (home / ".ssh/config").write_text(only)
    with pytest.raises(KeysRefused, match="accepts none of the offered keys"):
        ssh(identity_file=None).open()


@contextmanager
def asking_first(path: Path, agent: Path, seconds: float) -> Iterator[Path]:
    """An agent before another one, which lets its user approve each signature, or touch a token."""

    def serve() -> None:
        with (
            contextlib.suppress(OSError),
            listener.accept()[0] as client,
            socket.socket(socket.AF_UNIX) as behind,
        ):
            behind.connect(str(agent))
            while request := client.recv(1 << 16):
                if request[4] == SIGN_REQUEST:
                    time.sleep(seconds)
                behind.sendall(request)
                client.sendall(behind.recv(1 << 16))

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield path


def test_a_user_who_has_to_approve_takes_longer_than_a_node(
    ssh, sshd, trusted, agent, tmp_path, monkeypatch
):
    with asking_first(tmp_path / "asks", agent(sshd.key), seconds=3.0) as sock:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        logs_in(ssh, connect_timeout_s=2.0)


def test_a_user_who_does_not_approve(ssh, sshd, trusted, agent, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "APPROVAL_S", 2.0)
    with asking_first(tmp_path / "asks", agent(sshd.key), seconds=5.0) as sock:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
        with pytest.raises(Unreachable, match="key of the SSH agent") as caught:
            ssh(identity_file=None, connect_timeout_s=2.0).open()
    assert "approve" in caught.value.hint


def test_more_keys_than_sshd_takes(ssh, sshd, trusted, home, agent, others, monkeypatch):
    """A password may do all the same, over another connection."""
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent(*others, sshd.key)))
    with pytest.raises(KeysRefused, match="ended the login: too many keys were offered") as caught:
        ssh(identity_file=None).open()
    assert "IdentitiesOnly" in caught.value.hint


@pytest.mark.parametrize(
    ("content", "what"), [(None, "no such file"), ("no key\n", "is not a private key")]
)
def test_an_identity_file_that_is_none(ssh, trusted, tmp_path, content, what):
    file = tmp_path / "gone"
    if content is not None:
        file.write_text(content)
    with pytest.raises(Unreachable) as caught:
        ssh(identity_file=file).open()
    assert str(file) in caught.value.message
    assert what in caught.value.message.lower()
    assert "ssh -v" not in caught.value.hint


def test_a_form_of_keys_that_only_ssh_knows(ssh, trusted, tmp_path):
    file = tmp_path / "pkcs8"
    make = ["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-m", "PKCS8", "-N", "", "-f", str(file)]
    subprocess.run(make, check=True)
    with pytest.raises(KeysRefused) as caught:
        ssh(identity_file=file).open()
    assert f"ssh-keygen -p -f {file}" in caught.value.hint


@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
def test_a_key_that_is_refused_leaves_the_password(ssh, trusted, home, tmp_path, kind):
    """paramiko tries each file as a key of each kind, and keeps only what it said of the last."""
    other = keygen(tmp_path / "other", kind=kind)
    (home / ".ssh/config").write_text(f"Host *\n IdentityFile {other}\n")
    with pytest.raises(KeysRefused, match="accepts none of the offered keys"):
        ssh(identity_file=None).open()


def test_a_key_on_a_security_token_needs_an_agent(ssh, trusted, home):
    (home / ".ssh/id_ed25519_sk").write_text("its handle")
    with pytest.raises(KeysRefused) as caught:
        ssh(identity_file=None).open()
    assert "ssh-add" in caught.value.hint
