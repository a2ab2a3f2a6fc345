"""Models with recurrent layers: gated delta nets, Mamba, short convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.kv_oracle.attention import llama
from benchmarks.kv_oracle.question import EXPERTS, TINY, Question


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


def recurrent() -> Iterator[Question]:
    """Yield all questions."""
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
        llama(
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
        llama(
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
        llama(
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
