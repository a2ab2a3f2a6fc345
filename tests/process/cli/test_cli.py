"""The command line as a shell sees it: exit status, what is on which output, what is imported."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from program import Program

CHECKOUT = Path(__file__).parents[3]
ONE = """\
nodes:
  spark1:
    address: {address}
    port: {port}
    roles: [head]
serve:
  recipe: lab-paris
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch) -> Program:
    return Program(tmp_path, monkeypatch)


def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from spark_cluster.cli import cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        "heavy = 'ray paramiko fabric httpx pydantic rich jinja2 ruamel invoke'.split()\n"
        "print([m for m in heavy if m in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=CHECKOUT
    )
    assert done.stderr.strip() == "[]"
    for name in ("init", "trust", "ping", "facts", "up", "down", "status", "logs", "vram", "exec"):
        assert f"\n  {name} " in done.stdout


def test_every_command_that_is_listed_is_there(program):
    from spark_cluster.cli import COMMANDS, cli

    for name in COMMANDS:
        with cli.make_context("spark-cluster", [name, "--help"], resilient_parsing=True) as context:
            assert cli.get_command(context, name).get_short_help_str()


@pytest.mark.parametrize("name", ["bench", "lab", "predict", "recipes"])
def test_the_help_of_a_group_cuts_no_sentence(program, name):
    text = program(name, "--help").stdout
    listed = text.partition("\nCommands:\n")[2].splitlines()
    assert len(listed) > 1
    assert not [line for line in listed if line.endswith("...")]
    assert max(map(len, listed)) <= 80


@pytest.mark.parametrize("args", [("--json", "ping"), ("ping", "--json")])
def test_missing_inventory(program, args):
    done = program("ping")
    assert (done.returncode, done.stdout) == (2, "")
    assert "inventory.yaml: no such inventory" in done.stderr
    assert "spark-cluster init" in done.stderr
    done = program(*args)
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert (error["message"], error["where"]) == ("no such inventory", "inventory.yaml")
    assert "spark-cluster init" in error["hint"]


def test_usage_error_as_json(program):
    done = program("ping", "--json", "--no-such-option")
    assert done.returncode == 2
    assert "no-such-option" in json.loads(done.stdout)["error"]["message"]


def test_ping_of_a_node_that_is_not_there(program, closed_port):
    program.put("inventory.yaml", ONE.format(address="127.0.0.1", port=closed_port))
    done = program("ping")
    assert done.returncode == 3
    assert f"127.0.0.1:{closed_port} refused the connection" in done.stdout
    assert "Traceback" not in done.stderr
    done = program("ping", "--json")
    assert done.returncode == 3
    (node,) = json.loads(done.stdout)["nodes"]
    assert (node["name"], node["reachable"], node["rtt_ms"]) == ("spark1", False, None)


@pytest.mark.parametrize(
    "args",
    [
        *[(name,) for name in ("status", "vram", "facts", "logs", "down", "plan", "history")],
        *[("history", "r1"), ("revert", "r1"), ("exec", "--", "true"), ("bench", "run", "depth")],
    ],
)
def test_commands_on_a_node_that_is_not_there(program, closed_port, args):
    program.put("inventory.yaml", ONE.format(address="127.0.0.1", port=closed_port))
    done = program("--json", *args)
    assert done.returncode == 3, done.stderr
    assert "refused the connection" in done.stdout
    json.loads(done.stdout)
    assert "Traceback" not in done.stderr
    done = program(*args)
    assert done.returncode == 3, done.stderr
    assert "refused the connection" in done.stdout + done.stderr


def test_top_of_a_node_that_is_not_there(program, closed_port):
    program.put("inventory.yaml", ONE.format(address="127.0.0.1", port=closed_port))
    done = program("top", "--json")
    (line,) = done.stdout.splitlines()
    assert "refused the connection" in json.loads(line)["message"]
    assert (done.returncode, "refused" in done.stderr) == (3, True)


def test_a_question_without_an_answer_has_a_line_of_its_own(program, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    done = program("init")
    assert done.returncode == 2
    assert "error: no node given" in done.stderr.splitlines()


def test_exec_leaves_the_words_of_the_command_alone(program, closed_port):
    program.put("inventory.yaml", ONE.format(address="127.0.0.1", port=closed_port))
    for words in (("exec", "--", "ls", "--json"), ("exec", "ls", "--json", "-l")):
        done = program(*words)
        assert (done.returncode, done.stdout) == (3, "")
        assert "refused" in done.stderr
    assert json.loads(program("exec", "--json", "ls").stdout)["nodes"][0]["status"] is None
    # A flag of the command is none of ours when something goes wrong before it runs, either.
    (program.folder / "inventory.yaml").unlink()
    done = program("exec", "--", "ls", "--json")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("import os\n\nraise OSError('too bad')\n", 3, "playbook mine: OSError: too bad"),
        ("def main(play)\n    pass\n", 1, "playbook mine: SyntaxError"),
        ("def mein(play):\n    pass\n", 1, "no function main(play)"),
    ],
)
def test_a_playbook_that_cannot_be_loaded(program, text, line, said):
    program.put("inventory.yaml", ONE.format(address="never-asked.invalid", port=22))
    program.put("mine.py", text)
    done = program("playbook", "mine.py")
    assert done.returncode == 2
    assert f"mine.py:{line}: " in done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_malformed_inventories(program):
    program.put("inventory.yaml", "nodes:\n  spark1:\n    adress: 10.0.0.1\n")
    done = program("ping")
    assert done.returncode == 2
    assert "inventory.yaml:3" in done.stderr
    assert "address" in done.stderr
    (program.folder / "inventory.yaml").write_bytes(b"\xff\xfe\x00nodes")
    done = program("ping")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_no_complaint():
    reader, writer = os.pipe()
    os.close(reader)  # before anything can have been written
    done = subprocess.run(
        [sys.executable, "-m", "spark_cluster", "--help"],
        check=False,
        stdout=writer,
        stderr=subprocess.PIPE,
        cwd=CHECKOUT,
    )
    os.close(writer)
    assert done.stderr == b""
    assert done.returncode != 0


def test_the_status_reaches_the_shell(tmp_path):
    command = [sys.executable, "-m", "spark_cluster", "--project", str(tmp_path), "ping"]
    assert subprocess.run(command, check=False, capture_output=True, cwd=CHECKOUT).returncode == 2


def test_version_and_help_are_fine(program):
    assert program("--version").returncode == 0
    assert program("up", "--help").returncode == 0
    assert "--check" in program("up", "--help").stdout


def test_unwritable_state_folder(program, closed_port):
    program.put("inventory.yaml", ONE.format(address="127.0.0.1", port=closed_port))
    program.put("home/.local", "a file where a folder should be")
    done = program("down")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "run record" in done.stderr
