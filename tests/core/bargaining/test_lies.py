# SPDX-License-Identifier: Apache-2.0
"""What an agent gains that does not ask for what it needs, over bursts of several agents on the real broker."""

from __future__ import annotations

from statistics import fmean

import pytest

from dovetail.sim.agents.bursts import bursty
from dovetail.sim.agents.leased import Leased
from dovetail.sim.agents.lying import gain
from dovetail.sim.agents.world import AgentWorld


@pytest.mark.slow
def test_asking_for_too_much_again_and_again_or_cancelling_gains_no_useful_time() -> None:
    kinds = ("inflate", "churn", "cancel")
    gains: dict[str, list[float]] = {kind: [] for kind in kinds}
    for seed in range(1, 3):
        workload = bursty(seed, 110, agents=4, nodes=4, hours=1)
        truth = AgentWorld(workload, Leased(workload)).run()
        for kind in kinds:
            gains[kind].append(gain(truth, Leased, kind, 0))
    assert {kind: fmean(found) for kind, found in gains.items() if fmean(found) > 0.05} == {}
