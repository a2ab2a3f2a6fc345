"""Gives mkdocs the generated pages and schemas; named as a hook in mkdocs.yml."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2]))  # mkdocs loads this file by its path

from docs.generate import (
    commands,
    constants,
    exit_status,
    faults,
    files,
    json_output,
    known_issues,
    python_api,
    resources,
    schemas,
)
from docs.generate.code import CHECKOUT

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

PAGES: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands.render,
    "reference/inventory.md": files.inventory,
    "reference/recipe.md": files.recipe,
    "reference/suite.md": files.suite,
    "reference/registries.md": files.registries,
    "reference/roles.md": files.role_settings,
    "reference/resources.md": resources.render,
    **known_issues.pages(),
    "reference/faults.md": faults.render,
    "reference/planning-constants.md": constants.render,
    "reference/json.md": json_output.render,
    "reference/python-api.md": python_api.render,
    "reference/exit-status.md": exit_status.render,
}
"""Place on the site to what makes the page."""

ICON = "site/icon.svg"
"""Where the dashboard's icon is on the site: its logo."""


def on_files(found: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated files to those of the folder."""
    from mkdocs.structure.files import File

    for place, render in PAGES.items():
        found.append(File.generated(config, place, content=render()))
    icon = str(CHECKOUT / "spark_cluster/dashboard/assets/icon.svg")
    found.append(File.generated(config, ICON, abs_src_path=icon))
    for name, schema in schemas.of_outputs().items():
        place = f"schema/{name}.json"
        found.append(File.generated(config, place, content=schemas.text(schema)))
    return found
