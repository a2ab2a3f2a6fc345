"""The page of commands, from click's own objects: what --help prints, with every option."""

from __future__ import annotations

import inspect
import re

import click

from docs.generate.code import commands, root
from docs.generate.markdown import block, code, page, paragraphs, plain, table

INTRODUCTION = """\
`spark-cluster [OPTIONS] COMMAND [ARGS]...` The options of the first table may stand before or after
the command's name, if the command takes them. [Commands at a glance](../commands.md) groups them
by purpose. See also [exit status](exit-status.md) and [JSON output](json.md)."""


def render() -> str:
    """The page."""
    options = paragraphs("## Options of every command", _options(root))
    return page("Commands", INTRODUCTION, options, *(_section(*found) for found in commands()))


def _section(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"spark-cluster {name}")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    level = "##" if " " not in name else "###"
    return paragraphs(
        f"{level} {name}",
        block(usage),
        help_text(command.help or ""),
        _options(command),
    )


def help_text(text: str) -> str:
    """A help text as Markdown; paragraphs marked `\\b` keep their lines."""
    parts = re.split(r"\n\s*\n", inspect.cleandoc(text))
    return paragraphs(*map(_paragraph, parts))


def _paragraph(text: str) -> str:
    if text.startswith("\b"):
        return block(text.removeprefix("\b").strip("\n"))
    return plain(" ".join(text.split()))


def _options(command: click.Command) -> str:
    context = click.Context(command)
    rows = [
        (_names(option, context), plain(option.help or ""), _default(option))
        for option in command.params
        if isinstance(option, click.Option)
        and not option.hidden
        and not _is_global(option, command)
    ]
    return table(("option", "what it does", "default"), rows)


def _is_global(option: click.Option, command: click.Command) -> bool:
    """Return whether a command has it only so that it may stand after the command's name."""
    known = {name for own in root.params for name in own.opts}
    return command is not root and not option.expose_value and bool(known & set(option.opts))


def _names(option: click.Option, context: click.Context) -> str:
    names = ", ".join(code(name) for name in [*option.opts, *option.secondary_opts])
    if option.is_flag or option.count:
        return names
    return f"{names} {code(option.make_metavar(context))}"


def _default(option: click.Option) -> str:
    value = option.default
    if option.is_flag or not isinstance(value, str | int | float) or value == "":
        return ""
    return code(str(value))
