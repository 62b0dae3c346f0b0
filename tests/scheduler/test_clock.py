# SPDX-License-Identifier: Apache-2.0
"""A wall clock that jumps does not move the scheduler's time."""

from __future__ import annotations

from dovetail.scheduler.clock import Clock


def test_time_starts_at_the_wall_and_runs_with_the_steady_clock() -> None:
    wall_s, steady_s = 1_000_000.0, 50.0
    clock = Clock(lambda: wall_s, lambda: steady_s)
    assert clock.now_ms() == 1_000_000_000
    wall_s, steady_s = 2_000_000.0, 51.5
    assert clock.now_ms() == 1_000_001_500
    wall_s, steady_s = 5.0, 52.0
    assert clock.now_ms() == 1_000_002_000
