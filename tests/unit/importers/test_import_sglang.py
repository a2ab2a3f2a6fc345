"""SGLang in recipes of sparkrun and in pasted command lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import InvalidFile
from spark_cluster.importers import commandline
from spark_cluster.importers.files import read_file, write
from spark_cluster.importers.importer import Imported, Source

SPARKRUN = """\
model: example/Crane-8B
runtime: sglang
container: example/sglang:latest
min_nodes: 1
max_nodes: 2
defaults:
  port: 8001
  host: 0.0.0.0
  tensor_parallel: 2
  max_model_len: 32768
  gpu_memory_utilization: 0.6
  tool_call_parser: qwen25
  trust_remote_code: true
  block_size: 16
env: {OMP_NUM_THREADS: 4}
"""

COMMAND = """\
docker run --gpus all -p 30000:30000 -v /data/models:/models lmsysorg/sglang:spark \\
  python3 -m sglang.launch_server --model-path /models/Crane-8B --tp 2 --nnodes 2 --node-rank 0 \\
  --dist-init-addr 192.168.177.11:20000 --host 0.0.0.0 --port 30000 --context-length 65536 \\
  --mem-fraction-static 0.7 --kv-cache-dtype fp8_e4m3 --chunked-prefill-size -1 \\
  --speculative-algo EAGLE3 --speculative-draft example/Crane-EAGLE3 --speculative-num-steps 3 \\
  --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --reasoning-parser qwen3
"""


def imported(folder: Path, text: str) -> tuple[Recipe, Imported]:
    path = folder / "crane.yaml"
    path.write_text(text)
    made = write(read_file(path))
    return loaded(folder, made), made


def loaded(folder: Path, made: Imported) -> Recipe:
    path = folder / f"{made.name}.yaml"
    path.write_text(made.text)
    return load_recipe(path, Project(folder))


def test_a_recipe_of_sparkrun(tmp_path: Path) -> None:
    recipe, made = imported(tmp_path, SPARKRUN)
    assert (recipe.engine, recipe.executor) == ("sglang", "mp")
    assert recipe.image.ref == "example/sglang:latest"
    assert recipe.gpu_memory_utilization == 0.6
    assert recipe.engine_args == {
        "context-length": 32768,
        "tool-call-parser": "qwen25",
        "trust-remote-code": True,
    }
    why = {one.what: one.why for one in made.left_out}
    assert why["defaults.block_size: 16"] == "SGLang has no flag of this name"
    assert "--port 8001" in why


def test_its_command_line_is_sglangs(tmp_path: Path) -> None:
    recipe, _ = imported(tmp_path, SPARKRUN)
    assert recipe.args_for(2) == [
        *("--context-length", "32768", "--mem-fraction-static", "0.6"),
        *("--served-model-name", "example/Crane-8B", "--tool-call-parser", "qwen25"),
        *("--tp-size", "2", "--trust-remote-code"),
    ]


def test_a_pasted_command(tmp_path: Path) -> None:
    launch = commandline.parse(COMMAND)
    assert (launch.engine, launch.tp, launch.nodes, launch.vllm) == ("sglang", 2, 2, None)
    assert launch.number("max-model-len") == 65536
    assert launch.drafted_tokens == 3
    assert "max-num-batched-tokens" not in launch.args, "-1 means no chunks at all"
    recipe = loaded(tmp_path, write(Source(launch)))
    assert recipe.engine == "sglang"
    assert recipe.drafter is not None
    assert (recipe.drafter.method, recipe.drafter.tokens) == ("eagle3", 3)
    assert recipe.engine_args == {
        "context-length": 65536,
        "kv-cache-dtype": "fp8_e4m3",
        "reasoning-parser": "qwen3",
    }
    words = recipe.args_for(2)
    for flag, value in (
        ("--speculative-algorithm", "EAGLE3"),
        ("--speculative-num-steps", "3"),
        ("--speculative-num-draft-tokens", "4"),
        ("--speculative-draft-model-path", "example/Crane-EAGLE3"),
    ):
        assert words[words.index(flag) + 1] == value


def test_an_engine_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="this recipe is for llama-cpp, expected one for vLLM or"):
        imported(tmp_path, SPARKRUN.replace("sglang\ncont", "llama-cpp\ncont"))
