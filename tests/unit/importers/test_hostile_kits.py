"""Kits that are made to take all memory, or a day: each ends soon, with a recipe or a sentence."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from factories import put

from spark_cluster.errors import SparkClusterError
from spark_cluster.importers.compose import MOST_FILES
from spark_cluster.importers.files import read_file, write
from spark_cluster.importers.kitfiles import KitFolder
from spark_cluster.importers.kits import MOST_TEXT, MOST_TRIED

SERVE = "vllm serve Qwen/Qwen3-8B"
SERVICE = f"services:\n  engine:\n    image: org/engine:1\n    command: {SERVE}\n"
LONG = "x" * 40_000
SECONDS = 15
"""Of the processor, on a machine that does other work; without limits each takes minutes."""


def read(folder: Path, files: dict[str, str]) -> str:
    """What became of a kit: the text of its recipe, or why there is none."""
    for name, text in files.items():
        put(folder / "kit" / name, text)
    begun = time.process_time()
    try:
        told = write(read_file(folder / "kit"), name="kit").text
    except SparkClusterError as error:
        told = error.message
    assert time.process_time() - begun < SECONDS
    return told


@pytest.mark.parametrize(
    "files",
    [
        {"start.sh": f"A={LONG}\necho " + "$A " * 15_000 + f"\n{SERVE}\n"},
        {"start.sh": f"A={LONG}\nB=$(({'A+' * 15_000}1))\n{SERVE}\n"},
        {"start.sh": "A=('' '')\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + f"{SERVE}\n"},
        {"start.sh": f"A=({'a ' * 9000})\nB=(" + '"${A[@]}" ' * 6000 + f")\n{SERVE}\n"},
        {
            "start.sh": f"A={LONG}\n"
            + "docker run -e B=$A org/engine:1 bash -c 'vllm serve $B'\n" * 1000
        },
        {"compose.yaml": SERVICE, ".env": f"A={LONG}\n" + "B=$A\n" * 9000},
        {
            "compose.yaml": f"{SERVICE}    environment:\n"
            + "".join(f"      B{n}: $A\n" for n in range(9000)),
            ".env": f"A={LONG}\n",
        },
        {"compose.yaml": SERVICE, ".env": "A=" + "${" * 60_000},
    ],
    ids=["words", "sum", "empty", "array", "containers", "env", "compose", "unclosed"],
)  # fmt: skip
def test_values_cannot_fill_the_memory(tmp_path: Path, files: dict[str, str]) -> None:
    assert "more than 2,000,000 characters" in read(tmp_path, files)


@pytest.mark.parametrize(
    "text",
    [
        'A=\'bash -c "$A"\'\nbash -c "$A"\n',
        "docker exec " * 60,
        "launch-cluster.sh exec " * 3000 + SERVE,
        "".join(f"cat <<A{n}\n" for n in range(600))
        + f"{SERVE}\n"
        + "".join(f"A{n}\n" for n in reversed(range(600))),
    ],
    ids=["bash", "exec", "launcher", "documents"],
)
def test_shells_inside_of_shells_end(tmp_path: Path, text: str) -> None:
    told = read(tmp_path, {"start.sh": f"{text}\n{SERVE}\n"})
    assert "more than 8 shells run one another" in told


@pytest.mark.parametrize(
    "files",
    [
        {"start.sh": f"{'(' * 90_000}\n{SERVE}\n"},
        {"start.sh": "".join(f"cat <<A{n}\n" for n in range(7000)) + SERVE},
        {"start.sh": f"A={'$((' * 3000}1{'))' * 3000}\n{SERVE}\n"},
        {"start.sh": ". ./a.sh\n" * 8000 + SERVE, "a.sh": "export A=1\n" * 8000},
        {"start.sh": f"{' . ' * 30_000}\n{SERVE}\n"},
        {
            "compose.yaml": f"include: [{'a.yaml, ' * 2000}]\n{SERVICE}",
            "a.yaml": "services:\n" + "".join(f"  s{n}: {{image: x}}\n" for n in range(150)),
        },
        {
            "compose.yaml": f"{SERVICE}    env_file: [{'a.env, ' * 9000}]\n",
            "a.env": "".join(f"B{n}=1\n" for n in range(3000)),
        },
        {
            **{f"{number // 100}/{number}.txt": "" for number in range(1500)},
            "serve.sh": "".join(f"/opt/{number}\n" for number in range(20_000)) + f"{SERVE}\n",
            "start.sh": "docker run org/engine:1 bash /opt/serve.sh\n",
        },
        {
            "compose.yaml": "services: {engine: {image: org/engine:1, build: .}}\n",
            "Dockerfile": f'FROM x\nCOPY {"a" * 200_000}\nENTRYPOINT ["/opt/serve.sh"]\n',
            "serve.sh": SERVE,
        },
    ],
    ids=[
        *("brackets", "documents", "sums", "sourced", "dots", "include", "env_file"),
        *("paths", "copied"),
    ],
)
def test_it_is_read_soon(tmp_path: Path, files: dict[str, str]) -> None:
    assert "name: Qwen/Qwen3-8B" in read(tmp_path, files)


def test_a_file_of_flags_that_many_commands_name_is_not_read_for_each(tmp_path: Path) -> None:
    files = {
        "a.yaml": f"port: 1\nx: [{'1, ' * 40_000}]\n",
        "start.sh": f"{SERVE} --config a.yaml\n" * 2000,
    }
    assert "repeat to more than 2,000,000 characters" in read(tmp_path, files)


def test_many_large_scripts_are_not_all_read(tmp_path: Path) -> None:
    text = "#" * 60_000 + "\ndocker run\n"
    told = read(tmp_path, {f"start{number}.sh": text for number in range(60)})
    assert "docker run: no image" in told
    assert f"and {MOST_TEXT // len(text) - 5} more" in told


def test_many_scripts_are_not_all_searched_for_the_model_of_a_folder(tmp_path: Path) -> None:
    """A script that starts nothing may name the repository of a model that is a folder."""
    scripts = {f"later{number:04}.sh": "A=1; " * 9 for number in range(MOST_TRIED)}
    named = {"first.sh": "vllm serve /models/m\n", "zlast.sh": "MODEL_REPO=org/late\n"}
    assert "name: org/late" in read(tmp_path / "few", named)
    assert "name: org/late" not in read(tmp_path / "many", {**named, **scripts})


def test_a_compose_file_names_a_limited_number_of_files(tmp_path: Path) -> None:
    names = [f"{number}.env" for number in range(MOST_FILES + 1)]
    files = {**dict.fromkeys(names, "A=1\n"), "compose.yaml": SERVICE}
    files["compose.yaml"] += f"    env_file: [{', '.join(names)}]\n"
    assert f"more than {MOST_FILES} files are named" in read(tmp_path, files)


def test_a_file_that_many_services_extend_is_read_once(tmp_path: Path) -> None:
    rows = "".join(
        f"  s{n}: {{image: 'x{n}', environment: [{'a=1, ' * 200}]}}\n" for n in range(99)
    )
    own = "".join(f"  a{n}: {{extends: {{file: a.yaml, service: s{n}}}}}\n" for n in range(99))
    files = {"compose.yaml": f"{SERVICE}{own}", "a.yaml": f"services:\n{rows}"}
    assert "name: Qwen/Qwen3-8B" in read(tmp_path, files)


def test_a_file_that_became_a_pipe_since_it_was_found_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "start.sh")
    assert KitFolder(tmp_path).text(tmp_path / "start.sh") == ""
