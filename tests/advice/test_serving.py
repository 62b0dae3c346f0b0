# SPDX-License-Identifier: Apache-2.0
"""The memory of serving, against figures that are published."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.advice.config import read
from dovetail.advice.layout import ParallelLayout, PlanError
from dovetail.advice.serving import Serving
from tests.advice.models import GIB, llama, model

ONE = ParallelLayout()


def cache(name: str, context: int, tp: int = 1, kind: str = "bf16") -> int:
    return Serving(context, cache=kind).parts(model(name), ParallelLayout(tp), 0).kv_cache


def test_a_token_of_opt_13b_takes_800_kib() -> None:
    """Kwon et al. (2023), PagedAttention, section 3."""
    config = {
        "model_type": "opt", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40, "ffn_dim": 20_480,
        "vocab_size": 50_272, "max_position_embeddings": 2048,
    }  # fmt: skip
    assert Serving(16).parts(read(config), ONE, 0).kv_cache == 16 * 800 * 1024


def test_latent_attention_caches_four_and_a_half_heads() -> None:
    """DeepSeek-V2 (2024), table 1: 9/2 x the size of a head for each layer, instead of 2 x all heads."""
    assert cache("deepseek-v2", 1600) == 1600 * 60 * 128 * 9 // 2 * 2
    assert cache("deepseek-v2", 1600, tp=8) == cache("deepseek-v2", 1600), "each rank has all of the latent vector"


def test_grouped_queries_share_keys() -> None:
    """Llama 2 70B has 8 key-value heads for 64, and is divided among up to 8 ranks."""
    assert cache("llama-2-70b", 4096) == 4096 * 80 * 2 * 8 * 128 * 2
    assert cache("llama-2-70b", 4096, tp=8) * 8 == cache("llama-2-70b", 4096)
    assert cache("llama-2-70b", 4096, tp=16) == cache("llama-2-70b", 4096, tp=8)


def test_one_key_for_all_queries_is_whole_on_each_rank() -> None:
    assert cache("starcoder", 8192) == 8192 * 40 * 2 * 128 * 2
    assert cache("starcoder", 8192, tp=8) == cache("starcoder", 8192)


def test_a_window_bounds_the_cache() -> None:
    """Jiang et al. (2023), Mistral 7B: at 32k tokens an eighth of the cache. Of Gemma 3 five of six layers see 1024
    tokens, of gpt-oss every other one 128."""
    assert cache("mistral-7b-v0.1", 32_768) * 8 == cache("mistral-7b-v0.3", 32_768)
    layer = 2 * 16 * 128 * 2
    assert cache("gemma-3-27b", 131_072) == (10 * 131_072 + 52 * 1024) * layer
    assert cache("gpt-oss-20b", 131_072) == (12 * 131_072 + 12 * 128) * 2 * 8 * 64 * 2


def test_a_cache_of_eight_bits_is_half() -> None:
    assert cache("llama-3.1-8b", 8192, kind="fp8") * 2 == cache("llama-3.1-8b", 8192)


def test_the_cache_comes_in_blocks() -> None:
    assert cache("llama-3.1-8b", 1) == cache("llama-3.1-8b", 16) < cache("llama-3.1-8b", 17)


@pytest.mark.parametrize(("name", "gib"), [("gpt-oss-120b", 60.8), ("gpt-oss-20b", 12.8)])
def test_checkpoints_of_gpt_oss_are_as_large_as_published(name: str, gib: float) -> None:
    """Model card of gpt-oss (2025), table 1."""
    whole = model(name)
    assert whole.weights == "mxfp4"
    assert Serving(16, weights="mxfp4").parts(whole, ONE, 0).weights / GIB == pytest.approx(gib, abs=0.05)


@pytest.mark.parametrize(
    ("weights", "bits"), [("fp32", 32), ("bf16", 16), ("fp16", 16), ("fp8", 8), ("int8", 8), ("int4", 4), ("nf4", 4)]
)
def test_weights_have_the_bits_of_their_format(weights: str, bits: int) -> None:
    """Scales make up to 4 % of the linear layers; what is outside of them keeps 16 bits, but for 32."""
    whole = model("llama-3.1-70b")
    linear = whole.by_kind()["attention"] + whole.by_kind()["mlp"]
    rest = (whole.parameters - linear) * (4 if bits == 32 else 2)
    found = Serving(16, weights=weights).parts(whole, ONE, 0).weights - rest
    assert linear * bits / 8 <= found <= linear * bits / 8 * 1.04


@given(tp=st.sampled_from([1, 2, 4, 8]), pp=st.sampled_from([1, 2, 5, 32]), weights=st.sampled_from(["bf16", "int4"]))
def test_gpus_together_have_at_least_all_of_it(tp: int, pp: int, weights: str) -> None:
    whole = model("llama-3.1-8b")
    plan = Serving(4096, 4, weights)
    alone, divided = (plan.parts(whole, layout, 0) for layout in (ONE, ParallelLayout(tp, pp)))
    assert divided.weights * tp * pp >= alone.weights
    assert divided.kv_cache * tp * pp >= alone.kv_cache
    assert divided.total <= alone.total + divided.collectives


def test_a_prefill_is_bounded_and_logits_are_of_sequences() -> None:
    whole = model("llama-3.1-8b")
    few, many = (Serving(131_072, prefill=prefill).parts(whole, ONE, 0).activations for prefill in (2048, 8192))
    logits = whole.vocab * 6
    assert (many - logits) == (few - logits) * 4


def test_a_format_of_experts_needs_experts() -> None:
    with pytest.raises(PlanError, match="the model has none"):
        Serving(128, weights="mxfp4").check(read(llama()), ONE)


def test_learned_positions_are_a_bound() -> None:
    with pytest.raises(PlanError, match="2048 tokens: the model has learned positions for 1024"):
        Serving(2048).check(model("gpt2"), ONE)
