"""Text of models, nodes, logs and files on the terminal: no markup parsed, no sequence obeyed."""

from __future__ import annotations

import ast
import functools
import io
import json
import re
import sys
from pathlib import Path

import pytest
from cases import each_row
from factories import ONE_NODE, put
from fake_programs import missing
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from spark_cluster.cli.console import coloured, joined, lines_of, painted, styled, visible
from spark_cluster.cli.display import Display
from spark_cluster.cli.terminal import Console
from spark_cluster.runner.events import (
    NodeFailed,
    Note,
    Progress,
    Result,
    RunStarted,
    StageFinished,
    StageStarted,
)
from spark_cluster.runner.session import Output

PACKAGE = Path(__file__).parents[3] / "spark_cluster"
EVIL = "[/think] Paris\x1b]0;owned\x07\x9b31m\u202e\ud800"
SHOWN = r"[/think] Paris\x1b]0;owned\x07\x9b31m\u202e\ud800"
UNSAFE = [chr(code) for code in (*range(32), *range(127, 160))]
UNSAFE = [c for c in UNSAFE if c not in "\n\t"] + list("\u202a\u202b\u202c\u202d\u202e\u2066\u2069")


# -- the parts -------------------------------------------------------------------------------------


@given(st.text())
def test_visible_leaves_nothing_that_a_terminal_obeys(text):
    assert not set(visible(text)) & set(UNSAFE)
    assert visible(visible(text)) == visible(text)
    visible(text).encode()


def test_ordinary_text_stays():
    text = "Größe 10 µs\tμ 日本語 🎉 e\u0301\nnext [bold]"
    assert visible(text) == text


def test_colours_stay_and_end_with_the_line():
    assert coloured("\x1b[1;32mINFO\x1b[0m up") == "\x1b[1;32mINFO\x1b[0m up"
    assert coloured("\x1b[31mred\x1b[2J\x1b[") == "\x1b[31mred\\x1b[2J\\x1b[\x1b[0m"
    assert coloured("\x9b31m") == r"\x9b31m"


def test_a_progress_bar_is_one_line_a_step():
    assert lines_of("10%\r20%\r\nnext\n\n") == ["10%", "20%", "next", ""]
    assert lines_of("") == []


def printed(*things, width=200):
    out = io.StringIO()
    Console(file=out, width=width).print(*things)
    return out.getvalue()


@given(st.text(max_size=40))
def test_a_value_is_never_markup(text):
    filled = styled("[bold]{}[/] and [red]{}[/]", text, painted(text, "green"))
    assert filled.plain == f"{visible(text)} and {visible(text)}"
    assert {span.style for span in filled.spans} <= {"bold", "red", "green"}


def test_styles_of_a_template_and_of_its_values():
    found = styled("[dim]{} ([red]{:>3}[/])[/] {}", painted("a", "green"), 7, "{}[x]")
    assert found.plain == "a (  7) {}[x]"
    styles = {(s.start, s.end, str(s.style)) for s in found.spans}
    assert {(0, 1, "dim"), (0, 1, "green"), (3, 6, "red")} <= styles
    assert not [s for s in styles if s[1] > 7]
    assert (painted("a", "red") + "b").spans == [found.spans[0].__class__(0, 1, "red")]
    assert joined([painted("a", "red"), "[b]"], ", ").plain == "a, [b]"


@pytest.mark.parametrize("thing", [EVIL, painted(EVIL), Text(EVIL)])
def test_the_console_escapes_whatever_is_printed(thing):
    text = printed(thing)
    assert "[/think] Paris" in text
    assert r"\x1b]0;owned" in text
    assert not set(text) & set(UNSAFE)
    assert printed(":smile: [red]x[/]") == ":smile: [red]x[/]\n"


def test_a_run_as_it_is_shown():
    out = io.StringIO()
    display = Display(lambda: Console(file=out, width=300))
    display.take(Progress("spark1", "vLLM", f"{EVIL}\nforged"))
    assert SHOWN in display._draw().plain
    assert "\n" not in display._draw().plain, "a live line is one line"
    changes = {"image": [EVIL, EVIL]}
    for event in (
        RunStarted("r1", EVIL, ("spark1",)),
        StageStarted(EVIL),
        Progress("spark1", EVIL, EVIL + "\nforged"),
        Result("spark1", "x", EVIL, "change", changes=changes, diff=f"+{EVIL}"),
        Result("spark1", "x", "y", "unknown", reason=EVIL),
        Note(EVIL, node="spark1"),
        NodeFailed("spark1", EVIL, EVIL),
        StageFinished(EVIL, 1.0, ok=True),
    ):
        display.take(event)
    assert out.getvalue().count(r"\x1b]0;owned\x07") == 11
    assert not set(out.getvalue()) & set(UNSAFE)


# -- commands --------------------------------------------------------------------------------------


@pytest.fixture
def project(project, monkeypatch):
    """With one node, that has memory."""
    monkeypatch.setenv("COLUMNS", "300")
    put(project / "inventory.yaml", ONE_NODE)
    put(project / "spark1/proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\n")
    return project


OOPS = b"""\
2026-11-20T15:00:00.000000+00:00 s kernel: kernel BUG at [/x]:1! \xc2\x9b31m\x1b[2J
2026-11-20T15:00:01.000000+00:00 s kernel: pc : f\x07+0x1/0x2 [x]
"""


def test_what_the_kernel_and_pstore_say_is_not_obeyed(run, project, piped_nodes):
    """P09: a process names itself, and so do parts of a record of the firmware."""
    for name in ("docker", "systemctl"):
        piped_nodes["spark1"].programs[name] = missing
    script = f"#!{sys.executable} -IS\nimport sys\nsys.stdout.buffer.write({OOPS!r})\n"
    put(project / "spark1/usr/local/bin/journalctl", script, 0o755)
    status, out, _ = run("doctor", "--only", "kernel.fault", "--only", "driver.power-off")
    assert status == 5
    assert out.count(r"kernel BUG at [/x]:1! \x9b31m; in f\x07+0x1/0x2 [x]") == 2
    assert not {"\x1b", "\x9b", "\x07"} & set(out)


SERVED = """\
from dataclasses import replace
from spark_cluster.engine.deployment import Endpoint
from spark_cluster.engine.result import Served, VerifiedServer

def main(play, *, deployment, **given):
    deployment = replace(deployment, endpoint=Endpoint("127.0.0.1", 8000, {model!r}))
    part = VerifiedServer(deployment.first, {answer!r}, {{"vllm": {model!r}}})
    return Served(deployment, (part,), [], [], [])
"""


@pytest.mark.parametrize("answer", ["[/think] Paris", "[/THINK]", EVIL])
def test_up_shows_any_answer(run, project, answer):
    (project / "playbooks").mkdir()
    text = SERVED.format(answer=answer, model="org/[/x]")
    (project / "playbooks/up.py").write_text(text)
    status, out, _ = run("up", "--tp", "1", "--recipe", "lab-paris")
    assert status == 0
    assert f"it answers: {visible(answer)}" in out
    assert "org/[/x] at http://127.0.0.1:8000/v1" in out
    assert "\x1b" not in out
    document = json.loads(run("up", "--tp", "1", "--recipe", "lab-paris", "--json")[1])
    assert document["answer"] == answer


def test_logs_keep_colours_only(run, project):
    log = r"\033[32mINFO\033[0m up\033[2J [/x]\n10%%\r\033]0;owned\00720%%\n"
    state = '[{"State": {"Status": "running"}, "Config": {}}]'
    script = f"#!/bin/sh\n[ $1 = logs ] && printf '{log}' || echo '{state}'\n"
    put(project / "spark1/usr/local/bin/docker", script, 0o755)
    status, out, _ = run("logs", "--container", "vllm")
    assert status == 0
    assert out.splitlines() == [
        r"spark1 vllm: INFO up\x1b[2J [/x]",
        "spark1 vllm: 10%",
        r"spark1 vllm: \x1b]0;owned\x0720%",
    ]
    text = json.loads(run("logs", "--container", "vllm", "--json")[1])["logs"][0]["text"]
    assert text == "\x1b[32mINFO\x1b[0m up\x1b[2J [/x]\n10%\r\x1b]0;owned\x0720%\n"


def test_exec_passes_on_what_a_command_prints(run, monkeypatch):
    said = Output(0, "\x1b[2Ja\r\x1b]0;t\x07b\u2028c\nd\n", "")
    monkeypatch.setattr("spark_cluster.cli.nodes._run_on", lambda *_: said)
    assert run("exec", "x")[1] == "spark1: \x1b[2Ja\r\x1b]0;t\x07b\u2028c\nspark1: d\n"
    assert json.loads(run("exec", "--json", "x")[1])["nodes"][0]["stdout"] == said.stdout


@each_row(__file__, "visible.toml", "exec_of_what_is_meant_for_a_shell")
def test_exec_of_what_is_meant_for_a_shell(run, monkeypatch, words, told):
    monkeypatch.setattr("spark_cluster.cli.nodes._run_on", lambda *_: Output(1, "", "no\n"))
    status, _, err = run("exec", *words)
    assert status == 1
    assert ("to one: spark-cluster exec -- sh -c ..." in err) == told


def test_history_of_a_run_with_brackets(run, monkeypatch):
    told = {"run": "r1", "since": 1.0, "user": EVIL, "command": EVIL, "reverted_by": None}
    entry = {"time": 1.0, "action": "converged", "resource": f"File:/{EVIL}", "changes": {}}

    def ask(_app, _node, run_id):
        runs = [{**told, "changes": 1, "paths": 0}]
        return {**told, "entries": [entry]} if run_id else {"runs": runs}

    monkeypatch.setattr("spark_cluster.cli.history._ask", ask)
    for words, times in ((("history",), 2), (("history", "r1"), 3)):
        status, out, _ = run(*words)
        assert status == 0
        assert "".join(out.split()).count("".join(SHOWN.split())) == times


def test_recipes_of_others(run, project):
    """Listed, shown and linted: what stands in them is text."""
    escaped = json.dumps(EVIL.removesuffix("\ud800"))
    put(
        project / "recipes/theirs.yaml",
        f"name: theirs\ndescription: {escaped}\nmodel: {{name: org/m, served_name: '[/b]'}}\n"
        "image: {ref: 'img:1'}\n",
    )
    for words in (("recipes", "list"), ("recipes", "show", "theirs"), ("lint", "theirs")):
        _, out, err = run(*words)
        assert "\x1b" not in out + err
        assert "theirs" in out or words[0] == "lint"
        assert "show" not in words or SHOWN.removesuffix(r"\ud800") in out


# -- it stays so -----------------------------------------------------------------------------------


@functools.cache
def calls():
    """(file, call) of every call in the package's files that name what is looked for below."""
    names = re.compile("echo|styled|markup|emoji")
    texts = {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
    return [
        (path.relative_to(PACKAGE).as_posix(), node)
        for path, text in texts.items()
        if names.search(text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
    ]


def name_of(call):
    return getattr(call.func, "attr", None) or getattr(call.func, "id", "")


def test_there_is_one_console_and_one_place_that_parses_markup():
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if path.name not in ("terminal.py", "tables.py"):
            assert "rich.console" not in text, f"{path}: use spark_cluster.cli.terminal"
        if path.name != "console.py":
            assert "rich.markup" not in text, f"{path}: use styled(template, values)"
    for path, call in calls():
        if path not in ("cli/console.py", "cli/terminal.py"):
            assert name_of(call) not in ("from_markup", "render_markup"), path
            assert not {k.arg for k in call.keywords} & {"markup", "emoji"}, path


HANDED_ON = {("cli/terminal.py", "styled"), ("cli/setup_flow.py", "say")}
"""Where a `say` hands its own template on."""


def test_templates_are_literals():
    found = [(path, call) for path, call in calls() if name_of(call) in ("styled", "say")]
    assert len(found) > 150
    for path, call in found:
        template = call.args[0]
        if isinstance(template, ast.Name) and template.id == "template":
            assert (path, name_of(call)) in HANDED_ON
            continue
        assert isinstance(template, ast.Constant), f"{path}:{call.lineno}: values go next to it"


RAW = {
    "cli/nodes.py": 1,  # passes on, as ssh does
    "cli/predict.py": 1,  # the help
    "cli/lint.py": 1,  # a file's text, escaped where standard output is a terminal
}
"""Calls of click.echo with text that is neither a literal nor escaped, and why that is right."""


def test_what_is_echoed_is_escaped():
    found = {}
    for path, call in calls():
        if name_of(call) != "echo" or not path.startswith("cli/"):
            continue
        inner = call.args[0]
        safe = isinstance(inner, ast.Constant) or (
            isinstance(inner, ast.Call) and name_of(inner) in ("visible", "coloured", "dumps")
        )
        if not safe:
            found[path] = found.get(path, 0) + 1
    assert found == RAW
