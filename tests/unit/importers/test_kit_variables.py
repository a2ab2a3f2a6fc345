"""Which file of variables of a kit is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cases import each_case
from factories import put

from spark_cluster.importers.files import read_file
from spark_cluster.importers.importer import Choice

QWEN, GEMMA = "MODEL=Qwen/Qwen3-8B\nLEN=4096\n", "MODEL=google/gemma-3-27b-it\nLEN=8192\n"
START = "#!/bin/bash\n{}\ndocker run org/e:1 vllm serve $MODEL --max-model-len $LEN\n"
COMPOSE = """services:
  e:
    image: org/e:1
    env_file: .env
    command: vllm serve ${MODEL:-org/usual}
"""


def made(folder: Path, files: dict[str, str]) -> Path:
    """Write a kit: the texts above by their names, a start script by the line that it runs."""
    known = {"$QWEN": QWEN, "$GEMMA": GEMMA, "$COMPOSE": COMPOSE}
    for name, text in files.items():
        line = text.removeprefix("START ")
        put(folder / name, START.format(line) if line != text else known.get(text, text))
    return folder


@each_case(__file__, "kit_variables.toml")
def test_which_file_of_variables_is_taken(tmp_path: Path, case: dict[str, Any]) -> None:
    source = read_file(made(tmp_path, case["files"]), Choice(case.get("variant", "default")))
    notes = [note for note in source.notes if "variables" in note and "env_file" not in note]
    assert (source.launch.model, notes) == (case["model"], case.get("said", []))


def test_the_example_stands_for_the_env_file_of_a_service(tmp_path: Path) -> None:
    source = read_file(made(tmp_path, {"compose.yaml": COMPOSE, ".env.example": f"{QWEN}OWN=1\n"}))
    assert source.launch.env["OWN"] == "1"
    assert not [note for note in source.notes if "its variables are left" in note]


def test_what_is_no_file_of_variables_is_not_replaced_by_one(tmp_path: Path) -> None:
    line = 'START source "$CONDA/envs/$NAME/bin/activate"\nMODEL=org/own LEN=1'
    source = read_file(made(tmp_path, {"start.sh": line, "gemma.env": GEMMA}))
    assert source.launch.model == "org/own"
