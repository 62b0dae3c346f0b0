# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the operator, on few nodes: it installs, changes, and writes nothing while nothing changes."""

from __future__ import annotations

import pytest

from benchmarks.operator_speed import changes, quiet


@pytest.mark.slow
async def test_a_change_is_carried_out_by_the_command() -> None:
    answer = await changes(3, 1)
    assert answer["change_s"] < 30 and answer["peak_mib"] < 100


@pytest.mark.slow
def test_hours_without_a_change_have_no_writes_after_every_part_has_worked() -> None:
    """Three: no time in the operator is longer than an hour (that in which a node's restarts count), but for the pause
    between searches that failed. The benchmark itself takes a day.

    With an election there are the renewals of the Lease: see tests/operator/test_long_times.py."""
    answer = quiet(50, 3, leader_elect=False)
    assert (answer["validated"], answer["taken_over"], answer["searched"]) == (50, 50, 3)
    assert answer["writes"] == {} and answer["heartbeats"] == 2 * 50 * 12 * 3
