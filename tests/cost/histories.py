# SPDX-License-Identifier: Apache-2.0
"""Random small histories, and what they cost by looking at each moment: an oracle."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from hypothesis import strategies as st
from msgspec import Struct

from dovetail.cost.price_rules import PriceBook, Priced, PriceRule
from dovetail.history.ledger import scaled
from dovetail.history.records import GpuHold, GpuSpan, Health, Period, PodRecord, UseHour
from tests.history.memory_reader import MemoryReader

END = 12
"""Times are of 0 to this, so that each moment can be examined."""
HEALTH: tuple[Health, ...] = ("healthy", "unhealthy")
MODELS = ("H100", "L4", "unknown")
RULES = [
    PriceRule(10_000_007, "USD", "2026-01-01", "a bill", model="h100"),
    PriceRule(3_000_001, "USD", "2026-01-01", "a bill", model="l4", per_gpu=True),
    PriceRule(5_000_001, "USD", "2026-01-05", "a new bill", model="l4", per_gpu=True, from_ms=7),
    PriceRule(999_999, "USD", "2026-01-01", "a bill", node="n2", from_ms=3),
]
"""Prices of nodes and of GPUs, some of which change; GPUs of the model unknown have one on a single node only."""


def book() -> PriceBook:
    return PriceBook([RULES])


@st.composite
def histories(draw: st.DrawFn) -> MemoryReader:
    spans, holds, pods, use = [], [], [], []
    for number, gpu in enumerate("abc"):
        for start in draw(st.lists(st.integers(0, END - 1), max_size=3, unique=True).map(sorted)):
            end = draw(st.integers(start + 1, END) | st.just(0))
            node, model = draw(st.sampled_from(["n1", "n2"])), draw(st.sampled_from(MODELS))
            health = draw(st.sampled_from(HEALTH))
            spans.append(GpuSpan(gpu, node, number, 3, model, health, start, end))
    for number in range(draw(st.integers(0, 4))):
        uid, start = f"p{number}", draw(st.integers(0, END - 1))
        end = draw(st.integers(start + 1, END) | st.just(0))
        milli = draw(st.integers(1, 1000))
        user, queue = draw(st.sampled_from(["", "ada"])), draw(st.sampled_from(["", "vision", "audio"]))
        begun = draw(st.integers(start, END))
        if draw(st.integers(0, 5)):
            pods.append(PodRecord(uid, "ns", uid, f"j{number % 2}", user=user, queue=queue, bound_ms=start,
                                  started_ms=begun, labels={"team": user}))  # fmt: skip
        for gpu in draw(st.sets(st.sampled_from("abcd"), min_size=1)):
            holds.append(GpuHold(uid, gpu, milli, "share", start, end))
            measured = draw(st.integers(0, END))
            use.append(UseHour(gpu, uid, draw(st.integers(0, END - 1)), measured, draw(st.integers(0, 1000 * END)), 0))
    return MemoryReader(Period(0, END), spans, holds, pods, use)


class Moment(Struct, frozen=True):
    """A part of a GPU for one millisecond."""

    gpu: str
    node: str
    model: str
    state: str
    uid: str


def span_at(reader: MemoryReader, gpu: str, at: int) -> GpuSpan | None:
    there = [one for one in reader.all_spans if one.gpu == gpu and one.start_ms <= at < (one.end_ms or END)]
    return max(there, key=lambda one: one.start_ms, default=None)


def moments(reader: MemoryReader, period: Period) -> Counter[tuple[Moment, bool]]:
    """The exact money for each part, and (with False) the time without a price."""
    found: Counter[tuple[Moment, bool]] = Counter()
    prices = book()
    for at in range(period.start_ms, period.end_ms):
        for gpu in "abc":
            span = span_at(reader, gpu, at)
            if span is None:
                continue
            price = prices.price(span, at)
            held = [one for one in reader.all_holds if one.gpu == gpu and one.start_ms <= at < (one.end_ms or END)]
            held.sort(key=lambda one: (max(one.start_ms, period.start_ms), one.start_ms, one.pod_uid))
            parts = [(one.pod_uid, milli) for one, milli in zip(held, scaled([h.milli for h in held]), strict=True)]
            rest = 1000 - sum(milli for _, milli in parts)
            state = "unallocated" if span.health == "healthy" else "unhealthy"
            for uid, milli in [*parts, ("", rest)]:
                key = Moment(gpu, span.node, span.model, "allocated" if uid else state, uid)
                if isinstance(price, Priced):
                    found[key, True] += milli * price.micro
                else:
                    found[key, False] += milli
    return found


def bill(reader: MemoryReader, period: Period) -> Fraction:
    """What all GPUs cost while they were there, in millionths, by their prices alone."""
    prices = book()
    total = 0
    for at in range(period.start_ms, period.end_ms):
        for gpu in "abc":
            span = span_at(reader, gpu, at)
            if span is not None:
                price = prices.price(span, at)
                total += price.micro if isinstance(price, Priced) else 0
    return Fraction(total, 3_600_000)
