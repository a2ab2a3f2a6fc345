"""The channel of a copy: rsync through an sshd of that copy alone, or an rsync daemon without it.

The keys of the host and of the receiver, and the secret, are made by the sending node for one copy
and removed with its folder. Both ways end at rsync's own daemon protocol, so that the sender says
what may be read (a module, read-only, in a chroot), whatever the receiver asks for.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_cluster.node.open_files import write_whole
from spark_cluster.node.processes import SEARCH_PATH, Processes
from spark_cluster.node.values import ResourceError

FILES, DONE = "files", "done"
"""Modules of the sender: what is copied, and the one whose use says that the receiver has it."""
NAME = "copy"
"""User of the secret."""
CIPHER = "aes128-gcm@openssh.com"
STALLED_S = 10
"""Seconds without a byte after which a connection is given up."""
PROOF_S = 5
"""Seconds in which a connection must prove that it is the receiver's."""
STRANGERS, STRANGERS_OF_ONE = 300, 200
"""Connections without that proof at a time, in all and of one address."""
ENVIRONMENT = {"PATH": SEARCH_PATH, "LANG": "C.UTF-8", "HOME": "/nonexistent"}

# bash(1) reads root's .bashrc when sshd starts it, unless it is not the first shell.
SSHD = f"""\
HostKey {{folder}}/host
AuthorizedKeysFile {{folder}}/client.pub
ForceCommand sh {{folder}}/command
UsePAM {{pam}}
StrictModes no
PermitRootLogin prohibit-password
AuthenticationMethods publickey
DisableForwarding yes
PermitTTY no
PermitUserRC no
SetEnv SHLVL=2
PrintMotd no
UseDNS no
PidFile none
LogLevel QUIET
Ciphers {CIPHER}
Compression no
LoginGraceTime {PROOF_S}
MaxStartups {STRANGERS}:100:{STRANGERS}
PerSourceMaxStartups {STRANGERS_OF_ONE}
ClientAliveInterval {STALLED_S}
"""
PENALTIES = "PerSourcePenalties no\n"
"""Of OpenSSH 9.8 and later: strangers at the receiver's own address do not lock it out."""

SSH = f"""\
Host *
 Port {{port}}
 IdentityFile {{folder}}/key
 IdentitiesOnly yes
 UserKnownHostsFile {{folder}}/known_hosts
 GlobalKnownHostsFile none
 HostKeyAlias sender
 StrictHostKeyChecking yes
 BatchMode yes
 Ciphers {CIPHER}
 Compression no
 ConnectTimeout {STALLED_S}
 ServerAliveInterval {STALLED_S // 2}
 ServerAliveCountMax 2
 LogLevel ERROR
"""

RSYNCD = """\
use chroot = {chroot}
uid = {uid}
gid = {gid}
log file = /dev/null
reverse lookup = no
list = no
auth users = {name}
secrets file = {folder}/secret
[{files}]
path = {path}
exclude = {hidden}
[{done}]
path = {path}
exclude = *
pre-xfer exec = touch {folder}/done
"""


def make_secrets(folder: Path, processes: Processes) -> dict[str, str]:
    """Make the keys and the secret of a sender in its folder; return what its receiver needs.

    Raises:
        ResourceError: ssh-keygen fails.
    """
    for name in ("host", "client"):
        argv = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", f"{folder}/{name}")
        processes.run(argv, env=ENVIRONMENT, timeout=30.0).check("making a key for a copy")
    token = secrets.token_hex(32)
    _write(folder / "secret", f"{NAME}:{token}\n")
    return {
        "token": token,
        "host": (folder / "host.pub").read_text(),
        "key": (folder / "client").read_text(),
    }


def write_rsyncd(folder: Path, path: str, hidden: str) -> str:
    """Configure the modules of a sender; return the command that serves one connection.

    Args:
        path: folder of what is copied; as root it is a chroot, which no link leads out of.
        hidden: names that are not of the copy, as rsync's `exclude` takes them.
    """
    uid, chroot = os.geteuid(), "no" if os.geteuid() else "yes"
    given = {"name": NAME, "files": FILES, "done": DONE, "uid": uid, "gid": os.getegid()}
    text = RSYNCD.format(folder=folder, path=path, hidden=hidden, chroot=chroot, **given)
    _write(folder / "rsyncd.conf", text)
    return f"exec rsync --server --daemon --config={folder}/rsyncd.conf ."


def daemons(folder: Path, addresses: Sequence[str], port: int) -> list[list[str]]:
    """Return the commands of a sender without encryption: rsync listens on one address each."""
    config = f"--config={folder}/rsyncd.conf"
    return [
        ["rsync", "--daemon", "--no-detach", config, f"--address={address}", f"--port={port}"]
        for address in addresses
    ]


def sshd(
    folder: Path, addresses: Sequence[str], port: int, command: str, processes: Processes
) -> list[str]:
    """Configure the sshd of a sender, and return its command.

    Args:
        command: of the shell, which each connection gets whatever it asks for.

    Raises:
        ResourceError: there is no sshd, or it does not take the configuration.
    """
    program = shutil.which("sshd", path=SEARCH_PATH)
    if program is None:
        hint = "`apt install openssh-server` on it"
        raise ResourceError("there is no sshd on this node, which sends an encrypted copy", hint)
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd wants it, also where another starts
    _write(folder / "command", f"{command}\n")
    listen = "".join(f"ListenAddress {_bracketed(address)}:{port}\n" for address in addresses)
    pam = "yes" if _is_locked() else "no"
    argv = [program, "-D", "-e", "-f", f"{folder}/sshd_config"]
    for more in (PENALTIES, ""):
        _write(folder / "sshd_config", listen + SSHD.format(folder=folder, pam=pam) + more)
        done = processes.run([program, "-t", *argv[3:]], env=ENVIRONMENT, timeout=30.0)
        if done.status == 0:
            return argv
    raise ResourceError(f"sshd does not take the configuration of a copy: {done.stderr[-300:]}")


def _is_locked() -> bool:
    """Return whether this account has no password that could be right: only with PAM does sshd let
    it in by a key then (sshd_config(5), UsePAM)."""
    try:
        lines = Path("/etc/shadow").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith(f"{_user()}:!") for line in lines)


@dataclass(frozen=True)
class Channel:
    """The receiver's end.

    Args:
        folder: root's own, with the keys and the secret.
    """

    folder: Path
    port: int
    encrypted: bool

    @classmethod
    def of(cls, folder: Path, given: Mapping[str, str], port: int, *, encrypted: bool) -> Channel:
        """Keep what `make_secrets` gave."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(folder / "secret", f"{given['token']}\n")
        _write(folder / "key", given["key"])
        _write(folder / "known_hosts", f"sender {given['host'].strip()}\n")
        _write(folder / "ssh_config", SSH.format(folder=folder, port=port))
        return cls(folder, port, encrypted)

    def ssh(self, address: str) -> list[str]:
        """Return the command whose output is what the sender's command prints."""
        return ["ssh", "-l", _user(), "-F", f"{self.folder}/ssh_config", "-T", address]

    def rsync(self, address: str, module: str, path: str, *words: str) -> list[str]:
        """Return the command that reads a path of a module."""
        tcp = [f"--port={self.port}", f"--contimeout={STALLED_S}"]
        ssh = f"ssh -l {_user()} -F {self.folder}/ssh_config"  # else rsync names its own user
        way = ["-e", ssh] if self.encrypted else tcp
        common = ["--no-motd", f"--timeout={STALLED_S}", f"--password-file={self.folder}/secret"]
        place = f"{NAME}@{_bracketed(address)}::{module}/{path}"
        return ["rsync", *way, *common, *words[:-1], place, *words[-1:]]


def _user() -> str:
    """The account of both ends: root, but for tests of another user's."""
    return pwd.getpwuid(os.geteuid()).pw_name


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _write(path: Path, text: str) -> None:
    """Write a file that only its owner reads, in a folder of the owner's own."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    handle = os.open(path, flags, 0o600)
    try:
        write_whole(handle, text.encode())
    finally:
        os.close(handle)
