"""The certificate of a copy: made by the laptop, known to its two nodes only, valid two days."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

DAYS = 2


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
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)  # a node's clock may be behind
        .not_valid_after(now + DAYS * day)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Pair(made.public_bytes(Encoding.PEM).decode(), pem.decode())
