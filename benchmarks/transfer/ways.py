"""The ways of copying that are compared, each over the same links and from the same folder."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.transfer.figures import Copy
from benchmarks.transfer.links import Pair
from spark_cluster.node.store.copy_receiving import STREAMS
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest

ROOT = Path(__file__).resolve().parents[2]
BEFORE = "ae1081dc"
"""The last revision with a sender of our own."""
LIMIT_S = 900.0
TLS_PORT = 7346


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
    def document(self) -> Path:
        """The manifest as both sides read it."""
        path = self.keys / "manifest.json"
        path.write_text(json.dumps(self.manifest.document()), encoding="utf-8")
        return path


def cpu() -> float:
    """CPU time of the processes that have ended, seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def copy(setting: Setting, way: str) -> Copy:
    """Copy the model once, and sync its files.

    Raises:
        WayError: it failed.
    """
    begun_cpu = cpu()
    wall = WAYS[way](setting)
    return Copy(way, wall, cpu() - begun_cpu, setting.manifest.size)


def _sides(setting: Setting, send: str, receive: str, code: Path, **more: object) -> float:
    """Have two processes copy; the sender's first line is what the receiver is given as secrets."""
    argv = (sys.executable, "-m", "benchmarks.transfer.side")
    shutil.rmtree(setting.keys / "copy", ignore_errors=True)
    given = {
        "manifest": str(setting.document),
        "addresses": setting.pair.addresses,
        "keys": str(setting.keys),
        **more,
    }
    with subprocess.Popen(
        setting.pair.on_sender(*argv, send),
        cwd=code, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as sender:  # fmt: skip
        assert sender.stdin is not None
        assert sender.stdout is not None
        sender.stdin.write(json.dumps({**given, "root": str(setting.source)}) + "\n")
        sender.stdin.flush()
        said = sender.stdout.readline().strip()
        if not said:
            raise WayError(f"the sender of {send} does not begin")
        secrets = json.loads(said) if said.startswith("{") else {}
        asked = json.dumps({**given, "root": str(setting.target), "secrets": secrets}) + "\n"
        begun = time.monotonic()
        _must(setting.pair.on_receiver(*argv, receive), asked, code)
        _sync(setting)
        wall = time.monotonic() - begun
        sender.stdin.close()
        sender.wait(timeout=30)
    return wall


def _ours(setting: Setting, *, encrypted: bool) -> float:
    return _sides(setting, "send", "receive", ROOT, encrypted=encrypted)


def _before(setting: Setting, *, encrypted: bool) -> float:
    """The sender of our own, by its own code."""
    code = setting.keys / "before"
    if not code.exists():
        code.mkdir()
        archive = subprocess.run(
            ("git", "archive", BEFORE, "spark_cluster", "benchmarks"),
            cwd=ROOT, capture_output=True, check=True, timeout=60,
        ).stdout  # fmt: skip
        subprocess.run(("tar", "-x", "-C", str(code)), input=archive, check=True, timeout=60)
    pem, key = _certificate(setting)
    given = {"token": "benchmark", "certificate": str(pem), "key": str(key) if encrypted else ""}
    return _sides(setting, "send", "receive", code, **given)


def _raw(setting: Setting) -> float:
    return _sides(setting, "raw-send", "raw-receive", ROOT)


def _tls(setting: Setting) -> float:
    """One rsync a shard to a daemon behind stunnel, half over each link; hashed by sha256sum."""
    pem, key = _certificate(setting)
    blobs = HubCache(setting.source).blobs(setting.manifest.repository)
    conf = setting.keys / "rsyncd.conf"
    conf.write_text(f"uid = 0\ngid = 0\nlog file = /dev/null\n[files]\npath = {blobs}\n")
    tunnel = setting.keys / "stunnel.conf"
    services = "".join(
        f"[r{n}]\naccept = {address}:{TLS_PORT}\nexec = /usr/bin/rsync\n"
        f"execArgs = rsync --server --daemon --config={conf} .\ncert = {pem}\nkey = {key}\n"
        "ciphersuites = TLS_AES_128_GCM_SHA256\n"
        for n, address in enumerate(setting.pair.addresses)
    )
    tunnel.write_text(f"foreground = yes\npid =\nsyslog = no\ndebug = 3\n{services}")
    with _running(setting.pair.on_sender("stunnel", str(tunnel))):
        _wait_for(setting, setting.pair.addresses[0])
        begun = time.monotonic()
        with ThreadPoolExecutor(STREAMS * len(setting.pair.addresses)) as pool:
            done = [
                pool.submit(_tls_shard, setting, pem, number, file.blob)
                for number, file in enumerate(setting.manifest.blobs.values())
            ]
            for one in done:
                one.result()
        _sync(setting)
        return time.monotonic() - begun


def _tls_shard(setting: Setting, pem: Path, number: int, blob: str) -> None:
    address = setting.pair.addresses[number % len(setting.pair.addresses)]
    connect = (
        f"openssl s_client -quiet -verify_quiet -verify_return_error -CAfile {pem} "
        f"-connect {address}:{TLS_PORT} -ciphersuites TLS_AES_128_GCM_SHA256"
    )
    script = (
        f"RSYNC_CONNECT_PROG='{connect}' rsync --inplace --checksum-choice=none "
        f"{address}::files/{blob} {setting.target}/{blob} && "
        f"echo '{blob}  {setting.target}/{blob}' | sha256sum --check --quiet"
    )
    _must(setting.pair.on_receiver("sh", "-c", script), "", ROOT)


def _certificate(setting: Setting) -> tuple[Path, Path]:
    pem, key = setting.keys / "sender.pem", setting.keys / "sender.key"
    if not pem.exists():
        request = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        names = ("-subj", "/CN=benchmark", "-days", "30", "-out", str(pem), "-keyout", str(key))
        _must(["openssl", *request, *names], "", ROOT)
    return pem, key


WAYS: Mapping[str, Callable[[Setting], float]] = {
    "before, TLS": lambda setting: _before(setting, encrypted=True),
    "rsync, ssh (ours)": lambda setting: _ours(setting, encrypted=True),
    "rsync, TLS daemon": _tls,
    "before, plain": lambda setting: _before(setting, encrypted=False),
    "rsync, plain (ours)": lambda setting: _ours(setting, encrypted=False),
    "raw streams": _raw,
}
"""All but the last are hashed."""


def _must(argv: list[str], given: str, where: Path) -> None:
    done = subprocess.run(
        argv, cwd=where, input=given, text=True, capture_output=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise WayError(f"{argv[4:6]} ended with status {done.returncode}: {done.stderr[-500:]}")


def _sync(setting: Setting) -> None:
    subprocess.run(("sync", "-f", str(setting.target)), check=True, timeout=LIMIT_S)


@contextmanager
def _running(argv: list[str]) -> Iterator[None]:
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as server:
        try:
            yield
        finally:
            server.terminate()


def _wait_for(setting: Setting, address: str) -> None:
    until = time.monotonic() + 15
    script = f"import socket; socket.create_connection(('{address}', {TLS_PORT}), 5).close()"
    argv = setting.pair.on_receiver(sys.executable, "-c", script)
    while subprocess.run(argv, capture_output=True, check=False, timeout=20).returncode:
        if time.monotonic() > until:
            raise WayError("stunnel does not answer: `apt install stunnel4`")
        time.sleep(0.1)
