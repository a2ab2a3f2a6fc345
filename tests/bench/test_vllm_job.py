"""The job of `vllm bench serve` on the head: its container, its arguments, and no secret."""

from __future__ import annotations

import json
from typing import Any

from serve_plans import bare_server

from spark_cluster.bench import generators, on_node, vllm_job
from spark_cluster.bench.benchy import Target
from spark_cluster.bench.expansion import expand
from spark_cluster.bench.on_node import Job
from spark_cluster.bench.suite_schema import Suite
from spark_cluster.engine.deployment import Server

SUITE = Suite.model_validate(
    {
        "name": "s", "recipes": ["r"], "tool": "vllm-bench", "prompt": [64], "output": [8],
        "request_rate": [2], "requests": 10, "runs": 3, "slo": {"ttft_ms": 500},
    }
)  # fmt: skip
TARGET = Target("http://127.0.0.1:8000/v1", "paris", "acme/paris", "/srv/models/paris")
FOLDER = "/var/lib/spark-cluster/bench/r/000-s"
SECRET = "sesame-1234"


def deployment(**changed: Any) -> Server:
    about: dict[str, Any] = {
        "image": "vllm:1", "model_path": "/srv/models/paris",
        "flags": {"dtype": "bfloat16", "trust-remote-code": True, "tokenizer-mode": "mistral"},
        "mounts": ("/opt/vllm:/opt/vllm",), "env": {"OMP_NUM_THREADS": "1", "HF_HOME": "/hub"},
        "secret_env": {"HF_TOKEN": SECRET}, "ray_token": SECRET,
    }  # fmt: skip
    return bare_server("spark1", **{**about, **changed})


def job(suite: Suite = SUITE, **changed: Any) -> Job:
    at = {"health": ("http://127.0.0.1:8000/health",), "folder": FOLDER, "user": "nvidia"}
    return generators.job(suite, expand(suite).cells, TARGET, deployment(**changed), **at)


def plan(made: Job) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made.files["vllm.json"])
    return found


def test_each_run_has_a_seed_and_a_file_of_its_own():
    made = job()
    (cell,) = made.cells
    assert cell["argv"] == [*on_node.command(FOLDER, on_node.VLLM_RUNS), cell["id"]]
    runs = plan(made)["cells"][cell["id"]]["runs"]
    assert [run["argv"][run["argv"].index("--seed") + 1] for run in runs] == ["1", "2", "3"]
    assert [run["file"] for run in runs] == [f"{cell['id']}.{n}.json" for n in (1, 2, 3)]
    assert runs[0]["argv"][:3] == ["vllm", "bench", "serve"]
    text = " ".join(runs[0]["argv"])
    assert "--tokenizer /srv/models/paris" in text
    assert "--result-dir /spark-bench" in text
    assert text.endswith("--trust-remote-code --tokenizer-mode mistral")
    assert cell["timeout_s"] > 3 * runs[0]["run_s"] >= 3 * (3600 + 10)


def test_folders_that_root_works_in_are_roots():
    """The login user could put links into folders of its own."""
    made = job()
    assert made.user == "root"
    owners = {getattr(r, "owner", "root") for r in made.resources}
    assert owners <= {"root", None}
    assert f"/{on_node.ARCHIVE}" in "".join(r.id for r in made.resources)
    vision = Suite.model_validate({"name": "v", "recipes": ["r"], "kind": "vision"})
    assert generators.owner(vision, "nvidia") == "nvidia"
    assert generators.owner(vision.model_copy(update={"kind": "load"}), "nvidia") == "nvidia"


def test_the_container_reads_files_and_no_more():
    words = plan(job())["create"]
    text = " ".join(words)
    mounts = [words[i + 1] for i, word in enumerate(words) if word == "--mount"]
    assert mounts == [
        "type=bind,source=/srv/models/paris,target=/srv/models/paris,readonly",
        "type=bind,source=/opt/vllm,target=/opt/vllm,readonly",
        f"type=bind,source={FOLDER}/out,target=/spark-bench",
    ]
    assert "--cap-drop ALL --cap-add DAC_OVERRIDE --security-opt no-new-privileges" in text
    assert "--env HF_HUB_OFFLINE=1" in text
    assert "--env HF_HOME=/tmp/huggingface" in text, "caches are its own, also against the recipe"
    assert "--privileged" not in text
    assert words[-1] == "vllm:1"
    assert words[words.index("--entrypoint") + 1] == ""


def test_no_secret_is_sent():
    for made in (job(), job(runtime="venv", venv="/opt/venv")):
        sent = json.dumps([dict(cell) for cell in made.cells]).encode()
        assert SECRET.encode() not in b"".join([sent, *made.files.values()])


def test_an_environment_runs_its_own_vllm_as_the_login_user():
    made = plan(
        job(
            runtime="venv",
            venv="/opt/venv",
        )
    )
    assert (made["runtime"], made["user"]) == ("venv", "nvidia")
    (cell,) = made["cells"].values()
    argv = cell["runs"][0]["argv"]
    assert argv[:3] == ["/opt/venv/bin/vllm", "bench", "serve"]
    assert f"--result-dir {FOLDER}/out" in " ".join(argv)
    assert made["env"]["VIRTUAL_ENV"] == "/opt/venv"
    assert "create" not in made


def test_what_the_program_said_is_in_the_reason(tmp_path):
    (cell,) = expand(SUITE).cells
    output = "run 1 of 3\nValueError: no such tokenizer\nrun 1: it wrote no result\n"
    (found,) = generators.results(SUITE, cell, tmp_path, output, ())
    assert found.status == "failed"
    assert "it said: ValueError: no such tokenizer" in found.reason
    assert vllm_job.run_s(cell) == 3600 + 2 * 10 / 2
