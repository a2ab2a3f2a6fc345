"""Public kits: the ways in which they start a server, reduced to what each of them is about."""

from pathlib import Path

import pytest
from cases import cases, each_case
from factories import put

from spark_cluster.importers.commandline import read
from spark_cluster.importers.docker_run import docker_run
from spark_cluster.importers.expansion import Word
from spark_cluster.importers.files import read_file
from spark_cluster.importers.importer import Choice, Source

CASES = cases(__file__, "kit_launches.toml")

SERVE = "vllm serve Qwen/Qwen3-8B"


def source_of(folder: Path, files: dict[str, str]) -> Source:
    for name, text in files.items():
        put(folder / name, text)
    return read_file(folder)


@pytest.mark.parametrize("start", CASES["mounted"])
def test_a_script_that_is_mounted_gets_its_arguments(tmp_path, start):
    command = start.replace("{}", "Qwen/Qwen3-8B")
    compose = (
        "services:\n  engine:\n    image: org/engine:1\n    environment: {SEQS: '3'}\n"
        f"    volumes: ['./scripts:/opt/a:ro']\n    entrypoint: {command}\n"
    )
    script = "#!/bin/bash\nexec vllm serve $1 --max-num-seqs ${SEQS:-9}\n"
    source = source_of(tmp_path, {"compose.yaml": compose, "scripts/serve.sh": script})
    assert source.launch.model == "Qwen/Qwen3-8B"
    assert source.launch.args == ({} if "vllm" in start else {"max-num-seqs": 3})


@pytest.mark.parametrize(("test", "args"), CASES["numbers"])
def test_numbers_are_compared(tmp_path, test, args):
    script = f"#!/bin/sh\nX=''\nif [ {test} ]; then X='--seed 1'; fi\n{SERVE} $X\n"
    assert source_of(tmp_path, {"start.sh": script}).launch.args == args


@pytest.mark.parametrize(("text", "model"), CASES["entry_points"])
def test_an_entry_point_that_is_not_known_serves(text, model):
    assert read(text).launch.model == model


def test_a_default_inside_of_a_default_is_no_end_of_a_volume():
    words = [Word(text, 1) for text in ("-v", "${A:-${HOME}}/x:/srv/x:ro", "org/e:1")]
    (volume,) = docker_run(words).volumes
    assert (volume.source, volume.target, volume.read_only) == ("${A:-${HOME}}/x", "/srv/x", True)


# --- which file of variables is taken -------------------------------------------------------------


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
def test_which_file_of_variables_is_taken(tmp_path, case):
    source = read_file(made(tmp_path, case["files"]), Choice(case.get("variant", "default")))
    notes = [note for note in source.notes if "variables" in note and "env_file" not in note]
    assert (source.launch.model, notes) == (case["model"], case.get("said", []))


def test_the_example_stands_for_the_env_file_of_a_service(tmp_path):
    source = read_file(made(tmp_path, {"compose.yaml": COMPOSE, ".env.example": f"{QWEN}OWN=1\n"}))
    assert source.launch.env["OWN"] == "1"
    assert not [note for note in source.notes if "its variables are left" in note]


def test_what_is_no_file_of_variables_is_not_replaced_by_one(tmp_path):
    line = 'START source "$CONDA/envs/$NAME/bin/activate"\nMODEL=org/own LEN=1'
    source = read_file(made(tmp_path, {"start.sh": line, "gemma.env": GEMMA}))
    assert source.launch.model == "org/own"
