"""Host keys against OpenSSH's own client: each row is accepted by both, or refused by both.

A row is a known_hosts file and an ssh_config; both programs read the same ones, and connect to the
same sshd. In them `{H}` is how the server is named in known_hosts, `{K}` its key, and so on.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import hmac
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from own_sshd import SSHD, Sshd, keygen, public, start_sshd

from spark_cluster.errors import SparkClusterError
from spark_cluster.runner.dialer import SshConnection, Target

ME = getpass.getuser()
ACCEPTED, REFUSED, REVOKED = "accepted", "refused", "revoked"


@dataclass
class Site:
    """A server with keys of two kinds, and the words of the rows."""

    server: Sshd
    words: dict[str, str]
    folder: Path


def hashed(name: str) -> str:
    salt = b"s" * 20
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if SSHD is None:
        pytest.skip("no sshd here (package openssh-server)")
    folder = tmp_path_factory.mktemp("site")
    keys = {name: keygen(folder / name) for name in ("host_key", "authority", "other", "third")}
    rsa = keygen(folder / "host_rsa", kind="rsa")
    other_rsa = keygen(folder / "other_rsa", kind="rsa")
    server = start_sshd(folder)
    revocations = folder / "revocations"
    subprocess.run(
        ["ssh-keygen", "-q", "-k", "-f", str(revocations), f"{keys['host_key']}.pub"],
        check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    (folder / "revoked_text").write_text(f"# stolen\n{public(keys['host_key'])} me\n")
    (folder / "revocations_cut").write_bytes(revocations.read_bytes()[:40])
    (folder / "revoked_other").write_text(f"{public(keys['other'])} me\n")
    name = f"[127.0.0.1]:{server.port}"
    words = {
        "H": name, "P": str(server.port), "K": public(keys["host_key"]), "R": public(rsa),
        "A": public(keys["authority"]), "O": public(keys["other"]), "T": public(keys["third"]),
        "O_RSA": public(other_rsa), "HASHED": hashed(name), "HASHED_BARE": hashed("127.0.0.1"),
        "HASHED_OTHER": hashed("10.0.0.9"), "FOLDER": str(folder),
    }  # fmt: skip
    yield Site(server, words, folder)
    server.stop()


@dataclass(frozen=True)
class Row:
    """A case for both programs.

    Attributes:
        known: the user's known_hosts.
        verdict: what both must come to.
        config: lines for the host in ssh_config.
        machine: the known_hosts of the whole machine.
        more: further files, by their name in the home folder.
        host: what is typed.
    """

    known: str
    verdict: str
    config: str = ""
    machine: str = ""
    more: tuple[tuple[str, str], ...] = ()
    host: str = "127.0.0.1"


CUT = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGR1"
ROWS = {
    # plain keys
    "known": Row("{H} {K}", ACCEPTED),
    "unknown": Row("", REFUSED),
    "changed": Row("{H} {O}", REFUSED),
    "known with a comment": Row("{H} {K} it is mine", ACCEPTED),
    "tabs and blanks": Row("  {H}\t{K}", ACCEPTED),
    "DOS line ends": Row("{H} {K}\r\n{H} {O}\r", ACCEPTED),
    "a line of another host": Row("10.0.0.9 {K}", REFUSED),
    "one of several names": Row("one,{H},two {K}", ACCEPTED),
    "commented out": Row("# {H} {K}", REFUSED),
    "damaged lines before it": Row("nonsense\n{H} ssh-ed25519 !!!\n{H} {K}", ACCEPTED),
    "a cut key": Row("{H} " + CUT, REFUSED),
    "a kind that is not the key's": Row("{H} ssh-rsa {K}", REFUSED),
    # several keys
    "two of a kind, the second": Row("{H} {O}\n{H} {K}", ACCEPTED),
    "two of a kind, the first": Row("{H} {K}\n{H} {O}", ACCEPTED),
    "two of a kind, none": Row("{H} {O}\n{H} {T}", REFUSED),
    "the other kind is known": Row("{H} {R}", ACCEPTED),
    "the other kind has changed": Row("{H} {O_RSA}", REFUSED),
    "one kind changed, the other known": Row("{H} {O}\n{H} {R}", REFUSED),
    "the preferred kind is known, the other changed": Row("{H} {K}\n{H} {O_RSA}", ACCEPTED),
    "HostKeyAlgorithms": Row("{H} {O}\n{H} {R}", ACCEPTED, "HostKeyAlgorithms rsa-sha2-512"),
    "HostKeyAlgorithms of what is not known": Row(
        "{H} {K}", REFUSED, "HostKeyAlgorithms rsa-sha2-512"
    ),
    # names
    "a pattern": Row("* {K}", ACCEPTED),
    "a pattern with ?": Row("[127.0.0.?]:{P} {K}", ACCEPTED),
    "a pattern for the name without the port": Row("127.0.0.* {K}", ACCEPTED),
    "brackets are no class of characters": Row("[1]27.0.0.1 {K}", REFUSED),
    "excluded": Row("*,!{H},!127.0.0.1 {K}", REFUSED),
    "excluded first": Row("!*7.0.0.1*,* {K}", REFUSED),
    "excluded with the port only": Row("*,!{H} {K}", ACCEPTED),
    "only excluded": Row("!10.0.0.9 {K}", REFUSED),
    "hashed": Row("{HASHED} {K}", ACCEPTED),
    "hashed, another's": Row("{HASHED_OTHER} {K}", REFUSED),
    "hashed and damaged": Row("|1|x|y {K}\n|1| {K}", REFUSED),
    "hashed name without the port": Row("{HASHED_BARE} {K}", ACCEPTED),
    "without the port": Row("127.0.0.1 {K}", ACCEPTED),
    "without the port, changed": Row("127.0.0.1 {O}", REFUSED),
    "another port": Row("[127.0.0.1]:1 {K}", REFUSED),
    "capital letters": Row("[LocalHost]:{P} {K}", ACCEPTED, host="LOCALHOST"),
    "the address of a name": Row("{H} {K}", REFUSED, "CheckHostIP yes", host="localhost"),
    "CheckHostIP does not matter": Row("{H} {K}", ACCEPTED, "CheckHostIP yes"),
    "HostName": Row("{H} {K}", ACCEPTED, "HostName 127.0.0.1", host="spark"),
    "the alias that is typed": Row("[spark]:{P} {K}", REFUSED, "HostName 127.0.0.1", host="spark"),
    "HostKeyAlias": Row("mine {K}", ACCEPTED, "HostKeyAlias Mine"),
    "HostKeyAlias, known by its address only": Row("{H} {K}", REFUSED, "HostKeyAlias mine"),
    # revoked
    "revoked": Row("@revoked * {K}\n{H} {K}", REVOKED),
    "revoked behind": Row("{H} {K}\n@revoked * {K}", REVOKED),
    "revoked for this host": Row("@revoked {H} {K}\n{H} {K}", REVOKED),
    "revoked, hashed": Row("@revoked {HASHED} {K}\n{H} {K}", REVOKED),
    "revoked for another host": Row("@revoked 10.0.0.9 {K}\n{H} {K}", ACCEPTED),
    "revoked, excluded": Row("@revoked *,!{H} {K}\n{H} {K}", ACCEPTED),
    "another key is revoked": Row("@revoked * {O}\n{H} {K}", ACCEPTED),
    "revoked and not known": Row("@revoked * {K}", REVOKED),
    "revoked by the machine": Row("{H} {K}", REVOKED, machine="@revoked * {K}"),
    "revoked for a name without port": Row("@revoked 127.0.0.1 {K}\n127.0.0.1 {K}", REVOKED),
    "RevokedHostKeys": Row("{H} {K}", REVOKED, "RevokedHostKeys {FOLDER}/revoked_text"),
    "RevokedHostKeys, a list": Row("{H} {K}", REVOKED, "RevokedHostKeys {FOLDER}/revocations"),
    "RevokedHostKeys, others": Row("{H} {K}", ACCEPTED, "RevokedHostKeys {FOLDER}/revoked_other"),
    "RevokedHostKeys, a list that was cut": Row(
        "{H} {K}", REFUSED, "RevokedHostKeys {FOLDER}/revocations_cut"
    ),
    "RevokedHostKeys that is missing": Row("{H} {K}", REFUSED, "RevokedHostKeys {FOLDER}/none"),
    "an unknown marker": Row("@trusted {H} {K}", REFUSED),
    "two markers": Row("@revoked @revoked {H} {K}\n{H} {K}", ACCEPTED),
    # authorities of certificates, of which this host has none
    "an authority": Row("@cert-authority * {A}", REFUSED),
    "another authority, and the plain key": Row("@cert-authority * {O}\n{H} {K}", ACCEPTED),
    "the key itself as authority": Row("@cert-authority * {K}", REFUSED),
    "an authority is no plain key": Row("{H} {A}", REFUSED),
    "an authority and a changed key": Row("@cert-authority * {A}\n{H} {O}", REFUSED),
    # files
    "known to the machine": Row("", ACCEPTED, machine="{H} {K}"),
    "known to the machine, changed for the user": Row("{H} {O}", ACCEPTED, machine="{H} {K}"),
    "UserKnownHostsFile": Row(
        "", ACCEPTED, "UserKnownHostsFile {HOME}/kh", more=(("kh", "{H} {K}"),)
    ),
    "UserKnownHostsFile, instead of the usual one": Row(
        "{H} {K}", REFUSED, "UserKnownHostsFile {HOME}/kh"
    ),
    "UserKnownHostsFile, two": Row(
        "", ACCEPTED, "UserKnownHostsFile {HOME}/kh {HOME}/kh2",
        more=(("kh", "{H} {O}"), ("kh2", "{H} {K}")),
    ),
    "UserKnownHostsFile, revoked in the second": Row(
        "", REVOKED, "UserKnownHostsFile {HOME}/kh {HOME}/kh2",
        more=(("kh", "{H} {K}"), ("kh2", "@revoked * {K}")),
    ),
    "UserKnownHostsFile with a blank in it": Row(
        "", ACCEPTED, 'UserKnownHostsFile "{HOME}/my hosts" {HOME}/kh2',
        more=(("my hosts", "{H} {K}"),),
    ),
    "UserKnownHostsFile with tokens": Row(
        "", ACCEPTED, "UserKnownHostsFile {HOME}/kh-%h-%p-%n-%%",
        more=(("kh-127.0.0.1-{P}-127.0.0.1-%", "{H} {K}"),),
    ),
    "UserKnownHostsFile none": Row("{H} {K}", REFUSED, "UserKnownHostsFile none"),
    "UserKnownHostsFile none, known to the machine": Row(
        "", ACCEPTED, "UserKnownHostsFile none", machine="{H} {K}"
    ),
    "UserKnownHostsFile /dev/null": Row("{H} {K}", REFUSED, "UserKnownHostsFile /dev/null"),
    "not UTF-8": Row("\udcff\udcfe\n{H} {K} \udcff", ACCEPTED),
    # what a configuration is made of
    "Include": Row("{H} {K}", ACCEPTED, "Include {HOME}/inc", more=(("inc", "ConnectTimeout 9"),)),
    "Include of an alias": Row(
        "mine {K}", ACCEPTED, "Include {HOME}/inc", more=(("inc", "HostKeyAlias mine"),)
    ),
    "Include of itself": Row("{H} {K}", REFUSED, "Include {HOME}/.ssh/config"),
    "ConnectTimeout with a unit": Row("{H} {K}", ACCEPTED, "ConnectTimeout 5m"),
    "ConnectTimeout none": Row("{H} {K}", ACCEPTED, "ConnectTimeout none"),
    "ConnectTimeout that is none": Row("{H} {K}", REFUSED, "ConnectTimeout soon"),
    "an unclosed quote": Row("{H} {K}", REFUSED, 'UserKnownHostsFile "{HOME}/kh'),
    "an unknown word": Row("{H} {K}", REFUSED, "HostKeyAliases mine"),
    "an unknown word that is ignored": Row(
        "{H} {K}", ACCEPTED, "IgnoreUnknown Magic\n Magic yes"
    ),
    "a comment that is not UTF-8": Row("{H} {K}", ACCEPTED, "# \udcff"),
    "Match exec that is true": Row(
        "mine {K}", ACCEPTED, 'Match exec "exit 0"\n HostKeyAlias mine'
    ),
    "Match exec that is false": Row("mine {K}", REFUSED, 'Match exec "exit 1"\n HostKeyAlias mine'),
    "Match canonical": Row("{H} {K}", ACCEPTED, "Match canonical\n HostKeyAlias mine"),
    "Match final": Row("mine {K}", ACCEPTED, "Match final\n HostKeyAlias mine"),
    "an equals sign": Row("mine {K}", ACCEPTED, "HostKeyAlias=mine"),
    "ProxyCommand": Row("{H} {K}", ACCEPTED, "ProxyCommand {PROXY} %h %p"),
    "ProxyCommand, changed": Row("{H} {O}", REFUSED, "ProxyCommand {PROXY} %h %p"),
    "ProxyCommand that fails": Row("{H} {K}", REFUSED, "ProxyCommand false"),
    # what would loosen the check does not
    "StrictHostKeyChecking yes": Row("{H} {K}", ACCEPTED, "StrictHostKeyChecking yes"),
}  # fmt: skip


LOOSER = {
    "StrictHostKeyChecking no": Row("", REFUSED, "StrictHostKeyChecking no"),
    "StrictHostKeyChecking accept-new": Row("", REFUSED, "StrictHostKeyChecking accept-new"),
    "StrictHostKeyChecking off, changed": Row("{H} {O}", REFUSED, "StrictHostKeyChecking off"),
    "NoHostAuthenticationForLocalhost": Row(
        "{H} {O}", REFUSED, "NoHostAuthenticationForLocalhost yes"
    ),
    "changed at the port, known without it": Row("{H} {O}\n127.0.0.1 {K}", REFUSED),
    "KnownHostsCommand": Row("{H} {K}", REFUSED, "KnownHostsCommand /bin/echo"),
}
"""ssh accepts these, or may; we do not."""

QUICK = (
    "-o", "KexAlgorithms=curve25519-sha256", "-o", "PreferredAuthentications=none",
)  # fmt: skip
"""Without a key exchange that takes a tenth of a second to compute, and without a login: that one
would come next is what ssh says of a host key that it accepts."""

PROXY = """\
import os, socket, sys, threading
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def up():
    while data := os.read(0, 65536):
        peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := peer.recv(65536):
    os.write(1, data)
"""


@pytest.fixture
def prepared(site, home, tmp_path):
    """Write a row's files; returns the configuration that both read."""
    import sys

    proxy = tmp_path / "proxy.py"
    proxy.write_text(PROXY)
    words = {**site.words, "HOME": str(home), "PROXY": f"{sys.executable} {proxy}"}

    def put(path, text):
        path.write_bytes(fill(text).encode("utf-8", "surrogateescape") + b"\n")

    def fill(text):
        for name, value in words.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    def prepare(row):
        put(home / ".ssh/known_hosts", row.known)
        put(home / "machine", row.machine)
        for name, text in row.more:
            put(home / fill(name), text)
        ends = f"UserKnownHostsFile {home}/.ssh/known_hosts\nGlobalKnownHostsFile {home}/machine"
        config = home / ".ssh/config"
        put(config, f"Host {row.host}\n {row.config}\nHost *\n{ends}")
        return config

    return prepare


def as_ssh(site, config, row):
    argv = [
        "ssh", "-T", "-F", str(config), "-p", site.words["P"], "-i", str(site.server.key),
        "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-l", ME, *QUICK, row.host, "true",
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    said = done.stderr.decode(errors="replace")
    assert done.returncode == 255, said
    if said.rstrip().endswith("Permission denied (publickey)."):
        return ACCEPTED, said
    revoked = re.search("REVOKED HOST KEY|revoked by file", said)
    return (REVOKED if revoked else REFUSED), said


def as_we_do(site, row):
    options = {"user": ME, "port": site.server.port, "identity_file": site.server.key}
    connection = SshConnection(Target("spark1", row.host, connect_timeout_s=60.0, **options))
    try:
        connection.open()
    except SparkClusterError as error:
        return (REVOKED if "REVOKED" in error.message else REFUSED), error
    finally:
        connection.close()
    return ACCEPTED, ""


@pytest.mark.parametrize("name", ROWS)
def test_as_ssh_does(site, prepared, name):
    row = ROWS[name]
    config = prepared(row)
    theirs, said = as_ssh(site, config, row)
    ours, error = as_we_do(site, row)
    assert (theirs, ours) == (row.verdict, row.verdict), f"{said}\n{error}"


@pytest.mark.parametrize("name", LOOSER)
def test_nothing_of_the_configuration_loosens_the_check(site, prepared, name):
    prepared(LOOSER[name])
    verdict, error = as_we_do(site, LOOSER[name])
    assert verdict == REFUSED, error


def test_a_certified_host_is_known_by_its_plain_key(home, tmp_path):
    """Stricter than ssh: the authority of a certificate is not enough."""
    if SSHD is None:
        pytest.skip("no sshd here (package openssh-server)")
    authority, key = (keygen(tmp_path / name) for name in ("authority", "host_key"))
    signed = ["ssh-keygen", "-q", "-s", authority, "-I", "test", "-h", "-n", "127.0.0.1"]
    subprocess.run([*signed, f"{key}.pub"], check=True, capture_output=True)
    server = start_sshd(tmp_path, more=f"HostCertificate {key}-cert.pub\n")
    try:
        target = Target("spark1", "127.0.0.1", ME, server.port, server.key)
        known = home / ".ssh/known_hosts"
        known.write_text(f"@cert-authority * {public(authority)}\n")
        with pytest.raises(SparkClusterError, match="is not known"):
            SshConnection(target).open()
        known.write_text(server.host_line)
        connection = SshConnection(target)
        connection.open()
        connection.close()
    finally:
        server.stop()
