"""The pages of what users write: inventory, recipe, settings of roles."""

from __future__ import annotations

import sys

from docs.generate import docstring, fields
from docs.generate.code import INVENTORY, RECIPE, REGISTRIES, SUITE, roles
from docs.generate.markdown import page, paragraphs, plain

_EDITOR = """\
An editor with the YAML language server completes and checks the file with this first line:
`# yaml-language-server: $schema=PATH-OR-URL/{name}.json`
([{name}.json](../schema/{name}.json))."""

INVENTORY_TEXT = """\
`inventory.yaml` says which Sparks there are, how they are reached, and what is served on them.
`spark-cluster init` writes a commented one. An unknown field is an error, with its line."""

RECIPE_TEXT = """\
`recipes/NAME.yaml` says what to serve: the model, its image, the flags of the engine, and how to
tell that it works. `spark-cluster recipes show NAME` prints what becomes of one."""

SUITE_TEXT = """\
`suites/NAME.yaml` says what to measure: which recipes, on how many nodes, with which loads, and how
often. `spark-cluster bench suites NAME` prints what becomes of one, and how long it takes. What a
stage does not say is the suite's."""

REGISTRIES_TEXT = """\
`registries.yaml` of the project folder names collections of recipes, whose recipes are then used as
`@NAME/RECIPE`. `spark-cluster recipes update` fetches them; what is fetched of a branch is written
to `registries.lock.json` next to it. See [Share recipes](../how-to/share-recipes.md)."""

ROLES_TEXT = """\
A role turns facts of a node and settings into resources. Settings are written in the inventory:
`settings: {power: {max_mhz: 1800}}` for all nodes, in `group_settings` for a group, and in a node's
own `settings` for that node; the nearest wins."""


def inventory() -> str:
    """The page of inventories."""
    text = paragraphs(INVENTORY_TEXT, _EDITOR.format(name="inventory"))
    return page("Inventory", text, fields.sections(INVENTORY))


def recipe() -> str:
    """The page of recipes."""
    text = paragraphs(RECIPE_TEXT, _EDITOR.format(name="recipe"))
    return page("Recipe", text, fields.sections(RECIPE))


def registries() -> str:
    """The page of registries."""
    text = paragraphs(REGISTRIES_TEXT, _EDITOR.format(name="registries"))
    return page("Registries", text, fields.sections(REGISTRIES))


def suite() -> str:
    """The page of suites."""
    text = paragraphs(SUITE_TEXT, _EDITOR.format(name="suite"))
    return page("Suite", text, fields.sections(SUITE))


def role_settings() -> str:
    """The page of all roles' settings."""
    found = roles()
    inside = {
        name: schema
        for role in found.values()
        for name, schema in fields.inner(role.settings_model).items()
    }
    shared = "## Mappings inside settings" if inside else ""
    tables = [fields.section(name, schema, level=3) for name, schema in inside.items()]
    return page("Roles", ROLES_TEXT, *map(_role, found.values()), paragraphs(shared, *tables))


def _role(role: object) -> str:
    name, function = role.name, role.function  # type: ignore[attr-defined]
    module = sys.modules[function.__module__]
    doc = docstring.parse(module)
    return paragraphs(
        f"## {name}",
        plain(doc.summary),
        plain(doc.text),
        fields.fields_table(role.settings_model)  # type: ignore[attr-defined]
        or "It has no settings.",
    )
