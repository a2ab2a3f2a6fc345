"""Host certificates of every kind that ssh-keygen makes, good ones and bad ones."""

from __future__ import annotations

import base64
import functools
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from own_sshd import keygen

from spark_cluster.runner import host_certificate


def blob(path):
    return base64.b64decode(path.read_text().split()[1])


@functools.cache
def made(name, kind):
    """A key's two files; each is made once, for some take seconds."""
    with tempfile.TemporaryDirectory() as folder:
        key = keygen(Path(folder) / name, kind=kind)
        return key.read_bytes(), key.with_suffix(".pub").read_bytes()


def key_in(folder, name, kind):
    private, public = made(name, kind)
    (folder / name).write_bytes(private)
    (folder / name).chmod(0o600)
    (folder / f"{name}.pub").write_bytes(public)
    return folder / name


def certificate(folder, *options, kind="ed25519", authority="ed25519"):
    key = key_in(folder, "key", kind)
    signer = key_in(folder, "authority", authority)
    argv = ["ssh-keygen", "-q", "-s", str(signer), "-I", "test", *options, f"{key}.pub"]
    subprocess.run(argv, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    found = host_certificate.of(blob(folder / "key-cert.pub"))
    assert found is not None
    assert found.authority == blob(folder / "authority.pub")
    return found


HOST = ("-h", "-n", "spark1,10.0.0.1")


@pytest.mark.parametrize("authority", ["ed25519", "ecdsa", "rsa"])
@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_good_one(tmp_path, kind, authority):
    good = certificate(tmp_path, *HOST, kind=kind, authority=authority)
    assert good.fault("spark1") == good.fault("10.0.0.1") == ""
    assert good.fault("spark2") == "it is made out for spark1, 10.0.0.1, not for spark2"
    assert "signature" in replace(good, blob=good.blob.replace(b"spark1", b"spark2")).fault(
        "spark2"
    )


@pytest.mark.parametrize(
    ("options", "authority", "fault"),
    [
        (("-n", "spark1"), "ed25519", "a user certificate"),
        (("-h",), "ed25519", "no name"),
        ((*HOST, "-V", "20200101:20200102"), "ed25519", "expired at 2020-01-02"),
        ((*HOST, "-V", "+10w:+20w"), "ed25519", "it is valid from"),
        ((*HOST, "-O", "critical:x=y"), "ed25519", "critical options"),
        ((*HOST, "-t", "ssh-rsa"), "rsa", "SHA-1"),
    ],
)
def test_a_bad_one(tmp_path, options, authority, fault):
    assert fault in certificate(tmp_path, *options, authority=authority).fault("spark1")


def test_it_ends_by_the_calendar(tmp_path):
    good = certificate(tmp_path, *HOST, "-V", "-1d:+1d")
    assert good.fault("spark1") == ""
    assert "expired" in good.fault("spark1", clock=lambda: time.time() + 2 * 86400)


def test_a_cut_one(tmp_path):
    whole = certificate(tmp_path, *HOST).blob
    assert all(host_certificate.of(whole[:size]) is None for size in range(len(whole)))
    assert host_certificate.of(whole + b"x") is None
    assert host_certificate.of(blob(tmp_path / "key.pub")) is None
