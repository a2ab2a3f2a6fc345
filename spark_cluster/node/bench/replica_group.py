"""The workers of several replicas: they find each other, and wait for each other.

That of the first replica listens on an address that the others reach; each message goes to it, and
from it to all. It listens until all others have come, and takes those only who prove by HMAC that
they know the token.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

JOIN_S = 300.0
"""Seconds in which all replicas' workers must have found each other."""

MEETING = "meeting"
"""In the step's folder: there while the load generator waits for those of the other replicas."""

SLACK_S = 180.0
"""Seconds that a replica may be later than another one: its server may be waited for."""

ADMIT_S = 5.0
"""Seconds for one step of a connection's beginning."""

POLL_S = 0.5
LINE_BYTES = 4 * 1024 * 1024
"""A longer message is none of ours."""

NEWCOMER_BYTES = 4096
"""The same of who has not shown yet that it knows the token."""

NEWCOMERS = 100
"""Most connections that are waited for at once; the oldest has to go."""


class Lost(Exception):
    """Another replica cannot go on, or is not reached."""


class Peer:
    """A connection to another worker: JSON objects, one a line.

    Attributes:
        longest: bytes of a message.
        take: gets each message first; what it returns True for is not queued.
    """

    def __init__(
        self, connection: socket.socket, name: str = "", longest: int = LINE_BYTES
    ) -> None:
        self.connection = connection
        self.name = name
        self.longest = longest
        self.take: Callable[[dict[str, Any]], bool] = lambda _: False
        self._rest = b""
        self._waiting: deque[dict[str, Any]] = deque()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; raises Lost when the other one is gone."""
        try:
            self.connection.settimeout(ADMIT_S)
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise Lost(f"{self.name}: {error}") from None

    def look(self, seconds: float = 0.0) -> None:
        """Take in what has come, waiting at most so long; raises Lost when the other one ended."""
        if not select.select([self.connection], [], [], seconds)[0]:
            return
        try:
            data = self.connection.recv(65536)
        except OSError as error:
            raise Lost(f"{self.name}: {error}") from None
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self.longest:
            raise Lost(f"{self.name}: its message has no end")
        for line in lines:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                raise Lost(f"{self.name}: its message cannot be read")
            if "end" in message:
                raise Lost(f"{self.name}: {message['end']}")
            if not self.take(message):
                self._waiting.append(message)
        if not data:
            raise Lost(f"{self.name}: its worker has ended")

    def receive(self, seconds: float, check: Callable[[], object] = lambda: None) -> dict[str, Any]:
        """Return the next message; raises Lost when none comes in time."""
        limit = time.monotonic() + seconds
        while not self._waiting:
            check()
            if time.monotonic() > limit:
                raise Lost(f"{self.name}: nothing came from it for {seconds:.0f} s")
            self.look(POLL_S)
        return self._waiting.popleft()

    @property
    def has_message(self) -> bool:
        """True when `receive` returns at once."""
        return bool(self._waiting)

    def close(self) -> None:
        self.connection.close()


@dataclass
class Runs:
    """The progress of the replicas in the runs of a cell.

    Attributes:
        meeting: file that is there while the own load generator waits.
        done: runs of each replica that has not ended the cell, by its index.
        waits: the own load generator does.
        released: runs after which all were let go on.
    """

    meeting: Path = Path(MEETING)
    done: dict[int, int] = field(default_factory=dict)
    waits: bool = False
    released: int = 0

    def go(self, run: int, own: int) -> None:
        """Let the own load generator begin the run after this one."""
        if self.waits and self.done.get(own, 0) <= run:
            self.waits = False
            self.meeting.unlink(missing_ok=True)


class Newcomer(Peer):
    """A client that has connected, and has not shown yet that it knows the token."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection, longest=NEWCOMER_BYTES)
        self.nonce = secrets.token_hex(16)
        self.until = time.monotonic() + ADMIT_S


class Group:
    """The workers of all replicas, joined; leaving it tells the others.

    Args:
        settings: `index` of this one, `names` of all nodes, `address` and `port` of the first one,
            `token`.
        check: called while others are waited for; it may raise.

    Attributes:
        clock_s: seconds by which this node's clock is ahead of the first one's.
    """

    def __init__(self, settings: dict[str, Any], check: Callable[[], object]) -> None:
        self.index = int(settings["index"])
        self.names = [str(name) for name in settings["names"]]
        self.clock_s = 0.0
        self._place = (str(settings["address"]), int(settings["port"]))
        self._token = str(settings["token"]).encode()
        self._check = check
        self._peers: dict[int, Peer] = {}
        self._runs = Runs()

    def __enter__(self) -> Group:
        try:
            if self.index == 0:
                self._listen()
            else:
                self._peers[0] = self._connect()
        except BaseException:
            self._close()
            raise
        for index, peer in self._peers.items():
            _end_when_silent(peer.connection)
            peer.take = partial(self._noted, index)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _at: TracebackType | None,
    ) -> None:
        if error is not None:
            why = "" if isinstance(error, SystemExit) else str(error) or type(error).__name__
            for peer in self._peers.values():
                with contextlib.suppress(Lost):
                    peer.send({"end": why or "it was ended"})
        self._close()

    def _close(self) -> None:
        for peer in self._peers.values():
            peer.close()

    def look(self) -> None:
        """Raise Lost when another one has ended."""
        for peer in self._peers.values():
            peer.look()

    def exchange(self, longest: float = 0.0, **message: Any) -> list[dict[str, Any]]:
        """Give a message to all, and return those of all, when each has given one.

        Args:
            longest: seconds that another one may still need for its work.

        Raises:
            Lost: another one has ended, or gives none in time.
        """
        seconds = longest + SLACK_S
        if self.index:
            self._peers[0].send(message)
            answer = self._peers[0].receive(seconds + ADMIT_S, self._check)
            self.clock_s = time.time() - float(answer["time"])
            return list(answer["all"])
        self._collect(seconds)
        found = [message, *(peer.receive(0.0) for _, peer in sorted(self._peers.items()))]
        for peer in self._peers.values():
            peer.send({"all": found, "time": time.time()})
        return found

    def _collect(self, seconds: float) -> None:
        """Wait until each other one has given a message."""
        limit = time.monotonic() + seconds
        while missing := [peer for peer in self._peers.values() if not peer.has_message]:
            self._check()
            if time.monotonic() > limit:
                raise Lost(f"{missing[0].name}: nothing came from it for {seconds:.0f} s")
            select.select([peer.connection for peer in missing], [], [], POLL_S)
            self.look()
            self._release()

    # -- the runs of a cell ----------------------------------------------------------------------

    def begin_cell(self, folder: Path) -> None:
        """Prepare for a cell; to be called before the exchange with which it begins."""
        meeting = folder / MEETING
        meeting.unlink(missing_ok=True)
        self._runs = Runs(meeting, dict.fromkeys(range(len(self.names)), 0))

    def during_cell(self) -> None:
        """Let the next run begin when all are ready for it; raises Lost when another one ended."""
        self.look()
        runs = self._runs
        if not runs.waits and runs.meeting.exists():
            runs.waits = True
            runs.done[self.index] += 1
            if self.index:
                self._peers[0].send({"run": runs.done[self.index]})
        self._release()

    def end_cell(self) -> None:
        """The own load generator has ended: no one waits for it."""
        self._runs.done.pop(self.index, None)
        self._runs.waits = False

    def _release(self) -> None:
        """On the first replica: have all begin the next run when each has ended the last one."""
        if self.index:
            return
        runs = self._runs
        # One with a message has ended the cell.
        left = [n for i, n in runs.done.items() if not i or not self._peers[i].has_message]
        if left and min(left) > runs.released:
            runs.released = min(left)
            for peer in self._peers.values():
                peer.send({"go": runs.released})
            runs.go(runs.released, self.index)

    def _noted(self, index: int, message: dict[str, Any]) -> bool:
        """Take in a message of the runs of a cell."""
        if "run" in message and index in self._runs.done:
            self._runs.done[index] = int(message["run"])
            return True
        if "go" in message:
            self._runs.go(int(message["go"]), self.index)
            return True
        return False

    # -- joining ---------------------------------------------------------------------------------

    def _listen(self) -> None:
        limit = time.monotonic() + JOIN_S
        try:
            listener = socket.create_server(self._place)
        except OSError as error:
            raise Lost(f"{self._place[0]}:{self._place[1]}: {error.strerror}") from None
        waiting: list[Newcomer] = []
        try:
            with listener:
                self._let_in(listener, waiting, limit)
        finally:
            for one in waiting:
                one.close()

    def _let_in(self, listener: socket.socket, waiting: list[Newcomer], limit: float) -> None:
        while len(self._peers) < len(self.names) - 1:
            self._check()
            self.look()
            if time.monotonic() > limit:
                missing = [n for i, n in enumerate(self.names) if i and i not in self._peers]
                where = "{}:{}".format(*self._place)
                raise Lost(f"{', '.join(missing)} did not come to {where}: a firewall?")
            connections = [listener, *(one.connection for one in waiting)]
            if listener in select.select(connections, [], [], POLL_S)[0]:
                waiting.append(Newcomer(listener.accept()[0]))
                with contextlib.suppress(Lost):  # seen when it is looked at
                    waiting[-1].send({"nonce": waiting[-1].nonce})
            waiting[:] = [one for one in waiting if self._is_still_new(one)]
            while len(waiting) > NEWCOMERS:
                waiting.pop(0).close()

    def _is_still_new(self, one: Newcomer) -> bool:
        """Take a worker in that knows the token; anyone else is sent away, all in any order."""
        try:
            one.look()
            if one.has_message:
                self._admit(one, one.receive(0.0))
                return False
            if time.monotonic() > one.until:
                raise Lost("it says nothing")
        except (Lost, UnicodeError):
            one.close()
            return False
        return True

    def _admit(self, one: Newcomer, hello: dict[str, Any]) -> None:
        """Take a worker in that knows the token; raises Lost for anyone else."""
        index, proof, nonce = (hello.get(name) for name in ("replica", "proof", "nonce"))
        if type(index) is not int or not isinstance(proof, str) or not isinstance(nonce, str):
            raise Lost("it is no worker")
        wanted = self._proof("replica", str(index), one.nonce)
        known = hmac.compare_digest(proof.encode(), wanted.encode())
        if not known or not 0 < index < len(self.names) or index in self._peers:
            raise Lost("a stranger")
        one.send({"proof": self._proof("first", "0", nonce)})
        one.name, one.longest = self.names[index], LINE_BYTES
        self._peers[index] = one

    def _connect(self) -> Peer:
        limit = time.monotonic() + JOIN_S
        while True:
            self._check()
            try:
                return self._introduced(Peer(socket.create_connection(self._place, ADMIT_S)))
            except (OSError, Lost) as error:
                if time.monotonic() > limit:
                    where = "{}:{}".format(*self._place)
                    raise Lost(f"{self.names[0]} is not reached at {where}: {error}") from None
            time.sleep(POLL_S)

    def _introduced(self, peer: Peer) -> Peer:
        peer.name = self.names[0]
        own = secrets.token_hex(16)
        try:
            nonce = str(peer.receive(ADMIT_S).get("nonce", ""))
            proof = self._proof("replica", str(self.index), nonce)
            peer.send({"replica": self.index, "nonce": own, "proof": proof})
            wanted = self._proof("first", "0", own)
            given = str(peer.receive(ADMIT_S).get("proof", ""))
            if not hmac.compare_digest(given.encode(), wanted.encode()):
                raise Lost(f"{peer.name}: another program answers there")
        except BaseException:
            peer.close()
            raise
        return peer

    def _proof(self, *words: str) -> str:
        return hmac.new(self._token, " ".join(words).encode(), hashlib.sha256).hexdigest()


def _end_when_silent(connection: socket.socket) -> None:
    """Have the kernel end a connection about half a minute after the other node has lost power."""
    options = (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10),  # not in every system's Python
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4),
    )
    for level, name, value in options:
        if hasattr(socket, name):
            connection.setsockopt(level, getattr(socket, name), value)
