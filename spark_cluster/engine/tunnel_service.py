"""The tunnel as a service of the user's own systemd, on the machine that it begins at."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from spark_cluster.errors import Failed, UsageError
from spark_cluster.node import durable

SYSTEMCTL_S = 30.0
"""Seconds that systemctl has: it starts nothing that it waits for."""

UNIT = """\
[Unit]
Description=Tunnel of spark-cluster to the endpoint of {node}
Documentation=https://www.freedesktop.org/software/systemd/man/systemd.service.html
StartLimitIntervalSec=0

[Service]
ExecStart={command}
# Connections that are cut are made again by the program itself; this is for the first one.
Restart=on-failure
RestartSec=10

[Install]
WantedBy=default.target
"""


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
    return UNIT.format(node=node, command=" ".join(_quoted(word) for word in argv))


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
