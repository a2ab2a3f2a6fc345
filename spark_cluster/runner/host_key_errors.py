"""The errors of host keys that are not accepted: which key, who says so, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_cluster.errors import Unreachable
from spark_cluster.runner.known_hosts import Verdict

if TYPE_CHECKING:
    from spark_cluster.runner.host_key_check import Judgement
    from spark_cluster.runner.ssh_route import Hop, Target

REVOKED_HINT = (
    "a key is revoked when others may hold its private half: possible man-in-the-middle. "
    "Give the node a new key, at its own console (rm /etc/ssh/ssh_host_*_key*; ssh-keygen -A; "
    "systemctl restart ssh), then accept that one with `spark-cluster trust --replace`"
)


def refused(judgement: Judgement, hop: Hop, target: Target) -> Unreachable:
    """The error of a connection that ended for its host key."""
    from spark_cluster.runner.host_key_check import HostKeyCheck

    name = HostKeyCheck.of(hop.settings, target.known_hosts).name.name
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
