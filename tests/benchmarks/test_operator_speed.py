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
def test_hours_without_a_change_have_no_writes_but_those_of_the_lease() -> None:
    answer = quiet(5, 1)
    assert answer["writes"].keys() == {"leases.coordination.k8s.io"}
    assert answer["heartbeats"] == 120
