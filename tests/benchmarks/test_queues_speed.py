# SPDX-License-Identifier: Apache-2.0
"""The core decides each case of the benchmark of queues as the case is described, also for other seeds and sizes."""

from __future__ import annotations

import pytest

from benchmarks.queues_speed import ONCE, STEADY, once, steady


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("case", ONCE)
def test_a_large_job_is_placed_or_refused(case: str, seed: int) -> None:
    once(case, 80, seed)


@pytest.mark.parametrize("case", [case for case in STEADY if case != "nothing fits"])
def test_a_step_of_a_full_cluster_binds_what_fits(case: str) -> None:
    assert steady(case, 40, 200, 3, 1)["binds"] > 0
