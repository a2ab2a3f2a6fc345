"""The benchmark of whole commands: what it counts, and what it makes of it."""

import sys

import pytest

from benchmarks.commands.commands import Command, commands
from benchmarks.commands.timing import CommandError, Cost, measure, rows, run


def python(code: str, **options) -> Command:
    return Command("test", (sys.executable, "-S", "-c", code), **options)


def test_a_command_that_fails_is_no_figure():
    with pytest.raises(CommandError, match="test ended with 3:\nout of luck"):
        run(python("print('out of luck'); raise SystemExit(3)"))
    assert run(python("raise SystemExit(5)", fine=(0, 5))).wall > 0


def test_all_commands_take_turns():
    seen = []
    pair = [Command("a", (sys.executable, "-S", "-c", "")), Command("b", ("true",))]
    measure(pair, 2, seen.append)
    assert [cost.command for cost in seen] == ["a", "b", "a", "b"]


def test_rows():
    floor, ours = Command("floor", ()), Command("ours", (), 0.4, "floor")
    costs = [Cost("floor", 0.2, 0.1), Cost("ours", 0.5, 0.2), Cost("ours", 0.3, 0.3)]
    first, second = rows([floor, ours, Command("not run", ())], costs)
    assert (first.ratio, first.met) == (None, None)
    assert (second.least, second.median, second.cpu) == (0.3, 0.4, 0.25)
    assert (second.ratio, second.met) == (pytest.approx(2.0), True)


def test_every_command_has_a_floor_that_is_run_too(tmp_path):
    found = commands("lab", tmp_path / "nodes.json")
    names = [command.name for command in found]
    assert len(names) == len(set(names))
    assert all(c.floor in names[: names.index(c.name)] for c in found if c.wanted_s is not None)
