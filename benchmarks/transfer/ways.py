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
from tempfile import TemporaryFile

from benchmarks.transfer.figures import Copy
from benchmarks.transfer.links import Pair
from spark_cluster.node.store.copy_receiving import STREAMS
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 900.0
PORT = 7346
CIPHER = "aes128-gcm@openssh.com"


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


def _sides(setting: Setting, send: str, receive: str, **more: object) -> float:
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
        cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
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
        _must(setting.pair.on_receiver(*argv, receive), asked)
        _sync(setting)
        wall = time.monotonic() - begun
        sender.stdin.close()
        sender.wait(timeout=30)
    return wall


def _ours(setting: Setting, *, encrypted: bool) -> float:
    return _sides(setting, "send", "receive", encrypted=encrypted)


def _raw(setting: Setting) -> float:
    return _sides(setting, "raw-send", "raw-receive")


def _by_rsync(setting: Setting, server: list[str], source: str) -> float:
    """One rsync a shard, half over each link, each file hashed by sha256sum.

    Args:
        server: listens on PORT while they run.
        source: command and place for rsync, with {address} and {blob}.
    """
    addresses = setting.pair.addresses

    def fetch(number: int, blob: str) -> None:
        place = source.format(address=addresses[number % len(addresses)], blob=blob)
        script = (
            f"{place} {setting.target}/{blob} --inplace --checksum-choice=none && "
            f"echo '{blob}  {setting.target}/{blob}' | sha256sum --check --quiet"
        )
        _must(setting.pair.on_receiver("sh", "-c", script), "")

    with _running(setting.pair.on_sender(*server)):
        _wait_for(setting, addresses[0])
        begun = time.monotonic()
        with ThreadPoolExecutor(STREAMS * len(addresses)) as pool:
            done = [
                pool.submit(fetch, number, blob)
                for number, blob in enumerate(setting.manifest.blobs)
            ]
            for one in done:
                one.result()
        _sync(setting)
        return time.monotonic() - begun


def _ssh(setting: Setting) -> float:
    """Through an sshd of its own, with the cipher that costs least; SHLVL, so that bash does not
    take the time for root's .bashrc."""
    keys = setting.keys
    for name in ("host", "client"):
        if not (keys / name).exists():
            _must(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{keys}/{name}"], "")
    (keys / "sshd_config").write_text(
        f"Port {PORT}\nHostKey {keys}/host\nAuthorizedKeysFile {keys}/client.pub\nUsePAM yes\n"
        f"StrictModes no\nPidFile none\nSetEnv SHLVL=2\nCiphers {CIPHER}\n"
    )
    options = f"-p {PORT} -i {keys}/client -c {CIPHER} -o StrictHostKeyChecking=no "
    options += "-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    server = ["/usr/sbin/sshd", "-D", "-f", f"{keys}/sshd_config"]
    return _by_rsync(
        setting, server, f"rsync -e 'ssh {options}' {{address}}:{_blobs(setting)}/{{blob}}"
    )


def _plain(setting: Setting) -> float:
    """From rsync's own daemon."""
    server = ["rsync", "--daemon", "--no-detach", f"--config={_rsyncd(setting)}", f"--port={PORT}"]
    return _by_rsync(setting, server, f"rsync --port={PORT} {{address}}::files/{{blob}}")


def _tls(setting: Setting) -> float:
    """From a daemon behind stunnel, through `openssl s_client`."""
    pem, key = setting.keys / "sender.pem", setting.keys / "sender.key"
    if not pem.exists():
        request = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        names = ("-subj", "/CN=benchmark", "-days", "30", "-out", str(pem), "-keyout", str(key))
        _must(["openssl", *request, *names], "")
    tunnel = setting.keys / "stunnel.conf"
    tunnel.write_text(
        f"foreground = yes\npid =\nsyslog = no\ndebug = 3\n[rsync]\naccept = {PORT}\n"
        f"exec = /usr/bin/rsync\nexecArgs = rsync --server --daemon --config={_rsyncd(setting)} .\n"
        f"cert = {pem}\nkey = {key}\nciphersuites = TLS_AES_128_GCM_SHA256\n"
    )
    connect = (
        f"openssl s_client -quiet -verify_quiet -verify_return_error -CAfile {pem} "
        f"-connect {{address}}:{PORT} -ciphersuites TLS_AES_128_GCM_SHA256"
    )
    source = f"RSYNC_CONNECT_PROG='{connect}' rsync {{address}}::files/{{blob}}"
    return _by_rsync(setting, ["stunnel", str(tunnel)], source)


def _rsyncd(setting: Setting) -> Path:
    conf = setting.keys / "rsyncd.conf"
    conf.write_text(f"uid = 0\ngid = 0\nlog file = /dev/null\n[files]\npath = {_blobs(setting)}\n")
    return conf


def _blobs(setting: Setting) -> Path:
    return HubCache(setting.source).blobs(setting.manifest.repository)


WAYS: Mapping[str, Callable[[Setting], float]] = {
    "ours, TLS": lambda setting: _ours(setting, encrypted=True),
    "rsync, ssh": _ssh,
    "rsync, TLS daemon": _tls,
    "ours, plain": lambda setting: _ours(setting, encrypted=False),
    "rsync, plain": _plain,
    "raw streams": _raw,
}
"""All but the last are hashed."""


def _must(argv: list[str], given: str) -> None:
    done = subprocess.run(
        argv, cwd=ROOT, input=given, text=True, capture_output=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise WayError(f"{argv[4:6]} ended with status {done.returncode}: {done.stderr[-500:]}")


def _sync(setting: Setting) -> None:
    subprocess.run(("sync", "-f", str(setting.target)), check=True, timeout=LIMIT_S)


@contextmanager
def _running(argv: list[str]) -> Iterator[None]:
    with TemporaryFile("w+") as said, subprocess.Popen(argv, stderr=said) as server:
        try:
            yield
        except WayError as error:
            said.seek(0)
            raise WayError(f"{error}; it said: {said.read()[-500:].strip()}") from error
        finally:
            server.terminate()


def _wait_for(setting: Setting, address: str) -> None:
    until = time.monotonic() + 15
    script = f"import socket; socket.create_connection(('{address}', {PORT}), 5).close()"
    argv = setting.pair.on_receiver(sys.executable, "-c", script)
    while subprocess.run(argv, capture_output=True, check=False, timeout=20).returncode:
        if time.monotonic() > until:
            raise WayError(
                "the server does not answer: `apt install rsync stunnel4 openssh-server`"
            )
        time.sleep(0.1)
