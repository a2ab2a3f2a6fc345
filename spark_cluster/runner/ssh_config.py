"""The user's ssh_config for a host, as OpenSSH's own client reads it.

`ssh -G` is asked, because the configuration is a language of its own (Include, Match exec, tokens,
time formats, quoting), of which paramiko's reader knows a part: it has no Include, takes `[` in
patterns for a class of characters, and a time such as `5m` for no number.
"""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from spark_cluster.errors import Failed, InvalidFile

FILES = ("~/.ssh/config", "/etc/ssh/ssh_config")
USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")

LIMIT_S = 60.0
"""For `ssh -G`, seconds: a `Match exec` may run a program of the user's, or ask a name server."""


def asked(host: str, user: str | None, port: int | None) -> dict[str, list[str]]:
    """Return what ssh would use for a host: the values of each keyword; `none` is empty.

    Args:
        host: address, name or alias.
        user, port: given by the user elsewhere; they come before those of the configuration.

    Raises:
        InvalidFile: the configuration cannot be read, with file and line as ssh gives them.
        Failed: there is no ssh here.
    """
    given = [*(["-l", user] if user else []), *(["-p", str(port)] if port else [])]
    try:
        with contextlib.nullcontext(None) if _reads_home() else configuration() as file:
            option = ["-F", file] if file else []
            status, out, err = _run(["ssh", "-T", "-G", *option, *given, "--", host])
    except FileNotFoundError:
        raise _no_ssh() from None
    except subprocess.TimeoutExpired:
        raise InvalidFile(
            f"`ssh -G {host}` did not end within {LIMIT_S:g} s",
            where="ssh_config",
            hint="a program of a `Match exec` line, or a name server, does not answer",
        ) from None
    if status != 0:
        raise _invalid(host, err.decode(errors="replace").strip())
    printed: dict[str, list[str]] = {}
    for line in os.fsdecode(out).splitlines():
        keyword, _, value = line.partition(" ")
        printed.setdefault(keyword.lower(), []).append("" if value.lower() == "none" else value)
    return printed


@contextlib.contextmanager
def configuration(first: str = "") -> Iterator[str]:
    """Yield a file by which ssh reads the configuration of $HOME's user and of the machine.

    By itself ssh goes by the user database, not by $HOME, and gives its jump hosts the file of -F,
    but none of the options.

    Args:
        first: lines that count before all others: the first value that ssh reads is taken.

    Raises:
        Failed: there is no ssh here.
    """
    if shutil.which("ssh") is None:
        raise _no_ssh()
    known = " ".join(f'"{Path(name).expanduser()}"' for name in USER_KNOWN_HOSTS)
    with tempfile.NamedTemporaryFile("w", prefix="spark-cluster-ssh-") as file:
        file.write(first)
        for name in FILES:
            file.write(f'Include "{glob.escape(str(Path(name).expanduser()))}"\n')
        file.write(f"Host *\n  UserKnownHostsFile {known}\n")
        file.flush()
        yield file.name


def _reads_home() -> bool:
    """True where ssh by itself reads the files of $HOME, and with them those of its own build."""
    try:
        usual = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return False
    return os.path.realpath(usual) == os.path.realpath(Path.home())


def _no_ssh() -> Failed:
    return Failed(
        "there is no program `ssh` here, which reads ssh_config",
        hint="install OpenSSH's client (package openssh-client)",
    )


def _run(argv: list[str]) -> tuple[int, bytes, bytes]:
    """Return status and outputs; one that takes too long is ended, with all that it had started."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, out, err


def _invalid(host: str, said: str) -> InvalidFile:
    """ssh's own words: `FILE line 3: invalid quotes`, and a last line that only counts them."""
    lines = [line.strip() for line in said.splitlines()] or ["no output"]
    last = next((line for line in reversed(lines) if ": terminating, " not in line), lines[-1])
    found = re.match(r"(?P<file>\S.*?):? line (?P<line>\d+): (?P<what>.*)", last)
    return InvalidFile(
        f"ssh does not accept its configuration: {found['what'] if found else last}",
        where=f"{found['file']}:{found['line']}" if found else "ssh_config",
        hint=f"`ssh -G {host}` says the same; correct it there",
    )
