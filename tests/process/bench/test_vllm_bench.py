"""`vllm bench serve` on the head: its container, its arguments, and no secret."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from bench_runs import suite_of
from factories import make_node, make_recipe
from serve_plans import bare_server, deployment_for

from spark_cluster.bench import generators, open_loop
from spark_cluster.bench.expansion import At, Measurement, expand
from spark_cluster.bench.record import CellKey

SUITE = suite_of(
    tool="vllm-bench", prompt=[64], output=[8], request_rate=[2], requests=10, runs=3,
    slo={"ttft_ms": 500, "tpot_ms": 50, "itl_ms": 100},
)  # fmt: skip
(CELL,) = expand(SUITE).cells
URL = "http://127.0.0.1:8000/v1"
FOLDER = "/var/lib/spark-cluster/bench/r/000-s"
SECRET = "sesame-1234"
BENCH = generators.of(SUITE)


def at(**changed: Any) -> At:
    about: dict[str, Any] = {
        "image": "vllm:1", "model_path": "/srv/models/paris",
        "flags": {"dtype": "bfloat16", "trust-remote-code": True, "tokenizer-mode": "mistral"},
        "mounts": ("/opt/vllm:/opt/vllm",), "env": {"OMP_NUM_THREADS": "1", "HF_HOME": "/hub"},
        "secret_env": {"HF_TOKEN": SECRET}, "ray_token": SECRET,
    }  # fmt: skip
    server = bare_server("spark1", **{**about, **changed})
    one = deployment_for(make_recipe(), make_node("spark1"))
    return At(SUITE, replace(one, servers=(server,)), URL, FOLDER)


def how(**changed: Any) -> Measurement:
    return BENCH.measurement(at(**changed), CELL)


def test_each_run_has_a_seed_and_a_result_of_its_own():
    found = how().runs
    assert [run.argv[run.argv.index("--seed") + 1] for run in found] == ["1", "2", "3"]
    assert [run.prints for run in found] == [f"{CELL.id}.{n}.json" for n in (1, 2, 3)]
    text = " ".join(found[0].argv)
    assert f"/tmp/{CELL.id}.1.json vllm bench serve --backend" in text
    assert "--tokenizer /srv/models/paris" in text
    assert "--base-url http://127.0.0.1:8000 --endpoint /v1/chat/completions" in text
    assert "--request-rate 2 --ignore-eos --temperature 0" in text
    assert "--goodput ttft:500 tpot:50 --" in text, "it has none for gaps between tokens"
    assert f"--result-dir /tmp --result-filename {CELL.id}.1.json" in text
    assert text.endswith("--trust-remote-code --tokenizer-mode mistral")
    assert BENCH.limit_s(SUITE, CELL) > 3 * (3600 + 10)


def test_a_closed_loop_has_a_number_of_requests_at_once():
    suite = suite_of(tool="vllm-bench", concurrency=[4])
    load = replace(CELL, key=CellKey(prompt=64, output=8, concurrency=4))
    argv = BENCH.measurement(replace(at(), suite=suite), load).runs[0].argv
    assert argv[argv.index("--max-concurrency") + 1] == "4"
    assert "--goodput" not in argv


def test_the_container_reads_files_and_writes_none():
    measured = how()
    words = measured.runs[0].argv
    text = " ".join(words)
    mounts = [words[i + 1] for i, word in enumerate(words) if word == "--mount"]
    assert mounts == [
        "type=bind,source=/srv/models/paris,target=/srv/models/paris,readonly",
        "type=bind,source=/opt/vllm,target=/opt/vllm,readonly",
    ]
    of_a_hub = " ".join(how(model_path="/hub/models--a--b/snapshots/1").runs[0].argv)
    assert "source=/hub/models--a--b,target=/hub/models--a--b,readonly" in of_a_hub
    assert text.startswith("docker run --rm --name spark-bench --label spark-cluster.bench=load ")
    assert (
        "--user 0:0 --cap-drop ALL --cap-add DAC_OVERRIDE --security-opt no-new-privileges" in text
    )
    assert "--env HF_HUB_OFFLINE=1" in text
    assert "--env HF_HOME=/tmp/huggingface" in text, "caches are its own, also against the recipe"
    assert "--privileged" not in text
    assert words[words.index("vllm:1") + 1 :][:2] == ("python3", "-c")
    assert words[words.index("--entrypoint") + 1] == ""
    assert measured.as_root


def test_no_secret_is_sent():
    for changed in ({}, {"runtime": "venv", "venv": "/opt/venv"}):
        assert SECRET not in json.dumps(asdict(how(**changed)))


def test_an_environment_runs_its_own_vllm_as_the_login_user():
    measured = how(runtime="venv", venv="/opt/venv")
    assert not measured.as_root
    argv = measured.runs[0].argv
    assert argv[:2] == ("/opt/venv/bin/python", "-c")
    assert argv[argv.index("bench") - 1] == "/opt/venv/bin/vllm"
    assert f"--result-dir {FOLDER}/home" in " ".join(argv)
    assert measured.env["VIRTUAL_ENV"] == "/opt/venv"


def test_what_the_program_said_is_in_the_reason():
    output = "run 1 of 3\nValueError: no such tokenizer\nended\n"
    (found,) = BENCH.results(SUITE, CELL, {f"{CELL.id}.log": output})
    assert found.status == "failed"
    assert "it said: ValueError: no such tokenizer" in found.reason


@pytest.fixture
def printed(tmp_path: Path) -> Any:
    """Run a program as in the container, which writes its result and prints progress."""

    def run(program: str) -> tuple[int, str, str]:
        path = tmp_path / "r.json"
        path.write_text("of an earlier run")
        text = f"import json, sys\npath = sys.argv[1]\nprint('progress')\n{program}"
        argv = [sys.executable, "-c", open_loop.PRINTED, str(path), sys.executable, "-c", text]
        done = subprocess.run([*argv, str(path)], capture_output=True, text=True, check=False)
        assert not path.exists()
        return done.returncode, done.stdout, done.stderr

    return run


def test_only_the_result_is_printed(printed):
    assert printed("open(path, 'w').write('{}')") == (0, "{}\n", "progress\n")
    status, out, err = printed("sys.exit('ValueError: boom')")
    assert (status, out) == (1, "")
    assert "ValueError: boom" in err
    assert printed("pass")[:2] == (1, ""), "one that wrote nothing has failed"


def test_a_large_result_is_kept_without_its_tokens(printed):
    data = f"{{'completed': 3, 'itls': [[0.5]], 'generated_texts': ['x' * {5 << 20}]}}"
    status, out, _ = printed(f"json.dump({data}, open(path, 'w'))")
    assert (status, json.loads(out)) == (0, {"completed": 3})
