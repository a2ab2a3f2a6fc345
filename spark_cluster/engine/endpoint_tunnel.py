"""A tunnel: a port of this machine to the endpoint, connected again when the SSH link is cut.

The endpoint's address as the head sees it is asked over SSH alone: no agent, no root.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from spark_cluster.config.ports import LOOPBACK
from spark_cluster.config.topology import render
from spark_cluster.engine.proxy import DESCRIPTION, Access, described
from spark_cluster.errors import Failed, Unreachable, UsageError
from spark_cluster.node import durable
from spark_cluster.runner.dialer import SshConnection, carried
from spark_cluster.runner.ssh_route import Target

if TYPE_CHECKING:
    from spark_cluster.config.inventory import InventoryNode
    from spark_cluster.config.inventory_schema import ServeEntry


PAUSES_S = (1.0, 30.0)
"""Seconds between two tries to connect again: at first, and at most; each is twice the last."""

READS_WITHIN_S = 10.0
"""Seconds for reading a small file of the node."""

LARGEST = 16 * 1024
"""Bytes of it that are read."""


Find = Callable[[SshConnection], str]
"""Asks the node for the endpoint's base URL, as the node reaches it."""


@dataclass(frozen=True)
class TunnelEvent:
    """News of a tunnel.

    Attributes:
        event: `open` (it carries connections), `cut` (the SSH connection ended, or could not be
            made again), `refused` (the node does not connect to the endpoint's port).
        node: the node it goes through.
        message: the reason; empty for `open`.
        url: the endpoint's base URL on this machine, of `open`.
        to: the same as the node reaches it.
        retry_s: seconds until the next try, of `cut`.
        hint: what to do; empty when there is nothing to add.
    """

    event: Literal["open", "cut", "refused"]
    node: str
    message: str = ""
    url: str = ""
    to: str = ""
    retry_s: float | None = None
    hint: str = ""

    def __str__(self) -> str:
        if self.event == "open":
            return f"{self.url} leads to {self.to} of {self.node}"
        retry = "" if self.retry_s is None else f"; the next try is in {self.retry_s:g} s"
        return f"{self.node}: {self.message}{retry}"


def keep_open(target: Target, find: Find, port: int) -> Iterator[TunnelEvent]:
    """Carry connections to an endpoint until the program is interrupted; again when it is cut.

    Args:
        target: the node that it goes through.
        find: asks a connected node where the endpoint is.
        port: of this machine's loopback.

    Yields:
        What happens.

    Raises:
        Unreachable: the first connection could not be made; later ones are tried again.
        UsageError: the port cannot be listened on, the first time.
    """
    pause, event = 0.0, partial(TunnelEvent, node=target.name)
    while True:
        try:
            with contextlib.closing(SshConnection(target)) as connection:
                connection.open()
                to, shown = find(connection), ""
            far = urlsplit(to)
            host, to_port = far.hostname or LOOPBACK, far.port or 80
            with carried(target, port, host, to_port) as news:
                pause = PAUSES_S[0]
                here = far._replace(netloc=f"{LOOPBACK}:{port}").geturl()
                yield event("open", url=here, to=to)
                for kind, why in news:
                    if kind == "cut":
                        yield event(kind, message=why, retry_s=pause)
                    elif why != shown:
                        hint = "spark-cluster status shows what serves"
                        shown, hint = why, hint if "nothing listens" in why else ""
                        yield event(kind, message=why, hint=hint)
        except (Unreachable, UsageError) as error:
            if not pause:
                raise
            pause = min(2 * pause, PAUSES_S[1])
            yield event("cut", message=error.message, retry_s=pause, hint=error.hint)
        time.sleep(pause)


def ask_head(connection: SshConnection) -> Access | None:
    """Return what the proxy's own file on the head says; None where there is no proxy.

    Raises:
        Unreachable: the connection was lost, or nothing came in time.
    """
    channel = connection.start(["cat", DESCRIPTION])
    found, until = b"", time.monotonic() + READS_WITHIN_S
    try:
        while data := channel.receive(max(0.1, until - time.monotonic())):
            found += data
            if len(found) > LARGEST or time.monotonic() > until:
                break
    except (OSError, EOFError) as error:
        why = str(error) or "nothing came in time"
        raise Unreachable(
            f"{DESCRIPTION} could not be read: {why}", where=connection.target.name
        ) from None
    finally:
        channel.close()
    return described(found.decode(errors="replace"))


def url_on_head(access: Access | None, serve: ServeEntry, head: InventoryNode) -> str:
    """Return the endpoint's base URL, for a connection that the head makes.

    Args:
        access: what the proxy says is in force; None where the inventory says it.
    """
    if access is not None and _has_port(access.url):
        return access.url
    host = LOOPBACK
    if not serve.on_loopback:
        host = head.address if serve.bind == "management" else serve.bind
    scheme = "http" if serve.tls is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{serve.port}/v1"


def _has_port(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname and parts.port)
    except ValueError:
        return False


SYSTEMCTL_S = 30.0
"""Seconds that systemctl has: it starts nothing that it waits for."""

TEMPLATES = Path(__file__).with_name("templates")


def unit_name(node: str) -> str:
    """Return the unit's name: one tunnel for each head."""
    return f"spark-cluster-tunnel-{node}.service"


def unit_folder(environment: dict[str, str], home: Path) -> Path:
    """Return the folder of the user's own units (systemd.unit(5))."""
    configured = environment.get("XDG_CONFIG_HOME", "")
    base = Path(configured) if configured.startswith("/") else home / ".config"
    return base / "systemd" / "user"


def unit_text(node: str, argv: Sequence[str]) -> str:
    """Return the unit's file.

    Args:
        argv: the command, its program as an absolute path.
    """
    command = " ".join(_quoted(word) for word in argv)
    return render(TEMPLATES, "tunnel.service.j2", node=node, command=command)


def _quoted(word: str) -> str:
    """Return a word as ExecStart= reads it literally (systemd.service(5), "Command lines").

    Raises:
        UsageError: it has a control character.
    """
    if not word.isprintable():
        raise UsageError(f"{word!r} cannot stand in a systemd unit: it has a control character")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def install(folder: Path, node: str, argv: Sequence[str]) -> Path:
    """Write the unit, start it now and at each login; return its file.

    Raises:
        UsageError: this machine has no systemd.
        Failed: systemctl failed.
    """
    _require_systemd()
    path = folder / unit_name(node)
    durable.make_folder(folder, 0o755)
    durable.write_file(path, unit_text(node, argv).encode(), 0o644)
    _systemctl("daemon-reload")
    _systemctl("enable", path.name)
    _systemctl("restart", path.name)
    return path


def remove(folder: Path, node: str) -> bool:
    """Stop the service and remove its file; return False when there was none.

    Raises:
        UsageError: this machine has no systemd.
        Failed: systemctl failed.
    """
    path = folder / unit_name(node)
    if not path.exists():
        return False
    _require_systemd()
    _systemctl("disable", "--now", path.name)
    path.unlink(missing_ok=True)
    _systemctl("daemon-reload")
    return True


def _require_systemd() -> None:
    if shutil.which("systemctl") is None:
        what = "macOS has launchd instead" if sys.platform == "darwin" else "found no systemctl"
        raise UsageError(
            f"--install makes a service of systemd: {what}",
            hint="docs/how-to/reach-the-endpoint.md has the file for launchd; "
            "in a terminal, `spark-cluster tunnel` needs neither",
        )


def _systemctl(*words: str) -> None:
    argv = ["systemctl", "--user", *words]
    try:
        done = subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SYSTEMCTL_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(argv)}: not done within {SYSTEMCTL_S:g} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it printed nothing"]
        raise Failed(
            f"{' '.join(argv)} ended with status {done.returncode}: {lines[-1]}",
            hint="it needs a login session of systemd (not `su` or `sudo`); "
            "`loginctl enable-linger` keeps one without a login",
        )
