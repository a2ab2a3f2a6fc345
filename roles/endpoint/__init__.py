"""The reverse proxy in front of vLLM, wherever the endpoint is off the loopback or has a key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

from pydantic import Field, InstanceOf, SecretStr

from spark_cluster.config.schema import Schema
from spark_cluster.config.topology import Node, render
from spark_cluster.engine import proxy
from spark_cluster.engine.proxy import (
    CONNECTIONS,
    ModelServer,
    Replica,
    TlsKind,
    error_body,
    routes,
)
from spark_cluster.node import paths
from spark_cluster.resources import (
    Directory,
    File,
    Package,
    Resource,
    Secret,
    SelfSignedCertificate,
    Service,
)

TEMPLATES = Path(__file__).parent / "templates"
RUNTIME = proxy.ADMIN_SOCKET.rpartition("/")[0]
UNIT_FILE = f"{paths.SYSTEMD_UNITS}/{proxy.UNIT}.service"


class Settings(Schema):
    """Settings of the role `endpoint`; `up` gives all but `connections_per_address`."""

    host: str | None = None
    """the head's address that the endpoint listens on; null removes the proxy, and vLLM listens on
    the port itself"""
    port: int = 8000
    """port of the endpoint"""
    engine_port: int = 18000
    """vLLM's own port, on the head's loopback"""
    url: str = ""
    """the OpenAI base URL, as users write it"""
    api_key: SecretStr | None = None
    """key that requests must carry; only its digest goes to the node"""
    tls: TlsKind | None = None
    """where the certificate comes from; null is plain HTTP"""
    certificate: SecretStr | None = None
    """PEM text of the certificate and its private key"""
    replicas: tuple[InstanceOf[Replica], ...] = ()
    """servers on several nodes that requests are shared out to; none is one server on `engine_port`
    of the head's loopback"""
    models: tuple[InstanceOf[ModelServer], ...] = ()
    """servers of several models, to which requests are sent by the model that they name; none is
    one model"""
    connections_per_address: int = Field(default=512, ge=1)
    """connections that one client address may have open at a time once it has shown a key, and that
    all other addresses of a network (/24 of IPv4, /64 of IPv6) may have together; those beyond are
    reset. Without a limit where the endpoint is on the loopback; at most 128 with several models,
    whose connections take more memory"""


def role(node: Node, settings: Settings) -> Iterator[Resource]:
    """The proxy's files and its unit on the head; elsewhere, and without it, none of them."""
    if settings.host is None or not node.is_head:
        yield from _absent()
        return
    yield Directory(proxy.FOLDER, mode=0o755)
    secrets: dict[str, Resource] = {}
    if settings.api_key is not None:
        digest = hashlib.sha256(settings.api_key.get_secret_value().encode()).hexdigest()
        secrets[proxy.KEYS] = _secret(proxy.KEYS, f"{digest.upper()}\n")
        yield proxy.FILE
    else:
        yield File(proxy.KEYS, state="absent")
    if settings.tls == "certificate" and settings.certificate is not None:
        text = settings.certificate.get_secret_value()
        secrets[proxy.CERTIFICATE] = _secret(proxy.CERTIFICATE, text)
    else:
        yield File(proxy.CERTIFICATE, state="absent")
    if settings.tls == "self-signed":
        yield Package("openssl", makes=("command:openssl",))
        names = tuple(dict.fromkeys((node.name, settings.host)))
        secrets[proxy.SELF_SIGNED] = SelfSignedCertificate(proxy.SELF_SIGNED, names)
    yield from secrets.values()
    yield from _service(settings, secrets)
    yield File(proxy.DESCRIPTION, content=_description(settings))


def _service(settings: Settings, secrets: dict[str, Resource]) -> Iterator[Resource]:
    """The configuration is checked by HAProxy itself before it takes the old one's place."""
    config = File(
        proxy.CONFIG,
        content=configuration(settings),
        validate_with=(
            "env",
            f"CREDENTIALS_DIRECTORY={proxy.FOLDER}",
            f"RUNTIME_DIRECTORY={RUNTIME}",
            "haproxy",
            "-c",
            "-q",
            "-f",
            "{}",
        ),
    )
    # Not among the secrets: a key that is added or revoked is no reason to restart the proxy.
    named = [_name(proxy.NAMED_KEYS)] if proxy.KEYS in secrets else []
    unit = File(
        UNIT_FILE,
        content=render(
            TEMPLATES,
            "endpoint.service.j2",
            config=proxy.CONFIG,
            folder=proxy.FOLDER,
            credentials=[*map(_name, secrets), *named],
            runtime=_name(RUNTIME),
            port=settings.port,
        ),
    )
    yield config
    yield unit
    yield Service(proxy.UNIT, enabled=True, restart_when=(config, unit, *secrets.values()))


def _absent() -> Iterator[Resource]:
    """Yield the removal of everything, the key first.

    A certificate made on the node stays, and so do the keys of `keys add`, which open nothing then.
    """
    yield Service(proxy.UNIT, running=False, enabled=False)
    for path in (proxy.KEYS, proxy.CERTIFICATE, proxy.DESCRIPTION, proxy.CONFIG, UNIT_FILE):
        yield File(path, state="absent")


def configuration(settings: Settings) -> str:
    """The text of haproxy.cfg."""
    certificate = {
        None: None,
        "self-signed": _name(proxy.SELF_SIGNED),
        "certificate": _name(proxy.CERTIFICATE),
    }[settings.tls]
    return render(
        TEMPLATES,
        "haproxy.cfg.j2",
        address=settings.host,
        port=settings.port,
        engine_port=settings.engine_port,
        keys=_name(proxy.KEYS) if settings.api_key is not None else None,
        named_keys=_name(proxy.NAMED_KEYS),
        socket=_name(proxy.ADMIN_SOCKET),
        certificate=certificate,
        most=_most_connections(settings),
        not_served=proxy.NOT_SERVED,
        replicas=settings.replicas,
        models=routes(settings.models),
        body=error_body,
        unit=proxy.UNIT,
    )


def _most_connections(settings: Settings) -> int | None:
    """Connections of one address or network; None on the loopback, where all programs share one."""
    local = settings.host is not None and ip_address(settings.host).is_loopback
    if local:
        return None
    most = settings.connections_per_address
    return min(most, CONNECTIONS // 2) if settings.models else most


def _secret(path: str, text: str) -> File:
    return File(path, content=Secret(text), mode=0o600, owner="root", group="root")


def _name(path: str) -> str:
    return path.rsplit("/", 1)[1]


def _description(settings: Settings) -> str:
    found = {
        "url": settings.url,
        "api_key": settings.api_key is not None,
        "tls": settings.tls,
        **(
            {"replicas": [replica.to_dict() for replica in settings.replicas]}
            if settings.replicas
            else {}
        ),
        **({"models": [model.to_dict() for model in settings.models]} if settings.models else {}),
    }
    return json.dumps(found, indent=2) + "\n"
