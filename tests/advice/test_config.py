# SPDX-License-Identifier: Apache-2.0
"""A config.json is read as written, and an error names the field that cannot be read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.advice.config import ModelConfigError, read
from dovetail.advice.families import FAMILIES
from tests.advice.models import llama


def without(*names: str, **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in llama(**changes).items() if key not in names}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, "model_type: missing; is this a config.json?"),
        ({"model_type": 3}, "model_type: 3 is no name"),
        (without("vocab_size", "intermediate_size"), "model_type 'llama' lacks vocab_size, intermediate_size"),
        (
            {"model_type": "llama"},
            "lacks num_hidden_layers, hidden_size, vocab_size, num_attention_heads, intermediate_size",
        ),
        ({"model_type": "mixtral"} | without("model_type"), "lacks num_local_experts, num_experts_per_tok"),
        (
            without("hidden_size", model_type="newest"),
            "model_type 'newest' is not known, and as a decoder like Llama lacks hidden_size",
        ),
        (llama(model_type="newest", num_experts=8), r"has experts \(num_experts\)"),
        (llama(model_type="t5", is_encoder_decoder=True), "has an encoder and a decoder"),
        (llama(model_type="mamba", state_size=16), "has state-space layers"),
        (llama(model_type="bert", architectures=["BertForMaskedLM"]), "'BertForMaskedLM' is not a decoder"),
        (llama(layer_types=["full_attention"] * 3 + ["conv"]), "layer_types: conv cannot be reckoned yet"),
        (llama(layer_types=["full_attention"]), "layer_types: 1 for 4 layers"),
        (llama(hidden_size="512"), "hidden_size: '512' is not a whole number"),
        (llama(hidden_size=512.5), "hidden_size: 512.5 is not a whole number"),
        (llama(hidden_size=True), "hidden_size: True is not a whole number"),
        (llama(hidden_size=0), "hidden_size: 0 is not from 1 to"),
        (llama(vocab_size=-1), "vocab_size: -1 is not from 1 to"),
        (llama(num_hidden_layers=10**9), "num_hidden_layers: 1000000000 is not from 1 to 10000"),
        (llama(hidden_size=10**30), "hidden_size: 10+ is not from"),
        (llama(num_attention_heads=7), "num_attention_heads: 7 heads do not divide hidden_size 512"),
        (llama(num_key_value_heads=3), "num_key_value_heads: 3 does not divide the 8 of num_attention_heads"),
        (llama(tie_word_embeddings="yes"), "tie_word_embeddings: 'yes' is neither true nor false"),
        (
            llama(model_type="mixtral", num_local_experts=2, num_experts_per_tok=3),
            "num_experts_per_tok: 3 of 2 experts",
        ),
        ({"model_type": "deepseek_v3"} | without("model_type"), "lacks kv_lora_rank, qk_nope_head_dim"),
        ({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 99}, "lacks n_positions"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(config: dict[str, Any], expected: str) -> None:
    with pytest.raises(ModelConfigError, match=expected):
        read(config)


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_reports_missing_fields(kind: str) -> None:
    with pytest.raises(ModelConfigError, match=f"model_type '{kind}' lacks "):
        read({"model_type": kind})


_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 70), st.text(max_size=3), st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)  # fmt: skip
_NAMES = st.sampled_from(
    [*llama(), "head_dim", "layer_types", "sliding_window", "quantization_config", "text_config", "attn_config",
     "num_local_experts", "num_experts_per_tok", "kv_lora_rank", "first_k_dense_replace", "mlp_only_layers",
     "multi_query", "architectures", "torch_dtype"]
)  # fmt: skip


@given(kind=st.sampled_from(["newest", *FAMILIES]), changes=st.dictionaries(_NAMES, _VALUES, max_size=4))
def test_any_configuration_is_read_or_refused(kind: str, changes: dict[str, Any]) -> None:
    config = llama(model_type=kind) | {name: value for name, value in changes.items() if name != "model_type"}
    try:
        found = read(config)
    except ModelConfigError as error:
        assert str(error)
    else:
        assert found.parameters > 0


def test_an_unknown_decoder_counts_as_llama_with_a_note() -> None:
    newest = read(llama(model_type="newest", architectures=["NewestForCausalLM"]))
    assert newest.parameters == read(llama()).parameters
    assert newest.notes == ("model_type 'newest' is not known: taken for a decoder like Llama",)


def test_of_a_model_that_sees_the_decoder_is_read() -> None:
    inner = llama(model_type="qwen2_5_vl_text")
    outer = {"model_type": "qwen2_5_vl", "tie_word_embeddings": True, "text_config": inner, "vision_config": {}}
    found = read(outer)
    assert found.tied and found.notes == ("only the decoder (text_config) is counted, not what sees or hears",)
    assert read(llama(model_type="qwen2_5_vl", vision_config={})).notes


def test_gemma_3_leaves_out_what_is_as_in_the_code() -> None:
    """As in the config.json of gemma-3-4b."""
    short = {"hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34, "sliding_window": 1024}
    found = read({"model_type": "gemma3", "text_config": short | {"model_type": "gemma3_text"}})
    assert found.parameters == 3_880_263_168
    assert sum(layer.attention.window == 0 for layer in found.layers) == 5


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, [0, 0, 0, 0]),
        ({"model_type": "mistral", "sliding_window": 256}, [256] * 4),
        ({"model_type": "mistral", "sliding_window": None}, [0] * 4),
        ({"model_type": "gemma2", "sliding_window": 256, "head_dim": 64}, [256, 0, 256, 0]),
        ({"model_type": "olmo3", "sliding_window": 256}, [256, 256, 256, 0]),
        ({"model_type": "qwen2", "sliding_window": 256, "use_sliding_window": False, "max_window_layers": 2}, [0] * 4),
        (
            {"model_type": "qwen2", "sliding_window": 256, "use_sliding_window": True, "max_window_layers": 2},
            [0, 0, 256, 256],
        ),
        (
            {"layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 256},
            [0, 256, 0, 256],
        ),
    ],
)  # fmt: skip
def test_windows_of_layers(changes: dict[str, Any], windows: list[int]) -> None:
    assert [layer.attention.window for layer in read(llama(**changes)).layers] == windows


@pytest.mark.parametrize(
    ("changes", "routed"),
    [
        ({"first_k_dense_replace": 1}, [0, 8, 8, 8]),
        ({"first_k_dense_replace": 0, "moe_layer_freq": 2}, [8, 0, 8, 0]),
    ],
)
def test_which_layers_have_experts(changes: dict[str, Any], routed: list[int]) -> None:
    experts = {
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "kv_lora_rank": 64,
        "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
    }  # fmt: skip
    found = read(llama(model_type="deepseek_v2", **experts, **changes))
    assert [layer.mlp.experts for layer in found.layers] == routed


def test_every_other_layer_of_qwen_may_have_experts() -> None:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
    found = read(llama(model_type="qwen3_moe", decoder_sparse_step=2, mlp_only_layers=[3], **experts))
    assert [layer.mlp.experts for layer in found.layers] == [0, 8, 0, 0]


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        ({}, "bf16"),
        ({"torch_dtype": "float16"}, "fp16"),
        ({"torch_dtype": "float32"}, "bf16"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "int4"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, "int8"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "int4"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "nf4"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "int8"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"}}, "fp8"),
        ({"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}}, "int4"),
    ],
)  # fmt: skip
def test_the_format_of_the_checkpoint(config: dict[str, Any], weights: str) -> None:
    found = read(llama(**config))
    assert (found.weights, found.notes) == (weights, ())


def test_an_unknown_format_is_reported() -> None:
    found = read(llama(quantization_config={"quant_method": "newest"}))
    assert found.weights == "bf16"
    assert found.notes == ("quantization_config: 'newest' is unknown, so 16 bits are assumed; set --weights otherwise",)


@pytest.mark.parametrize(
    ("changes", "norms"),
    [
        ({"parallel_attn": True}, 1),
        ({"parallel_attn": False}, 2),
        ({"new_decoder_architecture": True}, 2),
        ({"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}, 1),
    ],
)
def test_norms_of_falcon(changes: dict[str, Any], norms: int) -> None:
    assert {layer.norms for layer in read(llama(model_type="falcon", **changes)).layers} == {norms}
