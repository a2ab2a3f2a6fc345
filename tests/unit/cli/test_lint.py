"""`lint` as a shell sees it: what it says, what it writes, how it ends."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import Result
from json_schema import document as fits
from program import invoke

from spark_cluster.errors import InvalidFile, UsageError

BAD = "vllm serve google/gemma-4-31B-it --host 127.0.0.1 --gpu-memory-utilization 0.5 " + (
    "--enable-auto-tool-choice --tool-call-parser pythonic"
)
RECIPE = """\
name: mine
model: {name: google/gemma-4-31B-it, served_name: g}
image: {ref: own:1}
engine_args:
  enable-auto-tool-choice: true
  tool-call-parser: pythonic   # wrong
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text(RECIPE)
    return tmp_path


def run(*words: str, stdin: str = "", as_json: bool = False) -> Result:
    options = ["--json"] if as_json else []
    return invoke(*options, "lint", *words, stdin=stdin, catch_exceptions=False)


def test_json():
    result = run("--command", "-", stdin=BAD, as_json=True)
    (found,) = json.loads(result.stdout)["issues"]
    assert found == {
        "id": "gemma4-pythonic-parser",
        "severity": "error",
        "title": found["title"],
        "found": "--tool-call-parser pythonic",
        "cause": found["cause"],
        "fix": "--tool-call-parser gemma4",
        "source": found["source"],
        "flag": "--tool-call-parser",
    }
    assert result.exit_code == 1


def test_a_command_is_repaired_on_standard_output_alone():
    result = run("--command", BAD, "--fix")
    assert result.exit_code == 0
    assert result.stdout == BAD.replace("pythonic", "gemma4") + "\n"
    assert "gemma4-pythonic-parser" in result.stderr


def test_a_recipe_is_repaired_in_its_place(folder):
    assert run("mine").exit_code == 1
    result = run("mine", "--fix")
    assert result.exit_code == 0
    assert "tool-call-parser: gemma4" in (folder / "recipes" / "mine.yaml").read_text()
    assert run("mine").exit_code == 0


def test_a_recipe_is_repaired_into_another_one(folder):
    result = run("mine", "--fix", "--output", "recipes/better.yaml", as_json=True)
    document = fits("lint-fix", result.stdout)
    assert [f["id"] for f in document["fixed"]] == ["gemma4-pythonic-parser"]
    assert document["output"] == "recipes/better.yaml"
    assert (folder / "recipes" / "mine.yaml").read_text() == RECIPE
    text = (folder / "recipes" / "better.yaml").read_text()
    assert text.startswith("name: better\n")
    assert "# wrong" in text
    assert run("better").exit_code == 0


def test_a_size():
    """Over all sizes by default; an issue of the larger one says so."""
    text = RECIPE.replace("pythonic", "gemma4").replace("own:1", "vllm/vllm-openai:v0.26.0")
    Path("recipes/mine.yaml").write_text(text)
    both = {f["id"]: f for f in json.loads(run("mine", as_json=True).stdout)["issues"]}
    assert both["graphs-across-nodes"]["found"].endswith("(at --tp 2)")
    one = run("mine", "--tp", "1", as_json=True)
    assert "graphs-across-nodes" not in {f["id"] for f in json.loads(one.stdout)["issues"]}


def test_a_script(folder):
    (folder / "serve.sh").write_text(f"#!/bin/sh\n{BAD}\n")
    assert run("./serve.sh").exit_code == 1
    assert run("./serve.sh", "--fix").exit_code == 0
    assert "--tool-call-parser gemma4" in (folder / "serve.sh").read_text()
    assert (folder / "serve.sh").read_text().startswith("#!/bin/sh\n")


def test_a_new_file_is_the_users_own_and_a_device_stays_one(folder):
    (folder / "serve.sh").write_text(f"{BAD}\n")
    mask = os.umask(0o077)
    try:
        assert run("./serve.sh", "--fix", "--output", "new.sh").exit_code == 0
    finally:
        os.umask(mask)
    assert stat.S_IMODE((folder / "new.sh").stat().st_mode) == 0o600
    device = folder / "device"
    device.symlink_to("/dev/null")
    assert run("./serve.sh", "--fix", "--output", str(device)).exit_code == 0
    assert device.is_symlink()


def test_another_tools_recipe(folder):
    """It is looked at, and not taken for a script when it is to be repaired."""
    (folder / "their.yaml").write_text(
        "model: google/gemma-4-31B-it\nruntime: vllm\ncontainer: own:1\n"
        "defaults: {tool_call_parser: pythonic}\n"
        f"command: |\n  {BAD}\n"
    )
    assert "gemma4-pythonic-parser" in run("./their.yaml", as_json=True).stdout
    with pytest.raises(UsageError, match="another tool's file") as caught:
        run("./their.yaml", "--fix")
    assert "recipes import" in caught.value.hint


def test_a_wrong_recipe_says_where(folder):
    (folder / "recipes" / "mine.yaml").write_text(RECIPE + "sevrity: 1\n")
    with pytest.raises(InvalidFile) as caught:
        run("mine")
    assert "mine.yaml:7" in str(caught.value)


def test_engine_arguments_of_the_command_line(folder: Path) -> None:
    known = "gemma4-26b-a4b-fp8"
    before = {i["id"] for i in json.loads(run(known, as_json=True).stdout)["issues"]}
    changed = run(known, "--option", "gpu-memory-utilization=0.95", as_json=True)
    after = {i["id"] for i in json.loads(changed.stdout)["issues"]}
    assert "share-too-high" in after - before


def test_what_an_import_lacks_is_repeated(folder: Path) -> None:
    lacking = (
        "not_carried_over:\n"
        "  - {what: mod a, why: a script, consequence: it may fail}\n"
        "  - {what: --b, why: of mod a, consequence: it does not start, blocks: true}\n"
    )
    text = RECIPE.replace("pythonic   # wrong", "gemma4") + lacking
    (folder / "recipes" / "mine.yaml").write_text(text)
    result = run("mine")
    assert "not carried over: --b (of mod a); it does not start" in result.output
    assert "not carried over: mod a (a script); it may fail" in result.output
    assert result.exit_code == 1
    found = json.loads(run("mine", as_json=True).stdout)["not_carried_over"]
    assert [entry["blocks"] for entry in found] == [False, True]
