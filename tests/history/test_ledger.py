# SPDX-License-Identifier: Apache-2.0
"""The division of the time of GPUs, against one that examines each moment."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.history.ledger import GpuTime, Unknown, divide, scaled
from dovetail.history.records import GpuHold, GpuSpan, Period

END = 12
"""Times are of 0 to this, so that each moment can be examined."""

TIMES = st.tuples(st.integers(0, END), st.integers(0, END)).map(sorted)


@st.composite
def spans(draw: st.DrawFn) -> list[GpuSpan]:
    found = []
    for gpu in "ab":
        starts = draw(st.lists(st.integers(0, END), max_size=3, unique=True).map(sorted))
        for start in starts:
            end = draw(st.integers(start, END) | st.just(0))
            health = draw(st.sampled_from(["healthy", "unhealthy"]))
            found.append(GpuSpan(gpu, f"n{start}", 0, 8, "H100", health, start, end))
    return found


@st.composite
def holds(draw: st.DrawFn) -> list[GpuHold]:
    found = []
    for gpu in "abc":
        for number in range(draw(st.integers(0, 3))):
            start, end = draw(TIMES)
            end = draw(st.sampled_from([end, 0]))
            found.append(GpuHold(f"p{number}", gpu, draw(st.integers(1, 1000)), "share", start, end))
    return sorted(found, key=lambda hold: (hold.gpu, hold.start_ms, hold.pod_uid))


def covers(start_ms: int, end_ms: int, moment: int) -> bool:
    return start_ms <= moment < (end_ms or END)


def at(moment: int, gpu: str, spans: list[GpuSpan], holds: list[GpuHold]) -> Counter[object]:
    """The state of one GPU at one moment: thousandths by node, state and pod."""
    of_gpu = [span for span in spans if span.gpu == gpu]
    begun = [span for span in of_gpu if span.start_ms <= moment]
    held = [hold for hold in holds if hold.gpu == gpu and covers(hold.start_ms, hold.end_ms, moment)]
    there = [span for span in begun if covers(span.start_ms, span.end_ms, moment)]
    last = max(there, key=lambda span: span.start_ms, default=None)
    if last is None:
        return Counter({("unknown", hold.pod_uid): 1 for hold in held})
    found: Counter[object] = Counter()
    for hold, milli in zip(held, scaled([hold.milli for hold in held]), strict=True):
        found[last.node, "allocated", hold.pod_uid] = milli
    rest = 1000 - found.total()
    if rest:
        found[last.node, "unallocated" if last.health == "healthy" else "unhealthy", ""] = rest
    return found


@pytest.mark.slow
@given(spans(), holds(), TIMES, st.lists(st.integers(0, END), max_size=3))
def test_each_moment_is_divided_as_one_that_is_examined_alone(
    spans: list[GpuSpan], holds: list[GpuHold], period: list[int], cuts: list[int]
) -> None:
    asked = Period(*period)
    times = list(divide(spans, holds, asked, sorted(cuts)))
    for moment in range(END):
        for gpu in "abc":
            found: Counter[object] = Counter()
            for one in times:
                if not one.start_ms <= moment < one.end_ms:
                    continue
                if isinstance(one, Unknown):
                    if one.hold.gpu == gpu:
                        found["unknown", one.hold.pod_uid] += 1
                elif one.span.gpu == gpu:
                    found[one.span.node, one.state, one.hold.pod_uid if one.hold else ""] += one.milli
            expected = at(moment, gpu, spans, holds) if asked.start_ms <= moment < asked.end_ms else Counter()
            # Which of equal holds gets the thousandth that is left is settled by their starts.
            assert found.keys() == expected.keys() and found.total() == expected.total()
            assert all(abs(found[key] - expected[key]) <= 1 for key in expected)
    for one in times:
        assert one.start_ms < one.end_ms and not any(one.start_ms < cut < one.end_ms for cut in cuts)


@given(st.lists(st.integers(1, 1000), max_size=6))
def test_what_is_scaled_adds_up_and_is_in_proportion(millis: list[int]) -> None:
    parts = scaled(millis)
    assert sum(parts) == min(1000, sum(millis))
    for milli, part in zip(millis, parts, strict=True):
        assert part <= milli and abs(part * max(1000, sum(millis)) - milli * 1000) < max(1000, sum(millis))


def test_the_time_of_a_gpu_that_moves_between_nodes_counts_once() -> None:
    here = GpuSpan("a", "n1", 0, 8, "H100", "healthy", 0)
    there = replace(here, node="n2", start_ms=5)
    found = [one for one in divide([here, there], [], Period(0, 10)) if isinstance(one, GpuTime)]
    assert [(one.span.node, one.amount) for one in found] == [("n1", 5000), ("n2", 5000)]
