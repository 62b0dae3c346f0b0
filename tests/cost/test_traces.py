# SPDX-License-Identifier: Apache-2.0
"""Costs of the traces that come with Dovetail, after a run through the scheduler's core: they add up to the bill."""

from __future__ import annotations

from fractions import Fraction

import pytest
from msgspec.structs import replace

from dovetail.core.events import NodeChanged
from dovetail.core.policy import Policy
from dovetail.cost.calendar import days, zone_of
from dovetail.cost.cells import gpu_times
from dovetail.cost.costs import NUMBERS, costs
from dovetail.cost.grouping import HELD_BY, Grouping
from dovetail.cost.idle_rules import IDLE_RULES
from dovetail.cost.price_rules import PriceBook, Priced, PriceRule
from dovetail.history.records import Period
from dovetail.history.simulated import SimulatedHistory
from dovetail.sim import sample
from dovetail.sim.engine import Simulation
from dovetail.sim.failures import horizon_ms, outages
from dovetail.sim.traces import jobs, nodes, openb
from dovetail.sim.workload import Workload
from tests.history.memory_reader import MemoryReader

PRICES = [
    PriceRule(733_333, "USD", "2026-10-01", "a bill", model="v100m16", per_gpu=True),
    PriceRule(1_000_003, "USD", "2026-10-01", "a bill"),
]
"""A price per GPU of one model, else one that GPUs of a node cannot divide evenly."""


def history(workload: Workload) -> MemoryReader:
    kept = MemoryReader(Period(0, 0))
    kept.first_ms = None
    written = SimulatedHistory(kept.write)
    Simulation(workload, Policy(), observer=written).run()
    written.finish()
    kept.until = super(MemoryReader, kept).known()
    return kept


def some_of_openb() -> Workload:
    """Every 36th node, and as many of the pods, shares of GPUs among them."""
    found = tuple(map(NodeChanged, openb.read_nodes(sample.NODES)[::36]))
    return Workload("openb", found, openb.read_pods(sample.PODS)[::36])


def some_of_philly() -> Workload:
    """Every thirtieth job, on nodes that fail."""
    read = jobs.read_jobs(sample.BURSTS, 8)[::30]
    workload = Workload("philly", tuple(map(NodeChanged, nodes.uniform_nodes(4, 8))), read)
    plan = outages(workload, 40 * 3_600_000, 7_200_000, horizon_ms(workload), 3)
    return replace(workload, outages=plan)


@pytest.mark.slow
@pytest.mark.parametrize("made", [some_of_openb, some_of_philly])
def test_traces_cost_the_bill_in_each_period_and_grouping(made: object) -> None:
    assert callable(made)
    reader = history(made())
    known = reader.known()
    middle = known.start_ms + known.ms // 3
    everything = {}
    for period in (Period(known.start_ms, middle), Period(middle, known.end_ms), known):
        owed = Fraction(0)
        for span in reader.spans(period):
            part = period.clipped(span.start_ms, span.end_ms)
            price = PriceBook([PRICES]).price(span, span.start_ms)
            assert isinstance(price, Priced)
            owed += Fraction(price.micro * part.ms, 3_600_000)
        named = list(days(period, zone_of("+01:00")))
        answers = []
        for by in (*HELD_BY, "node", "model", "gpu", "day"):
            segments = [part for _, part in named] if by == "day" else []
            times = gpu_times(reader, period, PriceBook([PRICES]), segments, by)
            grouping = Grouping(by, days=tuple(day for day, _ in named))
            answers += [
                costs(times, grouping, rule, "USD") for rule in (IDLE_RULES if by in HELD_BY else IDLE_RULES[:1])
            ]
        for one in answers:
            assert abs(one.total.cost_micro - owed) * 2 <= 1
            for name in NUMBERS:
                assert sum(getattr(row, name) for row in one.rows) == getattr(one.total, name)
            assert one.total.allocated_micro == answers[0].total.allocated_micro
        assert answers[0].total.allocated_micro and answers[0].total.unallocated_micro
        everything[period] = owed
    assert everything[known] == sum(everything.values()) - everything[known]
