"""The parts that the commands of `models` share: agents, sizes, names, ages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from spark_cluster.cli.app import App

if TYPE_CHECKING:
    from spark_cluster.engine.copies.upkeep import Need, Nodes


@contextlib.contextmanager
def model_nodes(app: App) -> Iterator[Nodes]:
    """Start agents on the selected nodes; they end with the block."""
    app.connect_early("models")
    from spark_cluster.engine.copies.upkeep import Nodes

    hubs = hub_folders(app)
    app.import_meanwhile()
    with app.cluster.dialer.sessions(app.nodes, "models") as sessions:
        yield Nodes(sessions, hubs)


def hub_folders(app: App) -> dict[str, str]:
    """Return the hub cache of each selected node."""
    from spark_cluster.engine.caches import root_on
    from spark_cluster.engine.copies.state import hub_folder

    return {node.name: hub_folder(root_on(node)) for node in app.nodes}


def needed_by_recipes(app: App) -> list[Need]:
    """Return what the inventory's recipe and the user's own need."""
    from spark_cluster.config.allowances import Allowances
    from spark_cluster.engine.copies.upkeep import needed

    return needed(app.project, app.inventory.serve.recipe_names, app.allowances(Allowances()))


def age(when: float) -> str:
    """Return how long ago something was."""
    seconds = max(0.0, time.time() - when)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "now" if when else "never"


def short(repository: str, commit: str) -> str:
    """Return ORG/NAME@ and the first digits of the commit."""
    return f"{repository}@{commit[:8]}"
