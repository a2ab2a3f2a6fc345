"""Docker: installed, running, usable by the login user."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, Field

from spark_cluster.cluster import Spark
from spark_cluster.resources import Package, Resource, Service, User

DEBIAN = ("docker.io", "docker-cli")


class Settings(BaseModel):
    """Settings of the role `containers`."""

    packages: tuple[str, ...] | None = Field(
        default=None,
        description="apt packages; None takes docker-ce where it is (DGX OS ships it), else "
        "the distribution's docker.io",
    )
    users: bool = Field(default=True, description="put the login user into the group docker")


def role(node: Spark, settings: Settings) -> Iterator[Resource]:
    """The packages, the service, the group."""
    first, *also = settings.packages or _packages(node)
    yield Package(
        first,
        also=tuple(also),
        makes=("command:docker", "unit:docker.service", "group:docker"),
    )
    yield Service("docker", running=True, enabled=True)
    if settings.users and node.user != "root":
        yield User(node.user, groups=("docker",))


def _packages(node: Spark) -> tuple[str, ...]:
    if "docker-ce" in node.facts.packages:
        return ("docker-ce",)
    # Only Debian 13 and later split the client off.
    return DEBIAN if node.facts.os.startswith("debian") else DEBIAN[:1]
