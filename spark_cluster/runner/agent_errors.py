"""Errors of an agent that never answered: what sudo, the shell or Python printed, with a hint."""

from __future__ import annotations

from dataclasses import dataclass

from spark_cluster.errors import Failed

PROMPT = "spark-cluster-sudo:"
"""What sudo asks with, so that asking twice (a wrong password) is recognised."""


@dataclass(frozen=True)
class _Refusal:
    """A known error: all words of one of `signs` are in the output; `{user}` is filled in."""

    signs: tuple[tuple[str, ...], ...]
    message: str
    hint: str


_REFUSALS = (
    _Refusal(
        (("try again",), ("incorrect password",)),
        "sudo does not accept the password of {user}",
        "check `become.password` in the inventory",
    ),
    _Refusal(
        (("a password is required",), ("a terminal is required",)),
        "sudo asks for the password of {user}",
        "set `become.password` in the inventory (from env, a file or a prompt)",
    ),
    _Refusal(
        (("not in the sudoers",), ("is not allowed to",), ("may not run sudo",)),
        "{user} may not use sudo there",
        "as root on the node: usermod -aG sudo {user}",
    ),
    _Refusal(
        (
            ("python3", "not found"),
            ("python3", "no such file"),
            ("python3", "permission denied"),
            ("python3", "unable to execute"),
        ),
        "there is no Python 3 on the node",
        "the only thing it needs besides sshd: sudo apt-get install python3",
    ),
    _Refusal((("sudo", "not found"),), "there is no sudo on the node", "log in as root"),
)


def why_no_agent(node: str, user: str, stderr: str, status: int | None) -> Failed | None:
    """The error of an agent that never spoke.

    Args:
        said: its standard error so far.
        status: its exit status; None while it runs.

    Returns:
        None while nothing is known yet.
    """
    low = stderr.lower()
    if stderr.count(PROMPT) > 1:
        low += " try again"
    for refusal in _REFUSALS:
        if any(all(word in low for word in words) for words in refusal.signs):
            message, hint = (t.format(user=user) for t in (refusal.message, refusal.hint))
            return Failed(message, where=node, hint=hint)
    if status is None:
        return None
    tail = stderr.strip().splitlines()[-1:] or [f"it ended with status {status}"]
    return Failed(f"the agent did not start: {tail[0]}", where=node)
