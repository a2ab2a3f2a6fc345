"""SelfSignedCertificate, made and read by the real openssl."""

import json
import subprocess

from spark_cluster.resources import Directory, SelfSignedCertificate
from spark_cluster.resources import self_signed_certificate as module

PATH = "/etc/app/tls.pem"
MADE = SelfSignedCertificate(PATH, ("spark1", "10.89.0.11", "fd00::1"))
FOLDER = Directory("/etc/app")


def openssl(path, *arguments):
    argv = ["openssl", "x509", "-in", str(path), "-noout", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def test_absent_becomes_present_and_stays(node):
    node.must_change(FOLDER, MADE)
    path = node.path(PATH)
    assert path.stat().st_mode & 0o777 == 0o600
    shown = openssl(path, "-text")
    for words in ("CA:FALSE", "DNS:spark1", "IP Address:10.89.0.11", "IP Address:FD00:0:0",
                  "Digital Signature", "prime256v1"):  # fmt: skip
        assert words in shown
    before = path.read_bytes()
    assert b"PRIVATE KEY" in before
    node.must_be_ok(FOLDER, MADE)
    assert path.read_bytes() == before


def test_a_mode_that_shows_the_key_is_repaired_and_the_certificate_kept(node):
    node.apply(FOLDER, MADE)
    path = node.path(PATH)
    before = path.read_bytes()
    path.chmod(0o644)
    assert node.apply(MADE).verdict == "change"
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (before, 0o600)


def test_one_that_has_run_out_or_is_damaged_is_made_again(node, monkeypatch):
    monkeypatch.setattr(module, "DAYS", 0)
    node.apply(FOLDER, MADE)
    monkeypatch.undo()
    node.must_change(MADE)
    node.put(PATH, "nonsense", 0o600)
    node.must_converge(MADE)


def test_the_private_key_is_nowhere_else(node):
    result = node.apply(FOLDER, MADE)
    node.apply(SelfSignedCertificate(PATH, ("other",)))  # replaces it
    holding = [p for p in node.root.rglob("*") if p.is_file() and b"PRIVATE KEY" in p.read_bytes()]
    assert holding == [node.path(PATH)]
    assert "PRIVATE KEY" not in json.dumps(result.event)
