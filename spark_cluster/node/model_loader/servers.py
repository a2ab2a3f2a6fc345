"""The servers of the models: their containers, the memory of the node, and the proxy's view."""

from __future__ import annotations

import contextlib
import csv
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_cluster.node import memory
from spark_cluster.node.containers import NEEDS, ContainerState
from spark_cluster.node.health import State, judge
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
        return [name for name in self.config["always"] if not uses.get(name, Use()).up]

    def _uses(self) -> dict[str, Use]:
        try:
            return uses(command(self.config["admin"], "show stat"))
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
                use = uses.get(name, Use())
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
            if self._uses().get(name, Use()).requests:
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
            command(self.config["admin"], f"set server {backend}/{name} {what}")


# -- the proxy's runtime API ---------------------------------------------------------------------


PROXY_S = 5.0
"""Seconds for an answer of the proxy."""


@dataclass(frozen=True)
class Use:
    """The use of a server.

    Attributes:
        requests: that it has now.
        idle_s: seconds since its last one began; None where it has had none.
        up: its own /health is fine.
    """

    requests: int = 0
    idle_s: float | None = None
    up: bool = False


def command(path: str, text: str) -> str:
    """Ask HAProxy; return its answer.

    Raises:
        OSError: it is not there, or does not answer in time.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(PROXY_S)
        asked.connect(path)
        asked.sendall(f"{text}\n".encode())
        parts = []
        while part := asked.recv(65536):
            parts.append(part)
    return b"".join(parts).decode(errors="replace")


def uses(printed: str) -> dict[str, Use]:
    """Parse `show stat`: name of a server to its use; tolerant of columns that are missing."""
    rows = csv.DictReader(printed.lstrip("# ").splitlines())
    found = {}
    for row in rows:
        server = row.get("svname") or ""
        if server not in ("", "FRONTEND", "BACKEND"):
            idle = _number(row.get("lastsess"))
            found[server] = Use(
                requests=sum(max(0, _number(row.get(name)) or 0) for name in ("scur", "qcur")),
                idle_s=float(idle) if idle is not None and idle >= 0 else None,
                # "UP 1/3" is one whose checks begin to fail.
                up=(row.get("status") or "").startswith("UP"),
            )
    return found


def _number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None
