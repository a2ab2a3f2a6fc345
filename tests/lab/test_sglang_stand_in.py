"""The stand-in for SGLang as a process, by the command line that spark-cluster renders."""

from __future__ import annotations

import base64
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from factories import SHIPPED, put
from free_ports import free_port
from serve_plans import bare_server
from sglang_recipe import recipe_text
from waiting import until

from spark_cluster.config.recipes import load_recipe
from spark_cluster.config.topology import Node
from spark_cluster.engine.engine import engine
from spark_cluster.issues.explain import explain
from spark_cluster.issues.log_reading import of_file
from spark_cluster.node.http import ask
from spark_cluster_lab.sglang_stand_in import REF, SOURCE, dockerfile

SGLANG = engine("sglang")


def command(folder: Path, port: int, **flags: str | int | float) -> list[str]:
    """The rendered command, with the module's file instead of its installed name."""
    node = Node("spark1", is_head=True)
    made = bare_server(
        node,
        image=REF,
        model_path=str(folder),
        flags={"context-length": 4096, "served-model-name": "paris", "tp-size": 1, **flags},
        executor="mp",
        port=port,
        engine="sglang",
    )
    process = SGLANG.server(node, made, 29501)
    assert process is not None
    assert process.command[:3] == ("python3", "-m", "sglang.launch_server")
    return [sys.executable, str(SOURCE), *process.command[3:]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "paris"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@contextmanager
def running(argv: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        process = subprocess.Popen(argv, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


def test_it_is_started_asked_and_ended_as_an_engine(model: Path, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    address = f"http://127.0.0.1:{port}"
    with running(command(model, port), log) as process:
        until(lambda: ask({"url": address + SGLANG.health})["status"] == 200)
        (model_served,) = json.loads(ask({"url": address + SGLANG.models})["body"])["data"]
        assert model_served["id"] == "paris"
        path, key = SGLANG.version
        assert json.loads(ask({"url": address + path})["body"])[key] == "0.0.0+stand-in"
        body = json.dumps({"messages": [{"role": "user", "content": "The capital of France?"}]})
        asked = {"url": f"{address}/v1/chat/completions", "method": "POST", "body": body}
        answered = json.loads(ask(asked)["body"])
        assert answered["choices"][0]["message"]["content"] == "Paris"
        process.terminate()
        assert process.wait(60) == 0
    explained = explain([of_file(str(log))])
    assert (explained.engine, explained.cause, explained.missing) == ("SGLang", None, [])


@pytest.mark.parametrize(
    ("flags", "issue"),
    [
        ({"no-such-flag": 1}, "unknown-flag"),
        ({"mem-fraction-static": 0.01}, "sglang-no-room-for-kv"),
    ],
)
def test_a_start_that_fails_is_explained(
    model: Path, tmp_path: Path, flags: dict[str, float], issue: str
) -> None:
    log = tmp_path / "log"
    with running(command(model, free_port(), **flags), log) as process:
        assert process.wait(60) != 0
    explained = explain([of_file(str(log))])
    assert explained.engine == "SGLang"
    assert explained.cause is not None
    assert explained.cause.finding.id == issue


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(command(tmp_path, free_port()), log) as process:
        assert process.wait(60) == 1
    cause = explain([of_file(str(log))]).cause
    assert cause is not None
    assert cause.finding.id == "model-path-missing"


def test_a_port_that_is_taken(model: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with running(command(model, taken.getsockname()[1]), log) as process:
            assert process.wait(60) == 1
    cause = explain([of_file(str(log))]).cause
    assert cause is not None
    assert cause.finding.id == "port-taken"


def test_the_image_is_the_labs_own_with_this_file() -> None:
    text = dockerfile()
    assert text.startswith("FROM spark-vllm:lab\nRUN ")
    (encoded,) = re.findall(r"echo (\S+) \| base64 -d", text)
    assert base64.b64decode(encoded) == SOURCE.read_bytes()
    assert len(max(text.splitlines(), key=len)) < 60_000, "a step is one argument of a shell"


def test_the_recipe_of_the_lab_test_is_one(tmp_path: Path) -> None:
    path = put(tmp_path / "lab-sglang.yaml", recipe_text("/srv/models/paris", no_such_flag=1))
    recipe = load_recipe(path, SHIPPED)
    assert recipe.engine == "sglang"
    assert recipe.flags(1)["no-such-flag"] == 1
