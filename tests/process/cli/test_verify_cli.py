"""`verify` as a user runs it: real agents, a server over real HTTP, Docker's answer made up."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import readme
from chat_server import MODEL, ChatServer, Reply
from json_schema import document as valid

from spark_cluster.engine import readiness_checks

Run = Callable[..., tuple[int, str, str]]

INVENTORY = """\
ssh: {user: nvidia}
nodes:
  spark1: {address: spark1.example, roles: [head]}
serve: {recipe: gpt-oss-20b}
"""

PAGE = "docs/how-to/verify.md"

RECIPE, TOY = "gpt-oss-20b", "lab-paris"
"""A recipe of a model that promises what it can, and one of a toy."""


@pytest.fixture
def docker(
    project: Path, server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Have the node's Docker tell of a server of this recipe."""
    monkeypatch.setenv("COLUMNS", "200")
    (project / "inventory.yaml").write_text(INVENTORY)
    path = project / "spark1/usr/local/bin/docker"
    path.parent.mkdir(parents=True)

    def write(recipe: str) -> None:
        labels = {
            "spark-cluster.endpoint": server.endpoint.url,
            "spark-cluster.model": MODEL,
            "spark-cluster.recipe": recipe,
            "spark-cluster.tp": "1",
        }
        config = {"Labels": labels, "Cmd": ["serve", "/m", "--reasoning-parser", "gemma4"]}
        text = json.dumps([{"State": {"Status": "running"}, "Config": config}])
        path.write_text(f"#!{sys.executable} -IS\nprint({text!r})\n")
        path.chmod(0o755)

    write(RECIPE)
    return write


def test_a_healthy_server(run, project, docker):
    status, out, _ = run("verify")
    assert status == 0, out
    assert "18 ok" in [line[:5] for line in out.splitlines()]
    assert "HTML in tool arguments" in out
    kept = json.loads((project / f"state/spark-cluster/verify/{RECIPE}.tp1.json").read_text())
    assert kept["answers"]["answer"] == "Paris."


def test_a_toy_is_asked_what_its_recipe_promises(run, server, docker):
    server.change = lambda _request, reply: Reply("Paris") if not reply.calls else reply
    docker(TOY)
    status, out, _ = run("verify")
    assert status == 0, out
    assert out.startswith("1 ok, 17 not applicable  ")
    (line,) = [line for line in out.splitlines() if "17 tests (" in line]
    assert "a toy" in line
    assert run("verify", "--only", "coherence")[0] == 5, "what is named is asked"


def test_what_has_one_reason_is_one_line(run, server, docker):
    why = '"auto" tool choice requires --enable-auto-tool-choice'
    server.refuse = lambda request: (400, why) if request.get("tools") else None
    status, out, _ = run("verify")
    assert status == 5, "its recipe promises tools"
    (line,) = [line for line in out.splitlines() if "tool use)" in line]
    assert line.startswith("i  not applicable, 6 tests (tool use): ")
    assert run("-v", "verify")[1].count("not applicable: ") == 6


def test_a_failure(run, server, docker):
    def change(_request: dict[str, Any], reply: Reply) -> Reply:
        return Reply("[/b] \x1b[31m!!!!") if not reply.calls else reply

    server.change = change
    status, out, _ = run("verify", "--only", "short_answers", "--only", "tool_call")
    assert status == 5
    assert "1 failed, 2 ok" in out
    assert "What is the capital of France?" in out
    assert "[/b]" in out
    assert "\x1b[31m" not in out
    status, out, _ = run("verify", "--only", "short_answers", "--json")
    assert (status, valid("verify", out)["ok"]) == (5, False)


def test_the_sample_of_the_how_to_is_of_these_columns_and_checks(run, docker):
    (sample,) = [text for text in readme.blocks("text", PAGE) if text.startswith("$ ")]
    _, summary, titles, *rows = sample.splitlines()
    assert not readme.unlike([titles], run("verify")[1])
    shown = [re.split("  +", row.removeprefix("✔  "))[0] for row in rows if row[0] == "✔"]
    known = readiness_checks.of_kind("chat")
    assert shown == [check.title for check in known if check.readiness != "vision"]
    assert summary.startswith(f"{len(shown)} ok, {len(known) - len(shown)} not applicable  ")
    assert [row for row in rows if row.startswith("i  not applicable, 2 tests (vision): ")]


def test_the_other_size_is_shown(run, project, docker):
    folder = project / "state/spark-cluster/verify"
    run("verify", "--only", "answer")
    kept = json.loads((folder / f"{RECIPE}.tp1.json").read_text())
    kept |= {"tp": 2, "answers": {"answer": "Lyon"}}
    (folder / f"{RECIPE}.tp2.json").write_text(json.dumps(kept))
    status, out, _ = run("verify", "--only", "answer")
    assert status == 0, "different answers are a warning"
    assert "short answers: 1 of 1 differ from tp 2" in out
    assert "answer: tp 1: Paris.; tp 2: Lyon" in out
    document = valid("verify", run("verify", "--only", "answer", "--json")[1])
    assert document["other_sizes"][0]["different"][0]["before"] == "Lyon"


@pytest.mark.parametrize("name", ["tools", "embedding"])
def test_a_check_that_is_not_of_this_model(run, docker, name):
    assert run("verify", "--only", name)[0] == 2
