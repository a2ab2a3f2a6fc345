"""The command line as a shell sees it: exit status, what is on which output."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cases import each_row
from program import Program

CHECKOUT = Path(__file__).parents[3]
ONE = "nodes: {{spark1: {{address: {}, port: {}, roles: [head]}}}}\nserve: {{recipe: lab-paris}}\n"


@pytest.fixture
def away(program, closed_port) -> Program:
    """The program in a project with one node, which lets no one in."""
    program.put("inventory.yaml", ONE.format("127.0.0.1", closed_port))
    return program


def test_a_group_without_a_command_shows_its_help(program):
    done = program("bench")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: ")
    assert "error" not in done.stderr


@each_row(__file__, "cli.toml", "commands_on_a_node_that_is_not_there")
def test_commands_on_a_node_that_is_not_there(away, words):
    done = away("--json", *words.split())
    assert done.returncode == 3, done.stderr
    assert "refused the connection" in done.stdout
    json.loads(done.stdout)
    done = away(*words.split())
    assert done.returncode == 3, done.stderr
    assert "refused the connection" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [("--ask-password", "no terminal"), ("--password-env NOT_SET", "NOT_SET is not set")],
)
def test_a_password_that_no_one_can_be_asked_for(away, words, said):
    away.put("home/.ssh/id_ed25519.pub", "ssh-ed25519 AAAA me\n")
    done = away("provision", *words.split())
    assert (done.returncode, said in done.stderr) == (2, True)


def test_ping_and_doctor_of_a_node_that_is_not_there(away):
    (node,) = json.loads(away("ping", "--json").stdout)["nodes"]
    assert (node["name"], node["reachable"], node["rtt_ms"]) == ("spark1", False, None)
    done = away("doctor", "--json")
    (check,) = json.loads(done.stdout)["checks"]
    assert (done.returncode, check["id"], check["status"]) == (3, "system.reachable", "fail")
    assert "refused the connection" in check["found"]
    assert set(check) >= {"id", "node", "status", "found", "cause", "fix"}
    assert "system.reachable" in away("doctor").stdout


def test_a_question_without_an_answer_has_a_line_of_its_own(program, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    done = program("init")
    assert done.returncode == 2
    assert "error: no node given" in done.stderr.splitlines()


def test_exec_leaves_the_words_of_the_command_alone(away):
    for words in (("exec", "--", "ls", "--json"), ("exec", "ls", "--json", "-l")):
        done = away(*words)
        assert (done.returncode, done.stdout) == (3, "")
        assert "refused" in done.stderr
    assert json.loads(away("exec", "--json", "ls").stdout)["nodes"][0]["status"] is None
    # A flag of the command is none of ours when something goes wrong before it runs, either.
    (away.folder / "inventory.yaml").unlink()
    done = away("exec", "--", "ls", "--json")
    assert (done.returncode, done.stdout) == (2, "")


def test_the_status_reaches_the_shell(tmp_path):
    command = [sys.executable, "-m", "spark_cluster", "--project", str(tmp_path), "ping"]
    assert subprocess.run(command, check=False, capture_output=True, cwd=CHECKOUT).returncode == 2


def test_unwritable_state_folder(away):
    away.put("home/.local", "a file where a folder should be")
    done = away("down")
    assert done.returncode == 1
    assert "run record" in done.stderr
