"""Models without recurrent layers: full attention, windows, chunks, latent vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.kv_oracle.question import EXPERTS, GIB, TINY, Question


def llama(**changed: Any) -> dict[str, Any]:
    """Llama 3.1 8B, with other keys."""
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


def dense() -> Iterator[Question]:
    """Full attention, with and without experts."""
    yield Question("llama-8b", "Llama 3.1 8B", llama())
    yield Question("llama-8b-fp8", "Llama 3.1 8B", llama(), {"kv_cache_dtype": "fp8"})
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


def sliding() -> Iterator[Question]:
    """Windows and chunks."""
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
        llama(
            architectures=["MistralForCausalLM"],
            model_type="mistral",
            sliding_window=4096,
            max_position_embeddings=32768,
        ),
    )
    yield Question(
        "cohere2",
        "Command R7B",
        llama(
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
        llama(
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
        llama(
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


def latent() -> Iterator[Question]:
    """Yield models with one vector a token."""
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


def divided() -> Iterator[Question]:
    """Two GPUs; one with fewer heads than GPUs."""
    two = {"tensor_parallel_size": 2}
    yield Question("llama-8b-tp2", "Llama 3.1 8B", llama(), two)
    yield Question("one-kv-head-tp2", "a model with one KV head", llama(num_key_value_heads=1), two)
    few = {
        "num_hidden_layers": 30,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
    }
    yield Question("gemma4-26b-tp2", "the attention of Gemma 4 26B-A4B", _gemma4(**few), two)
