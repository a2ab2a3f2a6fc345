"""A command, for what no other resource can say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_cluster.node import units
from spark_cluster.node.host import Host
from spark_cluster.node.processes import Completed
from spark_cluster.node.values import ResourceError, Secret, Unknown
from spark_cluster.resources.base import Resource, State, absolute, checks

RETRY_S = 2.0
"""Seconds before the first further try; each next one waits twice as long, a minute at most."""


def _word(word: object) -> str:
    if isinstance(word, Secret):
        return (
            "has a secret in it: an argument list is visible to every user of the node; "
            "give it in env or stdin"
        )
    return "" if isinstance(word, str) else f"is a list of strings, and {word!r} is not a string"


@dataclass(frozen=True)
class Command(Resource):
    """A command with a way to know whether it has to run.

    Exactly one of `creates`, `unless`, `reads` and `when_changed` says when; without any it runs
    on every run, is always reported as a change, and is `unknown` in check mode.

    Args:
        title: what it does, unique in its document, e.g. `apply netplan`.
        argv: the command and its arguments; never a shell line.
        creates: it has been done when this path exists.
        unless: it has been done when this command ends with status 0.
        reads: it changes nothing: it runs on every run, in check mode too, and its output is in
            the result.
        when_changed: it runs when one of these (resources of the same document) was changed.
        env: variables in addition to PATH, LANG and HOME; Secrets go here or into `stdin`.
        stdin: what it reads.
        user: run as this user.
        timeout_s: seconds; then it is ended with all that it started.
        must_finish: not ended when the laptop is gone, but at `timeout_s`; for what takes seconds.
        long: it runs in a systemd unit of its own, which goes on when the laptop is gone; the
            next run waits for it, or takes its result. For what takes minutes.
        detach: with `long`: it goes on; otherwise it is ended with the laptop's run.
        retries: how often to try again when it fails, and why that is right: `(3, "the vendor's
            server often refuses the first connection")`; each time is shown.
        also_ok: exit statuses other than 0 that count as success.
        makes: what will exist afterwards, for check mode (see `Resource.provides`).

    Example:
        Command("apply netplan", ("netplan", "apply"), when_changed=(fabric_file,))
    """

    valid = checks(argv=_word, creates=absolute)

    title: str
    argv: tuple[str, ...]
    creates: str | None = field(default=None, kw_only=True)
    unless: tuple[str, ...] = field(default=(), kw_only=True)
    reads: bool = field(default=False, kw_only=True)
    when_changed: tuple[Resource | str, ...] = field(default=(), kw_only=True)
    env: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    stdin: str | bytes = field(default="", kw_only=True)
    user: str | None = field(default=None, kw_only=True)
    timeout_s: float = field(default=300.0, kw_only=True)
    must_finish: bool = field(default=False, kw_only=True)
    long: bool = field(default=False, kw_only=True)
    detach: bool = field(default=True, kw_only=True)
    retries: tuple[int, str] | None = field(default=None, kw_only=True)
    also_ok: tuple[int, ...] = field(default=(), kw_only=True)
    makes: tuple[str, ...] = field(default=(), kw_only=True)

    def validate(self) -> None:
        self.must(self.argv, "argv is a list of strings, not an empty one")
        when = (self.creates is not None, bool(self.unless), self.reads, bool(self.when_changed))
        self.must(sum(when) < 2, "only one of creates, unless, reads and when_changed")
        fits = not self.long or not (self.reads or self.must_finish)
        self.must(fits, "long cannot be combined with reads or must_finish")
        self.must(self.detach or self.long, "detach=False needs long=True")
        self.must(
            self.retries is None or _is_reasoned(self.retries),
            "retries is a count (1 to 20) and the reason why trying again is right, "
            f"e.g. (3, 'the mirror is slow to wake up'), not {self.retries!r}",
        )

    def provides(self) -> tuple[str, ...]:
        return (*self.makes, *((f"path:{self.creates}",) if self.creates else ()))

    def desired(self) -> State:
        return {"done": True}

    def observe(self, host: Host) -> State:
        if self.reads:
            return {"done": True, "output": self._patiently(host).stdout}
        if self.creates is not None:
            return {"done": host.path(self.creates).exists()}
        if self.unless:
            return {"done": host.run(self.unless, timeout=self.timeout_s).status == 0}
        if self.when_changed:
            return {"done": not host.restarts.pending(self.id)}
        if host.check:
            raise Unknown("it runs on every run")
        return {"done": False}

    def converge(self, host: Host, actual: State) -> None:
        self._patiently(host)

    def state_after(self, host: Host) -> State:
        if self.creates is None and not self.unless:
            return {"done": True}
        return self.observe(host)

    def _patiently(self, host: Host) -> Completed:
        """Run it, again if that was declared, until it ends well."""
        left, reason = self.retries or (0, "")
        pause = RETRY_S
        while True:
            try:
                done = self._start(host)
                return done if done.status in self.also_ok else done.check(self.title)
            except ResourceError as error:
                if not left:
                    raise
                host.note(f"{error.message}; trying again ({left} left): {reason}")
                if host.processes.cancelled.wait(pause):
                    raise
            left, pause = left - 1, min(pause * 2, 60.0)

    def _start(self, host: Host) -> Completed:
        if self.long:
            return units.run(
                host,
                self.id,
                self.argv,
                stdin=host.content(self.stdin),
                env=self.env,
                timeout=self.timeout_s,
                user=self.user,
                detach=self.detach,
                reuse_result=self.creates is None and not self.unless,
            )
        return host.run(
            self.argv,
            stdin=host.content(self.stdin),
            env=self.env,
            timeout=self.timeout_s,
            user=self.user,
            must_finish=self.must_finish,
        )


def _is_reasoned(retries: object) -> bool:
    """Return whether it is a count and a reason."""
    if not isinstance(retries, tuple) or len(retries) != 2:
        return False
    count, reason = retries
    counts = isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= 20
    return counts and isinstance(reason, str) and bool(reason.strip())
