"""Made-up recipes in the forms of other tools."""

from __future__ import annotations

SPARKRUN_V2 = """\
recipe_version: "2"
model: example/Bison-24B-NVFP4
model_revision: 0123456789abcdef0123456789abcdef01234567
runtime: vllm-ray
container: ghcr.io/example/spark-vllm:1.2
min_nodes: 1
max_nodes: 2

metadata:
  description: A bison on Sparks
  model_dtype: nvfp4
  model_vram: 14.5

mods:
  - fix-bison-template
  - faster-loading

pre_exec:
  - echo ready

defaults:
  host: 0.0.0.0
  port: 8000
  served_model_name: bison
  tensor_parallel: 2
  gpu_memory_utilization: 0.7
  max_model_len: 65536
  draft_tokens: 3
  unused: 1

env:
  VLLM_NO_USAGE_STATS: 1
  HF_TOKEN: ${HF_TOKEN}
  NCCL_IB_HCA: rocep1s0f1

command: |
  vllm serve {model} \\
    --host {host} --port {port} \\
    -tp {tensor_parallel} --distributed-executor-backend ray \\
    --gpu-memory-utilization {gpu_memory_utilization} \\
    --max-model-len {max_model_len} \\
    --speculative-config '{"method":"eagle3","model":"example/bison-eagle3","num_speculative_tokens":{draft_tokens}}' \\
    --enable-prefix-caching
"""  # noqa: E501

SPARKRUN_STRUCTURED = """\
model: example/Crane-8B
runtime: vllm
container: example/vllm:latest
solo_only: true
defaults:
  port: 8001
  tensor_parallel: 1
  max_model_len: 32768
  enforce_eager: true
  enable_prefix_caching: false
  trust_remote_code: false
  speculative_config: {method: mtp, num_speculative_tokens: 2}
  lm_head_dtype: bf16
brand_new: 7
"""

SPARKRUN_SGLANG = """\
model: example/Crane-8B
runtime: sglang
container: example/sglang:latest
defaults: {port: 1}
"""

EUGR = """\
# A recipe for Sparks
recipe_version: "1"
name: Dove 31B, online FP8
description: Serves Dove
model: example/dove-31b-it
container: vllm-node-tf5
build_args:
  - --tf5
mods:
  - mods/fix-dove
cluster_only: true
solo_only: false
defaults:
  port: 8000
  host: 0.0.0.0
  tensor_parallel: 2
  gpu_memory_utilization: 0.8
env: {}
command: |
  vllm serve example/dove-31b-it  \\
    --port {port} --host {host} \\
    --quantization fp8 \\
    --gpu-memory-utilization {gpu_memory_utilization} \\
    --speculative-config '{{"method":"mtp","model":"example/dove-assistant","num_speculative_tokens":4,"moe_backend":"triton"}}' \\
    -tp {tensor_parallel} --distributed-executor-backend ray
"""  # noqa: E501

VLLM_RECIPE = """\
meta:
  title: Finch 30B
  slug: finch-30b
  description: A finch with experts.
  date_added: 2026-01-02
  hardware: {h100: verified, dgx_spark_gb10: verified}
model:
  model_id: example/Finch-30B-A3B
  min_vllm_version: "0.25.0"
  architecture: moe
  context_length: 131072
  base_args: ["--trust-remote-code"]
  base_env: {EXAMPLE_BASE: "1"}
dependencies:
  - {note: sound, command: pip install finch-sound, optional: true}
features:
  tool_calling:
    description: tools
    args: ["--enable-auto-tool-choice", "--tool-call-parser", finch, "--chat-template", a.jinja]
    hardware_overrides:
      dgx_spark_gb10: &plain
        args: ["--enable-auto-tool-choice", "--tool-call-parser", finch]
      rtx_5090: *plain
  reasoning:
    args: ["--reasoning-parser", "finch"]
  text_only:
    args: ["--language-model-only"]
  spec_decoding:
    default_mode: mtp
    modes:
      mtp:
        args: ["--speculative-config", '{"method":"mtp","num_speculative_tokens":3}']
        hardware_overrides:
          dgx_spark_gb10:
            args:
              - "--speculative-config"
              - '{"method":"mtp","num_speculative_tokens":3,"moe_backend":"triton"}'
            env: {EXAMPLE_SPEC: 1}
      eagle3:
        variants: [default]
        args:
          - "--speculative-config"
          - '{"model":"example/finch.eagle3","num_speculative_tokens":2}'
opt_in_features: [text_only, spec_decoding]
variants:
  default:
    precision: bf16
    vram_minimum_gb: 72
  fp8:
    model_id: example/Finch-30B-A3B-FP8
    precision: fp8
    vram_minimum_gb: 36
    extra_args: ["--kv-cache-dtype", "fp8", "--max-num-seqs", "64"]
    supported_hardware: [h100]
  nvfp4:
    model_id: example/Finch-30B-A3B-NVFP4
    precision: nvfp4
    vram_minimum_gb: 20
    min_vllm_version: "0.28.0"
    docker_image: vllm/vllm-openai:v0.28.0
    extra_args: ["--max-num-seqs", "64"]
    hardware_overrides:
      blackwell:
        extra_args: ["--enable-chunked-prefill", "--max-model-len 8192"]
      dgx_spark_gb10:
        docker_image: example/spark-vllm:dated
        docker_serve_command: vllm serve
        extra_args: ["--max-num-seqs", "8", "--gpu-memory-utilization", "0.5"]
        extra_env: {EXAMPLE_SPARK: "1"}
      rtx_5090:
        extra_args: ["--max-num-seqs", "1"]
compatible_strategies: [single_node_tp, multi_node_tp, multi_node_dep]
hardware_overrides:
  nvidia:
    extra_args: ["--block-size", "64"]
  blackwell:
    extra_args: ["--no-enable-chunked-prefill"]
  amd:
    extra_env: {EXAMPLE_AMD: "1"}
strategy_overrides: {}
guide: |
  ## Overview
  Text with `vllm serve` in it.
"""
