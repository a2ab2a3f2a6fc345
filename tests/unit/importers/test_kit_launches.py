"""Ways in which public kits start a server: reduced to what each of them is about."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import cases
from factories import put

from spark_cluster.importers.commandline import read
from spark_cluster.importers.docker_run import docker_run
from spark_cluster.importers.expansion import Word
from spark_cluster.importers.files import read_file
from spark_cluster.importers.importer import Source

CASES = cases(__file__, "kit_launches.toml")

SERVE = "vllm serve Qwen/Qwen3-8B"


def source_of(folder: Path, files: dict[str, str]) -> Source:
    for name, text in files.items():
        put(folder / name, text)
    return read_file(folder)


@pytest.mark.parametrize("start", CASES["mounted"])
def test_a_script_that_is_mounted_gets_its_arguments(tmp_path: Path, start: str) -> None:
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
def test_numbers_are_compared(tmp_path: Path, test: str, args: dict[str, int]) -> None:
    script = f"#!/bin/sh\nX=''\nif [ {test} ]; then X='--seed 1'; fi\n{SERVE} $X\n"
    assert source_of(tmp_path, {"start.sh": script}).launch.args == args


@pytest.mark.parametrize(("text", "model"), CASES["entry_points"])
def test_an_entry_point_that_is_not_known_serves(text: str, model: str) -> None:
    assert read(text).launch.model == model


def test_a_default_inside_of_a_default_is_no_end_of_a_volume() -> None:
    words = [Word(text, 1) for text in ("-v", "${A:-${HOME}}/x:/srv/x:ro", "org/e:1")]
    (volume,) = docker_run(words).volumes
    assert (volume.source, volume.target, volume.read_only) == ("${A:-${HOME}}/x", "/srv/x", True)
