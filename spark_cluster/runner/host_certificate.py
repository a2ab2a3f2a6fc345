"""Host certificates: a host's key, signed by an authority (PROTOCOL.certkeys of OpenSSH)."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization import SSHCertificate

    Clock = Callable[[], float]

_KEY_FIELDS = {"ssh-rsa": 2, "ssh-ed25519": 1}
"""Strings of a key in its certificate; an ECDSA key has 2."""


@dataclass(frozen=True)
class Certificate:
    """A certificate that a host presented, not yet verified.

    Attributes:
        blob: the whole certificate.
        authority: the public key that is said to have signed it.
        signature_kind: the algorithm of the signature, e.g. `rsa-sha2-512`.
    """

    blob: bytes
    authority: bytes
    signature_kind: str

    def fault(self, principal: str, clock: Clock = time.time) -> str:
        """Return why the certificate is not valid for a host with a trusted authority, else empty.

        Args:
            principal: the host's name, in lower case, or its HostKeyAlias.
            clock: seconds since 1970: a certificate's times are by the calendar.
        """
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

        try:
            parsed = _parse(self.blob)
            parsed.verify_cert_signature()
        except UnsupportedAlgorithm:
            return "its algorithms are not supported here"
        except (InvalidSignature, ValueError, AssertionError):
            return "its signature is not valid"
        if self.signature_kind == "ssh-rsa":
            return "it is signed with SHA-1"
        return _fault(parsed, principal, clock())


def of(blob: bytes) -> Certificate | None:
    """The certificate in what a host showed; None when it is cut.

    Read by hand, so that its authority is known also where its algorithm is not supported: it may
    be a revoked one.
    """
    try:
        kind, rest = _string(blob)
        plain = kind.decode().removesuffix("-cert-v01@openssh.com")
        for _ in range(1 + _KEY_FIELDS.get(plain, 2)):  # the nonce, and the key
            _, rest = _string(rest)
        rest = rest[8 + 4 :]  # serial number, and whether a user's or a host's
        for _ in range(2):  # its identity, and the names that it is made out for
            _, rest = _string(rest)
        rest = rest[8 + 8 :]  # from and until when it is valid
        for _ in range(3):  # critical options, extensions, reserved
            _, rest = _string(rest)
        authority, rest = _string(rest)
        signature, rest = _string(rest)
        return None if rest else Certificate(blob, authority, _string(signature)[0].decode())
    except ValueError:
        return None


def _string(data: bytes) -> tuple[bytes, bytes]:
    """The first length-prefixed string, and what follows it."""
    size = int.from_bytes(data[:4], "big")
    if len(data) < 4 + size:
        raise ValueError("cut")
    return data[4 : 4 + size], data[4 + size :]


def _parse(blob: bytes) -> SSHCertificate:
    from cryptography.hazmat.primitives.serialization import (
        SSHCertificate,
        load_ssh_public_identity,
    )

    found = load_ssh_public_identity(_string(blob)[0] + b" " + base64.b64encode(blob))
    if not isinstance(found, SSHCertificate):
        raise ValueError("a plain key")
    return found


def _fault(certificate: SSHCertificate, principal: str, now: float) -> str:
    from cryptography.hazmat.primitives.serialization import SSHCertificateType

    names = b", ".join(certificate.valid_principals).decode(errors="replace") or "no name"
    faults = (
        (
            certificate.type is not SSHCertificateType.HOST,
            "it is a user certificate, not a host certificate",
        ),
        (
            bool(certificate.critical_options),
            "it has critical options, which only user certificates may have",
        ),
        (now < certificate.valid_after, f"it is valid from {_date(certificate.valid_after)} on"),
        (now >= certificate.valid_before, f"it expired at {_date(certificate.valid_before)}"),
        (
            principal.encode() not in certificate.valid_principals,
            f"it is made out for {names}, not for {principal}",
        ),
    )
    return next((text for is_one, text in faults if is_one), "")


def _date(seconds: int) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "a time far away"
