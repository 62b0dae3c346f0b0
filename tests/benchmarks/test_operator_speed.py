# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the operator, on few nodes: it installs, changes, and writes nothing while nothing changes."""

from __future__ import annotations

import pytest

from benchmarks.operator_speed import changes, quiet
from tests.breadth import BREADTH


@pytest.mark.slow
async def test_a_change_is_carried_out_by_the_command() -> None:
    answer = await changes(3, 1)
    assert answer["change_s"] < 30 and answer["peak_mib"] < 100


@pytest.mark.slow
def test_hours_without_a_change_have_no_writes_after_every_part_has_worked() -> None:
    """With an election there are the renewals of the Lease: see tests/operator/test_long_times.py. A day takes half a
    minute."""
    hours = 1 if BREADTH == 1 else 24
    answer = quiet(5, hours, leader_elect=False)
    assert (answer["validated"], answer["taken_over"], answer["searched"]) == (5, 5, 3)
    assert answer["writes"] == {} and answer["heartbeats"] == 2 * 5 * 12 * hours
