"""The reverse proxy in front of vLLM, wherever the endpoint is off the loopback or has a key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from pydantic import Field, InstanceOf
from pydantic.json_schema import SkipJsonSchema

from spark_cluster.config.schema import Schema, handed
from spark_cluster.config.topology import Node, render
from spark_cluster.engine import proxy
from spark_cluster.engine.deployment import Endpoint
from spark_cluster.engine.proxy import CONNECTIONS, error_body, routes
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
    """Settings of the role `endpoint`."""

    endpoint: SkipJsonSchema[InstanceOf[Endpoint]] = handed(
        "the endpoint; `up` sets it. The proxy is removed without one, and where vLLM listens on "
        "the port itself"
    )
    connections_per_address: int = Field(default=512, ge=1)
    """connections that one client address may have open at a time once it has shown a key, and that
    all other addresses of a network (/24 of IPv4, /64 of IPv6) may have together; those beyond are
    reset. Without a limit where the endpoint is on the loopback; at most 128 with several models,
    whose connections take more memory"""


def role(node: Node, settings: Settings) -> Iterator[Resource]:
    """The proxy's files and its unit on the head; elsewhere, and without it, none of them."""
    endpoint = settings.endpoint
    if endpoint is None or endpoint.engine_port is None or not node.is_head:
        yield from _absent()
        return
    yield Directory(proxy.FOLDER, mode=0o755)
    secrets: dict[str, Resource] = {}
    if endpoint.api_key is not None:
        digest = hashlib.sha256(endpoint.api_key.encode()).hexdigest()
        secrets[proxy.KEYS] = _secret(proxy.KEYS, f"{digest.upper()}\n")
        yield proxy.FILE
    else:
        yield File(proxy.KEYS, state="absent")
    if endpoint.tls == "certificate" and endpoint.pem is not None:
        secrets[proxy.CERTIFICATE] = _secret(proxy.CERTIFICATE, endpoint.pem)
    else:
        yield File(proxy.CERTIFICATE, state="absent")
    if endpoint.tls == "self-signed":
        yield Package("openssl", makes=("command:openssl",))
        names = tuple(dict.fromkeys((node.name, endpoint.host)))
        secrets[proxy.SELF_SIGNED] = SelfSignedCertificate(proxy.SELF_SIGNED, names)
    yield from secrets.values()
    yield from _service(settings, secrets)
    yield File(proxy.DESCRIPTION, content=_description(endpoint))


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
            port=settings.endpoint.port,
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
    endpoint = settings.endpoint
    return render(
        TEMPLATES,
        "haproxy.cfg.j2",
        endpoint=endpoint,
        keys=_name(proxy.KEYS) if endpoint.api_key is not None else None,
        named_keys=_name(proxy.NAMED_KEYS),
        socket=_name(proxy.ADMIN_SOCKET),
        certificate=_name(endpoint.certificate) if endpoint.certificate else None,
        most=_most_connections(settings),
        not_served=proxy.NOT_SERVED,
        models=routes(endpoint.models),
        body=error_body,
        unit=proxy.UNIT,
    )


def _most_connections(settings: Settings) -> int | None:
    """Connections of one address or network; None on the loopback, where all programs share one."""
    if ip_address(settings.endpoint.host).is_loopback:
        return None
    most = settings.connections_per_address
    return min(most, CONNECTIONS // 2) if settings.endpoint.models else most


def _secret(path: str, text: str) -> File:
    return File(path, content=Secret(text), mode=0o600, owner="root", group="root")


def _name(path: str) -> str:
    return path.rsplit("/", 1)[1]


def _description(endpoint: Endpoint) -> str:
    found: dict[str, Any] = {
        "url": endpoint.url,
        "api_key": endpoint.api_key is not None,
        "tls": endpoint.tls,
    }
    for name, servers in (("replicas", endpoint.replicas), ("models", endpoint.models)):
        if servers:
            found[name] = [server.to_dict() for server in servers]
    return json.dumps(found, indent=2) + "\n"
