"""What is said when an SSH connection is not made: the reason, and what to do about it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import paramiko

from spark_cluster.errors import Unreachable
from spark_cluster.runner.known_hosts import HostKey
from spark_cluster.runner.ssh_route import Hop

REVOKED_HINT = (
    "a key is revoked when others may hold its private half: possible man-in-the-middle. "
    "Give the node a new key, at its own console (rm /etc/ssh/ssh_host_*_key*; ssh-keygen -A; "
    "systemctl restart ssh), then accept that one with `spark-cluster trust --replace`"
)
_NOTHING_ACCEPTED = re.compile(
    r"encountered \w+ key, expected \w+ key|No authentication methods available"
)
"""paramiko's words for keys that it could not use, and for a user that has none."""


class KeysRefused(Unreachable):
    """The node was reached, but takes none of the keys; a password may do."""


@contextlib.contextmanager
def explained(hop: Hop, password: str | None = None) -> Iterator[None]:
    """Turn what paramiko raises about a connection to a host into an error for people.

    Args:
        password: the one that is offered.

    Raises:
        Unreachable: with the reason, and what to do about it; a KeysRefused where another key may
            do, or a password.
    """
    kind: type[Unreachable] = Unreachable
    try:
        yield
        return
    except paramiko.ChannelException as error:
        what = f"the jump host does not reach {hop.place}: {error.text}"
        hint = "check on the jump host that it can: its sshd may forbid AllowTcpForwarding"
    except paramiko.PasswordRequiredException:
        key = hop.target.identity_file
        kind, what = KeysRefused, "the private key has a passphrase"
        hint = f"add it to your agent first: ssh-add {key or ''}"
    except (paramiko.SSHException, OSError, EOFError) as error:
        # Of a refused key in the old PEM form paramiko keeps only that it tried other forms last.
        # Without any key of the user's it has nothing to try.
        refused = isinstance(error, paramiko.AuthenticationException)
        if refused or _NOTHING_ACCEPTED.fullmatch(str(error)):
            kind, what, hint = _refused_login(hop, password)
        elif str(error) == "Timeout opening channel.":
            limit_s = hop.target.connect_timeout_s
            what = f"the jump host did not reach {hop.place} within {limit_s:g} s"
            hint = "check that it is on, and on the jump host that it answers from there"
        else:
            what = f"SSH failed: {str(error) or 'the connection was cut'}"
            hint = (
                "ssh -v to the node shows more; after several failures sshd may block "
                "this address for some minutes"
            )
    raise kind(what, where=hop.target.name, hint=hint) from None


def _refused_login(hop: Hop, password: str | None) -> tuple[type[Unreachable], str, str]:
    where = f"{hop.user}@{hop.place}"
    if password is not None:
        hint = "check `user` in the inventory, and that sshd there accepts passwords"
        return Unreachable, f"{where} does not accept the password", hint
    if not hop.is_node:
        hint = "check its user and key in `jump` of the inventory, or in ~/.ssh/config"
        return Unreachable, f"the jump host {where} accepts none of the offered keys", hint
    hint = (
        "check `user` and `identity_file` in the inventory; ssh-copy-id installs a key, "
        "and so does `spark-cluster provision --ask-password`"
    )
    return KeysRefused, f"{where} accepts none of the offered keys", hint


def silent(hop: Hop, step: str) -> Unreachable:
    """The error of a server that does not answer in the middle of a step: "sshd did not ..."."""
    where = "" if hop.is_node else f" of the jump host {hop.place}"
    return Unreachable(
        f"sshd{where} did not {step} within {hop.target.connect_timeout_s:g} s",
        where=hop.target.name,
        hint="the network reaches it, so it hangs or is overloaded: look at its console for want "
        "of memory or a full process table; a reboot may be all that helps",
    )


def refused_host_key(hop: Hop, key: HostKey) -> Unreachable:
    """The error of a connection that ends for its host key."""
    what, hint = _unlike(key, hop)
    return Unreachable(what, where=hop.target.name, hint=hint)


def _unlike(key: HostKey, hop: Hop) -> tuple[str, str]:
    host = key.host if hop.is_node else f"the jump host {key.host}"
    shown, known = f"{key.kind} {key.fingerprint}", key.line
    if known is None:
        return f"the host key of {host} is not known: {shown}", (
            "compare it with the node's own, then accept it: "
            f"spark-cluster trust --limit {hop.target.name}"
        )
    if key.verdict == "revoked":
        return f"REVOKED HOST KEY: {host} shows {shown}, revoked by {known.place}", REVOKED_HINT
    kind = "" if known.kind == key.kind else f"{known.kind} "
    return (
        f"THE HOST KEY HAS CHANGED: from {host} {key.fingerprint} came, "
        f"{kind}{known.fingerprint} is known ({known.place})"
    ), (
        "a reinstalled node has a new key; if it was not reinstalled: possible "
        "man-in-the-middle. When you know why: "
        f"spark-cluster trust --replace --limit {hop.target.name}"
    )
