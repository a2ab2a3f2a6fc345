"""The certificate of a copy: made by the laptop, known to its two nodes only.

It is valid from 1970 to 2100, whatever a node's clock says: the receiver takes this one certificate
and no other, and its key is gone after the copy, so that an end would protect nothing.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

VALID = (datetime.datetime(1970, 1, 1), datetime.datetime(2100, 1, 1))
"""UTC."""


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, PEM texts; empty without encryption."""

    certificate: str
    key: str = field(repr=False)


def make_certificate() -> Pair:
    """Make a self-signed certificate; it is taken because it is known, so its name is no matter."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "spark-cluster copy")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(VALID[0])
        .not_valid_after(VALID[1])
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Pair(made.public_bytes(Encoding.PEM).decode(), pem.decode())
