"""Packages that apt must leave as they are."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_cluster.node.host import Host
from spark_cluster.node.values import Missing, ResourceError
from spark_cluster.resources.base import Resource, State, checks
from spark_cluster.resources.package import PACKAGE, explained, patiently, policy


@dataclass(frozen=True)
class Hold(Resource):
    """Packages held with apt-mark, installed or not: no upgrade changes or brings them.

    Args:
        package: its name in apt.
        also: more packages, for the same call of apt-mark.
        held: True, or False to release them.
        if_known: a package that apt does not know needs no hold, and is passed over; otherwise
            it is a failure.

    Example:
        Hold("mlnx-fw-updater", if_known=True)
    """

    reverts = "what is held stays held"

    valid = checks(package=PACKAGE, also=PACKAGE)

    package: str
    also: tuple[str, ...] = field(default=(), kw_only=True)
    held: bool = field(default=True, kw_only=True)
    if_known: bool = field(default=False, kw_only=True)

    def desired(self) -> State:
        return dict.fromkeys(self._names, self._wanted)

    def observe(self, host: Host) -> State:
        if host.which("apt-mark") is None:
            raise ResourceError(
                "this node has no apt-mark", "Hold is for Debian and Ubuntu; DGX OS is one"
            )
        held = set(host.run(("apt-mark", "showhold")).check("listing holds").stdout.split())
        state = {name: "held" if name in held else "free" for name in self._names}
        for name in self._unknown(host, state):
            if host.will_provide(f"package:{name}"):
                raise Missing(f"package:{name}", f"apt knows no package {name} yet")
            if not self.if_known:
                raise ResourceError(
                    f"apt knows no package {name}, so it cannot be held",
                    "check the name, or declare if_known=True",
                )
            state[name] = self._wanted
        return state

    def converge(self, host: Host, actual: State) -> None:
        names = [name for name, state in actual.items() if state != self._wanted]
        argv = ("apt-mark", "hold" if self.held else "unhold", *names)
        done = patiently(host, lambda: host.run(argv, must_finish=True))
        explained(done, " ".join(argv))

    @property
    def _names(self) -> tuple[str, ...]:
        return (self.package, *self.also)

    @property
    def _wanted(self) -> str:
        return "held" if self.held else "free"

    def _unknown(self, host: Host, state: State) -> list[str]:
        """Return the packages to hold that apt does not know."""
        free = tuple(name for name, is_now in state.items() if is_now != "held")
        if not self.held or not free:
            return []
        known = policy(host, free)
        return [name for name in free if name.partition(":")[0] not in known and name not in known]
