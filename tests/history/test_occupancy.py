# SPDX-License-Identifier: Apache-2.0
"""What was held, wanted and demanded at once, against each moment examined by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.history.occupancy import LEAST_WAIT_MS, occupancy, quantile
from dovetail.history.records import HOUR_MS, GpuHold, GpuSpan, Period, PodRecord, UseHour
from tests.history.memory_reader import MemoryReader

UNIT, END, GPUS = LEAST_WAIT_MS, 14, 4
"""Times are whole units, so that a wait of one counts."""


def spans(nodes: int = 2, model: str = "H100") -> list[GpuSpan]:
    return [GpuSpan(f"{n}/{i}", f"n{n}", i, GPUS, model, "healthy", 0) for n in range(nodes) for i in range(GPUS)]


@st.composite
def histories(draw: st.DrawFn) -> MemoryReader:
    holds, pods = [], []
    for number in range(draw(st.integers(0, 5))):
        submitted = draw(st.integers(0, END - 2))
        bound = draw(st.integers(submitted, END - 1))
        ended = draw(st.integers(bound + 1, END) | st.just(0))
        started = draw(st.booleans())
        node, milli = draw(st.integers(0, 1)), draw(st.sampled_from((500, 1000)))
        gpus = sorted(draw(st.sets(st.integers(0, GPUS - 1), min_size=1)))
        pods.append(PodRecord(
            f"p{number}", "ns", f"p{number}", "j", gpu_milli=milli * len(gpus), node=f"n{node}" if started else "",
            submitted_ms=submitted * UNIT, bound_ms=bound * UNIT if started else 0, ended_ms=ended * UNIT,
        ))  # fmt: skip
        for gpu in gpus if started else ():
            holds.append(GpuHold(f"p{number}", f"{node}/{gpu}", milli, "whole", bound * UNIT, ended * UNIT))
    return MemoryReader(Period(0, END * UNIT), spans(), sorted(holds, key=lambda one: one.gpu), pods)


@given(histories(), st.integers(0, 5), st.integers(6, END))
@pytest.mark.slow
def test_as_counted_at_each_moment(reader: MemoryReader, first: int, last: int) -> None:
    period = Period(first * UNIT, last * UNIT)
    (use,) = occupancy(reader, period).kinds.values()
    assert sum(one.ms for one in use.moments) == period.ms
    pods = list(reader.pods(Period(0, END * UNIT)))
    for at in range(first, last):
        at_ms = at * UNIT
        (moment,) = [one for one in use.moments if one.start_ms <= at_ms < one.end_ms]
        held = {one.gpu for one in reader.all_holds if one.start_ms <= at_ms < (one.end_ms or END * UNIT)}
        waiting = [
            one for one in pods
            if one.submitted_ms <= at_ms < (one.bound_ms or one.ended_ms or END * UNIT)
        ]  # fmt: skip
        wanted = sum(-(-one.gpu_milli // 1000) for one in waiting)
        assert (moment.there, moment.held, moment.wanted) == (2 * GPUS, len(held), wanted)
        assert moment.lacked == max(0, wanted - (2 * GPUS - len(held)))


def test_a_backlog_is_no_demand_for_all_of_it_at_once() -> None:
    """Three pods of four GPUs, for two units each, run one after another on one node. All came at once."""
    starts = [(1 + 2 * n) * UNIT for n in range(3)]
    pods = [
        PodRecord(f"p{n}", "ns", f"p{n}", "j", gpu_milli=4000, node="n0", submitted_ms=UNIT, bound_ms=start,
                  ended_ms=start + 2 * UNIT)
        for n, start in enumerate(starts)
    ]  # fmt: skip
    holds = [
        GpuHold(f"p{n}", f"0/{i}", 1000, "whole", start, start + 2 * UNIT)
        for i in range(4)
        for n, start in enumerate(starts)
    ]
    period = Period(UNIT, 7 * UNIT)
    (use,) = occupancy(MemoryReader(period, spans(1), holds, pods), period).kinds.values()
    assert [(one.demand, one.beyond, one.wanted, one.ms // UNIT) for one in use.moments] == [
        (12, 8, 8, 2), (0, 0, 4, 2), (0, 0, 0, 2),
    ]  # fmt: skip


def test_of_which_kind_a_pod_that_never_started_wants_gpus_is_not_known_among_several() -> None:
    pod = PodRecord("p", "ns", "p", "j", gpu_milli=2000, submitted_ms=0)
    other = [GpuSpan("m/0", "m", 0, 1, "L4", "healthy", 0)]
    period = Period(0, 3 * UNIT)
    assert occupancy(MemoryReader(period, spans(), (), [pod]), period).unknown_wait == 0
    found = occupancy(MemoryReader(period, spans() + other, (), [pod]), period)
    assert found.unknown_wait == 2 * 3 * UNIT
    assert not any(one.wanted for use in found.kinds.values() for one in use.moments)


def test_a_node_that_lost_a_gpu_for_a_time_is_of_the_kind_that_it_was() -> None:
    before = [replace(one, end_ms=UNIT) for one in spans(1)]
    after = [replace(one, gpus=GPUS - 1, start_ms=UNIT) for one in spans(1)[:-1]]
    made = sorted(before + after, key=lambda one: (one.gpu, one.start_ms))
    found = occupancy(MemoryReader(Period(0, 3 * UNIT), made), Period(0, 3 * UNIT)).kinds
    assert list(found) == [("H100", GPUS)]
    (use,) = found.values()
    assert [(one.there, one.ms // UNIT) for one in use.moments] == [(4, 1), (3, 2)] and len(use.spans) == 3


def test_gpus_that_are_held_and_idle_for_a_whole_hour_are_not_used_in_it() -> None:
    holds = [GpuHold("p", f"0/{i}", 1000, "whole", 0, 3 * HOUR_MS) for i in range(4)]
    idle = [UseHour(f"0/{i}", "p", hour, HOUR_MS, 0, HOUR_MS) for i in range(3) for hour in (0, HOUR_MS)]
    idle.append(UseHour("0/3", "p", 0, HOUR_MS, 1, HOUR_MS - 1))
    period = Period(0, 4 * HOUR_MS)
    (use,) = occupancy(MemoryReader(period, spans(1), holds, (), idle), period).kinds.values()
    assert use.used_by_hour == {0: 1, 1: 1, 2: 4, 3: 0}


@pytest.mark.parametrize(("ppm", "amount"), [(950_000, 2), (900_000, 2), (500_000, 1), (750_000, 1), (1_000_000, 9)])
def test_quantiles_are_of_time(ppm: int, amount: int) -> None:
    assert quantile([(1, 75), (2, 20), (9, 5)], ppm) == amount
