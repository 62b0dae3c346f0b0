# SPDX-License-Identifier: Apache-2.0
"""Which GPUs hold a model, how many are needed, and how much more fits there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.advice import prices
from dovetail.advice.config import read
from dovetail.advice.gpus import GPUS, GpuProduct, find
from dovetail.advice.instances import InstanceRequest, rank
from dovetail.advice.layout import ParallelLayout, PlanError
from dovetail.advice.memory import MemoryQuestion, largest, layouts, memory
from dovetail.advice.serving import Serving
from dovetail.advice.training import Training
from dovetail.core.devices import products
from dovetail.core.devices.mig import products as mig_products
from tests.advice.models import llama, model

(H100,) = find("H100-SXM5")
(L4,) = find("L4")
SMALL = read(llama())
PLANS = [
    Serving(2048), Serving(2048, 4, "int4", "fp8"), Training(1024), Training(1024, zero=3), Training(512, fsdp=True),
    Training(1024, method="lora", checkpointing="full"),
]  # fmt: skip


@given(known=st.integers(1, 300), spare=st.integers(0, 5000), most=st.integers(1, 2000))
def test_the_largest_that_fits(known: int, spare: int, most: int) -> None:
    most = max(most, known)
    assert largest(lambda n: n <= known + spare, known, most) == min(known + spare, most)


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{type(plan).__name__}-{plan.context}")
@given(usable_mib=st.integers(1100, 4000), headroom=st.integers(0, 50))
def test_rooms_agree_with_a_search_of_everything(plan: Serving | Training, usable_mib: int, headroom: int) -> None:
    asked = MemoryQuestion(SMALL, plan, headroom_percent=headroom)
    gpu = replace(L4, memory_mib=usable_mib, reserved_mib=0)
    (room,) = memory(asked, gpu, (gpu,)).gpus

    def holds(layout: ParallelLayout, context: int = plan.context, batch: int = plan.batch) -> bool:
        total = asked.parts(layout, plan.sized(context, batch)).total
        return total * 100 <= usable_mib * (1 << 20) * (100 - headroom)

    fitting = [layout for layout in layouts(asked) if holds(layout)]
    assert room.fewest == (min(fitting, key=lambda layout: layout.gpus) if fitting else None)
    if room.fewest is None:
        assert (room.fits, room.need, room.largest_context, room.largest_batch) == (False, None, 0, 0)
    else:
        assert room.fits
        assert holds(room.fewest, context=room.largest_context)
        assert room.largest_context == SMALL.max_context or not holds(room.fewest, context=room.largest_context + 1)
        assert holds(room.fewest, batch=room.largest_batch)
        assert not holds(room.fewest, batch=room.largest_batch + 1)


@pytest.mark.slow
@pytest.mark.parametrize("plan", [Serving(8192, 8), Training(4096, zero=3), Training(4096, checkpointing="full")])
def test_more_memory_never_needs_more_gpus(plan: Serving | Training) -> None:
    answer = memory(MemoryQuestion(model("llama-3.1-70b"), plan))
    counts = [room.fewest.gpus if room.fewest else 1 << 30 for room in sorted(answer.gpus, key=lambda r: r.usable_mib)]
    assert counts == sorted(counts, reverse=True)
    for room in answer.gpus:
        assert room.fits == (answer.need.memory_per_gpu_mib <= room.usable_mib)
        assert room.need is None or (room.need.memory_per_gpu_mib <= room.usable_mib and room.need.gpus > 0)


@pytest.mark.slow
def test_the_layout_is_that_of_the_fewest_of_a_gpu() -> None:
    """70 billion parameters are 131 GiB: two cards of 80 GB hold them, unless a quarter of these is to be free."""
    answer = memory(MemoryQuestion(model("llama-3.1-70b"), Serving(8192)), H100)
    assert answer.layout == ParallelLayout(tp=2)
    assert (answer.need.gpus, answer.need.nvlink, answer.need.nodes) == (2, True, 1)
    assert answer.need.memory_per_gpu_mib == -(-answer.total_bytes * 10 // (9 << 20))
    assert memory(
        MemoryQuestion(model("llama-3.1-70b"), Serving(8192), headroom_percent=25), H100
    ).layout == ParallelLayout(tp=4)


@pytest.mark.slow
def test_the_need_of_several_nodes() -> None:
    answer = memory(MemoryQuestion(model("deepseek-v3"), Serving(8192, weights="bf16")), H100)
    assert answer.layout == ParallelLayout(tp=8, pp=answer.need.nodes)
    assert answer.need.gpus == 8 * answer.need.nodes > 16
    fewer = memory(MemoryQuestion(model("deepseek-v3"), Serving(8192, weights="bf16"), gpus_per_node=4), H100)
    assert fewer.layout.tp == 4 and fewer.need.nodes == fewer.layout.pp


@pytest.mark.parametrize(
    ("asked", "layout"),
    [
        (MemoryQuestion(model("llama-3.1-8b"), Serving(4096), gpus=4), ParallelLayout(tp=4)),
        (MemoryQuestion(model("llama-3.1-8b"), Serving(4096), gpus=16), ParallelLayout(tp=8, pp=2)),
        (MemoryQuestion(model("llama-3.1-8b"), Serving(4096), gpus=8, tp=2), ParallelLayout(tp=2, pp=4)),
        (MemoryQuestion(model("llama-3.1-8b"), Serving(4096), gpus=8, pp=2), ParallelLayout(tp=4, pp=2)),
        (MemoryQuestion(model("qwen2.5-7b"), Serving(4096), gpus=8), ParallelLayout(tp=4, pp=2)),
        (MemoryQuestion(model("llama-3.1-8b"), Training(4096), gpus=8, tp=2), ParallelLayout(tp=2, dp=4)),
        (
            MemoryQuestion(model("llama-3.1-8b"), Training(4096, zero=1), gpus=16, tp=2, pp=2),
            ParallelLayout(tp=2, pp=2, dp=4),
        ),
        (MemoryQuestion(model("llama-3.1-8b"), Training(4096), tp=2, pp=2), ParallelLayout(tp=2, pp=2)),
    ],
    ids=str,
)
@pytest.mark.slow
def test_the_chosen_layout_is_kept(asked: MemoryQuestion, layout: ParallelLayout) -> None:
    assert memory(asked, L4).layout == layout


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            MemoryQuestion(SMALL, Serving(1024), gpus=6, tp=4),
            "6 GPUs are not a multiple of 4 tensor-parallel ranks x 1 stages",
        ),
        (MemoryQuestion(SMALL, Serving(1024), gpus=8, tp=2, pp=2), "8 GPUs are 2 replicas of 4: ask about one"),
        (
            MemoryQuestion(SMALL, Training(1024, zero=2), gpus=1),
            "ZeRO-2 divides among replicas, and 1 GPUs? are one replica",
        ),
        (MemoryQuestion(SMALL, Training(1024, fsdp=True), gpus=4, tp=4), "FSDP divides among replicas"),
        (MemoryQuestion(SMALL, Serving(1024), tp=3), "3 tensor-parallel ranks do not divide the 8 attention heads"),
        (MemoryQuestion(SMALL, Serving(1024), gpus=5), "5 pipeline stages need as many layers|5 tensor-parallel ranks"),
        (MemoryQuestion(SMALL, Training(1024, sequence_parallel=True), tp=1), "it needs --tp 2 or more"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(asked: MemoryQuestion, expected: str) -> None:
    with pytest.raises(PlanError, match=expected):
        memory(asked, H100)


def test_slices_hold_what_one_gpu_holds() -> None:
    """NCCL joins no MIG instances: a model for several GPUs has none."""
    asked = MemoryQuestion(model("llama-3.1-8b"), Serving(8192))
    answer = memory(asked, H100)
    (room,) = (room for room in answer.gpus if room.gpu == "H100-SXM5")
    assert [(one.profile, one.memory_mib, one.most) for one in room.mig if one.fits] == [
        ("3g.40gb", 40_448, 2), ("4g.40gb", 40_448, 1), ("7g.80gb", 81_079, 1),
    ]  # fmt: skip
    for one in room.mig:
        assert one.fits == (answer.need.memory_per_gpu_mib <= one.memory_mib)
        assert one.headroom_mib == one.memory_mib - -(-answer.total_bytes // (1 << 20))
    assert not memory(replace(asked, gpus=2), H100, (H100,)).gpus[0].mig


def test_notes_name_the_unsupported_parts() -> None:
    small = model("llama-3.2-1b")
    assert "exceed the 131072 of the configuration" in memory(MemoryQuestion(small, Serving(1 << 20)), H100).notes[0]
    assert memory(MemoryQuestion(small, Training(1024, zero=2)), H100).notes == (
        "one replica: ZeRO-2 divides nothing; set a larger --gpus",
    )
    assert "bnb_4bit" in memory(MemoryQuestion(small, Training(512, method="qlora", zero=3), gpus=2), H100).notes[0]
    large = memory(MemoryQuestion(model("llama-3.1-405b"), Training(8192, zero=1)), L4)
    assert large.notes[-1] == "no possible layout fits L4; the smallest is shown"


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.model)
def test_every_gpu_is_a_product_that_the_core_knows(gpu: GpuProduct) -> None:
    product = products.find(gpu.name)
    assert product is not None and gpu.model.startswith(product.model)
    assert 0 < gpu.usable_mib <= gpu.memory_mib
    assert bool(list(gpu.profiles())) == (mig_products.of_product(gpu.name) is not None)
    (room,) = memory(MemoryQuestion(SMALL, Serving(16)), gpus=(gpu,)).gpus
    assert [one.memory_mib for one in room.mig] == sorted(one.memory_mib for one in room.mig)
    assert all(one.memory_mib <= gpu.usable_mib for one in room.mig)


def test_every_product_of_the_core_has_its_memory() -> None:
    known = {products.named(gpu.name).model for gpu in GPUS}
    assert known == {product.model for product in products.PRODUCTS}
    names = {name for product in products.PRODUCTS for name in product.names}
    assert {gpu.name for gpu in GPUS} == names


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("H100-SXM5", ["H100-SXM5"]),
        ("NVIDIA H100 80GB HBM3", ["H100-SXM5"]),
        ("nvidia-l4", ["L4"]),
        ("h200", ["H200-SXM5", "H200-NVL"]),
        ("MI300X", []),
        ("", []),
    ],
)
def test_gpus_are_found_by_model_label_and_name(name: str, models: list[str]) -> None:
    assert [gpu.model for gpu in find(name)] == models


@pytest.mark.parametrize(
    ("gpu", "nvlink"), [("L40S", False), ("H100-PCIe", False), ("A10G", False), ("H100-SXM5", True)]
)
def test_nvlink_is_needed_where_the_gpu_has_it(gpu: str, nvlink: bool) -> None:
    """Not for a plan on cards without, or with a bridge that has to be bought."""
    (product,) = find(gpu)
    answer = memory(MemoryQuestion(model("llama-3.1-70b"), Serving(4096)), product, (product,))
    assert answer.layout.tp > 1
    assert (answer.need.nvlink, answer.gpus[0].need) == (nvlink, answer.need)


@pytest.mark.parametrize("name", ["llama-3.1-70b", "mixtral-8x7b"])
@pytest.mark.parametrize("tp", [None, 2])
@pytest.mark.slow
def test_instances_of_the_gpu_that_a_plan_is_for_are_not_refused(name: str, tp: int | None) -> None:
    """Each GPU model, in nodes of eight, with ample hosts."""
    asked = MemoryQuestion(model(name), Serving(4096), tp=tp)
    for room in memory(asked).gpus:
        if room.need:
            row = f"acme,big,{room.gpu},8,{room.memory_mib / 953.67:.1f},999,9999,100,,,north,1,,,2026-01-31,a bill"
            offered = prices.read(f"{','.join(prices.COLUMNS)}\n{row}", "own.csv")
            need = room.need
            wanted = InstanceRequest(need.gpus, need.memory_per_gpu_mib, need.nvlink, need.nodes)
            assert rank(offered, wanted).options, (room.gpu, need, rank(offered, wanted).passed_over)
