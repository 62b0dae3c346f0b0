# SPDX-License-Identifier: Apache-2.0
"""The GPUs are read a second before each scrape of a steady scraper, of however many there are, and for no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.agent.exporter.read_ahead import LEAD_S, ReadAhead


def readings(scrapes: list[float]) -> list[float]:
    """When the GPUs are read ahead of scrapes at these times."""
    found: list[float] = []
    now_s = 0.0

    def later(delay_s: float, call: Callable[[], None]) -> None:
        found.append(now_s + delay_s)
        call()

    read: list[float] = []
    ahead = ReadAhead(lambda: read.append(now_s), later)
    for now_s in scrapes:
        ahead.scraped(now_s)
    assert len(read) == len(found)
    return sorted({round(one, 3) for one in found})


def test_from_the_third_scrape_on_the_next_is_expected() -> None:
    assert readings([100, 115]) == []
    assert readings([100, 115, 130, 145]) == [145 - LEAD_S, 160 - LEAD_S]


@pytest.mark.parametrize(
    "scrapes",
    [
        pytest.param([0, 10, 25, 33, 60, 61], id="unsteady"),
        pytest.param([0, 1, 2, 3], id="quicker than a reading is worth"),
        pytest.param([0, 200, 400, 600], id="too far apart to be known to go on"),
        pytest.param([0, 15, 30.6], id="the gaps differ by more than half a second"),
    ],
)
def test_other_scrapes_are_not_expected(scrapes: list[float]) -> None:
    assert readings(scrapes) == []


@given(
    st.lists(st.tuples(st.floats(2, 60), st.floats(0, 60)), min_size=1, max_size=6),
    st.lists(st.floats(-0.1, 0.1), min_size=1, max_size=7),
)
def test_each_scraper_finds_a_reading_from_shortly_before(
    scrapers: list[tuple[float, float]], jitter: list[float]
) -> None:
    # Periods of Prometheus are whole seconds; all scrapers of a node mostly have the same.
    period_s = round(scrapers[0][0])
    rounds = 6
    due = sorted((offset % period_s + period_s * n, n) for _, offset in scrapers for n in range(rounds))
    scrapes = [(time_s + 1 + jitter[i % len(jitter)], n) for i, (time_s, n) in enumerate(due)]
    read = readings(sorted(time_s for time_s, _ in scrapes))
    for time_s, n in scrapes:
        if n >= 3:
            assert any(LEAD_S - 0.9 <= time_s - one <= LEAD_S + 0.9 for one in read)


def test_a_node_that_is_scraped_for_long_remembers_only_the_last_scrapes() -> None:
    steady = [15.0 * n for n in range(3)]
    hurried = [1000 + n / 100 for n in range(100)]
    assert readings([*steady, *hurried, 60]) == readings(steady) == [45 - LEAD_S]
