# SPDX-License-Identifier: Apache-2.0
"""Families of decoders in Hugging Face Transformers, by `model_type`: the names of the fields in their config.json, and
the facts that are only in the code of Transformers.

Source: `configuration_*.py` and `modeling_*.py` of Transformers (Apache-2.0), as of 2025. The tests compare each family
with a published checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

NO_WINDOW, ALL, ALTERNATE, PATTERN, UPPER, CHUNKS = "", "all", "alternate", "pattern", "upper", "chunks"
"""The layers with a window, without `layer_types`: none, all, every other one from the first, all but every n-th, those
from `max_window_layers` on if `use_sliding_window`, three of four in chunks."""
NONE, EACH_HEAD, WHOLE = "", "head", "whole"
"""Norms of queries and keys: none, one of the size of a head, or one over all heads."""


class Family(Struct, frozen=True):
    """Names of fields, then fixed values or the names of the fields that have them.

    `norms` is the number of norms of a layer, `norm_vectors` the vectors of each: 0 none, 1 a weight, 2 also a bias.
    `positions_offset` is the number of learned positions beyond the context; -1: positions are not learned.
    `width_factor` replaces a missing width, in units of the hidden size. `required` lists further required fields."""

    layers: str = "num_hidden_layers"
    hidden: str = "hidden_size"
    heads: str = "num_attention_heads"
    kv_heads: str = "num_key_value_heads"
    width: str = "intermediate_size"
    vocab: str = "vocab_size"
    context: str = "max_position_embeddings"
    experts: str = ""
    expert_width: str = "moe_intermediate_size"
    shared_width: str = ""
    shared_experts: str = ""
    shared_gate: bool = False
    router_vectors: int = 0
    expert_bias: bool = False
    first_dense: str = ""
    moe_step: str = ""
    width_factor: int = 0
    gated: bool = True
    tied: bool = False
    norms: int = 2
    norm_vectors: int = 1
    outer_norms: int = 1
    qkv_bias: bool | str = False
    out_bias: bool | str = False
    mlp_bias: bool | str = False
    head_bias: bool | str = False
    qk_norm: str = NONE
    qk_norm_if: str = ""
    sinks: bool = False
    latent: bool = False
    positions_offset: int = -1
    window: str = NO_WINDOW
    dropout: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()


_LLAMA = Family(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")
_MISTRAL = Family(window=ALL)
_QWEN2 = Family(qkv_bias=True, window=UPPER)
_QWEN3 = Family(
    qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=EACH_HEAD, window=UPPER,
    defaults={"head_dim": 128},
)  # fmt: skip
_GEMMA = Family(tied=True, required=("head_dim",))
_DEEPSEEK = Family(
    latent=True, experts="n_routed_experts", shared_experts="n_shared_experts", first_dense="first_k_dense_replace",
    moe_step="moe_layer_freq", required=("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
)  # fmt: skip
_GPT2 = Family(
    layers="n_layer", hidden="n_embd", heads="n_head", kv_heads="", width="n_inner", context="n_positions",
    width_factor=4, gated=False, tied=True, norm_vectors=2, qkv_bias=True, out_bias=True, mlp_bias=True,
    positions_offset=0, dropout=True,
)  # fmt: skip
_NEOX = Family(
    kv_heads="", gated=False, norm_vectors=2, qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias=True,
    defaults={"attention_bias": True},
)  # fmt: skip
_OLMO2 = Family(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=WHOLE)

FAMILIES: Mapping[str, Family] = {
    "bloom": Family(
        layers="n_layer", heads="n_head", kv_heads="", width="n_inner", context="seq_length", width_factor=4,
        gated=False, tied=True, norm_vectors=2, outer_norms=2, qkv_bias=True, out_bias=True, mlp_bias=True,
        dropout=True,
    ),
    "cohere": Family(
        tied=True, norms=1, qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=WHOLE,
        qk_norm_if="use_qk_norm",
    ),
    "cohere2": Family(
        tied=True, norms=1, qkv_bias="attention_bias", out_bias="attention_bias", window=PATTERN,
        defaults={"sliding_window_pattern": 4},
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": replace(_DEEPSEEK, router_vectors=1),
    "falcon": Family(
        kv_heads="num_kv_heads", width="ffn_hidden_size", width_factor=4, gated=False, tied=True, norms=1,
        norm_vectors=2, qkv_bias="bias", out_bias="bias", mlp_bias="bias",
        defaults={"max_position_embeddings": 2048},
    ),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, norms=4, window=ALTERNATE),
    "gemma3_text": replace(
        _GEMMA, norms=4, qk_norm=EACH_HEAD, window=PATTERN, required=(),
        defaults={
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208,
            "sliding_window": 4096, "sliding_window_pattern": 6, "max_position_embeddings": 131_072,
        },
    ),
    "glm4_moe": Family(
        qkv_bias="attention_bias", qk_norm=EACH_HEAD, qk_norm_if="use_qk_norm", experts="n_routed_experts",
        shared_experts="n_shared_experts", first_dense="first_k_dense_replace", router_vectors=1,
    ),
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gpt_neox": _NEOX,
    "gpt_oss": Family(
        qkv_bias=True, out_bias=True, experts="num_local_experts", expert_width="intermediate_size", expert_bias=True,
        router_vectors=1, sinks=True, window=ALTERNATE, required=("head_dim",),
    ),
    "gptj": replace(
        _GPT2, tied=False, norms=1, qkv_bias=False, out_bias=False, head_bias=True, positions_offset=-1,
    ),
    "granite": _LLAMA,
    "llama": _LLAMA,
    "llama4_text": Family(
        qkv_bias="attention_bias", out_bias="attention_bias", width="intermediate_size_mlp",
        experts="num_local_experts", expert_width="intermediate_size", shared_width="intermediate_size",
        moe_step="interleave_moe_layer_step", window=CHUNKS, required=("head_dim",),
        defaults={"interleave_moe_layer_step": 1, "attention_chunk_size": 8192},
    ),
    "mistral": _MISTRAL,
    "mixtral": replace(_MISTRAL, experts="num_local_experts", expert_width="intermediate_size"),
    "mpt": Family(
        layers="n_layers", hidden="d_model", heads="n_heads", kv_heads="kv_n_heads", width="ffn_hidden_size",
        context="max_seq_len", width_factor=4, gated=False, tied=True,
    ),
    "olmo": Family(norm_vectors=0, outer_norms=0, qkv_bias="attention_bias", out_bias="attention_bias"),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, window=PATTERN, defaults={"sliding_window_pattern": 4}),
    "olmoe": replace(_OLMO2, experts="num_experts", expert_width="intermediate_size"),
    "opt": Family(
        kv_heads="", width="ffn_dim", gated=False, tied=True, norm_vectors=2, qkv_bias=True, out_bias=True,
        mlp_bias=True, positions_offset=2, dropout=True,
    ),
    "phi": Family(
        gated=False, norms=1, norm_vectors=2, qkv_bias=True, out_bias=True, mlp_bias=True, head_bias=True,
    ),
    "phi3": Family(window=ALL),
    "phimoe": Family(
        norm_vectors=2, qkv_bias="attention_bias", out_bias="attention_bias", head_bias="lm_head_bias",
        experts="num_local_experts", expert_width="intermediate_size", window=ALL,
    ),
    "qwen2": _QWEN2,
    "qwen2_moe": replace(
        _QWEN2, experts="num_experts", shared_width="shared_expert_intermediate_size", shared_gate=True,
        moe_step="decoder_sparse_step",
    ),
    "qwen3": _QWEN3,
    "qwen3_moe": replace(_QWEN3, experts="num_experts", moe_step="decoder_sparse_step"),
    "smollm3": _LLAMA,
    "stablelm": Family(norm_vectors=2, qkv_bias="use_qkv_bias"),
    "starcoder2": Family(
        gated=False, tied=True, norm_vectors=2, qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias",
        window=ALL, defaults={"use_bias": True},
    ),
}  # fmt: skip
ALIASES = {
    "gemma3": "gemma3_text",
    "kimi_k2": "deepseek_v3",
    "llama4": "llama4_text",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
"""Other `model_type` values of the same decoder."""
GENERIC = _LLAMA
"""The family of a `model_type` that is not in the table, if it has the fields."""
OTHERWISE = {
    "is_encoder_decoder": "an encoder and a decoder",
    "state_size": "state-space layers",
    "mamba_d_state": "state-space layers",
    "mamba_num_heads": "state-space layers",
    "ssm_cfg": "state-space layers",
    "linear_num_value_heads": "linear attention",
    "linear_attn_config": "linear attention",
    "hybrid_override_pattern": "layers of several kinds",
    "layers_block_type": "layers of several kinds",
    "kv_lora_rank": "latent attention",
    "num_experts": "experts",
    "num_local_experts": "experts",
    "n_routed_experts": "experts",
    "moe_num_experts": "experts",
}
"""Fields of models with another structure than Llama, and the name of that structure."""
