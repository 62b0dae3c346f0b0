# SPDX-License-Identifier: Apache-2.0
"""The memory of the host."""

from __future__ import annotations

import pytest

from dovetail.advice.host import HostNeed, host_need
from dovetail.advice.layout import ParallelLayout, PlanError
from dovetail.advice.serving import Serving
from dovetail.advice.training import Training
from tests.advice.models import GIB, model

LLAMA = model("llama-3.1-8b")


def host(plan: Serving | Training, layout: ParallelLayout = ParallelLayout(), per_node: int = 8) -> HostNeed:  # noqa: B008
    plan.check(LLAMA, layout)
    return host_need(LLAMA, plan, layout, plan.parts(LLAMA, layout, GIB), per_node)


def test_a_server_reads_a_file_of_weights_at_a_time() -> None:
    assert host(Serving(8192)) == HostNeed(5 * 10**9, processes=2 * GIB)
    two = host(Serving(8192), ParallelLayout(2))
    assert (two.loading, two.shared_memory) == (10**10, 2 * GIB)
    assert host(Serving(8192), ParallelLayout(8, 2), 8).processes == 8 * 2 * GIB, "of each node"
    small = model("qwen2.5-0.5b")
    plan = Serving(128)
    assert host_need(small, plan, ParallelLayout(), plan.parts(small, ParallelLayout(), 0), 8).loading < 10**9


def test_each_process_of_training_loads_all_but_with_fsdp_and_zero_3() -> None:
    whole, eight = LLAMA.parameters * 2, ParallelLayout(dp=8)
    assert host(Training(1024), eight).loading == 8 * whole
    assert host(Training(1024, fsdp=True), eight).loading == whole
    assert host(Training(1024, zero=3), eight).loading == 8 * 5 * 10**9


def test_an_offloaded_optimizer_is_16_bytes_of_a_parameter_and_half_of_that_pinned() -> None:
    """DeepSpeed, `estimate_zero2_model_states_mem_needs`: 16 bytes x 1.5 for all parameters; 2 bytes on a GPU."""
    plan, layout = Training(1024, zero=2, offload=True), ParallelLayout(dp=8)
    found = host(plan, layout)
    assert found.optimizer + found.pinned == LLAMA.parameters * 24
    assert host(plan, ParallelLayout(dp=16)).optimizer * 2 == found.optimizer, "two nodes have half of it each"
    parts = plan.parts(LLAMA, layout, 0)
    assert (parts.weights, parts.gradients, parts.optimizer) == (LLAMA.parameters * 2, 0, 0)
    assert found.total == found.optimizer + found.pinned + found.shared_memory + found.processes
    kept = Training(1024, zero=1, offload=True).parts(LLAMA, layout, 0)
    assert (kept.gradients, kept.optimizer) == (LLAMA.parameters * 2, 0), "ZeRO-1 keeps gradients"


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Training(1024, offload=True), "--offload needs --zero"),
        (Training(1024, fsdp=True, offload=True), "--offload needs --zero"),
        (Training(1024, zero=2, offload=True, optimizer="adamw-8bit"), "take --optimizer adamw"),
    ],
)
def test_what_cannot_be_offloaded(plan: Training, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan.check(LLAMA, ParallelLayout(dp=2))
