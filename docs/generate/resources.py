"""The page of resources: arguments from the dataclasses' fields, meanings from their docstrings."""

from __future__ import annotations

import dataclasses

from docs.generate import docstring
from docs.generate.code import Resource, resource_classes
from docs.generate.markdown import block, code, page, paragraphs, plain, table

INTRODUCTION = """\
A resource is the desired state of one thing on a node. A role yields resources; the agent on the
node observes the actual state, changes what differs, and observes it again. `from
spark_cluster.resources import File` imports one. An argument without a default is required; those
after the first are given by name. Every resource also takes `tags`, names for `--tags` and
`--skip-tags`."""


def render() -> str:
    """The page."""
    return page("Resources", INTRODUCTION, *map(_section, resource_classes()))


def arguments(kind: type[Resource]) -> list[dataclasses.Field[object]]:
    """The fields that a resource has of its own, those that may be given by place first."""
    own = (field for field in dataclasses.fields(kind) if field.name != "tags")
    return sorted(own, key=lambda field: bool(field.kw_only))


def _section(kind: type[Resource]) -> str:
    doc = docstring.parse(kind)
    rows = [
        (
            code(field.name),
            code(str(field.type)),
            _default(field),
            plain(doc.arguments[field.name]),
        )
        for field in arguments(kind)
    ]
    raised = [(code(name), plain(why)) for name, why in doc.raises.items()]
    return paragraphs(
        f"## {kind.__name__}",
        plain(doc.summary),
        plain(doc.text),
        table(("argument", "type", "default", "meaning"), rows),
        table(("error", "when"), raised),
        block(doc.example, "python") if doc.example else "",
        f"After a revert: {plain(kind.reverts)}." if kind.reverts else "`revert` undoes all of it.",
    )


def _default(field: dataclasses.Field[object]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return code(repr(field.default_factory()))
    if field.default is dataclasses.MISSING:
        return "required"
    is_mode = isinstance(field.default, int) and field.name == "mode"
    return code(oct(field.default) if is_mode else repr(field.default))  # type: ignore[arg-type]
