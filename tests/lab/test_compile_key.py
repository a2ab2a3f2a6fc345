"""The lists of what makes another compile key, against the hashes of the vLLM that the lab has.

It is vLLM's CPU build, so the compiler's part of the key (GPU, CUDA, Triton) is not compared.
"""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path

import pytest

from spark_cluster.engine import compile_key
from spark_cluster.lab.layout import Layout

pytestmark = [pytest.mark.lab, pytest.mark.soak]

ENTERS = (
    "--max-model-len=512",
    "--max-num-seqs=4",
    "--max-num-batched-tokens=4096",
    "--kv-cache-dtype=fp8",
    "--dtype=float32",
    "--trust-remote-code",
    "--max-logprobs=5",
    "--generation-config=vllm",
    "--enforce-eager",
    "--block-size=64",
    "--no-async-scheduling",
    "--moe-backend=triton",
    '--override-generation-config={"temperature": 0.5}',
    '--hf-overrides={"x": 1}',
    "--enable-lora",
    "--cpu-offload-gb=1",
    "--revision=abc",
    "--attention-backend=TRITON_ATTN",
)
DOES_NOT_ENTER = (
    "--seed=5",
    "--served-model-name=x",
    "--gpu-memory-utilization=0.5",
    "--kv-cache-memory-bytes=64M",
    "--no-enable-prefix-caching",
    "--no-enable-chunked-prefill",
    "--load-format=dummy",
    "--reasoning-parser=qwen3",
    "--tokenizer-mode=slow",
    "--disable-custom-all-reduce",
    "--scheduling-policy=priority",
    "--safetensors-load-strategy=eager",
    '--limit-mm-per-prompt={"image": 1}',
    "--prefix-caching-hash-algo=sha256",
    "--stream-interval=4",
    "--config-format=hf",
)
VARIABLES = {
    "VLLM_PP_LAYER_PARTITION": True,
    "VLLM_CPU_OMP_THREADS_BIND": True,
    "CUDA_HOME": True,
    "VLLM_LOGGING_LEVEL": False,
    "VLLM_HOST_IP": False,
    "VLLM_RPC_BASE_PATH": False,
    "NCCL_DEBUG": False,
    "RAY_ADDRESS": False,
}
ASK = """
import json, os, sys
from vllm import envs
from vllm.config.utils import hash_factors
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

asked = json.loads(sys.argv[1])

def key(*args):
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    given = parser.parse_args(["--model", asked["model"], "--max-model-len=1024", *args])
    return EngineArgs.from_cli_args(given).create_engine_config().compute_hash()

def variables(**more):
    os.environ.update(more)
    found = hash_factors(envs.compile_factors())
    for name in more:
        del os.environ[name]
    return found

base, alone = key(), variables()
told = {flag: key(flag) != base for flag in asked["flags"]}
told |= {name: variables(**{name: "1,1"}) != alone for name in asked["variables"]}
print("TOLD" + json.dumps(told))
"""


@cache
def told(home: Path) -> dict[str, bool]:
    """Flag or variable to whether it makes another hash in this vLLM."""
    prepared = Layout.default().prepared
    asked = {
        "model": str(prepared / "models/paris"),
        "flags": [*ENTERS, *DOES_NOT_ENTER],
        "variables": list(VARIABLES),
    }
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CACHE_ROOT": str(home / "vllm"),
    }
    command = [prepared / "vllm/bin/python", "-c", ASK, json.dumps(asked)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("TOLD"))
    found: dict[str, bool] = json.loads(line[4:])
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    if not (Layout.default().prepared / "vllm/bin/python").exists():
        pytest.skip("the lab's vLLM is not there: spark-cluster lab prepare")
    return told(tmp_path_factory.mktemp("home"))


def test_flags_make_another_key_where_the_lists_say_so(found: dict[str, bool]) -> None:
    effects = {
        f: compile_key.flag_effect(f.lstrip("-").partition("=")[0]) for f in found if f[0] == "-"
    }
    assert effects == {f: "enters" if found[f] else "none" for f in effects}


def test_variables_do_too(found: dict[str, bool]) -> None:
    assert {name: found[name] for name in VARIABLES} == VARIABLES
    assert {name: compile_key.variable_enters(name) for name in VARIABLES} == VARIABLES
