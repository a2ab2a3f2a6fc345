"""Memory that CPU and GPU share: nothing may fill it up until the node no longer responds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from spark_cluster.config import schema
from spark_cluster.config.schema import Schema
from spark_cluster.config.topology import Node, render
from spark_cluster.node import paths
from spark_cluster.resources import Command, File, Package, Resource, Service, Swap, Sysctl

TEMPLATES = Path(__file__).parent / "templates"
HELPER = paths.DROP_CACHES
Expression = Annotated[str, Field(pattern=r"^[^'\"\\\n]+$")]
"""Stands within quotes in a file of systemd's, where quotes and backslashes mean something."""


class Settings(Schema):
    """Settings of the role `memory`. The figures are those of the community's long runs."""

    swap: Literal["keep", "swappiness", "off"] = "swappiness"
    """`swappiness` keeps swap for what sleeps; `off` switches all of it off, now and at boot; a
    node whose unified memory is full thrashes with it until it hangs"""
    swappiness: int = Field(default=10, ge=0, le=200)
    """vm.swappiness"""
    earlyoom: bool = True
    """end the largest process before the node hangs; false leaves it"""
    earlyoom_memory_percent: int = Field(default=2, ge=1, le=50)
    """act below this much available memory: of a Spark 2 % are 2.4 GiB, and the plan leaves 4"""
    earlyoom_swap_percent: int = Field(default=100, ge=0, le=100)
    """and only below this much free swap; 100 ignores swap, which stays free while pinned GPU
    memory fills the node"""
    earlyoom_prefer: Expression = "(vllm|VLLM|ray|python3)"
    """processes to end first, a regular expression; without quotes or backslashes"""
    earlyoom_avoid: Expression = "(systemd|sshd|dockerd)"
    """processes to spare; as above"""
    headless: bool | None = None
    """true: no desktop, now and at boot (it takes 3 to 10 GB); false: a desktop at boot; null
    leaves it"""
    drop_caches: bool = Field(
        default=True,
        description=f"let the login user run {HELPER} with sudo without a password, and only that: "
        "page cache is not free memory to CUDA",
    )


def role(node: Node, settings: Settings) -> Iterator[Resource]:
    """Swap, earlyoom, desktop, and the helper that gives the page cache back."""
    if settings.swap == "off":
        yield Swap(state="off")
    elif settings.swap == "swappiness":
        yield Sysctl("vm.swappiness", str(settings.swappiness))
    if settings.earlyoom:
        yield from _earlyoom(settings)
    if settings.headless is not None:
        yield from _target("multi-user" if settings.headless else "graphical")
    if settings.headless:
        yield Service("display-manager", running=False)
    if settings.drop_caches:
        yield from _helper(node)


def _earlyoom(settings: Settings) -> Iterator[Resource]:
    yield Package("earlyoom", makes=("unit:earlyoom.service",))
    options = File(
        "/etc/default/earlyoom", content=render(TEMPLATES, "earlyoom.j2", **settings.model_dump())
    )
    yield options
    yield Service("earlyoom", enabled=True, restart_when=(options,))


def _target(name: str) -> Iterator[Resource]:
    yield Command(
        f"boot into {name}.target",
        ("systemctl", "set-default", f"{name}.target"),
        unless=("sh", "-c", f'test "$(systemctl get-default)" = {name}.target'),
    )


def _helper(node: Node) -> Iterator[Resource]:
    yield File(
        HELPER,
        content=render(TEMPLATES, "spark-drop-caches.j2"),
        mode=0o755,
        owner="root",
        group="root",
    )
    if node.user != "root":
        yield File(
            paths.SUDOERS_DROP_CACHES,
            content=render(
                TEMPLATES, "sudoers.j2", user=schema.user_word(node.user), helper=HELPER
            ),
            mode=0o440,
            owner="root",
            group="root",
            validate_with=("visudo", "-cf", "{}"),
        )
