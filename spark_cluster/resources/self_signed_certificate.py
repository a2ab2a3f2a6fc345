"""A TLS certificate that is made on the node; its private key never leaves it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field

from spark_cluster.node.host import Host
from spark_cluster.resources.base import Resource, State, absolute, checks
from spark_cluster.resources.file import expect_kind, observe_path

DAYS = 3650
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


def _host(name: str) -> str:
    """Anything else would be read as a line of openssl's configuration."""
    fits = _ip(name) is not None or _NAME.fullmatch(name)
    return "" if fits else f"{name!r} is neither a DNS name nor an IP address"


# Not a certificate authority: who trusts it trusts this endpoint, and nothing that it might sign.
_REQUEST = """[req]
distinguished_name = subject
x509_extensions = extensions
prompt = no
[subject]
CN = {name}
[extensions]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
subjectAltName = {names}
"""


@dataclass(frozen=True)
class SelfSignedCertificate(Resource):
    """A self-signed certificate and its private key in one PEM file that only root reads.

    One that is there is kept as long as it names all that it shall and has not run out, so that
    who trusts it goes on to; it is valid for ten years.

    Args:
        path: the file, absolute.
        names: DNS names and IP addresses that it is for, the first one also its subject.

    Raises:
        Missing: its folder does not exist.
        ResourceError: openssl could not make it.

    Example:
        SelfSignedCertificate("/etc/app/tls.pem", ("spark1", "192.168.1.11"))
    """

    reverts = "a certificate that was replaced is not restored"

    valid = checks(path=absolute, names=_host)

    path: str
    names: tuple[str, ...] = field()

    def validate(self) -> None:
        self.must(self.names, "no name is given")

    def provides(self) -> tuple[str, ...]:
        return (f"path:{self.path}",)

    def desired(self) -> State:
        return {"kind": "file", "mode": "0600", "names": "all", "valid": True}

    def observe(self, host: Host) -> State:
        state = observe_path(host, self.path, needs_parent=True)
        expect_kind("file", self.path, state)
        if state["kind"] == "absent":
            return {"kind": "absent"}
        where = str(host.path(self.path))
        argv = ("openssl", "x509", "-in", where, "-noout", "-ext", "subjectAltName")
        done = host.run((*argv, "-checkend", "0"))
        missing = {_normal(name) for name in self.names} - _names(done.stdout)
        return {
            "kind": "file",
            "mode": state["mode"],
            "names": f"without {', '.join(sorted(missing))}" if missing else "all",
            "valid": done.status == 0,
        }

    def converge(self, host: Host, actual: State) -> None:
        data = host.read(self.path) or b""
        if actual.get("names") != "all" or not actual.get("valid"):
            host.progress("making a certificate")
            data = self._make(host)
        host.write(self.path, data, mode=0o600, secret=True)

    def _make(self, host: Host) -> bytes:
        """Both halves as text; the private key is in no file before it is in its own."""
        names = ", ".join(f"{'IP' if _ip(name) else 'DNS'}:{name}" for name in self.names)
        kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")
        into = ("-config", "/dev/stdin", "-keyout", "-", "-out", "-")
        argv = ("openssl", "req", "-x509", *kind, "-days", str(DAYS), *into)
        done = host.run(argv, stdin=_REQUEST.format(name=self.names[0][:64], names=names).encode())
        done.check("making a certificate with openssl")
        return done.stdout.encode()


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _normal(name: str) -> str:
    return str(_ip(name) or name.lower())


def _names(text: str) -> set[str]:
    """Names in what `openssl x509 -ext subjectAltName` prints: `DNS:x, IP Address:10.0.0.1`."""
    found = re.findall(r"(?:DNS|IP Address):([^,\s]+)", text)
    return {_normal(name) for name in found}
