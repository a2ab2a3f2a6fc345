"""Each rule on what it must find, and on its neighbour that it must leave alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from factories import make_node

from spark_cluster.config.facts import Facts, Interface
from spark_cluster.config.launch import Launch, Volume
from spark_cluster.issues.entries import ORDER
from spark_cluster.issues.rules import lint
from spark_cluster.models.memory_share import utilization
from spark_cluster.models.shape import Attention, Experts, Geometry

GEMMA = "google/gemma-4-31B-it"
MOE = "google/gemma-4-26B-A4B-it"
SITE = "/usr/local/lib/python3.12/dist-packages/vllm/model_executor"
PATCH = (Volume("/p/x_patched.py", f"{SITE}/models/x.py", True), Volume("/c", "/root/.cache/vllm"))


def command(model: str = "org/m", **more: object) -> Launch:
    """A bare `vllm serve` that has nothing wrong with it."""
    args = {"gpu-memory-utilization": 0.5, "host": "127.0.0.1", **more.pop("args", {})}
    args = {flag: value for flag, value in args.items() if value is not None}
    return Launch(model, args=args, origin="command", **more)


def docker(model: str = "org/m", **more: object) -> Launch:
    """A `docker run` that has nothing wrong with it."""
    options = {"gpus": "all", "network": "host", **more.pop("docker", {})}
    options = {name: value for name, value in options.items() if value is not None}
    more.setdefault("volumes", (Volume("/c", "/root/.cache/vllm"),))
    return command(model, image="repo/image:1", digest="sha256:0", docker=options, **more)


def pair(**more: object) -> Launch:
    """Two nodes, started by hand with all that it takes."""
    options = {
        **{"ipc": "host", "ulimit": ["memlock=-1", "stack=67108864"], "device": "/dev/infiniband"},
        **more.pop("docker", {}),
    }
    env = {
        **dict.fromkeys(("VLLM_HOST_IP", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), "x"),
        "RAY_memory_monitor_refresh_ms": "0",
        **more.pop("env", {}),
    }
    env = {name: value for name, value in env.items() if value is not None}
    args = {"distributed-executor-backend": "ray", **more.pop("args", {})}
    return docker(docker=options, env=env, args=args, tp=2, nodes=2, **more)


def recipe(model: str = "org/m", **more: object) -> Launch:
    return Launch(model, **more)


def shape(**more: object) -> Geometry:
    base = {
        **{"name": "m", "model_type": "llama", "layers": 4, "hidden": 64, "vocab": 99},
        **{"intermediate": 128, "dense_layers": 4, "max_positions": 4096},
    }
    return Geometry(**{**base, **more})


def heads(q: int, kv: int) -> Geometry:
    return shape(attention=(Attention("full", 4, q, kv, 16, 16),))


def ids(launch: Launch, geometry: Geometry | None = None, facts=()) -> set[str]:
    return {finding.id for finding in lint(launch, geometry, facts)}


SPEC = {"method": "mtp", "model": "d", "num_speculative_tokens": 4}
OLD = {"vllm": "0.19.0"}
NVFP4_MOE = {"quantization": "nvfp4", "base": MOE}

FOUND = [
    # image, patches
    ("image-not-pinned", recipe(image="a/b:latest"), recipe(image="a/b:latest", digest="sha256:0")),
    ("image-not-pinned", recipe(image="a/b"), recipe(image="own:1")),
    ("image-not-pinned", recipe(image="h:5000/b"), recipe(image="a/b:latest", dockerfile="FROM x")),
    ("revision-not-pinned", recipe(revisions={"a/b": "main"}), recipe(revisions={"a/b": "a" * 40})),
    ("revision-not-pinned", recipe(revisions={"a/b": "b" * 40, "a/draft": "v1"}), recipe()),
    ("mount-of-the-system", docker(volumes=(Volume("/var/run/docker.sock", "/d", True),)),
     docker(volumes=(Volume("/srv/models", "/m"),))),
    ("mount-of-the-system", docker(volumes=(Volume("~/.ssh", "/s", True),)),
     docker(volumes=(Volume("~/models", "/m"),))),
    ("restart-on-failure", docker(docker={"restart": "on-failure:3"}),
     docker(docker={"restart": "unless-stopped"})),
    ("container-owns-the-node", docker(docker={"privileged": True}), docker()),
    ("container-owns-the-node", docker(docker={"cap-add": ["IPC_LOCK", "CAP_SYS_ADMIN"]}),
     docker(docker={"cap-add": "IPC_LOCK"})),
    ("container-owns-the-node", docker(docker={"pid": "host"}),
     docker(docker={"pid": "container:ray"})),
    ("container-owns-the-node", docker(docker={"security-opt": "seccomp=unconfined"}),
     docker(docker={"security-opt": "no-new-privileges"})),
    ("image-overlay-not-pinned",
     recipe(dockerfile="FROM x\nRUN git clone --depth=1 https://x/vllm.git /v"),
     recipe(dockerfile="FROM x\nRUN git clone https://x/vllm.git /v && git checkout 1a2b3c4d")),
    ("patch-path",
     recipe(image="vllm/vllm-openai:v0.30.0",
            volumes=(Volume("/a", "/opt/lib/site-packages/vllm/x.py"),)),
     recipe(image="vllm/vllm-openai:v0.30.0",
            volumes=(Volume("/a", "/usr/local/lib/python3.12/dist-packages/vllm/x.py"),))),
    # flags against each other
    ("tool-choice-without-parser", recipe(args={"enable-auto-tool-choice": True}),
     recipe(args={"enable-auto-tool-choice": True, "tool-call-parser": "hermes"})),
    ("parser-without-tool-choice", recipe(args={"tool-call-parser": "hermes"}),
     recipe(args={"enable-auto-tool-choice": True, "tool-call-parser": "hermes"})),
    ("eager-and-compilation",
     recipe(args={"enforce-eager": True, "compilation-config": {"mode": 3}}),
     recipe(args={"compilation-config": {"mode": 3}})),
    ("eager-cost", recipe(args={"enforce-eager": True}),
     recipe(args={"enforce-eager": True}, env={"VLLM_CPU_KVCACHE_SPACE": "1"})),
    ("batched-tokens-below-seqs", recipe(args={"max-num-batched-tokens": 64, "max-num-seqs": 65}),
     recipe(args={"max-num-batched-tokens": 64, "max-num-seqs": 64})),
    ("batched-tokens-below-seqs",
     recipe(args={"max-num-batched-tokens": 64, "max-num-seqs": 16, "speculative-config": SPEC}),
     recipe(args={"max-num-batched-tokens": 80, "max-num-seqs": 16, "speculative-config": SPEC})),
    ("batched-tokens-below-context",
     recipe(args={"max-num-batched-tokens": 2048, "max-model-len": 4096,
                  "no-enable-chunked-prefill": True}),
     recipe(args={"max-num-batched-tokens": 2048, "max-model-len": 4096})),
    ("kv-bytes-and-share",
     recipe(args={"kv-cache-memory-bytes": "8G", "gpu-memory-utilization": 0.5}),
     recipe(args={"kv-cache-memory-bytes": "8G"})),
    ("compile-cache-lost", docker(volumes=(Volume("/m", "/models"),)), docker()),
    ("compile-cache-lost", docker(env={"VLLM_CACHE_ROOT": "/c"}),
     docker(env={"VLLM_CACHE_ROOT": "/c/vllm"}, volumes=(Volume("/x", "/c/"),))),
    ("ready-wait-short", recipe(ready_timeout_s=240), recipe(ready_timeout_s=900)),
    ("ready-wait-short", recipe(ready_timeout_s=240),
     recipe(ready_timeout_s=240, args={"enforce-eager": True})),
    # Gemma 4
    ("gemma4-pythonic-parser", recipe(GEMMA, args={"tool-call-parser": "pythonic"}),
     recipe("meta-llama/Llama-4", args={"tool-call-parser": "pythonic"})),
    ("gemma4-pythonic-parser",
     recipe("/models/x", base=GEMMA, args={"tool-call-parser": "pythonic"}),
     recipe("google/gemma-3-27b-it", args={"tool-call-parser": "pythonic"})),
    ("gemma4-plain-image-tag", recipe(GEMMA, image="docker.io/vllm/vllm-openai:gemma4"),
     recipe(GEMMA, image="vllm/vllm-openai:gemma4-cu130")),
    ("gemma4-before-0.19", recipe(GEMMA, vllm="0.18.1"), recipe(GEMMA, vllm="0.19.0")),
    ("gemma4-transformers-5.15", recipe(GEMMA, vllm="0.27.1"), recipe(GEMMA, vllm="0.28.0")),
    ("gemma4-transformers-5.15", recipe(GEMMA, vllm="0.26.0"), recipe(GEMMA, vllm="0.25.1")),
    ("gemma4-tie-weights",
     recipe(GEMMA, vllm="0.23.1rc1.dev309", quantization="nvfp4",
            args={"quantization": "modelopt"}),
     recipe(GEMMA, vllm="0.22.1", quantization="nvfp4", args={"quantization": "modelopt"})),
    ("gemma4-tie-weights",
     recipe(GEMMA, vllm="0.24.0", quantization="nvfp4", args={"quantization": "modelopt"}),
     recipe(GEMMA, vllm="0.25.0", quantization="nvfp4", args={"quantization": "modelopt"})),
    ("gemma4-mtp-drafter-bugs",
     recipe(MOE, vllm="0.20.2rc1.dev49", args={"speculative-config": SPEC}),
     recipe(MOE, vllm="0.21.0", args={"speculative-config": SPEC})),
    ("gemma4-mtp-drafter-bugs", recipe(MOE, vllm="0.20.2", args={"speculative-config": SPEC}),
     recipe(MOE, vllm="0.20.2", dockerfile="FROM x", args={"speculative-config": SPEC})),
    ("gemma4-mtp-drafter-bugs", recipe(MOE, vllm="0.20.2", args={"speculative-config": SPEC}),
     recipe(MOE, vllm="0.20.2", args={"speculative-config": SPEC},
            volumes=(Volume("/p", "/x/vllm/model_executor/models/gemma4_mtp.py"),))),
    ("mtp-method-renamed",
     recipe(MOE, vllm="0.30.0", args={"speculative-config": {**SPEC, "method": "gemma4_mtp"}}),
     recipe(MOE, vllm="0.30.0", args={"speculative-config": SPEC})),
    ("mtp-several-nodes", recipe(MOE, vllm="0.21.0", tp=2, args={"speculative-config": SPEC}),
     recipe(MOE, vllm="0.21.0", args={"speculative-config": SPEC})),
    ("gemma4-reasoning-empty", recipe(GEMMA, **OLD, args={"reasoning-parser": "gemma4"}),
     recipe(GEMMA, vllm="0.28.0", args={"reasoning-parser": "gemma4"})),
    ("gemma4-attention-variable", recipe(GEMMA, env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"}),
     recipe("org/m", env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"})),
    ("gemma4-attention-flashinfer", recipe(GEMMA, args={"attention-backend": "flashinfer"}),
     recipe(GEMMA, args={"attention-backend": "TRITON_ATTN"})),
    ("gemma4-batched-tokens-vision",
     recipe(GEMMA, vllm="0.28.0", args={"max-num-batched-tokens": 2048}),
     recipe(GEMMA, vllm="0.28.0",
            args={"max-num-batched-tokens": 2048, "language-model-only": True})),
    # quantization
    ("nvfp4-moe-native-kernels", recipe("x", **NVFP4_MOE, **OLD),
     recipe("x", **NVFP4_MOE, **OLD, args={"moe-backend": "marlin"})),
    ("nvfp4-moe-native-kernels", recipe("x", **NVFP4_MOE, **OLD, args={"moe-backend": "cutlass"}),
     recipe("x", quantization="nvfp4", base=GEMMA, **OLD)),
    ("nvfp4-moe-scale-keys", recipe("bg-digitalservices/Gemma-4-26B-A4B-it-NVFP4", **OLD),
     recipe("nvidia/Gemma-4-26B-A4B-NVFP4", **OLD)),
    ("moe-setting-on-dense", recipe(GEMMA, env={"VLLM_USE_FLASHINFER_MOE_FP4": "0"}),
     recipe(MOE, env={"VLLM_USE_FLASHINFER_MOE_FP4": "0"})),
    ("nvfp4-dense-old-kernels", recipe("x", quantization="nvfp4", vllm="0.18.1"),
     recipe("x", quantization="nvfp4", vllm="0.18.1", env={"VLLM_NVFP4_GEMM_BACKEND": "marlin"})),
    ("nvfp4-dense-marlin",
     recipe(GEMMA, quantization="nvfp4", **OLD, env={"VLLM_NVFP4_GEMM_BACKEND": "marlin"}),
     recipe(GEMMA, quantization="nvfp4", vllm="0.18.0", env={"VLLM_NVFP4_GEMM_BACKEND": "marlin"})),
    ("fp8-31b-scale-keys", recipe("protoLabsAI/gemma-4-31B-it-FP8", vllm="0.19.1rc1.dev31"),
     recipe("protoLabsAI/gemma-4-31B-it-FP8", vllm="0.28.0")),
    ("lm-head-quantised", recipe("nvidia/Qwen3.6-35B-A3B-NVFP4", vllm="0.22.0"),
     recipe("nvidia/Qwen3.6-35B-A3B-NVFP4", vllm="0.22.1")),
    ("kv-scale-names", recipe("nvidia/MiniMax-M2.5-NVFP4", vllm="0.17.1"),
     recipe("nvidia/MiniMax-M2.5-NVFP4", vllm="0.17.2rc1.dev9")),
    ("moe-backend-of-sm100", recipe(args={"moe-backend": "flashinfer_trtllm"}),
     recipe(args={"moe-backend": "flashinfer_cutlass"})),
    ("mxfp4-flashinfer", recipe(env={"VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8": "1"}),
     recipe(env={"VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8": "1"}, args={"mxfp4-backend": "CUTLASS"})),
    ("backend-of-sm100", recipe(engine="sglang", args={"attention-backend": "trtllm_mha"}),
     recipe(engine="sglang", args={"attention-backend": "triton"})),
    ("kind-contradicts-model", recipe(kind="chat", args={"runner": "pooling"}),
     recipe(kind="embedding", args={"runner": "pooling"})),
    ("kind-contradicts-model", recipe(kind="embedding", args={"convert": "classify"}),
     recipe(kind="reranking", args={"runner": "pooling"})),
    ("kind-contradicts-model", recipe(kind="embedding", args={"task": "generate"}),
     recipe(kind="chat", args={"task": "generate"})),
    ("kind-not-served", recipe(kind="image"), recipe(kind="transcription")),
    ("quantization-twice",
     recipe("RedHatAI/gemma-4-26B-A4B-it-FP8-Dynamic", args={"quantization": "fp8"}),
     recipe("RedHatAI/gemma-4-26B-A4B-it-FP8-Dynamic")),
    ("quantization-twice", recipe("RedHatAI/x-w4a16", args={"quantization": "fp8"}),
     recipe("RedHatAI/x", args={"quantization": "fp8"})),
    ("quantization-twice", recipe("x", quantization="awq-int4", args={"quantization": "fp8"}),
     recipe("Qwen/Qwen3-FP8", quantization="fp8", args={"quantization": "fp8"})),
    ("quantization-twice",
     recipe("RedHatAI/gemma-4-31B-it-NVFP4", args={"quantization": "modelopt"}),
     recipe("nvidia/Gemma-4-31B-IT-NVFP4", args={"quantization": "modelopt"})),
    ("quantization-twice", recipe("x", quantization="mxfp4", args={"quantization": "awq"}),
     recipe("x", quantization="awq-int4", args={"quantization": "awq_marlin"})),
    ("quantization-twice", recipe("x", quantization="nvfp4", args={"quantization": "fp8"}),
     recipe("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", quantization="nvfp4",
            args={"quantization": "fp4"})),
    ("online-fp8-load-peak", recipe(GEMMA, quantization="fp8-online"),
     recipe(GEMMA, quantization="fp8")),
    ("fp8-moe-cutlass", recipe(MOE, quantization="fp8", args={"moe-backend": "cutlass"}),
     recipe(MOE, quantization="fp8", args={"moe-backend": "triton"})),
    ("fp8-block-scaled-kernel", recipe("RedHatAI/gemma-4-31B-it-FP8-block"),
     recipe("RedHatAI/gemma-4-31B-it-FP8-block", env={"VLLM_DISABLED_KERNELS": "x"})),
    ("nvfp4-moe-tensor-parallel", recipe("x", **NVFP4_MOE, tp=2, nodes=2),
     recipe("x", **NVFP4_MOE, tp=2, nodes=2, args={"enable-expert-parallel": True})),
    ("gemma4-bf16-experts-wedge", recipe(MOE, quantization="bf16"),
     recipe(MOE, quantization="fp8")),
    ("swap-space-removed", recipe(vllm="0.18.0", args={"swap-space": 4}),
     recipe(vllm="0.17.1", args={"swap-space": 4})),
    ("patched-file", replace(docker(volumes=PATCH), digest=""), docker(volumes=PATCH)),
    ("command-given-twice", docker(given_twice=True), docker()),
    # memory
    ("fastsafetensors-memory", recipe(MOE, args={"load-format": "fastsafetensors"}),
     recipe(MOE, args={"load-format": "instanttensor"})),
    ("fastsafetensors-memory", recipe(MOE, vllm="0.20.1", args={"load-format": "fastsafetensors"}),
     recipe(MOE, vllm="0.28.0", args={"load-format": "fastsafetensors"})),
    ("sglang-fastsafetensors-nodes",
     recipe(engine="sglang", tp=2, args={"load-format": "fastsafetensors"}),
     recipe(engine="sglang", args={"load-format": "fastsafetensors"})),
    ("share-too-high", recipe(args={"gpu-memory-utilization": 0.81}),
     recipe(args={"gpu-memory-utilization": 0.80})),
    ("share-not-given", command(args={"gpu-memory-utilization": None}), recipe()),
    ("ray-memory-monitor", pair(env={"RAY_memory_monitor_refresh_ms": None}), pair()),
    ("ray-memory-monitor", pair(env={"RAY_memory_monitor_refresh_ms": "250"}), pair()),
    # the container
    ("secret-in-sight", docker(env={"HF_TOKEN": "hf_x"}), docker(env={"HF_HOME": "/x"})),
    ("secret-in-sight", docker(env={"AWS_SECRET_ACCESS_KEY": "x"}), docker(env={"MY_KEY": "1"})),
    ("secret-in-sight", docker(env={"OPENAI_KEY": "x"}), docker(env={"TOKENIZERS_X": "x"})),
    ("secret-in-sight", docker(env={"MY_PASS": "x"}), docker(env={"BYPASS": "x"})),
    ("secret-in-sight", docker(env={"A": "hf_abcdefghijklm"}), docker(env={"A": "b"})),
    ("secret-in-sight", command(args={"api-key": "abc"}), command()),
    ("open-to-the-network", command(args={"host": "0.0.0.0"}), command()),
    ("open-to-the-network", command(args={"host": None}),
     command(args={"host": None, "api-key": "$KEY"})),
    ("open-to-the-network", docker(docker={"network": None, "publish": "8000:8000"}),
     docker(docker={"network": None, "publish": "127.0.0.1:8000:8000"})),
    ("open-to-the-network", docker(docker={"network": None, "publish": ["127.0.0.1:1:1", "80"]}),
     docker(docker={"network": None, "publish": "8000:8000"}, env={"VLLM_API_KEY": "$K"})),
    ("container-without-gpu", docker(docker={"gpus": None}), docker()),
    ("memory-limit-blind", docker(docker={"memory": "100g"}), docker()),
    ("container-without-gpu", docker(docker={"gpus": None}),
     docker(docker={"gpus": None, "device": "nvidia.com/gpu=all"})),
    ("pair-without-host-network", pair(docker={"network": "bridge"}), pair()),
    ("pair-without-ipc", pair(docker={"ipc": "private"}), pair(docker={"shm-size": "16g"})),
    ("logind-removes-ipc", docker(docker={"ipc": "host", "user": "1000:1000"}),
     docker(docker={"ipc": "host", "user": "999"})),
    ("logind-removes-ipc", docker(docker={"ipc": "host", "user": "$(id -u):$(id -g)"}),
     docker(docker={"ipc": "host", "user": "vllm"})),
    ("logind-removes-ipc", docker(docker={"ipc": "host", "user": "65534"}),
     docker(docker={"shm-size": "16g", "user": "1000"})),
    ("pair-without-infiniband", pair(docker={"device": "/dev/fuse"}), pair()),
    ("pair-without-memlock", pair(docker={"ulimit": "memlock=8388608"}), pair()),
    ("pair-without-memlock", pair(docker={"ulimit": "stack=1"}),
     pair(docker={"ulimit": "stack=1", "privileged": True})),
    # two nodes
    ("tp-without-executor", command(tp=2, nodes=2), pair()),
    ("tp-without-executor", command(tp=2, nodes=2, args={"distributed-executor-backend": "mp"}),
     command(tp=2, nodes=2, args={"distributed-executor-backend": "mp", "nnodes": 2})),
    ("image-without-ray", recipe(image="vllm/vllm-openai:v0.28.0", executor="ray", tp=2, nodes=2),
     recipe(image="vllm/vllm-openai:v0.28.0", executor="mp", tp=2, nodes=2)),
    ("image-without-ray", recipe(image="nvcr.io/nvidia/vllm:26.05-py3", executor="ray", tp=2),
     recipe(image="nvcr.io/nvidia/vllm:26.02-py3", executor="ray", tp=2)),
    ("nccl-sockets", pair(env={"NCCL_IB_DISABLE": "1"}), pair(env={"NCCL_IB_DISABLE": "0"})),
    ("nccl-one-twin", pair(env={"NCCL_IB_HCA": "=rocep1s0f1:1"}),
     pair(env={"NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1"})),
    ("gid-index-pinned", pair(env={"NCCL_IB_GID_INDEX": ""}),
     docker(env={"NCCL_IB_GID_INDEX": "3"})),
    ("nccl-timeout-variable", recipe(env={"NCCL_TIMEOUT": "60"}), recipe()),
    ("pair-environment", pair(env={"GLOO_SOCKET_IFNAME": None}), pair()),
    ("graphs-across-nodes", recipe(vllm="0.26.0", tp=2, nodes=2),
     recipe(vllm="0.26.0", tp=2, nodes=2, args={"enforce-eager": True})),
]  # fmt: skip


@pytest.mark.parametrize(("name", "sick", "well"), FOUND, ids=[row[0] for row in FOUND])
def test_found_and_not_found(name, sick, well):
    assert name in ids(sick)
    assert name not in ids(well)


def test_a_pasted_line_says_no_kind_that_its_model_could_contradict():
    bert = shape(architectures=("BertModel",))
    assert "kind-contradicts-model" in ids(recipe("org/m"), bert)
    assert "kind-contradicts-model" not in ids(recipe("org/m", origin="command"), bert)


@pytest.mark.parametrize(("asked", "twice"), [("awq", True), ("fp8", True), ("mxfp4", False)])
def test_what_the_checkpoint_says_goes_before_the_flag_of_a_pasted_line(asked, twice):
    kind = {"awq": "awq-int4", "fp8": "fp8-online"}.get(asked, asked)
    line = recipe("org/m", quantization=kind, args={"quantization": asked})
    assert ("quantization-twice" in ids(line, shape(quantization="mxfp4"))) is twice


@pytest.mark.parametrize("launch", [command(), docker(), pair(), recipe()])
def test_nothing_is_wrong(launch):
    assert ids(launch) == set()


def test_errors_come_first():
    args = {"tool-call-parser": "pythonic", "enforce-eager": True}
    launch = recipe(GEMMA, image="a/b", args=args)
    severities = [ORDER[finding.severity] for finding in lint(launch)]
    assert severities == sorted(severities)
    assert {0, 1, 2} == set(severities)


def test_the_secret_is_not_shown():
    launch = docker(env={"HF_TOKEN": "hf_verysecret"}, args={"api-key": "verysecret"})
    assert "verysecret" not in str(lint(launch))


@pytest.mark.parametrize(
    ("tp", "geometry", "bad"),
    [(2, heads(32, 8), False), (2, heads(33, 11), True), (4, heads(32, 6), True),
     (8, heads(32, 4), False), (1, heads(7, 7), False)],
)  # fmt: skip
def test_heads(tp, geometry, bad):
    assert ("heads-do-not-divide" in ids(recipe(tp=tp), geometry)) == bad


def test_the_context_of_the_model():
    launch = recipe(args={"max-model-len": 8192})
    (found,) = lint(launch, shape())
    assert (found.id, found.edit.value) == ("context-beyond-model", 4096)
    assert ids(recipe(args={"max-model-len": 4096}), shape()) == set()
    assert ids(launch) == set()


def test_experts_are_known_by_the_shape_too():
    moe = shape(experts=Experts(8, 2, 4, 32))
    launch = recipe(quantization="nvfp4", vllm="0.19.0")
    assert "nvfp4-moe-native-kernels" in ids(launch, moe)
    assert "nvfp4-moe-native-kernels" not in ids(launch, shape())
    later = recipe(quantization="nvfp4", vllm="0.28.0")
    assert [f.severity for f in lint(later, moe)] == ["info"], "a question decides"


def test_the_share_in_the_light_of_what_the_node_has():
    launch = recipe(args={"gpu-memory-utilization": 0.70})
    assert ids(launch, facts=[make_node("spark1", 118).facts]) == set()
    (tight,) = lint(launch, facts=[make_node("spark1", 90).facts])
    assert (tight.id, tight.severity) == ("share-too-high", "warning")
    assert tight.edit.value == utilization(make_node("spark1", 90).facts.memory)
    (over,) = lint(launch, facts=[make_node("spark1", 60).facts])
    assert over.severity == "error"
    assert "85.2 GiB, spark1 has 60.0 available" in over.found
    (none,) = lint(launch, facts=[make_node("spark1", 5).facts])
    assert none.edit is None
    assert "vram" in none.fix
    assert lint(launch, facts=[Facts()]) == []


def test_a_share_is_an_error_only_where_it_cannot_be():
    """0.9 has served on idle nodes; 0.97 is more than any has."""
    for share, severity in ((0.85, "warning"), (0.9, "warning"), (0.97, "error")):
        (found,) = lint(recipe(args={"gpu-memory-utilization": share}))
        assert found.severity == severity


def test_a_patch_over_an_image_that_moves_is_known_to_fail():
    for image, severity in (("vllm-node-tf5", "error"), ("a/b:0.19", "info")):
        launch = replace(docker(volumes=PATCH), image=image, digest="")
        found = {f.id: f for f in lint(launch)}["patched-file"]
        assert (found.severity, found.found.split(";")[0]) == (severity, "x_patched.py over x.py")


def test_the_share_that_no_one_gave():
    launch = command(args={"gpu-memory-utilization": None})
    severities = [
        lint(launch, facts=facts)[0].severity
        for facts in ((), [make_node("spark1", 118).facts], [make_node("spark1", 110).facts])
    ]
    assert severities == ["warning", "warning", "error"]


def test_the_peak_of_online_quantization():
    big = shape(layers=60, dense_layers=60, hidden=5376, intermediate=21504, vocab=262144)
    launch = recipe(quantization="fp8-online")
    (fine,) = lint(launch, big, [make_node("spark1", 118).facts])
    assert fine.severity == "info"
    (over,) = lint(launch, big, [make_node("spark1", 30).facts])
    assert over.severity == "error"


def test_a_version_that_no_one_knows():
    """Not an error; some are told as `if`, others not at all."""
    launch = recipe("protoLabsAI/gemma-4-31B-it-FP8", quantization="fp8")
    found = {finding.id: finding for finding in lint(launch)}
    assert found["fp8-31b-scale-keys"].severity == "info"
    assert "(if its vLLM is <0.20" in found["fp8-31b-scale-keys"].title
    assert "gemma4-before-0.19" not in found
    assert ids(recipe(GEMMA, vllm="no version")) == ids(recipe(GEMMA))


def test_an_fp8_kv_cache_on_two_nodes():
    launch = Launch(
        "google/gemma-4-31B-it", vllm="0.19.1", args={"kv-cache-dtype": "fp8"}, tp=2, nodes=2
    )
    name = "gemma4-fp8-kv-several-nodes"
    assert name in {f.id for f in lint(launch)}
    for other in (replace(launch, tp=1, nodes=1), replace(launch, vllm="0.22.1")):
        assert name not in {f.id for f in lint(other)}


WHISPER, RERANKER, BERT = (
    shape(architectures=(name,))
    for name in ("WhisperForConditionalGeneration", "Qwen3ForSequenceClassification", "BertModel")
)


@pytest.mark.parametrize(
    ("sick", "well", "geometry"),
    [
        (recipe(), recipe(kind="transcription"), WHISPER),
        (recipe(kind="embedding"), recipe(kind="embedding", args={"convert": "embed"}), RERANKER),
        (recipe(), recipe(kind="reranking"), BERT),
        (recipe(kind="transcription"), recipe(kind="embedding"), BERT),
    ],
)
def test_a_kind_that_the_architecture_contradicts(sick, well, geometry):
    assert "kind-contradicts-model" in ids(sick, geometry)
    assert "kind-contradicts-model" not in ids(sick)
    assert "kind-contradicts-model" not in ids(well, geometry)


def linked(name: str, *interfaces: str) -> Facts:
    return Facts(hostname=name, interfaces=tuple(Interface(i) for i in interfaces))


def test_an_interface_that_a_node_does_not_have():
    """With the nodes at hand; without them nothing is known of their interfaces."""
    nodes = [linked("spark1", "eth0", "enp1s0f1np1"), linked("spark2", "enp1s0f0np0")]

    def found(value: str) -> list[str]:
        launch = recipe(env={"GLOO_SOCKET_IFNAME": value}, tp=2, nodes=2)
        assert "interface-not-found" not in ids(launch)
        told = lint(launch, facts=[*nodes, linked("spark3")])
        return [one.found for one in told if one.id == "interface-not-found"]

    assert found("enp9s9") == ["GLOO_SOCKET_IFNAME=enp9s9, not an interface of spark1, spark2"]
    assert found("enp1s0f1np1")[0].endswith("not an interface of spark2")
    for value in ("enp1s0f1np1,enp1s0f0np0", "=eth0,enp1s0f0np0", "enp", "^lo", "$NAME", ""):
        assert found(value) == [], value
