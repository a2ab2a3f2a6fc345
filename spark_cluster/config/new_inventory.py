"""The inventory of a new project: written only if it can be read back."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

from spark_cluster.config.fields import is_ip
from spark_cluster.config.inventory import Inventory, read_inventory
from spark_cluster.config.project import Project
from spark_cluster.config.template import render
from spark_cluster.config.yamlfile import Sourced, load
from spark_cluster.errors import InvalidFile, UsageError

DEFAULT_RECIPE = "gemma4-31b-nvfp4"


@dataclass(frozen=True, slots=True)
class Answers:
    """The user's answers.

    Args:
        addresses: of the Sparks, the head first.
        user: to log in as; None leaves it to ~/.ssh/config.
        identity_file: private key on the laptop; None leaves it to ssh.
        recipe: the name of what to serve.
        port: of the nodes' sshd; None leaves it to ~/.ssh/config.
        sudo_password: where sudo's password comes from: `prompt`, or the name of an environment
            variable; None where sudo asks for none.
        passwordless_sudo: `provision` lets the user use sudo without a password.
    """

    addresses: tuple[str, ...]
    user: str | None = None
    identity_file: str | None = None
    recipe: str = DEFAULT_RECIPE
    port: int | None = None
    sudo_password: str | None = None
    passwordless_sudo: bool = False


def answers_in(path: Path) -> Answers | None:
    """Return the answers that the inventory at `path` was written from; None when its user has
    changed it since, so that it is not ours to write again.

    Raises:
        InvalidFile: it is no inventory.
    """
    data = load(path, "inventory").data
    try:
        ssh, nodes = data.get("ssh") or {}, data["nodes"].values()
        source = (data.get("become") or {}).get("password")
        settings = data.get("settings") or {}
        found = Answers(
            tuple(str(node["address"]) for node in nodes),
            ssh.get("user"),
            ssh.get("identity_file"),
            data["serve"]["recipe"],
            ssh.get("port"),
            source["env"] if isinstance(source, dict) else source,
            bool((settings.get("bootstrap") or {}).get("passwordless_sudo")),
        )
        return found if _text(found) == path.read_text(encoding="utf-8") else None
    except (AttributeError, KeyError, TypeError):
        return None


def _text(answers: Answers) -> str:
    return render(
        Path(__file__).parent / "templates",
        "inventory.yaml.j2",
        addresses=[_scalar(address) for address in answers.addresses],
        user=_scalar(answers.user),
        identity_file=_scalar(answers.identity_file),
        port=answers.port,
        recipe=_scalar(answers.recipe),
        sudo_password=answers.sudo_password,
        passwordless_sudo=answers.passwordless_sudo,
        pool=_pool(answers.addresses),
    )


def write(path: Path, answers: Answers, project: Project) -> Inventory:
    """Write the inventory next to `path`, read it back, and rename it into place.

    Raises:
        UsageError: an answer does not fit, or the file cannot be written; `path` is untouched.
    """
    project.find("recipes", answers.recipe)
    text = _text(answers)
    try:
        handle, name = tempfile.mkstemp(prefix=".inventory-", suffix=".yaml", dir=path.parent)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    staged = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        inventory = read_inventory(staged)
        staged.chmod(0o644)
        staged.replace(path)
    except InvalidFile as error:
        # The lines are those of a file that is not kept: name the fields only.
        raise UsageError("these nodes cannot be used:\n  " + _without_lines(error)) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        staged.unlink(missing_ok=True)
    return inventory


def source_of(addresses: Sequence[str]) -> Sourced:
    """Return the data of an inventory for nodes of which only the addresses are known.

    Args:
        addresses: `HOST` or `USER@HOST`, the head first; they are named spark1, spark2 and so on.

    Raises:
        UsageError: there is none, or one of them twice.
    """
    if not addresses or len(set(addresses)) < len(addresses):
        raise UsageError(
            f"addresses of the nodes: found {', '.join(addresses) or 'none'}, expected one or more "
            "different ones",
            hint="give each node's address once, the head first",
        )
    nodes: dict[str, dict[str, Any]] = {}
    for number, text in enumerate(addresses, 1):
        user, _, host = text.rpartition("@")
        nodes[f"spark{number}"] = {"address": host, **({"user": user} if user else {})}
    nodes["spark1"]["roles"] = ["head"]
    pool = _pool(tuple(str(node["address"]) for node in nodes.values()))
    return Sourced(Path("addresses"), {"nodes": nodes, "fabric": {"pool": pool}})


def _without_lines(error: InvalidFile) -> str:
    file = error.where.rpartition(":")[0]
    lines = [error.message.splitlines()[0]]
    for line in error.message.splitlines()[1:]:
        lines.append(line.removeprefix(f"{file}:").partition(": ")[2])
    return "\n  ".join(lines)


def _scalar(text: str | None) -> str | None:
    """Text as YAML: plain where it is harmless, in quotes otherwise."""
    if text is None or (text and all(c.isalnum() or c in "._/~-" for c in text)):
        # `12` or `true` would be read as something else than text.
        plain = text is None or not (text.isdigit() or text.lower() in ("true", "false", "null"))
        return text if plain else json.dumps(text)
    return json.dumps(text)


def _pool(addresses: tuple[str, ...]) -> list[str]:
    """Two subnets for the link that hold none of the management addresses."""
    taken = [ip_address(address) for address in addresses if is_ip(address)]
    pool: list[str] = []
    for third in (177, 178, 187, 188, 197, 198):
        subnet = ip_network(f"192.168.{third}.0/24")
        if not any(ip in subnet for ip in taken if ip.version == 4):
            pool.append(str(subnet))
    return pool[:2]
