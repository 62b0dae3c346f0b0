# SPDX-License-Identifier: Apache-2.0
"""The bits of quantised checkpoints, against the sizes of published ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.advice import catalog
from dovetail.advice.architecture import Architecture
from dovetail.advice.config import ModelConfigError, read
from dovetail.advice.layout import ParallelLayout
from dovetail.advice.serving import Serving
from tests.advice.models import llama, model

ONE = ParallelLayout()
Config = dict[str, Any]

_AWQ: Config = {"quant_method": "awq", "bits": 4, "group_size": 128}
_GPTQ: Config = {"quant_method": "gptq", "bits": 4, "group_size": 128}
_NF4: Config = {
    "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
}  # fmt: skip


def compressed(
    weights: Config, ignore: tuple[str, ...] = ("lm_head",), targets: tuple[str, ...] = ("Linear",)
) -> Config:
    group = {"targets": list(targets), "weights": weights}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": list(ignore)}


def quark(**weight: Any) -> Config:
    return {"quant_method": "quark", "global_quant_config": {"weight": weight}, "exclude": ["lm_head"]}


def modelopt(algorithm: str, **more: Any) -> Config:
    return {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"], **more}


def torchao(kind: str, **data: Any) -> Config:
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": kind, "_version": 1, "_data": data}}}


_QUARK = quark(dtype="fp8_e4m3", qscheme="per_tensor")
_TORCHAO = torchao("Int4WeightOnlyConfig", group_size=128)
_INT8: Config = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
_NVFP4: Config = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
_MISTRAL_SMALL: Config = {
    "model_type": "mistral", "hidden_size": 6144, "num_hidden_layers": 56, "num_attention_heads": 48, "head_dim": 128,
    "num_key_value_heads": 8, "intermediate_size": 16_384, "vocab_size": 32_768, "max_position_embeddings": 32_768,
}  # fmt: skip
_PHI_4_MINI: Config = {
    "model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 32, "num_attention_heads": 24,
    "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 200_064, "tie_word_embeddings": True,
    "max_position_embeddings": 131_072,
}  # fmt: skip

# Sizes in bytes: of the safetensors files that the page "Files and versions" of the model on huggingface.co lists, each
# rounded there to 10 MB; `index`: total_size of its model.safetensors.index.json; `mirror`: the files on ai.gitee.com,
# in GiB; `all`: the sum of the repository, less 22 MB of its tokenizer for Phi-4.
# The quantization_config is the usual one of the library with this model, not a copy of its file.
PUBLISHED = [
    # model on huggingface.co, architecture, quantization_config, published bytes, source, error in percent
    ("hiuman/llama-3.1-8B-intruct-awq-quantization", "llama-3.1-8b", _AWQ, 5.73e9, "files", -0.04),
    ("casperhansen/qwq-32b-preview-awq", "qwen2.5-32b", _AWQ, 19.33e9, "files", -0.01),
    ("Satwik11/QwQ-32B-Preview-quantized-autoround-GPTQ-sym-4bit", "qwen2.5-32b", _GPTQ, 19.35e9, "files", -0.03),
    ("Qwen/Qwen2-7B-Instruct-GPTQ-Int4", "qwen2-7b", _GPTQ, 5.19 * 2**30, "mirror", 0.05),
    ("nvidia/Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b", modelopt("FP8"), 9.08e9, "files", 0.01),
    ("weiweiz1/llama3.1-8b-nvfp", "llama-3.1-8b", compressed(_NVFP4), 6.03e9, "files", -0.04),
    ("fsaudm/Meta-Llama-3.1-8B-Instruct-NF4", "llama-3.1-8b", _NF4, 5_702_577_951, "index", -0.004),
    ("unsloth/QwQ-32B-bnb-4bit", "qwen2.5-32b", _NF4, 19.21e9, "files", 0.02),
    ("Pot-l/mistral-7b-bnb-4bit-full-QA", "mistral-7b-v0.1", _NF4, 4.13e9, "files", -0.12),
    ("unsloth/Mistral-Small-Instruct-2409-bnb-4bit", _MISTRAL_SMALL, _NF4, 12.08e9, "files", -0.04),
    ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "llama-3.1-8b", compressed(_INT8), 9.08e9, "files", 0.04),
    ("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", "llama-3.1-70b", compressed(_INT8), 72.7e9, "all", -0.04),
    ("amd/Llama-3.1-8B-Instruct-FP8-KV", "llama-3.1-8b", _QUARK, 9.08e9, "files", 0.01),
    ("amd/Llama-3.2-1B-FP8-KV", "llama-3.2-1b", _QUARK, 1.50e9, "files", -0.10),
    ("predibase/Qwen2.5-32B-Instruct-FP8", "qwen2.5-32b", {"quant_method": "fp8"}, 34.34e9, "files", -0.05),
    ("pytorch/Phi-4-mini-instruct-INT4", _PHI_4_MINI, _TORCHAO, 2.938e9, "all", 0.10),
]  # fmt: skip


def whole(source: str | Config, stated: Config) -> Architecture:
    config = source
    if isinstance(config, str):
        entry = catalog.find(config)
        assert entry is not None
        config = dict(entry.config)
    return read({**config, "quantization_config": stated})


def weights(found: Architecture, tp: int = 1) -> int:
    return Serving(16, weights=found.weights).parts(found, ParallelLayout(tp), 0).weights


@pytest.mark.parametrize(("name", "source", "stated", "size", "of", "error"), PUBLISHED)
def test_checkpoints_are_as_large_as_published(
    name: str, source: str | Config, stated: Config, size: float, of: str, error: float
) -> None:
    found = whole(source, stated)
    assert not found.notes
    assert (weights(found) / size - 1) * 100 == pytest.approx(error, abs=0.02)
    assert abs(error) <= 0.15


def bits(stated: Config, **changes: Any) -> tuple[str, list[float], float]:
    """The name of the formats, the bits of a number of each matrix of the first layer, and of the head."""
    found = read(llama(**changes) | {"quantization_config": stated})
    return found.weights, [round(one / 16_384, 3) for one in found.layers[0].stored], found.head_stored / 16_384


@pytest.mark.parametrize(
    ("stated", "name", "each"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 32}, "int4", 4 + 20 / 32),
        ({"quant_method": "gptq", "bits": 8, "group_size": 64}, "int8", 8 + 24 / 64 + 32 / 512),
        ({"quant_method": "gptq", "bits": 3, "group_size": -1}, "int3", 3 + 19 / 512 + 32 / 512),
        ({"quant_method": "auto-round", "bits": 2, "group_size": 32}, "int2", 2 + 18 / 32),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 8 + 32 / 512),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}, "fp4", 4 + 32 / 64),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 8 + 32 / 16_384),
        ({"quant_method": "fbgemm_fp8"}, "fp8", 8 + 32 / 512),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 2, "group_size": 16}}}, "int2", 4),
        (compressed({"num_bits": 4, "type": "int", "group_size": 128}), "int4", 4 + 16 / 128),
        (compressed({"num_bits": 4, "type": "int", "group_size": 128, "symmetric": False}), "int4", 4 + 20 / 128),
        (compressed({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}), "mxfp4", 4 + 8 / 32),
        (compressed({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 16]}), "fp8", 8.0625),
        (compressed({"num_bits": 4, "type": "int", "strategy": "group"}), "int4", 4 + 16 / 128),
        (modelopt("NVFP4"), "nvfp4", 4.5),
        (modelopt("W4A16_AWQ", group_size=64), "int4", 4 + 16 / 64),
        (modelopt("MXFP8"), "mxfp8", 8.25),
        (quark(dtype="fp4", qscheme="per_group", group_size=32, scale_format="e8m0"), "mxfp4", 4.25),
        (quark(dtype="uint4", qscheme="per_group", group_size=128), "int4", 4 + 20 / 128),
        (torchao("Float8DynamicActivationFloat8WeightConfig"), "fp8", 8 + 32 / 512),
        (torchao("Int8DynamicActivationInt4WeightConfig", group_size=32), "int8", 8.5),
        (torchao("Int4WeightOnlyConfig", group_size=32), "int4", 5),
        ({"quant_method": "torchao", "quant_type": "int4_weight_only", "quant_type_kwargs": {"group_size": 64}},
         "int4", 4.5),
    ],
)  # fmt: skip
def test_scales_and_zero_points_count(stated: Config, name: str, each: float) -> None:
    found, (query, *_), head = bits(stated)
    assert (found, query, head) == (name, round(each, 3), 16)


def test_two_stages_of_quark_store_the_last() -> None:
    last = {"dtype": "int4", "qscheme": "per_channel", "symmetric": True}
    stages = [{"dtype": "fp8_e4m3", "qscheme": "per_tensor"}, last]
    assert bits({"quant_method": "quark", "global_quant_config": {"weight": stages}})[0] == "int4"


QUERIES, OUTPUT, MLP = [0], [3], [4, 5, 6]


@pytest.mark.parametrize(
    ("ignored", "kept"),
    [
        (["lm_head"], []),
        (["re:.*lm_head"], []),
        (["self_attn"], [0, 1, 2, 3]),
        (["re:.*self_attn.*"], [0, 1, 2, 3]),
        (["model.layers.*.self_attn*"], [0, 1, 2, 3]),
        (["re:.*(q_proj|o_proj)$"], QUERIES + OUTPUT),
        ([r"re:model\.layers\.\d+\.mlp\.(gate|up|down)_proj"], MLP),
        ([r"re:.*layers\.[0-1]\.mlp.*"], MLP),
        (["model.layers.0.mlp", "model.layers.1"], MLP),
        (["model.layers.1", "mlp.gate"], []),
        (["model.language_model.layers.0.self_attn.o_proj"], OUTPUT),
        (["re:.*gate$"], []),
        (["model.layers.0.self_attn.qkv_proj"], [0, 1, 2]),
    ],
)
def test_what_is_ignored_keeps_16_bits(ignored: list[str], kept: list[int]) -> None:
    """In the manners of compressed-tensors, Model Optimizer and Transformers."""
    _, found, _ = bits(compressed(_NVFP4, tuple(ignored)))
    assert [i for i, one in enumerate(found) if one == 16] == kept


def test_other_layers_than_those_ignored_are_quantised() -> None:
    found = read(llama(quantization_config=modelopt("FP8", ignore=["model.layers.2.mlp", "lm_head"])))
    assert [sum(bits > 8 << 14 for bits in layer.stored) for layer in found.layers] == [0, 0, 3, 0]
    assert len({id(layer) for layer in found.layers}) == 2, "equal layers are one object"


def test_a_head_that_is_not_ignored_is_quantised_like_any_linear_layer() -> None:
    assert bits(compressed(_NVFP4, ()))[2] == 4.5
    assert bits(_GPTQ | {"lm_head": True})[2] < 5
    assert bits(_NF4)[2] == 16, "Transformers leaves out the head"


def test_modules_of_torchao_with_formats_of_their_own() -> None:
    modules = {
        "_default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 32}},
        "lm_head": {"_type": "Int8WeightOnlyConfig", "_data": {}},
        "model.layers.0.self_attn.q_proj": None,
    }
    stated = torchao("ModuleFqnToConfig", module_fqn_to_config=modules)
    assert bits(stated) == ("int4+int8", [16.0] + [5.0] * 6, 8 + 16 / 512)


def test_each_group_has_its_own_format() -> None:
    groups = {
        "a": {"targets": ["re:.*self_attn.*"], "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}},
        "b": {"targets": ["re:.*mlp.*"], "weights": _NVFP4},
    }
    stated = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": []}
    assert bits(stated) == ("fp8+nvfp4", [8.0] * 4 + [4.5] * 3, 16)
    layers = {
        f"model.layers.{i}.mlp.{each}_proj": {"quant_algo": "NVFP4"}
        for i in range(4)
        for each in ("gate", "up", "down")
    }
    assert bits(modelopt("MIXED_PRECISION", quantized_layers=layers)) == ("nvfp4", [16.0] * 4 + [4.5] * 3, 16)


def test_experts_alone() -> None:
    """gpt-oss: MXFP4 for experts, and Quark's export of the same for Mixtral's names."""
    found = model("gpt-oss-20b")
    named = zip(found.layers[0].matrices, found.layers[0].stored, strict=True)
    assert {matrix.kind for matrix, stored in named if stored < 16 << 14} == {"expert"}
    mixtral = whole("mixtral-8x7b", compressed(_NVFP4, ("lm_head", "re:.*self_attn.*", "re:.*block_sparse_moe.gate")))
    kinds = {m.kind: s / 16_384 for m, s in zip(mixtral.layers[0].matrices, mixtral.layers[0].stored, strict=True)}
    assert kinds == {"attention": 16, "router": 16, "expert": 4.5}


def test_another_format_replaces_that_of_the_checkpoint() -> None:
    found = whole("llama-3.1-8b", modelopt("NVFP4"))
    as_bf16 = Serving(16, weights="bf16").parts(found, ONE, 0).weights
    assert as_bf16 == found.parameters * 2 > 2 * weights(found)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_ranks_together_have_all_of_it(tp: int) -> None:
    found = whole("llama-3.1-8b", modelopt("NVFP4"))
    assert weights(found) <= weights(found, tp) * tp <= weights(found) * 1.01


@pytest.mark.parametrize(
    "pattern", ["re:" + "(a|" * 400 + "b", "re:(a*)*(b*)*" + "(a|b)" * 60, "*a" * 250, "re:" + "(a|b)" * 200_000]
)
def test_patterns_take_no_long_time(pattern: str) -> None:
    """Each takes for ever as a regular expression, or where choices multiply."""
    assert bits(compressed(_NVFP4, (pattern,)))[1][0] == 4.5


def test_too_many_wildcards_are_refused() -> None:
    many = compressed(_NVFP4, tuple(f"model.layers.{i}.*.x" for i in range(30_000)))
    with pytest.raises(ModelConfigError, match="30000 patterns with wildcards, for 50 layers"):
        read(llama(num_hidden_layers=50, quantization_config=many))


_FIELDS = st.sampled_from(
    ["bits", "config_groups", "weights", "group_size", "quant_algo", "quantization", "quantized_layers", "ignore",
     "global_quant_config", "layer_quant_config", "weight", "dtype", "quant_type", "default", "_data", "_type",
     "targets", "dynamic", "module_fqn_to_config",
     "modules_to_not_convert", "weight_block_size", "block_structure", "strategy", "num_bits"]
)  # fmt: skip
_LEAVES = (
    st.none() | st.booleans() | st.integers(-2, 9) | st.sampled_from(["block", "int4", "NVFP4", "re:(", "*", "Linear"])
)
_NESTED = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_FIELDS, inner, max_size=4), max_leaves=8
)


@given(
    method=st.sampled_from(
        ["awq", "bitsandbytes", "compressed-tensors", "fp8", "gptq", "hqq", "modelopt", "quark", "torchao"]
    ),
    fields=st.dictionaries(_FIELDS, _NESTED, max_size=4),
)
@pytest.mark.slow
def test_any_fields_are_read(method: str, fields: Config) -> None:
    found = read(llama(num_hidden_layers=1) | {"quantization_config": {**fields, "quant_method": method}})
    matrices = sum(matrix.parameters for matrix in found.layers[0].matrices)
    assert weights(found) >= (found.parameters - matrices - found.head) * 2 + matrices // 8
