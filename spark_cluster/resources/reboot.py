"""A restart of the node, when something asks for one and the user allows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_cluster.node.host import Host
from spark_cluster.node.values import RebootNeeded, ResourceError, Skip
from spark_cluster.resources.base import Resource, State, absolute, checks

REQUIRED = "/run/reboot-required"
"""Made by packages that need one (update-notifier-common and others); gone after it."""


@dataclass(frozen=True)
class Reboot(Resource):
    """The node is rebooted, here, when that is pending; the document goes on after it.

    It is pending when a trigger was changed since the node booted, when /run/reboot-required is
    there, or one of `pending_when`. The laptop waits for the node, takes its lock again, asks for
    its facts again, and sends the rest.

    Args:
        title: what it is for, unique in its document, e.g. `new kernel`.
        when_changed: resources (or ids) of the same document whose change asks for it.
        pending_when: paths that ask for it while they exist.
        allowed: whether the user allows it now.
        required: when it is pending and not allowed, it is a failure; otherwise that is said, and
            the document goes on.
        timeout_s: seconds within which the node must be back.

    Raises:
        ResourceError: pending and not allowed, or still pending after it.

    Example:
        Reboot("new driver", when_changed=(driver,), allowed=settings.reboot)
    """

    reverts = "a reboot cannot be reverted"

    valid = checks(pending_when=absolute)

    title: str
    when_changed: tuple[Resource | str, ...] = field(default=(), kw_only=True)
    pending_when: tuple[str, ...] = field(default=(), kw_only=True)
    allowed: bool = field(default=False, kw_only=True)
    required: bool = field(default=True, kw_only=True)
    timeout_s: float = field(default=300.0, kw_only=True)

    def validate(self) -> None:
        self.must(self.timeout_s > 0, f"timeout_s {self.timeout_s!r}")

    def desired(self) -> State:
        return {"asked_for_by": []}

    def observe(self, host: Host) -> State:
        found = [path for path in (REQUIRED, *self.pending_when) if host.path(path).exists()]
        if REQUIRED in found:
            packages = host.read(f"{REQUIRED}.pkgs") or b""
            names = sorted(set(packages.decode(errors="replace").split()))
            if names:
                found[0] = f"{REQUIRED} ({', '.join(names)})"
        return {"asked_for_by": found}

    def must_act(self, host: Host) -> bool:
        """A trigger changed before the node booted has had its reboot, whoever did it."""
        pending = host.restarts.pending(self.id)
        return pending and host.restarts.since(self.id) in ("", host.boot_id())

    def permit(self, host: Host, changes: Mapping[str, tuple[Any, Any]]) -> str:
        asking = [str(path) for path in changes.get("asked_for_by", ((), ()))[0]]
        if "restart" in changes:
            asking.insert(0, "a change of " + ", ".join(self.triggers()))
        why = "; ".join(asking)
        if self.allowed:
            return f"would reboot: {why}" if host.check else ""
        if not self.required:
            text = f"reboot pending: {why}"
            host.note(f"{self.title}: {text}")
            raise Skip(text)
        raise ResourceError(
            f"the node must be rebooted ({why}), and that is not allowed",
            "allow it, or reboot the node yourself; then run the same command again",
        )

    def converge(self, host: Host, actual: State) -> None:
        raise RebootNeeded
