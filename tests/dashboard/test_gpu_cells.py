# SPDX-License-Identifier: Apache-2.0
"""The letters of the GPUs of a node."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dovetail.dashboard.gpu_cells import cells_of, gpu_count
from dovetail.views.held_types import HeldPart, NodeHolder
from dovetail.views.node_types import GpuHealthView, NodeHealthView

NODE = NodeHealthView("n", "healthy", 4, {}, 0, "", "", "", ())


def holder(count: int, gpus: tuple[int, ...] | None = None, *parts: HeldPart) -> NodeHolder:
    return NodeHolder("d/p", "d/p", "", "", count, gpus, parts)


def gpu(index: int, state: str) -> GpuHealthView:
    return GpuHealthView(index, f"GPU-{index}", "H100", state, "", "", 0, "")


@pytest.mark.parametrize(
    ("holders", "cells", "exact"),
    [
        ([], "....", True),
        ([holder(2, (1, 3))], ".#.#", True),
        ([holder(2)], "##..", False),
        ([holder(1, (0,)), holder(2)], "###.", False),
        ([holder(9)], "####", False),
        ([holder(1, (7,))], "....", True),
        ([holder(0, (), HeldPart("share", "2", 500))], "..%.", True),
        ([holder(0, (), HeldPart("share", "", 500))], "%...", False),
        ([holder(0, (), HeldPart("instance", "1/3g.20gb@0"))], ".%..", True),
        ([holder(0, (), HeldPart("claimed", "gpu.nvidia.com/pool/gpu-1"))], "#...", False),
        ([holder(1, (2,)), holder(0, (), HeldPart("share", "2", 500))], "..#.", True),
    ],
)
def test_what_holds_a_gpu(holders: list[NodeHolder], cells: str, exact: bool) -> None:
    assert cells_of(NODE, holders) == (cells, exact)


def test_a_gpu_that_is_not_healthy_is_shown_as_such_whatever_holds_it() -> None:
    devices = (gpu(0, "degraded"), gpu(1, "draining"), gpu(2, "quarantined"), gpu(3, "healthy"))
    assert cells_of(replace(NODE, devices=devices), [holder(4, (0, 1, 2, 3))]) == ("!vx#", True)


@pytest.mark.parametrize(("label", "count"), [("8", 8), ("2", 4), ("-1", 4), ("٣", 4), ("99999", 4), ("", 4)])
def test_the_number_of_gpus_of_a_node_that_offers_less_is_in_a_label(label: str, count: int) -> None:
    assert gpu_count(replace(NODE, labels={"nvidia.com/gpu.count": label})) == count
