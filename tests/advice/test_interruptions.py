# SPDX-License-Identifier: Apache-2.0
"""The closed form of interruptions, held against a simulation and against a search."""

from __future__ import annotations

import random
from math import inf, isinf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.advice.interruptions import Interrupted, break_even_discount, break_even_mtbi_s

JOBS = st.builds(Interrupted, st.floats(1, 600), st.floats(0, 1800), st.floats(3600, 1e6))


def simulated(job: Interrupted, interval_s: float, intervals: int, seed: int) -> float:
    """Time by work of a job that is played, interruption by interruption."""
    chance, now, done = random.Random(seed), 0.0, 0
    next_s, restarting = chance.expovariate(1 / job.mtbi_s), False
    while done < intervals:
        needs = job.restart_s if restarting else interval_s + job.save_s
        if now + needs <= next_s:
            now += needs
            done += not restarting
            restarting = False
        else:
            now, restarting = next_s, True
            next_s = now + chance.expovariate(1 / job.mtbi_s)
    return now / (interval_s * intervals)


@pytest.mark.parametrize("interval_s", [600, 2500, 14_400])
@pytest.mark.parametrize("job", [Interrupted(120, 600, 28_800), Interrupted(300, 60, 3600), Interrupted(30, 0, 7200)])
@pytest.mark.slow
def test_the_closed_form_is_what_a_simulation_shows(job: Interrupted, interval_s: float) -> None:
    assert simulated(job, interval_s, 20_000, seed=1) == pytest.approx(job.slowdown(interval_s), rel=0.05)


@given(JOBS)
def test_no_interval_is_much_better_than_daly_s(job: Interrupted) -> None:
    searched = min(job.slowdown(job.daly_s() * 1.02**step) for step in range(-150, 150))
    assert searched > 1
    assert job.best() <= searched * 1.002
    assert job.best() <= job.slowdown(job.young_s()) * 1.002


def test_the_intervals_by_hand() -> None:
    job = Interrupted(200, 0, 10_000)
    assert job.young_s() == 2000
    assert job.daly_s() == pytest.approx(2000 * (1 + 0.1 / 3 + 0.01 / 9) - 200)
    assert Interrupted(20_000, 0, 10_000).daly_s() == 10_000


def test_what_is_never_finished() -> None:
    assert isinf(Interrupted(60, 0, 1).slowdown(3600)) and isinf(Interrupted(1, 9000, 1).best())
    assert break_even_discount(inf) == 1


@given(JOBS, st.floats(0.05, 0.95))
def test_break_even_is_where_the_costs_meet(job: Interrupted, discount: float) -> None:
    assert job.best() * (1 - break_even_discount(job.best())) == pytest.approx(1)
    mtbi_s = break_even_mtbi_s(job.save_s, job.restart_s, discount)
    assert mtbi_s is not None
    assert Interrupted(job.save_s, job.restart_s, mtbi_s).best() * (1 - discount) == pytest.approx(1)
    assert break_even_mtbi_s(job.save_s, job.restart_s, 0) is None
