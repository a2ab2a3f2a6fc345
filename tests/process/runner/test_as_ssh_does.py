"""Host keys against OpenSSH's own client: each row is accepted by both, or refused by both.

A row of as_ssh_does.json is a known_hosts file, and perhaps lines for the host in ssh_config
(`config`), the known_hosts of the whole machine (`machine`), further files by their name in the
home folder (`more`) and what is typed (`host`); both programs read the same ones, and connect to
the same sshd. In them `{H}` is how the server is named in known_hosts, `{K}` its key, and so on.
"""

import base64
import getpass
import hashlib
import hmac
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from cases import cases
from own_sshd import PROXY, SSHD, Sshd, keygen, public, start_sshd, way_to

from spark_cluster.errors import SparkClusterError
from spark_cluster.runner.dialer import SshConnection

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


GROUPS = cases(__file__, "as_ssh_does.json")
LOOSER = GROUPS.pop("ssh accepts these, or may; we do not")
ROWS = {name: case for group in GROUPS.values() for name, case in group.items()}

QUICK = (
    "-o", "KexAlgorithms=curve25519-sha256", "-o", "PreferredAuthentications=none",
)  # fmt: skip
"""Without a key exchange that takes a tenth of a second to compute, and without a login: that one
would come next is what ssh says of a host key that it accepts."""


@pytest.fixture
def prepared(site, home, tmp_path):
    """Write a row's files; returns the configuration that both read."""
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
        put(home / ".ssh/known_hosts", row["known"])
        put(home / "machine", row.get("machine", ""))
        for name, text in row.get("more", {}).items():
            put(home / fill(name), text)
        ends = f"UserKnownHostsFile {home}/.ssh/known_hosts\nGlobalKnownHostsFile {home}/machine"
        config = home / ".ssh/config"
        put(config, f"Host {typed(row)}\n {row.get('config', '')}\nHost *\n{ends}")
        return config

    return prepare


def typed(row):
    return row.get("host", "127.0.0.1")


def as_ssh(site, config, row):
    argv = [
        "ssh", "-T", "-F", str(config), "-p", site.words["P"], "-i", str(site.server.key),
        "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-l", ME, *QUICK, typed(row), "true",
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
    connection = SshConnection(way_to(typed(row), connect_timeout_s=60.0, **options))
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
    assert (theirs, ours) == (row["verdict"], row["verdict"]), f"{said}\n{error}"


@pytest.mark.parametrize("name", LOOSER)
def test_nothing_of_the_configuration_loosens_the_check(site, prepared, name):
    prepared(LOOSER[name])
    verdict, error = as_we_do(site, LOOSER[name])
    assert verdict == REFUSED, error
