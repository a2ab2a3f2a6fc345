"""A real sshd of the tests' own, on a high port of the loopback, with its own keys."""

import os
import shutil
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from free_ports import free_port
from waiting import HANG_S, until

from spark_cluster.config.inventory import InventoryNode
from spark_cluster.runner.ssh_route import Target

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")

PROXY = """\
import os, signal, socket, sys, threading
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def up():
    while data := os.read(0, 65536):
        peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := peer.recv(65536):
    os.write(1, data)
"""
"""A ProxyCommand to an address and a port."""
STUBBORN_PROXY = f"""\
import signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
{PROXY}threading.Event().wait()
"""
"""One that goes on after its ssh has ended."""

CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowTcpForwarding yes
SetEnv HOME={folder}
Subsystem sftp internal-sftp
"""
"""Its home is empty: what the shell of who runs the tests reads at its start can take long."""

NO_PENALTIES = "PerSourcePenalties no\n"
"""Since 9.8 sshd drops the connections of who failed before; older ones do not know the word."""


def keygen(path: Path, passphrase: str = "", kind: str = "ed25519") -> Path:
    size = ("-b", "2048") if kind == "rsa" else ()  # the usual 3072 take a second to be found
    argv = ["ssh-keygen", "-q", "-t", kind, *size, "-N", passphrase, "-C", "test", "-f", str(path)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    return path


def public(path: Path) -> str:
    """The public half of a key, without its comment."""
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


@dataclass
class Sshd:
    """A running sshd that lets the tests' own user in, with `key`."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def key(self) -> Path:
        return self.folder / "key"

    @property
    def host_line(self) -> str:
        kind, blob, _ = (self.folder / "host_key.pub").read_text().split()
        return f"[127.0.0.1]:{self.port} {kind} {blob}\n"

    @property
    def fingerprint(self) -> str:
        """That of its host key, as OpenSSH shows it."""
        argv = ["ssh-keygen", "-lf", str(self.folder / "host_key.pub")]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()[1]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(HANG_S)


def start_sshd(
    folder: Path,
    *,
    key: Path | None = None,
    port: int = 0,
    more: str = "",
    replaced: tuple[str, str] = ("", ""),
    penalties: str = NO_PENALTIES,
) -> Sshd:
    """Started with the keys that are in `folder`, or new ones; `more` is for its configuration, in
    which `replaced` is a text and what stands in its place."""
    folder.mkdir(exist_ok=True)
    for name in ("host_key", "key"):
        if not (folder / name).exists():
            keygen(folder / name)
    public = (key or folder / "key").with_suffix(".pub")
    shutil.copy(public, folder / "authorized_keys")
    port = port or free_port()
    text = CONFIG.format(port=port, folder=folder).replace(*replaced) + penalties + more
    if (folder / "host_rsa").exists():
        text += f"HostKey {folder}/host_rsa\n"
    (folder / "config").write_text(text)
    command = [str(SSHD), "-D", "-e", "-f", str(folder / "config")]
    if os.geteuid() == 0:  # root's sshd wants a folder in /run: in a /run of its own
        script = 'mount -t tmpfs none /run && mkdir /run/sshd && exec "$0" "$@"'
        command = ["unshare", "-m", "sh", "-c", script, *command]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )

    def listens_or_ended() -> bool:
        with suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=HANG_S).close()
            return True
        return process.poll() is not None

    until(listens_or_ended, what="sshd")
    if process.poll() is None:
        return Sshd(folder, port, process)
    said = (folder / "log").read_text().strip()
    if penalties and "Bad configuration option" in said:
        return start_sshd(
            folder, key=key, port=port, more=more, replaced=replaced, penalties=""
        )  # an older one
    why = f"sshd does not start here: {said[-200:]}"
    if "CI" in os.environ:
        pytest.fail(why)
    pytest.skip(why)


@dataclass
class Answered:
    """A source of a secret that has it."""

    secret: str | None

    def read(self, _what: str, _ask: object) -> str | None:
        return self.secret


def way_to(address: str = "127.0.0.1", **given: Any) -> Target:
    """How a node is reached that no inventory names; a password is given as it is."""
    if "login_password" in given:
        given["login_password"] = Answered(given["login_password"])
    if "sudo_password" in given:
        given["become"] = SimpleNamespace(password=Answered(given.pop("sudo_password")))
    return Target(InventoryNode("spark1", address, 0, "head", **given))
