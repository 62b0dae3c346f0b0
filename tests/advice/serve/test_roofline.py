# SPDX-License-Identifier: Apache-2.0
"""The roofline: its limits, against the plain division of bytes and operations by rates, and what grows with what."""

from __future__ import annotations

import pytest
from msgspec.structs import fields, replace

from dovetail.advice import catalog, gpus
from dovetail.advice.config import read
from dovetail.advice.gpus import GpuProduct
from dovetail.advice.layout import ParallelLayout
from dovetail.advice.serve.rates import multiple, rates
from dovetail.advice.serve.roofline import (
    Efficiency,
    InstanceLayout,
    Lengths,
    StepBatch,
    StepModel,
    prefill_s,
    steady,
    tokens_per_s,
)
from dovetail.advice.serve.work import ModelWork, work_of
from dovetail.advice.serving import Serving
from tests.advice.models import llama

IDEAL = replace(
    Efficiency(*(1.0 for _ in fields(Efficiency))), exchange_us=0.0, layer_us=0.0, step_us=0.0, sequence_us=0.0
)
"""All rates are reached, and nothing comes on top."""


def work(name: str, weights: str = "bf16") -> ModelWork:
    entry = catalog.find(name)
    assert entry is not None
    return work_of(read(entry.config), weights, "bf16")


def gpu(name: str) -> GpuProduct:
    found = gpus.named(name)
    assert found is not None
    return found


def model(name: str, on: str, layout: InstanceLayout, weights: str = "bf16") -> StepModel:
    speed = rates(gpu(on), weights, layout.tp * layout.dp)
    assert speed is not None
    return StepModel(work(name, weights), layout, speed, IDEAL)


def test_parameters_and_cache_are_those_of_the_model() -> None:
    for name in ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b"):
        entry = catalog.find(name)
        assert entry is not None
        known, found = read(entry.config), work(name)
        inside = sum(layer.count * (layer.dense + layer.expert) for layer in found.layers)
        assert inside == sum(matrix.parameters for layer in known.layers for matrix in layer.matrices)
    # 2 x 32 layers x 8 heads x 128 x 2 bytes, and one latent vector of 576 numbers in each of 61 layers.
    assert work("llama-3.1-8b").cached(1, 1) == 128 * 1024
    assert work("llama-3.1-8b").cached(1, 4) == 32 * 1024
    assert work("deepseek-v3").cached(1, 8) == 61 * 576 * 2


QUANTISED = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}


@pytest.mark.parametrize("weights", ["bf16", "fp8", "int4", "nvfp4", "stored"])
def test_bytes_of_weights_are_those_of_the_memory_estimate(weights: str) -> None:
    known = read(llama() | ({"quantization_config": QUANTISED} if weights == "stored" else {}))
    form = known.weights if weights == "stored" else weights
    found = work_of(known, form, "bf16").loaded_bytes
    parts = Serving(1024, weights=form).parts(known, ParallelLayout(), 0)
    assert found == pytest.approx(parts.weights, rel=0.001)


def test_a_sequence_alone_takes_the_time_to_read_the_weights() -> None:
    """10.5 ms for 141 GB on four GPUs of 3,350 GB/s."""
    found = model("llama-3.1-70b", "H100-SXM5", InstanceLayout(4)).seconds(StepBatch(1, 1))
    assert found == pytest.approx(10.4e-3, rel=0.03)


def test_a_long_prompt_takes_the_time_of_its_operations() -> None:
    one = model("llama-3.1-70b", "H100-SXM5", InstanceLayout(1))
    parameters = sum(layer.count * layer.dense for layer in one.work.layers)
    prompt = prefill_s(one, Lengths(8192, 8192, 1), 0, 8192)
    assert prompt == pytest.approx(2 * parameters * 8192 / 989e12, rel=0.08)


def test_a_step_reads_only_the_experts_that_a_token_goes_to() -> None:
    one = model("mixtral-8x7b", "H100-SXM5", InstanceLayout(1))
    few, all_of_them = one.seconds(StepBatch(1, 1)), one.seconds(StepBatch(64, 1))
    assert few < all_of_them / 3


def test_adapters_take_memory_and_time() -> None:
    entry = catalog.find("llama-3.1-8b")
    assert entry is not None
    known = read(entry.config)
    plain, some = work_of(known, "bf16", "bf16"), work_of(known, "bf16", "bf16", 4, 16)
    # 41.9 million parameters at rank 16 on all linear layers, as PEFT counts them.
    assert some.adapter == 41_943_040
    assert some.weight_bytes(1, 1) - plain.weight_bytes(1, 1) == 4 * 2 * some.adapter
    one = model("llama-3.1-8b", "H100-SXM5", InstanceLayout())
    slower = replace(one, work=some)
    assert one.seconds(StepBatch(1, 100)) < slower.seconds(StepBatch(1, 100)) < slower.seconds(StepBatch(4, 100))


def test_windows_bound_what_attention_reads() -> None:
    found = work("gpt-oss-20b")
    half = sum(layer.count for layer in found.layers if layer.window)
    assert 0 < half < found.number
    assert found.cached(100_000, 1) < 0.51 * sum(layer.count * layer.cached_bytes * 100_000 for layer in found.layers)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("llama-3.1-70b", InstanceLayout(4)),
        ("llama-3.1-70b", InstanceLayout(8, 2)),
        ("deepseek-v3", InstanceLayout(1, 1, 8, 8)),
    ],
)
def test_more_sequences_give_more_tokens_and_longer_steps(name: str, layout: InstanceLayout) -> None:
    one, lengths = model(name, "H200-SXM5", layout), Lengths(1000, 1000, 500)
    steps = [one.seconds(steady(lengths, n, 8192)) for n in (1, 4, 16, 64, 256)]
    tokens = [tokens_per_s(one, lengths, n, 8192) for n in (1, 4, 16, 64, 256)]
    assert steps == sorted(steps)
    assert tokens == sorted(tokens)
    shorter = tokens_per_s(one, replace(lengths, computed=300), 64, 8192)
    assert shorter > tokens[3]


def test_a_step_has_no_more_tokens_than_its_budget() -> None:
    batch = steady(Lengths(4000, 4000, 100), 1000, 8192)
    assert batch.sequences + batch.prompt == pytest.approx(8192)


def test_formats_that_tensor_cores_multiply() -> None:
    assert [multiple(sm, "fp8") for sm in (80, 89, 90, 100)] == [1, 2, 2, 2]
    assert [multiple(sm, "nvfp4") for sm in (90, 100, 103)] == [1, 4, 6]
    assert [multiple(sm, "int4") for sm in (80, 100)] == [1, 1]
    found = rates(gpu("A100-SXM4-80GB"), "fp8", 1)
    assert found is not None
    assert found.unpacked
    assert rates(gpu("RTX4090"), "bf16", 1) is None


def test_links_are_nvlinks_where_they_reach() -> None:
    fast, slow = rates(gpu("H100-SXM5"), "bf16", 8), rates(gpu("L40S"), "bf16", 8)
    assert fast is not None and slow is not None
    assert (fast.by_nvlink, slow.by_nvlink) == (True, False)
    assert fast.link > 5 * slow.link
