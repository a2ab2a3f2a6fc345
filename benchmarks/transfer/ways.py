"""The ways of copying that are compared, each over the same links and from the same folder."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.transfer.figures import Copy
from benchmarks.transfer.links import Pair
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 900.0
SSH_PORT = "7346"

RSYNC = {
    "rsync -a": ("-a",),
    # eugr/spark-vllm-docker, hf-download.sh at 065fb92.
    "spark-vllm-docker": ("-av", "--mkpath", "--progress"),
    # spark-arena/sparkrun, scripts/model_distribute.sh at 05eb1be.
    "sparkrun": (
        *("-a", "--no-perms", "--no-group", "--omit-dir-times", "--copy-unsafe-links"),
        *("--size-only", "--mkpath", "--partial"),
    ),
}
"""Options, as these tools give them; all of them run one rsync over ssh for each node."""

OURS = {"ours, TLS": True, "ours, plain": False}


class WayError(Exception):
    """A copy has failed, with what was printed."""


@dataclass(frozen=True)
class Setting:
    """Where all is: the model, the folder for copies, keys and certificates."""

    pair: Pair
    source: Path
    target: Path
    keys: Path
    manifest: Manifest

    @property
    def documents(self) -> Path:
        """The manifest as both sides read it."""
        path = self.keys / "manifest.json"
        path.write_text(json.dumps(self.manifest.document()), encoding="utf-8")
        return path


def cpu() -> float:
    """CPU time of the processes that have ended, seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def copy(setting: Setting, way: str) -> Copy:
    """Copy the model once.

    Raises:
        WayError: it failed.
    """
    begun_cpu = cpu()
    if way in OURS:
        wall = _ours(setting, encrypted=OURS[way])
    else:
        with _sshd(setting):
            wall = _rsync(setting, RSYNC[way])
    return Copy(way, wall, cpu() - begun_cpu, setting.manifest.size)


def _ours(setting: Setting, *, encrypted: bool) -> float:
    given = {
        "manifest": str(setting.documents),
        "token": "benchmark",
        "addresses": setting.pair.addresses,
        "certificate": str(setting.keys / "sender.pem"),
        "key": str(setting.keys / "sender.key") if encrypted else "",
    }
    side = (sys.executable, "-m", "benchmarks.transfer.side")
    with subprocess.Popen(
        setting.pair.on_sender(*side, "send"),
        cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as sender:  # fmt: skip
        assert sender.stdin is not None
        assert sender.stdout is not None
        sender.stdin.write(json.dumps({**given, "root": str(setting.source)}) + "\n")
        sender.stdin.flush()
        if sender.stdout.readline().strip() != "ready":
            raise WayError("our sender does not begin")
        begun = time.monotonic()
        _must(
            setting.pair.on_receiver(*side, "receive"),
            json.dumps({**given, "root": str(setting.target)}) + "\n",
        )
        wall = time.monotonic() - begun
        sender.stdin.close()
        sender.wait(timeout=30)
    return wall


def _rsync(setting: Setting, options: Sequence[str]) -> float:
    ssh = f"ssh -F {setting.keys / 'ssh_config'}"
    folder = HubCache(setting.source).folder(setting.manifest.repository)
    # The peers push; a pull carries the same bytes the same way, over the shaped direction.
    begun = time.monotonic()
    _must(
        setting.pair.on_receiver(
            "rsync", *options, "-e", ssh, f"sender:{folder}", f"{setting.target}/"
        ),
        "",
    )
    return time.monotonic() - begun


def _must(argv: list[str], given: str) -> None:
    done = subprocess.run(
        argv, cwd=ROOT, input=given, text=True, capture_output=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise WayError(f"{argv[4]} ended with status {done.returncode}: {done.stderr[-500:]}")


@contextmanager
def _sshd(setting: Setting) -> Iterator[None]:
    """An ssh server on the sender's first address, with keys of its own."""
    keys = setting.keys
    if not (keys / "host").exists():
        for name in ("host", "user"):
            _must(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name)], "")
        address = setting.pair.addresses[0]
        host = (keys / "host.pub").read_text()
        (keys / "known_hosts").write_text(f"[{address}]:{SSH_PORT} {host}")
        (keys / "authorized_keys").write_text((keys / "user.pub").read_text())
        (keys / "sshd_config").write_text(
            f"ListenAddress {address}\nPort {SSH_PORT}\nHostKey {keys / 'host'}\n"
            f"AuthorizedKeysFile {keys / 'authorized_keys'}\nStrictModes no\nUsePAM no\n"
            f"PermitRootLogin prohibit-password\nPidFile none\n"
        )
        (keys / "ssh_config").write_text(
            f"Host sender\n HostName {address}\n Port {SSH_PORT}\n User root\n"
            f" IdentityFile {keys / 'user'}\n IdentitiesOnly yes\n BatchMode yes\n"
            f" UserKnownHostsFile {keys / 'known_hosts'}\n"
        )
    os.makedirs("/run/sshd", exist_ok=True)  # noqa: PTH103  (sshd wants it, also in a namespace)
    with subprocess.Popen(
        setting.pair.on_sender("/usr/sbin/sshd", "-D", "-e", "-f", str(keys / "sshd_config")),
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            _wait_for(setting)
            yield
        finally:
            server.terminate()


def _wait_for(setting: Setting) -> None:
    until = time.monotonic() + 15
    argv = setting.pair.on_receiver("ssh", "-F", str(setting.keys / "ssh_config"), "sender", "true")
    while subprocess.run(argv, capture_output=True, check=False, timeout=20).returncode:
        if time.monotonic() > until:
            raise WayError("the ssh server does not answer")
        time.sleep(0.1)
