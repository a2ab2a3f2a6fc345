"""`lint` as a shell sees it: what it says, what it writes, how it ends."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from click.testing import Result
from factories import put
from json_schema import document as fits
from program import invoke

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
    put(tmp_path / "recipes/mine.yaml", RECIPE)
    return tmp_path


def run(*words: str, stdin: str = "") -> Result:
    return invoke("lint", *words, stdin=stdin, catch_exceptions=False)


def test_a_command_is_repaired_on_standard_output_alone():
    result = run("--command", BAD, "--fix")
    assert (result.exit_code, result.stdout) == (0, BAD.replace("pythonic", "gemma4") + "\n")
    assert "gemma4-pythonic-parser" in result.stderr


def test_a_recipe_is_repaired_in_its_place(folder):
    assert [run("mine").exit_code, run("mine", "--fix").exit_code] == [1, 0]
    assert "tool-call-parser: gemma4" in (folder / "recipes/mine.yaml").read_text()
    assert run("mine").exit_code == 0


def test_a_recipe_is_repaired_into_another_one(folder):
    words = ("--json", "mine", "--fix", "--output", "recipes/better.yaml")
    document = fits("lint-fix", run(*words).stdout)
    assert [f["id"] for f in document["fixed"]] == ["gemma4-pythonic-parser"]
    assert document["output"] == "recipes/better.yaml"
    assert (folder / "recipes/mine.yaml").read_text() == RECIPE
    text = (folder / "recipes/better.yaml").read_text()
    assert text.startswith("name: better\n")
    assert "# wrong" in text
    assert run("better").exit_code == 0


def test_a_script(folder):
    script = put(folder / "serve.sh", f"#!/bin/sh\n{BAD}\n")
    assert [run("./serve.sh").exit_code, run("./serve.sh", "--fix").exit_code] == [1, 0]
    assert script.read_text() == f"#!/bin/sh\n{BAD.replace('pythonic', 'gemma4')}\n"


def test_a_new_file_is_the_users_own_and_a_device_stays_one(folder):
    put(folder / "serve.sh", f"{BAD}\n")
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
