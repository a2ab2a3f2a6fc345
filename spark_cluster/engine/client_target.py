"""What a client of the endpoint has to know: address, model, key, certificate."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from spark_cluster.config.model_kind import ModelKind
from spark_cluster.config.ports import LOOPBACK
from spark_cluster.errors import Failed
from spark_cluster.node import durable

if TYPE_CHECKING:
    from spark_cluster.config.inventory_schema import ServeEntry
    from spark_cluster.config.secret import Secret
    from spark_cluster.engine.current import Current

KEY_VARIABLE = "SPARK_API_KEY"
"""Variable of clients for a key that the inventory takes from elsewhere than a variable."""

_MODEL = re.compile(r"\w[\w ./:@+-]*")
"""Names that mean nothing to a shell, to Compose or to opencode, which fills in variables."""

_HOST = re.compile(r"[\w.:-]+")


@dataclass(frozen=True)
class ClientTarget:
    """What a client has to know of the endpoint.

    Attributes:
        url: the OpenAI base URL.
        model: name to ask for.
        kind: of the model.
        context: longest request, tokens; None when it is not known.
        key_variable: variable with the API key; empty when none is needed.
        key: the key itself, where the user asked to see it.
        ca_file: PEM file that clients have to trust; empty where they know the certificate.
        tunnel: the address is this machine's end of a tunnel.
        notes: what has to be done before the address works.
    """

    url: str
    model: str
    kind: ModelKind = "chat"
    context: int | None = None
    key_variable: str = ""
    key: str = field(default="", repr=False)
    ca_file: str = ""
    tunnel: bool = False
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as `clients --json` prints it; the key is in the snippets only."""
        shown = {name: value for name, value in vars(self).items() if name != "key"}
        return {**shown, "notes": list(self.notes)}


def target_of(
    found: Current,
    serve: ServeEntry,
    head: str,
    *,
    ca_file: str = "",
    port: int | None = None,
    tunnel: bool = False,
    key: str = "",
) -> ClientTarget:
    """Return what clients on this machine have to know.

    Args:
        found: what serves now.
        head: the head's name, which a certificate made on it is for.
        ca_file: where the certificate was written.
        port: of this machine's end of the tunnel; by default the endpoint's own.
        tunnel: also where the endpoint can be reached without one.
        key: the API key, where it is to be shown.

    Raises:
        Failed: the address or the model's name is none that a configuration can hold.
    """
    scheme, host, remote_port = _parts(found.access.url)
    if not _MODEL.fullmatch(found.model):
        raise Failed(
            f"the model's name {found.model!r} cannot stand in a configuration",
            where=head,
            hint="give it a plain one: `model: {served_name: NAME}` in the recipe",
        )
    through = tunnel or host == LOOPBACK
    notes = []
    if through:
        port = port or remote_port
        given = f" --port {port}" if port != serve.port else ""
        notes.append(f"the address needs `spark-cluster tunnel{given}` to run on this machine")
        host, remote_port = LOOPBACK, port
        if found.access.tls == "self-signed":
            notes.append(f"the certificate is for {head}: add `{LOOPBACK} {head}` to /etc/hosts")
            host = head
        elif found.access.tls is not None:
            notes.append(f"the certificate is not for {LOOPBACK}: use a name that it has")
    needed = found.access.api_key
    if needed:
        notes += _key_notes(serve.api_key)
    return ClientTarget(
        url=f"{scheme}://{f'[{host}]' if ':' in host else host}:{remote_port}/v1",
        model=found.model,
        kind=found.kind,
        context=found.context,
        key_variable=key_variable(serve.api_key) if needed else "",
        key=key if needed else "",
        ca_file=ca_file,
        tunnel=through,
        notes=tuple(notes),
    )


def _parts(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port.

    Raises:
        Failed: the URL, which a node gave, is none that could be used.
    """
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname or "", parts.port
    except ValueError:
        scheme, host, port = "", "", None
    if scheme not in ("http", "https") or not _HOST.fullmatch(host) or port is None:
        raise Failed(f"the endpoint's address {url!r} is no base URL")
    return scheme, host, port


def key_variable(secret: Secret | None) -> str:
    """Return the variable in which clients have the key: the inventory's own, if it names one."""
    return secret.env if secret is not None and secret.env is not None else KEY_VARIABLE


def _key_notes(secret: Secret | None) -> list[str]:
    name = key_variable(secret)
    if secret is not None and secret.env is not None:
        return [f"{name} has to hold the API key"]
    if secret is not None and secret.file is not None:
        file = shlex.quote(str(secret.file))
        return [f'{name} has to hold the API key: export {name}="$(head -n 1 {file})"']
    return [f"{name} has to hold the API key: read -rs {name}; export {name}"]


def write_certificate(folder: Path, head: str, pem: str) -> Path:
    """Write a certificate that was made on the head to this machine's state folder.

    Raises:
        Failed: it cannot be written.
    """
    path = folder / "certificates" / f"{head}.pem"
    try:
        durable.make_folder(path.parent)
        durable.write_file(path, pem.encode(), 0o644)
    except OSError as error:
        raise Failed(
            f"the certificate cannot be written: {error.strerror}",
            where=str(path),
            hint="XDG_STATE_HOME names another folder for it",
        ) from None
    return path
