"""The user's ssh_config for a host, as OpenSSH's own client reads it.

`ssh -G` is asked, because the configuration is a language of its own (Include, Match exec, tokens,
time formats, quoting), of which paramiko's reader knows a part: it has no Include, takes `[` in
patterns for a class of characters, and a time such as `5m` for no number.
"""

from __future__ import annotations

import contextlib
import getpass
import glob
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spark_cluster.errors import Failed, InvalidFile

SYSTEM_FILE = Path("/etc/ssh/ssh_config")
USER_FILE = Path("~/.ssh/config")
USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
LIMIT_S = 60.0
"""For `ssh -G`, seconds: a `Match exec` may run a program of the user's, or ask a name server."""

_DEFAULT_KEYS = re.compile(r"~/\.ssh/id_(rsa|dsa|ecdsa|ecdsa_sk|ed25519|ed25519_sk|xmss)")


@dataclass(frozen=True)
class HostSettings:
    """The settings of one host.

    Attributes:
        host: the address or name that is connected to.
        user, port: to log in as, and at.
        identity_files: private keys that the configuration names and that exist, next to the
            usual ones of ~/.ssh.
        proxy_jump: `[user@]host[:port],...`, or empty.
        proxy_command: a command line for the shell, without tokens, or empty.
        host_key_alias: the name under which its host key is known, or empty.
        user_known_hosts, global_known_hosts: files of host keys; those of the user come first.
        revoked_host_keys: files of keys that are never accepted.
        known_hosts_command: a program that would print host keys, or empty.
        host_key_algorithms: in the order of preference; empty leaves it to the SSH library.
    """

    host: str
    user: str
    port: int
    identity_files: tuple[Path, ...] = ()
    proxy_jump: str = ""
    proxy_command: str = ""
    host_key_alias: str = ""
    user_known_hosts: tuple[Path, ...] = ()
    global_known_hosts: tuple[Path, ...] = ()
    revoked_host_keys: tuple[Path, ...] = ()
    known_hosts_command: str = ""
    host_key_algorithms: tuple[str, ...] = ()


def lookup(host: str, user: str | None = None, port: int | None = None) -> HostSettings:
    """Return what ssh would use for a host.

    Args:
        host: address, name or alias.
        user, port: given by the user elsewhere; they come before those of the configuration.

    Raises:
        InvalidFile: the configuration cannot be read, with file and line as ssh gives them.
        Failed: there is no ssh here.
    """
    if shutil.which("ssh") is None:
        raise Failed(
            "there is no program `ssh` here, which reads ssh_config",
            hint="install OpenSSH's client (package openssh-client)",
        )
    printed: dict[str, list[str]] = {}
    for line in _ask_ssh(host, user, port).splitlines():
        keyword, _, value = line.partition(" ")
        printed.setdefault(keyword.lower(), []).append(value)
    return _settings(host, printed)


def _settings(alias: str, printed: dict[str, list[str]]) -> HostSettings:
    def one(keyword: str) -> str:
        value = printed.get(keyword, [""])[0]
        return "" if value.lower() == "none" else value

    host, user, port = one("hostname") or alias, one("user"), int(one("port") or 22)
    key_alias = one("hostkeyalias").lower()
    tokens = {
        "%": "%", "h": host, "k": key_alias or alias, "n": alias, "p": str(port), "r": user,
        "u": getpass.getuser(), "d": str(Path.home()), "i": str(os.getuid()),
        "l": socket.gethostname(), "L": socket.gethostname().split(".")[0],
    }  # fmt: skip
    return HostSettings(
        host=host,
        user=user,
        port=port,
        identity_files=tuple(_identities(printed.get("identityfile", []), tokens)),
        proxy_jump=one("proxyjump"),
        proxy_command=_expand(one("proxycommand"), tokens),
        host_key_alias=key_alias,
        user_known_hosts=tuple(_paths(one("userknownhostsfile"))),
        global_known_hosts=tuple(_paths(one("globalknownhostsfile"))),
        revoked_host_keys=tuple(_paths(one("revokedhostkeys"))),
        known_hosts_command=one("knownhostscommand"),
        host_key_algorithms=tuple(filter(None, one("hostkeyalgorithms").split(","))),
    )


def _identities(named: list[str], tokens: dict[str, str]) -> Iterator[Path]:
    """The usual ones are tried by paramiko itself, after the agent's, which need no passphrase."""
    for name in named:
        if name.lower() != "none" and not _DEFAULT_KEYS.fullmatch(name):
            path = _home_expanded(_expand(name, tokens))
            if path.is_file():
                yield path


def _expand(text: str, tokens: dict[str, str]) -> str:
    return re.sub(r"%(.)", lambda found: tokens.get(found[1], found[0]), text)


def _paths(text: str) -> Iterator[Path]:
    """The files of a line of `ssh -G`, which prints names with spaces in them without quotes."""
    for name in re.split(r" (?=[/~])", text) if text else ():
        whole = _home_expanded(name)
        words = [_home_expanded(word) for word in name.split()]
        several = not whole.exists() and any(word.exists() for word in words)
        yield from words if several else (whole,)


def _home_expanded(name: str) -> Path:
    """`~` and `~user`; as it is where there is no such user."""
    with contextlib.suppress(RuntimeError):
        return Path(name).expanduser()
    return Path(name)


# -- asking ssh ------------------------------------------------------------------------------------


def _ask_ssh(host: str, user: str | None, port: int | None) -> str:
    argv = ["ssh", "-T", "-G"]
    argv += ["-l", user] if user else []
    argv += ["-p", str(port)] if port else []
    with _configuration() as option:
        status, out, err = _run([*argv, *option, "--", host])
    if status is None:
        raise InvalidFile(
            f"`ssh -G {host}` did not end within {LIMIT_S:g} s",
            where="ssh_config",
            hint="a program of a `Match exec` line, or a name server, does not answer",
        )
    if status == 0:
        return os.fsdecode(out)
    printed = [line.strip() for line in err.decode(errors="replace").splitlines()]
    raise _invalid(host, [line for line in printed if line])


def _run(argv: list[str]) -> tuple[int | None, bytes, bytes]:
    """Status and outputs; None for one that was ended, with all that it had started."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return None, b"", b""
    return process.returncode, out, err


def _invalid(host: str, printed: list[str]) -> InvalidFile:
    """ssh's own words: `FILE line 3: invalid quotes`, and a last line that only counts them."""
    lines = [line for line in printed if ": terminating, " not in line] or printed or ["no output"]
    found = re.match(r"(?P<file>\S.*?):? line (?P<line>\d+): (?P<what>.*)", lines[-1])
    where = f"{found['file']}:{found['line']}" if found else "ssh_config"
    return InvalidFile(
        f"ssh does not accept its configuration: {found['what'] if found else lines[-1]}",
        where=where,
        hint=f"`ssh -G {host}` says the same; correct it there",
    )


@contextlib.contextmanager
def _configuration() -> Iterator[list[str]]:
    """Options with which ssh reads the files of $HOME: by itself it goes by the user database."""
    home = Path.home()
    try:
        usual = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        usual = ""
    if os.path.realpath(usual) == os.path.realpath(home):
        yield []
        return
    files = " ".join(f'"{home / name[2:]}"' for name in USER_KNOWN_HOSTS)
    with tempfile.NamedTemporaryFile("w", prefix="spark-cluster-ssh-") as file:
        for path in (USER_FILE.expanduser(), SYSTEM_FILE):
            file.write(f'Include "{glob.escape(str(path))}"\n')
        file.write(f"Host *\n  UserKnownHostsFile {files}\n")
        file.flush()
        yield ["-F", file.name]
