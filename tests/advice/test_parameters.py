# SPDX-License-Identifier: Apache-2.0
"""Parameters that are counted from a configuration are those of the published checkpoint."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.advice import catalog
from dovetail.advice.config import read
from dovetail.advice.families import ALIASES, FAMILIES
from dovetail.advice.layout import stages
from tests.advice.models import llama, model

PUBLISHED = {
    "bloom-176b": 176_247_271_424,
    "bloom-7b1": 7_069_016_064,
    "command-r-35b": 34_980_831_232,
    "command-r-plus": 103_810_674_688,
    "command-r7b": 8_028_033_024,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "falcon-180b": 179_522_565_120,
    "falcon-40b": 41_303_293_952,
    "gemma-2-27b": 27_227_128_320,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2b": 2_506_172_416,
    "gemma-3-1b": 999_885_952,
    "gemma-7b": 8_537_680_896,
    "gpt-j-6b": 6_050_882_784,
    "gpt-neox-20b": 20_554_567_680,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "granite-3.1-8b": 8_170_848_256,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "mixtral-8x22b": 140_620_634_112,
    "mixtral-8x7b": 46_702_792_704,
    "mpt-7b": 6_649_286_656,
    "olmo-2-32b": 32_234_279_936,
    "olmo-2-7b": 7_298_617_344,
    "olmo-3-7b": 7_298_011_136,
    "olmo-7b": 6_888_095_744,
    "olmoe-1b-7b": 6_919_161_856,
    "opt-350m": 331_196_416,
    "opt-6.7b": 6_658_473_984,
    "phi-2": 2_779_683_840,
    "phi-3-medium": 13_960_238_080,
    "phi-3-mini": 3_821_079_552,
    "phi-3.5-moe": 41_873_153_344,
    "phi-4": 14_659_507_200,
    "pythia-12b": 11_846_072_320,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2-7b": 7_615_616_512,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-14b": 14_768_307_200,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
    "qwen3-8b": 8_190_735_360,
    "smollm2-1.7b": 1_711_376_384,
    "smollm3-3b": 3_075_098_624,
    "stablelm-2-1.6b": 1_644_515_328,
    "starcoder": 15_517_456_384,
    "starcoder2-15b": 15_957_889_024,
    "tinyllama-1.1b": 1_100_048_384,
    "yi-34b": 34_388_917_248,
}
"""What the tensors of the published checkpoints add up to, as Hugging Face counts them."""
ROUNDED = {
    "deepseek-v3": (671e9, 37e9),
    "glm-4.5": (355e9, 32e9),
    "kimi-k2": (1.026e12, 32e9),
    "llama-4-maverick": (400e9, 17e9),
    "qwen2-57b-a14b": (57.41e9, 14.2e9),
}
"""Total and active parameters as reports round them, where what is published has layers that are not counted here."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_as_published(name: str) -> None:
    assert model(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_close_to_published_reports(name: str) -> None:
    total, active = ROUNDED[name]
    assert model(name).parameters == pytest.approx(total, rel=0.01)
    assert model(name).active == pytest.approx(active, rel=0.06)


@pytest.mark.parametrize("entry", catalog.entries(), ids=lambda entry: entry.name)
def test_every_model_has_its_origin_and_can_be_read(entry: catalog.CatalogEntry) -> None:
    found = read(entry.config)
    assert entry.source.count("/") == 1 and entry.licence and len(entry.date) == len("2026-01")
    assert sum(found.by_kind().values()) == found.parameters >= found.active > 0
    assert catalog.find(entry.source.upper()) == entry


def test_every_family_is_held_against_a_published_model() -> None:
    kinds = {model(name).family for name in PUBLISHED | ROUNDED}
    assert {ALIASES.get(kind, kind) for kind in kinds} == FAMILIES.keys()


def test_names_are_there_once() -> None:
    names = [name for entry in catalog.entries() for name in (entry.name, entry.source.casefold())]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["gemma-2-9b", "deepseek-v3", "llama-3.1-70b", "gpt2", "opt-6.7b"])
@given(pp=st.integers(1, 12))
def test_stages_have_all_of_the_model(name: str, pp: int) -> None:
    """A tied head is there once more where it is not with its embedding."""
    whole = model(name)
    found = list(stages(whole, pp))
    assert tuple(layer for stage in found for layer in stage.layers) == whole.layers
    again = whole.vocab * whole.embedded if whole.tied and pp > 1 else 0
    assert sum(stage.parameters(1) for stage in found) == whole.parameters + again


@given(tp=st.sampled_from([1, 2, 4, 8]), kv_heads=st.sampled_from([1, 2, 4, 8]))
def test_ranks_have_all_of_a_layer(tp: int, kv_heads: int) -> None:
    """Keys and values of too few heads are on several ranks, vectors on all."""
    (layer, _, _, _) = read(llama(num_key_value_heads=kv_heads)).layers
    doubled = max(tp // kv_heads, 1) - 1
    kv = 2 * 512 * kv_heads * 64
    assert layer.on_rank(tp) * tp == layer.parameters + doubled * kv + (tp - 1) * layer.vectors
