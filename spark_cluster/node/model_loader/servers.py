"""The servers of the models: their containers, the memory of the node, and the proxy's view."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from spark_cluster.node import memory
from spark_cluster.node.containers import NEEDS, ContainerState
from spark_cluster.node.health import State, judge
from spark_cluster.node.model_loader import haproxy
from spark_cluster.node.model_loader.policy import Loaded
from spark_cluster.node.supervision import loading, look

ACT_S = 180.0
"""Seconds to start or stop a container."""

ANSWER_S = 30.0
"""Seconds for an answer of a server."""

STOP_S = 30
"""Seconds that a server has to end before it is killed."""

LEAVE_S = 2.0
"""Seconds in which a request that the proxy has just sent shows itself."""


class Failed(Exception):
    """A server that could not be stopped or started; the text says why."""


class ProxyAway(Failed):
    """The proxy does not answer now, as while it is started again."""


def available_gib() -> float:
    """Return MemAvailable of the node."""
    return memory.meminfo().get("MemAvailable", 0) / 2**20


class Servers:
    """The models that are loaded on request.

    Args:
        config: what the role `model_loader` wrote; see `serving.model_loading.configuration`.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.models: dict[str, Mapping[str, Any]] = {
            one["program"]: one for one in config["models"]
        }
        self._loaded_at: dict[str, float] = {}

    def program(self, name: str) -> ContainerState:
        """Return a container.

        Raises:
            Failed: Docker does not answer, or there is none.
        """
        found = self._look(name)
        if not found.id:
            raise Failed(f"there is no container {name}: `spark-cluster up` makes it")
        return found

    def _look(self, name: str) -> ContainerState:
        found = look.program(name, self.config)
        if found.status == "unknown":
            raise Failed("Docker does not answer")
        return found

    def missing(self) -> list[str]:
        """Return the servers of this node that are always to be there, and are not.

        Raises:
            ProxyAway: the proxy, which looks at them, does not answer.
        """
        uses = self._uses()
        return [name for name in self.config["always"] if not uses.get(name, haproxy.Use()).up]

    def _uses(self) -> dict[str, haproxy.Use]:
        try:
            return haproxy.uses(haproxy.command(self.config["admin"], "show stat"))
        except OSError as error:
            raise ProxyAway(f"the proxy does not answer: {error}") from None

    def need_gib(self, one: ContainerState) -> float:
        """Return the memory that must be available before a server is started."""
        with contextlib.suppress(ValueError):
            return float(one.label(NEEDS))
        return 0.0

    def loaded(self, but: str) -> list[Loaded]:
        """Return the others that are loaded, with their use.

        Raises:
            ProxyAway: the proxy does not answer: whether one has requests is not known then.
            Failed: Docker does not.
        """
        uses = self._uses()
        now, found = time.monotonic(), []
        for name in self.models:
            if name == but:
                continue
            program = self._look(name)  # one that someone removed holds no memory
            if program.kept_up:
                use = uses.get(name, haproxy.Use())
                since = now - self._loaded_at.get(name, float("-inf"))
                idle = use.idle_s if use.idle_s is not None else since
                frees = max(0.0, self.need_gib(program) - float(self.config["reserve_gib"]))
                found.append(Loaded(name, frees, use.requests, idle, since))
        return found

    def unload(self, name: str) -> bool:
        """Stop a server that has no requests; False where one came meanwhile.

        Raises:
            Failed: it does not stop.
        """
        self.tell_proxy(name, "state drain")  # no request comes between the look and the stop
        try:
            time.sleep(LEAVE_S)
            if self._uses().get(name, haproxy.Use()).requests:
                return False
            if look.output(["docker", "stop", "-t", str(STOP_S), name], ACT_S) is None:
                raise Failed(f"docker stop {name} failed")
            self.tell_proxy(name, "health down")
            return True
        except ProxyAway:
            return False  # it is looked at again
        finally:
            self.tell_proxy(name, "state ready")

    def start(self, name: str) -> None:
        """Start a server, whose load is guarded.

        Raises:
            Failed: Docker cannot.
        """
        loading.end(name, self.config)
        loading.prepare(self.config)
        if look.output(["docker", "start", name], ACT_S) is None:
            raise Failed(f"docker start {name} failed: `docker logs {name}` on the head says more")
        self._loaded_at[name] = time.monotonic()
        loading.guard(name, [name], float(self.models[name]["ready_s"]), self.config)

    def stop(self, name: str) -> None:
        """Stop a server that does not come up; it is left as it is where that fails."""
        loading.end(name, self.config)
        look.output(["docker", "stop", "-t", "5", name], ACT_S)

    def state(self, one: ContainerState) -> State:
        """Return whether a server lives; one that has a process is asked for a real answer."""
        if not one.kept_up:
            return judge(one)
        return judge(one, None, look.answer(one, ANSWER_S))

    def came_up(self, name: str) -> None:
        """Note when a server was ready."""
        loading.end(name, self.config)
        self._loaded_at[name] = time.monotonic()

    def tell_proxy(self, name: str, what: str) -> None:
        """Set the state of a server in the proxy, which sees by itself when it is wrong."""
        backend = self.models[name]["backend"]
        with contextlib.suppress(OSError):
            haproxy.command(self.config["admin"], f"set server {backend}/{name} {what}")
