# SPDX-License-Identifier: Apache-2.0
"""Pods of a list that come and go at a load."""

from __future__ import annotations

import pytest

from dovetail.core.model import CPU, Pod, Request
from dovetail.sim.churn import churned
from dovetail.sim.workload import SimJob, gpu_milli
from tests.sim.streams import job, workload

LISTED = workload((8, 8), job("one", 0, 1, None), job("two", 0, 2, None), job("four", 0, 4, None))
HOUR_MS = 3_600_000


@pytest.mark.parametrize("load_percent", [50, 95, 110])
def test_as_much_work_comes_as_was_asked_for(load_percent: int) -> None:
    come = churned(LISTED, load_percent, HOUR_MS, 1000 * HOUR_MS, seed=1)
    work = sum(gpu_milli(each.pods[0].request) * (each.duration_ms or 0) for each in come.jobs)
    assert 100 * work / (16_000 * 1000 * HOUR_MS) == pytest.approx(load_percent, rel=0.05)
    runs = [each.duration_ms or 0 for each in come.jobs]
    assert sum(runs) / len(runs) == pytest.approx(HOUR_MS, rel=0.05)
    assert {each.pods[0].request for each in come.jobs} == {each.pods[0].request for each in LISTED.jobs}


def test_pods_have_names_of_their_own_and_come_in_order() -> None:
    come = churned(LISTED, 90, HOUR_MS, 20 * HOUR_MS, seed=1)
    assert (
        come == churned(LISTED, 90, HOUR_MS, 20 * HOUR_MS, seed=1) != churned(LISTED, 90, HOUR_MS, 20 * HOUR_MS, seed=2)
    )
    times = [each.at_ms for each in come.jobs]
    assert times == sorted(times)
    assert times[-1] < 20 * HOUR_MS
    assert len({each.pods[0].uid for each in come.jobs}) == len(come.jobs)
    assert all(each.pods[0].created_ms == each.at_ms for each in come.jobs)


def test_load_needs_gpus() -> None:
    without = workload((8,), SimJob(0, (Pod("p", "ns", "p", Request(((CPU, 1),))),)))
    with pytest.raises(ValueError, match="these pods ask for none"):
        churned(without, 90, HOUR_MS, HOUR_MS, 1)
    with pytest.raises(ValueError, match="there are none"):
        churned(workload((0,), job("a", 0, 1, 1)), 90, HOUR_MS, HOUR_MS, 1)
