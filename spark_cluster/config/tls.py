"""The endpoint's certificate, as the inventory says it: the user's files, or made on the node."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from spark_cluster.config.schema import Schema
from spark_cluster.errors import UsageError

SELF_SIGNED = "self-signed"
_EXPECTED = "expected self-signed, or {certificate: FILE, key: FILE}"


class Tls(Schema):
    """A certificate of the user's, or one that is made on the node."""

    self_signed: bool = Field(default=False, description="make one on the node")
    certificate: Path | None = Field(
        default=None, description="PEM file on the laptop: the certificate, then its chain"
    )
    key: Path | None = Field(
        default=None, description="PEM file on the laptop: the private key, for its owner only"
    )

    @model_validator(mode="after")
    def _both(self) -> Tls:
        files = [file for file in (self.certificate, self.key) if file is not None]
        if len(files) != (0 if self.self_signed else 2):
            raise ValueError(_EXPECTED)
        return self

    def read(self) -> str | None:
        """PEM text of certificate and private key; None for one that is made on the node.

        Raises:
            UsageError: a file cannot be read, others can read the key, it has a passphrase, or it
                is another certificate's.
        """
        if self.certificate is None or self.key is None:
            return None
        certificate, key = _text(self.certificate), _text(self.key)
        mode = stat.S_IMODE(self.key.stat().st_mode)
        if mode & 0o077:
            raise UsageError(
                f"serve.tls.key: others can read {self.key} (mode {mode:04o})",
                hint=f"chmod 600 {self.key}",
            )
        if "ENCRYPTED" in key:
            raise UsageError(
                f"serve.tls.key: {self.key} has a passphrase, which cannot be entered at boot",
                hint="openssl pkey writes one without it",
            )
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
        except (ssl.SSLError, ValueError) as error:
            raise UsageError(
                f"serve.tls: {self.certificate} and {self.key} are not a certificate and its key: "
                f"{getattr(error, 'reason', None) or error}",
                hint="both must be PEM text, and belong together",
            ) from None
        return f"{certificate.strip()}\n{key.strip()}\n"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError as error:
        raise UsageError(f"serve.tls: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"serve.tls: {path} is not PEM text") from None


def _tls(value: Any) -> Any:
    if value is None or value == "none":
        return None
    if value == SELF_SIGNED:
        return {"self_signed": True}
    if isinstance(value, Tls | dict):
        return value
    raise ValueError(f"found {value!r}, {_EXPECTED}")


OptionalTls = Annotated[
    Tls | None,
    BeforeValidator(_tls, json_schema_input_type=Tls | Literal["self-signed", "none"] | None),
]
"""`self-signed`, `{certificate: FILE, key: FILE}` or `none`."""
