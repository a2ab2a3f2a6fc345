"""Options as functions declare them: types from the signature, texts from the docstring."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Literal, TypedDict, Unpack

import click
from cases import each_row
from click.testing import CliRunner

from spark_cluster.cli import cli
from spark_cluster.cli.app import App
from spark_cluster.cli.options import DeclaredCommand, Finite, Port, declared


class Given(TypedDict):
    force: bool
    tp: Annotated[int | None, "(N): Nodes."]


def pair(app: App, *, first: str = "", other: bool) -> str:
    """Return both.

    Args:
        first (WORD): The first one.
        other: The other one.
    """
    return f"{first}{other}"


@click.command(cls=DeclaredCommand)
def sample(
    name: str,
    files: tuple[Path, ...],
    *,
    both: Annotated[str, pair],
    port: Port | None,
    kind: Literal["a", "b"] = "a",
    share: Annotated[float, Finite(0, 1)] = 0.5,
    many: tuple[str, ...],
    cache: bool | None,
    needed: int,
    **given: Unpack[Given],
) -> int:
    """Show what it was given.

    Args:
        port (-p, --port PORT): Port to listen on.
        kind (--sort KIND): One of two, in a text that is longer than the line of a docstring may
            be.
        share: Share of all. [default]
        many (X): Repeatable.
        cache (--cache/--no-cache): With a cache.
        needed: A number.
        force: At any cost.
    """
    click.echo(repr([name, files, both, port, kind, share, many, cache, needed, given]))
    return 5 if cache else 0


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(sample, words)
    return done.exit_code, done.output


def test_values():
    assert run("x", "--needed", "3") == (
        0,
        "['x', (), 'False', None, 'a', 0.5, (), None, 3, {'force': False, 'tp': None}]\n",
    )
    words = "x f g -p 80 --sort b --share 1 --many 1 --many 2 --cache --needed 3 --force --tp 2"
    given = {"force": True, "tp": 2}
    values = ["x", (Path("f"), Path("g")), "yFalse", 80, "b", 1.0, ("1", "2"), True, 3, given]
    assert run(*words.split(), "--first", "y") == (5, f"{values!r}\n")


@each_row(__file__, "options.toml", "usage_errors")
def test_usage_errors(words, said):
    status, output = run(*words.split())
    assert status == 2
    assert said in output


def test_help():
    _, text = run("--help")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[:3] == ["Usage: sample [OPTIONS] NAME [FILES]...", "", "Show what it was given."]
    assert "Args" not in text
    assert "-p, --port PORT Port to listen on. [1<=x<=65535]" in lines
    assert "[default: 0.5; 0<=x<=1]" in text
    assert "--tp N Nodes." in lines


def functions(group: click.Group = cli):
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        one = group.get_command(ctx, name)
        if isinstance(one, click.Group):
            yield from functions(one)
        yield one


def test_every_text_is_that_of_an_option():
    """An entry with a name that is no parameter's would leave an option without its text."""
    for one in functions():
        listed = inspect.cleandoc(one.function.__doc__).partition("\n\nArgs:\n")[2]
        entries = [line for line in listed.splitlines() if line[4:5] != " "]
        named = {line.split(":")[0].split()[0] for line in entries}
        assert named <= {each.name for each in declared(one.function)}, one.name
