"""Firmware, versions in the image, round trip and start-up log, as a record has them."""

import json
import socket
import sys
from types import SimpleNamespace
from typing import Any

from factories import put

from spark_cluster.bench import describe, sequence
from spark_cluster.errors import Unreachable
from spark_cluster.runner.session import Output


def test_the_versions_that_programs_use(agent, tmp_path):
    """Those of the container's own Python, or of the virtual environment's."""
    root = tmp_path / "spark1"
    for name, version in (("torch", "2.11.0+cu130"), ("nvidia_nccl_cu13", "2.29.3")):
        text = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        put(root / f"{name}-{version}.dist-info/METADATA", text)
    inside = f'PYTHONPATH={root} exec {sys.executable} "$@"\n'
    docker = f'#!/bin/sh\n[ "$1 $2 $3" = "exec spark-vllm python3" ] && shift 3 && {inside}'
    put(root / "usr/local/bin/docker", docker, 0o755)
    put(tmp_path / "venv/bin/python", f"#!/bin/sh\n{inside}", 0o755)
    for runtime in ("docker", "venv"):
        recipe = SimpleNamespace(runtime=runtime)
        deployment: Any = SimpleNamespace(recipe=recipe, venv=str(tmp_path / "venv"))
        found = describe.program_versions(agent(), deployment)
        assert found == {"torch": "2.11.0+cu130", "nccl": "2.29.3"}, runtime
    deployment = SimpleNamespace(recipe=SimpleNamespace(runtime="docker"))
    for script in ("exit 1", "echo nonsense"):
        put(root / "usr/local/bin/docker", f"#!/bin/sh\n{script}\n", 0o755)
        assert describe.program_versions(agent(), deployment) == {}


def test_the_name_under_which_a_registry_has_an_image():
    digest = "sha256:" + "4b" * 32
    shown = [{"Id": "sha256:1", "RepoDigests": [f"mirror.example/v@{digest}", f"vllm/v@{digest}"]}]
    said = Output(0, json.dumps(shown), "")
    session: Any = SimpleNamespace(run=lambda *_a, **_k: said)
    assert describe.repo_digest(session, "sha256:1", "vllm/v:nightly") == f"vllm/v@{digest}"
    assert describe.repo_digest(session, "sha256:1", "own:1") == "", "it was built there"
    assert describe.repo_digest(session, "", "vllm/v") == "", "no container, no image"
    gone: Any = SimpleNamespace(run=lambda *_a, **_k: Output(1, "[]\n", "no such image"))
    assert describe.repo_digest(gone, "sha256:1", "vllm/v") == ""


def test_a_node_that_is_lost_costs_no_measurement():
    def lost(*_: Any, **__: Any) -> None:
        raise Unreachable("no answer", where="spark2")

    session: Any = SimpleNamespace(run=lost, request=lost)
    assert describe.firmware(session) == {}
    assert describe.round_trip_ms(session, "http://127.0.0.1:8000") is None


def test_the_log_of_a_start_is_kept_without_secrets(tmp_path, monkeypatch):
    logs = {
        ("spark1", "spark-vllm"): "INFO api_key='sk-very-secret'\n\x1b]0;title\x07loaded\n",
        ("spark1", "spark-ray"): "Error response from daemon: No such container: spark-ray\n",
        ("spark2", "spark-vllm"): "log: 2: docker: not found\n",
        ("spark2", "spark-ray"): "ray started\nError: No such container: x\n",
    }
    sizes = set()

    def read(session: str, program: str, size: int) -> str:
        sizes.add(size)
        return logs.get((session, program), "")

    monkeypatch.setattr(sequence.runtime, "read_beginning", read)
    play: Any = SimpleNamespace(
        nodes=[SimpleNamespace(name=name) for name in ("spark1", "spark2")],
        session=lambda node: node.name,
        secrets=frozenset({"sk-very-secret"}),
    )
    kept = sequence.keep_logs(play, tmp_path, "000-s")
    assert kept == ("logs/000-s-spark1-spark-vllm.log", "logs/000-s-spark2-spark-ray.log")
    text = (tmp_path / kept[0]).read_text()
    assert text == "INFO api_key='***'\n\ufffd]0;title\ufffdloaded\n"
    assert sizes == {sequence.LOG_BYTES}


def test_a_real_agent_is_asked(agent, tmp_path):
    root = tmp_path / "spark1"
    for hca in ("rocep1s0f1", "roceP2p1s0f1"):
        put(root / f"sys/class/infiniband/{hca}/fw_ver", "28.45.4028\n")
    bios = {"vendor": "American Megatrends\n", "version": "5.36_0ACUM018\n", "date": "07/02/2026\n"}
    for name, text in bios.items():
        put(root / f"sys/class/dmi/id/bios_{name}", text)
    assert describe.firmware(agent("spark1")) == {
        "firmware": "28.45.4028",
        "bios": "American Megatrends 5.36_0ACUM018 07/02/2026",
    }
    assert describe.firmware(agent("spark2")) == {"firmware": "", "bios": ""}


def test_the_round_trip_from_a_real_agent(agent):
    with socket.create_server(("127.0.0.1", 0), backlog=describe.TRIES) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        assert describe.round_trip_ms(agent(), url) > 0
    assert describe.round_trip_ms(agent(), url) is None, "nothing listens there any more"
