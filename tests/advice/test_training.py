# SPDX-License-Identifier: Apache-2.0
"""The memory of training, against the formulas and the figures of the papers that it is from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.advice.config import read
from dovetail.advice.formats import OPTIMIZERS
from dovetail.advice.layout import ModelParts, ParallelLayout, PlanError
from dovetail.advice.training import Training
from tests.advice.models import GIB, gpt, llama, model

ONE = ParallelLayout()


def states(parts: ModelParts) -> int:
    return parts.weights + parts.gradients + parts.optimizer


@given(
    s=st.sampled_from([128, 512, 2048]),
    b=st.integers(1, 8),
    a=st.sampled_from([8, 16, 96]),
    per_head=st.sampled_from([64, 128]),
    t=st.sampled_from([1, 2, 4, 8]),
)
def test_activations_of_a_layer_are_those_of_korthikanti(s: int, b: int, a: int, per_head: int, t: int) -> None:
    """Equations 1, 2, 4 and 6 of "Reducing Activation Recomputation in Large Transformer Models"."""
    h = a * per_head
    whole = gpt(2, h, a)
    (layer, _) = whole.layers
    eager = Training(s, b, flash=False)
    sbh = s * b * h
    assert eager.layer_bytes(whole, layer, 1) == 34 * sbh + 5 * a * s * s * b
    assert eager.layer_bytes(whole, layer, t) == 10 * sbh + (24 * sbh + 5 * a * s * s * b) // t
    if t > 1:
        parallel = replace(eager, sequence_parallel=True)
        assert parallel.layer_bytes(whole, layer, t) == (34 * sbh + 5 * a * s * s * b) // t
        assert replace(parallel, checkpointing="selective").layer_bytes(whole, layer, t) == 34 * sbh // t


def test_full_checkpointing_keeps_the_inputs_of_layers_and_one_layer() -> None:
    whole = gpt(24, 2048, 16)
    plan = Training(1024, 2, flash=False, checkpointing="full")
    sbh = 1024 * 2 * 2048
    layer = plan.layer_bytes(whole, whole.layers[0], 1)
    head = 4 * sbh + 1024 * 2 * whole.vocab * 8
    assert plan.parts(whole, ONE, 0).activations == 24 * 2 * sbh + layer + head


def test_the_first_stage_keeps_a_micro_batch_for_each_stage() -> None:
    """Korthikanti et al., section 4.2.3: with one forward, one backward, as much as all layers of one micro-batch."""
    whole = gpt(24, 2048, 16)
    plan = Training(1024)
    layer = plan.layer_bytes(whole, whole.layers[0], 1)
    assert plan.parts(whole, ParallelLayout(pp=4), 0).activations == 24 * layer


@pytest.mark.parametrize(("zero", "published_gb"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_states_are_those_of_zero(zero: int, published_gb: float) -> None:
    """Figure 1 of ZeRO: 7.5 billion parameters, 64 GPUs, Adam in mixed precision."""
    whole = model("llama-2-7b")
    parts = Training(1024, zero=zero).parts(whole, ParallelLayout(dp=64), 0)
    assert states(parts) / whole.parameters * 7.5 == pytest.approx(published_gb, rel=0.02)


@pytest.mark.parametrize(("precision", "each"), [("mixed", 16), ("bf16", 8), ("fp32", 16)])
def test_bytes_of_a_parameter_with_adam(precision: str, each: int) -> None:
    whole = model("llama-3.2-1b")
    assert states(Training(128, precision=precision).parts(whole, ONE, 0)) == whole.parameters * each


@pytest.mark.parametrize(("optimizer", "each"), [("adamw", 12), ("lion", 8), ("sgd", 8), ("adamw-8bit", 6)])
def test_optimizers(optimizer: str, each: int) -> None:
    whole = model("llama-3.2-1b")
    found = Training(128, optimizer=optimizer).parts(whole, ONE, 0).optimizer
    assert found == pytest.approx(whole.parameters * each, rel=0.001)
    assert {"adamw", "adamw-8bit", "lion", "sgd"} == set(OPTIMIZERS)


@given(dp=st.integers(1, 512))
def test_fsdp_divides_what_zero_3_divides(dp: int) -> None:
    whole = model("llama-3.2-1b")
    zero = states(Training(128, zero=3).parts(whole, ParallelLayout(dp=dp), 0))
    assert states(Training(128, fsdp=True).parts(whole, ParallelLayout(dp=dp), 0)) == pytest.approx(zero, abs=4)


def test_fsdp_gathers_what_is_outside_of_layers_and_two_layers() -> None:
    whole = model("llama-3.2-1b")
    layer, root = whole.layers[0].parameters, whole.embedding + whole.vectors
    one, two = (Training(128, fsdp=True).parts(whole, ParallelLayout(dp=dp), 0).collectives for dp in (1, 2))
    assert one == 0
    assert two - 256 * (1 << 20) == (root + 2 * layer + max(root, layer)) * 2


def test_adapters_are_as_many_as_peft_counts() -> None:
    """Llama 2 7B, rank 16, all linear layers: PEFT prints 39,976,960."""
    whole = model("llama-2-7b")
    assert Training(128, method="lora", lora_rank=16).trainable(whole) == 39_976_960
    attention = Training(128, method="lora", lora_rank=8, lora_targets="attention")
    assert attention.trainable(whole) == 32 * 4 * 8 * (4096 + 4096)
    assert Training(128).trainable(whole) == whole.parameters


def test_qlora_has_four_bits_where_lora_has_sixteen() -> None:
    """QLoRA, section 3: with double quantisation 4.127 bits for a weight of a linear layer."""
    whole = model("llama-2-7b")
    lora, qlora = (Training(512, method=m).parts(whole, ONE, 0) for m in ("lora", "qlora"))
    assert (lora.gradients, lora.optimizer, lora.activations) == (qlora.gradients, qlora.optimizer, qlora.activations)
    linear = sum(whole.by_kind()[kind] for kind in ("attention", "mlp"))
    assert lora.weights - qlora.weights == pytest.approx(linear * (16 - 4.127) / 8, rel=0.0001)


def test_experts_that_a_token_does_not_meet_keep_nothing() -> None:
    whole = model("mixtral-8x7b")
    (layer, *_) = whole.layers
    more = replace(layer, mlp=replace(layer.mlp, per_token=4))
    plan = Training(1024)
    both = plan.layer_bytes(whole, more, 1) - plan.layer_bytes(whole, layer, 1)
    assert both == 1024 * 2 * (14_336 * 8 + 2 * 4096 * 2)


@given(
    tp=st.sampled_from([1, 2, 4, 8]), pp=st.sampled_from([1, 2, 4]), dp=st.sampled_from([1, 4, 64]),
    zero=st.integers(0, 1), checkpointing=st.sampled_from(["none", "full"]), fsdp=st.booleans(),
)  # fmt: skip
def test_more_tokens_never_take_less(tp: int, pp: int, dp: int, zero: int, checkpointing: str, fsdp: bool) -> None:
    whole, layout = model("llama-3.1-8b"), ParallelLayout(tp, pp, dp)
    plan = Training(1024, zero=0 if fsdp else zero, checkpointing=checkpointing, fsdp=fsdp)
    plan.check(whole, layout)
    totals = [plan.sized(*size).parts(whole, layout, GIB).total for size in ((1024, 1), (1025, 1), (1025, 2))]
    assert totals == sorted(set(totals))


@pytest.mark.parametrize(
    ("plan", "layout", "expected"),
    [
        (Training(128, zero=3, fsdp=True), ParallelLayout(dp=2), "take one of --fsdp and --zero 3"),
        (Training(128, zero=2), ParallelLayout(pp=2, dp=2), "take --zero 1 with --pp"),
        (Training(128, sequence_parallel=True), ONE, "it needs --tp 2 or more"),
        (Training(128, method="qlora"), ParallelLayout(tp=2), "cannot be divided by --tp or --pp"),
        (Training(128, method="qlora"), ParallelLayout(pp=2), "cannot be divided by --tp or --pp"),
        (Training(128, method="qlora", precision="fp32"), ONE, "leave out --precision fp32"),
        (Training(128, checkpointing="selective"), ONE, "--attention eager"),
        (Training(128), ParallelLayout(tp=3), "3 tensor-parallel ranks do not divide the 32 attention heads"),
        (Training(128), ParallelLayout(pp=17), "the model has 16"),
    ],
)
def test_what_contradicts_itself_or_the_model_is_refused(plan: Training, layout: ParallelLayout, expected: str) -> None:
    with pytest.raises(PlanError, match=expected):
        plan.check(model("llama-3.2-1b"), layout)


@pytest.mark.parametrize(
    ("changes", "tp", "expected"),
    [
        ({"num_attention_heads": 12, "hidden_size": 768, "num_key_value_heads": 4}, 6, "6 .* and 4 key-value heads"),
        ({"intermediate_size": 1537}, 2, "do not divide the 1537 columns of the MLP"),
    ],
)
def test_ranks_have_to_divide_keys_and_columns(changes: dict[str, int], tp: int, expected: str) -> None:
    with pytest.raises(PlanError, match=expected):
        Training(128).check(read(llama(**changes)), ParallelLayout(tp))


def test_ranks_may_be_more_than_key_value_heads() -> None:
    Training(128).check(model("llama-3.2-1b"), ParallelLayout(16))
