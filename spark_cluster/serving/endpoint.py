"""Where the server answers."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from spark_cluster.cluster import Spark
from spark_cluster.engine.connections import ask_secret
from spark_cluster.engine.play import Play
from spark_cluster.errors import Failed
from spark_cluster.recipe import Recipe


@dataclass(frozen=True)
class Endpoint:
    """Where the server answers, seen from the head.

    Attributes:
        host, port: as it binds.
        model: name to ask for.
        api_key: what requests carry; shown nowhere.
    """

    host: str
    port: int
    model: str
    api_key: str | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """The OpenAI base URL."""
        return f"http://{self.host}:{self.port}/v1"

    def path(self, path: str) -> str:
        return f"http://{self.host}:{self.port}{path}"

    @property
    def headers(self) -> dict[str, str]:
        base = {"Content-Type": "application/json"}
        return {**base, "Authorization": f"Bearer {self.api_key}"} if self.api_key else base


def endpoint_of(play: Play, recipe: Recipe) -> Endpoint:
    """Where the server binds, as the inventory says."""
    serve = play.inventory.serve
    host = "127.0.0.1" if serve.bind == "loopback" else management_ip(play.head)
    key = serve.api_key.read("the API key", ask_secret()) if serve.api_key else None
    return Endpoint(host, serve.port, recipe.model.served_name, key)


def management_ip(node: Spark) -> str:
    """The node's own IP address that its inventory address means."""
    own = {str(a.ip) for i in node.facts.interfaces for a in i.addresses}
    if node.address in own:
        return node.address
    try:
        known = {str(info[4][0]) for info in socket.getaddrinfo(node.address, None)}
    except OSError:
        known = set()
    if own & known:
        return sorted(own & known)[0]
    raise Failed(
        f"{node.address} is none of the node's own addresses ({', '.join(sorted(own))})",
        where=node.name,
        hint="`serve.bind: management` needs an IP address as the head's `address`",
    )
