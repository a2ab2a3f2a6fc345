"""What real vLLM is asked: one model of every family, small where its KV cache allows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

GIB = 1024**3
TINY = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 64, "dtype": "bfloat16"}
"""Widths that the cache does not depend on."""

CPU_BLOCK = 32
"""Tokens; what vLLM's attention for CPUs can do since 0.29. Models with sliding windows start with
16 too, because their blocks are made longer anyway."""

EXPERTS = {"moe_intermediate_size": 64}

SIZES = (
    (8 * GIB, 32768, 2048),
    (67 * GIB, 32768, 2048),
    (20 * GIB, 65536, 8192),
    (3 * GIB, 4096, 512),
    (50 * GIB, 131072, 4096),
    (GIB // 2, 4096, 2048),  # too little for most
    (7 * GIB + 123_456_789, 30_001, 1999),  # and what divides nothing
    (991 * GIB // 100, 12_345, 333),
)
"""Bytes of cache, tokens of a request, tokens of a batch."""


@dataclass(frozen=True)
class Question:
    """One start of the engine.

    Attributes:
        name: of the case.
        like: which model has this shape.
        config: its config.json.
        engine: further arguments of the engine.
        longest_possible: tokens that the model was made for.
    """

    name: str
    like: str
    config: dict[str, Any]
    engine: dict[str, Any] = field(default_factory=dict)

    @property
    def longest_possible(self) -> int:
        """Tokens that the model was made for."""
        return int(self.config["max_position_embeddings"])

    def document(self) -> dict[str, Any]:
        """As `ask.py` reads it."""
        start = {
            "kv_cache_memory_bytes": 2 * GIB,
            "max_model_len": 2048,
            "max_num_batched_tokens": 256,
            "block_size": CPU_BLOCK,
        }
        return {
            "config": self.config,
            "engine": {**start, **self.engine},
            "more": [
                {
                    "kv_bytes": size,
                    "max_model_len": length,
                    "max_num_batched_tokens": batch,
                    "longest_possible": self.longest_possible,
                }
                for size, length, batch in SIZES
                if length <= self.longest_possible
            ],
        }


def questions() -> list[Question]:
    """All of them."""
    return [*_dense(), *_sliding(), *_recurrent(), *_latent(), *_divided()]


def _llama(**changed: Any) -> dict[str, Any]:
    return {
        **TINY,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        **changed,
    }


def _gemma4(**changed: Any) -> dict[str, Any]:
    return {
        **TINY,
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "num_hidden_layers": 60,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
        "sliding_window": 1024,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
        "enable_moe_block": False,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": True,
        **changed,
    }


def _gemma3(layers: int, heads: int, kv_heads: int, head_dim: int) -> dict[str, Any]:
    return {
        **TINY,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    }


def _dense() -> Iterator[Question]:
    yield Question("llama-8b", "Llama 3.1 8B", _llama())
    yield Question("llama-8b-fp8", "Llama 3.1 8B", _llama(), {"kv_cache_dtype": "fp8"})
    yield Question(
        "qwen3-30b-a3b",
        "Qwen3 30B-A3B",
        {
            **TINY,
            **EXPERTS,
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "max_position_embeddings": 40960,
            "tie_word_embeddings": False,
        },
    )


def _sliding() -> Iterator[Question]:
    full = {"kv_cache_memory_bytes": 8 * GIB, "max_model_len": 32768}
    short = {"block_size": 16}
    yield Question(
        "gemma4-31b", "Gemma 4 31B", _gemma4(), {**full, **short, "max_num_batched_tokens": 2048}
    )
    yield Question("gemma4-31b-block32", "Gemma 4 31B", _gemma4())
    yield Question("gemma4-31b-fp8", "Gemma 4 31B", _gemma4(), {**short, "kv_cache_dtype": "fp8"})
    mixture = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2}
    few = {
        "num_hidden_layers": 30,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
    }
    yield Question("gemma4-26b", "Gemma 4 26B-A4B", _gemma4(**few, **mixture, **EXPERTS), short)
    small = {
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "num_global_key_value_heads": None,
        "attention_k_eq_v": False,
        "num_kv_shared_layers": 20,
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": 512,
        "sliding_window": 512,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
        "max_position_embeddings": 131072,
    }
    yield Question("gemma4-e2b", "Gemma 4 E2B", _gemma4(**small))
    yield Question("gemma3-27b", "Gemma 3 27B", _gemma3(62, 32, 16, 128))
    yield Question("gemma3-12b", "Gemma 3 12B", _gemma3(48, 16, 8, 256), short)
    yield Question(
        "gemma2-9b",
        "Gemma 2 9B",
        {
            **TINY,
            "architectures": ["Gemma2ForCausalLM"],
            "model_type": "gemma2",
            "num_hidden_layers": 42,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
    )
    yield Question(
        "gpt-oss-20b",
        "gpt-oss 20B",
        {
            **TINY,
            "architectures": ["GptOssForCausalLM"],
            "model_type": "gpt_oss",
            "num_hidden_layers": 24,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"] * 12,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": False,
        },
    )
    yield Question(
        "mistral-7b-sliding",
        "Mistral 7B v0.1",
        _llama(
            architectures=["MistralForCausalLM"],
            model_type="mistral",
            sliding_window=4096,
            max_position_embeddings=32768,
        ),
    )
    yield Question(
        "cohere2",
        "Command R7B",
        _llama(
            architectures=["Cohere2ForCausalLM"],
            model_type="cohere2",
            sliding_window=4096,
            layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 8,
            tie_word_embeddings=True,
        ),
    )
    yield Question(
        "olmo3-7b",
        "Olmo 3 7B",
        _llama(
            architectures=["Olmo3ForCausalLM"],
            model_type="olmo3",
            num_key_value_heads=32,
            sliding_window=4096,
            layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 8,
            max_position_embeddings=65536,
        ),
    )
    yield Question(
        "llama4-scout",
        "Llama 4 Scout",
        _llama(
            architectures=["Llama4ForCausalLM"],
            model_type="llama4_text",
            num_hidden_layers=48,
            num_attention_heads=40,
            attention_chunk_size=8192,
            intermediate_size_mlp=64,
            num_local_experts=4,
            num_experts_per_tok=1,
            interleave_moe_layer_step=1,
        ),
    )


def _gdn(**changed: Any) -> dict[str, Any]:
    return {
        **TINY,
        **EXPERTS,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "shared_expert_intermediate_size": 64,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": False,
        **changed,
    }


def _recurrent() -> Iterator[Question]:
    following = {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_hidden_layers": 48,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    yield Question("qwen3-next", "Qwen3-Next 80B-A3B", _gdn(**following))
    yield Question(
        "qwen3-next-uncached",
        "Qwen3-Next 80B-A3B",
        _gdn(**following),
        {"enable_prefix_caching": False},
    )
    # Its own class wants torchvision, which the lab's environment does not have.
    shape = {**following, "num_hidden_layers": 40}
    yield Question("qwen3.6-35b", "Qwen3.6 35B-A3B, as Qwen3-Next", _gdn(**shape))
    yield Question(
        "granite4-h-small",
        "half of Granite 4.0 H Small",
        {
            **TINY,
            "architectures": ["GraniteMoeHybridForCausalLM"],
            "model_type": "granitemoehybrid",
            "hidden_size": 4096,  # its heads and states are as wide as that
            "num_hidden_layers": 20,
            "layer_types": ["attention" if layer in (5, 15) else "mamba" for layer in range(20)],
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "mamba_n_heads": 128,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_n_groups": 1,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 64,
            "position_embedding_type": "nope",
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
        },
    )
    # Its experts do not run on CPUs; where they are does not matter to the cache.
    pattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME".replace("E", "-")
    yield Question(
        "nemotron-nano",
        "Nemotron 3 Nano 30B-A3B without experts",
        {
            **TINY,
            "architectures": ["NemotronHForCausalLM"],
            "model_type": "nemotron_h",
            "num_hidden_layers": 52,
            "hybrid_override_pattern": pattern,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "mamba_num_heads": 64,
            "mamba_head_dim": 64,
            "ssm_state_size": 128,
            "n_groups": 8,
            "conv_kernel": 4,
            "expand": 2,
            "mamba_ssm_cache_dtype": "float32",
            "max_position_embeddings": 262144,
            "tie_word_embeddings": False,
        },
    )
    yield Question(
        "jamba",
        "half of Jamba Mini",
        _llama(
            architectures=["JambaForCausalLM"],
            model_type="jamba",
            hidden_size=4096,  # its heads and states are as wide as that
            num_hidden_layers=16,
            attn_layer_period=8,
            attn_layer_offset=4,
            expert_layer_period=2,
            expert_layer_offset=1,
            mamba_d_state=16,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_dt_rank=256,
            num_experts=4,
            num_experts_per_tok=2,
        ),
    )
    yield Question(
        "falcon-h1",
        "Falcon H1 7B",
        _llama(
            architectures=["FalconH1ForCausalLM"],
            model_type="falcon_h1",
            num_hidden_layers=44,
            num_attention_heads=12,
            num_key_value_heads=2,
            mamba_d_ssm=3072,
            mamba_n_heads=24,
            mamba_d_head=128,
            mamba_d_state=256,
            mamba_n_groups=1,
            mamba_d_conv=4,
            mamba_expand=2,
        ),
    )
    yield Question(
        "lfm2",
        "LFM2 1.2B",
        _llama(
            architectures=["Lfm2ForCausalLM"],
            model_type="lfm2",
            hidden_size=2048,
            num_hidden_layers=16,
            head_dim=64,
            conv_L_cache=3,
            conv_bias=False,
            conv_dim=2048,
            conv_dim_out=2048,
            block_dim=2048,
            block_ff_dim=64,
            block_multiple_of=64,
            block_ffn_dim_multiplier=1.0,
            block_auto_adjust_ff_dim=False,
            layer_types=[
                "full_attention" if layer in (2, 5, 8, 10, 12, 14) else "conv"
                for layer in range(16)
            ],
            tie_word_embeddings=True,
        ),
    )


def _latent() -> Iterator[Question]:
    yield Question(
        "deepseek-v2-lite",
        "DeepSeek-V2-Lite",
        {
            **TINY,
            **EXPERTS,
            "architectures": ["DeepseekV2ForCausalLM"],
            "model_type": "deepseek_v2",
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "greedy",
            "scoring_func": "softmax",
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.0,
            "kv_lora_rank": 512,
            "q_lora_rank": None,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "max_position_embeddings": 163840,
            "tie_word_embeddings": False,
        },
        {"block_size": 16},  # all that its kernels for CPUs do
    )


def _divided() -> Iterator[Question]:
    """Two GPUs; one with fewer heads than GPUs."""
    two = {"tensor_parallel_size": 2}
    yield Question("llama-8b-tp2", "Llama 3.1 8B", _llama(), two)
    yield Question(
        "one-kv-head-tp2", "a model with one KV head", _llama(num_key_value_heads=1), two
    )
    few = {
        "num_hidden_layers": 30,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
    }
    yield Question("gemma4-26b-tp2", "the attention of Gemma 4 26B-A4B", _gemma4(**few), two)
