# SPDX-License-Identifier: Apache-2.0
"""The benchmark of costs, on few nodes: its history costs its bill."""

from __future__ import annotations

import pytest

from benchmarks.cost import GPUS, MONTH, TEAMS, answer, history


@pytest.mark.parametrize("by", ["team", "day"])
def test_a_month_of_few_nodes_costs_its_bill(by: str) -> None:
    found = answer(history(2, 20), by)
    assert found.total.cost_micro == 2 * 55_040_000 * (MONTH.ms // 3_600_000)
    assert found.total.allocated_gpu_s + found.total.unallocated_gpu_s + found.total.unhealthy_gpu_s == (
        2 * GPUS * MONTH.ms // 1000
    )
    assert len([row for row in found.rows if row.kind == "group"]) == (TEAMS if by == "team" else 30)
    assert 0 < found.total.used_micro < found.total.allocated_micro
