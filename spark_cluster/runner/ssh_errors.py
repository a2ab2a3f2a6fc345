"""What is said when an SSH connection is not made: the reason, and what to do about it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from spark_cluster.errors import Unreachable
from spark_cluster.runner.known_hosts import HostName, Verdict

if TYPE_CHECKING:
    from spark_cluster.runner.host_key_check import Judgement
    from spark_cluster.runner.ssh_limits import NoAnswer
    from spark_cluster.runner.ssh_route import Hop, Target

REVOKED_HINT = (
    "a key is revoked when others may hold its private half: possible man-in-the-middle. "
    "Give the node a new key, at its own console (rm /etc/ssh/ssh_host_*_key*; ssh-keygen -A; "
    "systemctl restart ssh), then accept that one with `spark-cluster trust --replace`"
)


class KeysRefused(Unreachable):
    """The node was reached, but takes none of the keys; a password may do."""


_NOTHING_ACCEPTED = re.compile(
    r"encountered \w+ key, expected \w+ key|No authentication methods available"
)
"""paramiko's words for keys that it could not use, and for a user that has none."""


@contextlib.contextmanager
def explained(hop: Hop, target: Target, user: str, password: str | None) -> Iterator[None]:
    """Turn what paramiko raises while connecting to a host into an error for people.

    Raises:
        Unreachable: with the reason, and what to do about it.
    """
    import paramiko

    from spark_cluster.runner.host_key_check import HostKeyRefused
    from spark_cluster.runner.ssh_limits import NoAnswer

    try:
        yield
    except HostKeyRefused as error:
        raise refused_key(error.judgement, hop, target) from None
    except NoAnswer as error:
        raise no_answer(target, error, hop) from None
    except paramiko.ChannelException as error:
        raise Unreachable(
            f"the jump host does not reach {hop.place}: {error.text}",
            where=target.name,
            hint="check on the jump host that it can: its sshd may forbid AllowTcpForwarding",
        ) from None
    except paramiko.PasswordRequiredException:
        raise KeysRefused(
            "the private key has a passphrase",
            where=target.name,
            hint="add it to your agent first: ssh-add " + str(hop.identity_file or ""),
        ) from None
    except paramiko.AuthenticationException:
        raise _refused(hop, target, f"{user}@{hop.place}", password) from None
    except (paramiko.SSHException, OSError, EOFError) as error:
        # Of a refused key in the old PEM form paramiko keeps only that it tried other forms last.
        # Without any key of the user's it has nothing to try.
        if _NOTHING_ACCEPTED.fullmatch(str(error)):
            raise _refused(hop, target, f"{user}@{hop.place}", password) from None
        raise unreachable(target, str(error) or "the connection was cut") from None


def _refused(hop: Hop, target: Target, where: str, password: str | None) -> Unreachable:
    if password is not None:
        return Unreachable(
            f"{where} does not accept the password",
            where=target.name,
            hint="check `user` in the inventory, and that sshd there accepts passwords",
        )
    if not hop.is_node:
        return Unreachable(
            f"the jump host {where} accepts none of the offered keys",
            where=target.name,
            hint="check its user and key in `jump` of the inventory, or in ~/.ssh/config",
        )
    return KeysRefused(
        f"{where} accepts none of the offered keys",
        where=target.name,
        hint="check `user` and `identity_file` in the inventory; ssh-copy-id installs a key, "
        "and so does `spark-cluster provision --ask-password`",
    )


def unreachable(target: Target, why: str) -> Unreachable:
    """The error of a connection that failed for a reason of its own."""
    return Unreachable(
        f"SSH failed: {why}",
        where=target.name,
        hint="ssh -v to the node shows more; after several failures sshd may block "
        "this address for some minutes",
    )


def no_answer(target: Target, error: NoAnswer, hop: Hop | None = None) -> Unreachable:
    """The error of a server that was silent for too long.

    Args:
        hop: the host to which a connection is being made; None when it is there already.
    """
    if hop is not None and error.of_gateway:
        return Unreachable(
            f"the jump host did not reach {hop.place} within {target.connect_timeout_s:g} s",
            where=target.name,
            hint="check that it is on, and on the jump host that it answers from there",
        )
    where = "" if hop is None or hop.is_node else f" of the jump host {hop.place}"
    return Unreachable(
        f"sshd{where} did not {error.step} within {target.connect_timeout_s:g} s",
        where=target.name,
        hint="the network reaches it, so it hangs or is overloaded: look at its console for want "
        "of memory or a full process table; a reboot may be all that helps",
    )


def refused_key(judgement: Judgement, hop: Hop, target: Target) -> Unreachable:
    """The error of a connection that ended for its host key."""
    settings = hop.settings
    name = HostName.of(settings.host, settings.port, settings.host_key_alias).name
    host = name if hop.is_node else f"the jump host {name}"
    message, hint = _words(judgement, host, target.name)
    return Unreachable(message, where=target.name, hint=hint)


def _words(judgement: Judgement, host: str, node: str) -> tuple[str, str]:
    key = f"{judgement.kind} {judgement.fingerprint}"
    if judgement.verdict is Verdict.REVOKED:
        return f"REVOKED HOST KEY: {host} shows {key}, revoked by {judgement.revoked_by}", (
            REVOKED_HINT
        )
    if judgement.verdict is Verdict.CHANGED and judgement.line is not None:
        other = judgement.line
        kind = "" if other.kind == judgement.kind else f"{other.kind} "
        return (
            f"THE HOST KEY HAS CHANGED: from {host} {judgement.fingerprint} came, "
            f"{kind}{other.fingerprint} is known ({other.place})"
        ), (
            "a reinstalled node has a new key; if it was not reinstalled: possible "
            "man-in-the-middle. When you know why: "
            f"spark-cluster trust --replace --limit {node}"
        )
    return f"the host key of {host} is not known: {key}", (
        f"compare it with the node's own, then accept it: spark-cluster trust --limit {node}"
    )
