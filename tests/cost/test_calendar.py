# SPDX-License-Identifier: Apache-2.0
"""Periods and days as users write them."""

from __future__ import annotations

from datetime import UTC

import pytest

from dovetail.cost.calendar import PeriodError, days, period_of, zone_of
from dovetail.history.records import DAY_MS, HOUR_MS, Period

NOW = 1_794_000_000_000
NOVEMBER = 1_793_491_200_000
"""The start of November 2026, UTC."""


@pytest.mark.parametrize(
    ("text", "period"),
    [
        ("7d", Period(NOVEMBER - DAY_MS, NOW)),
        ("1d", Period(NOVEMBER + 5 * DAY_MS, NOW)),
        ("36h", Period(NOW - 36 * HOUR_MS, NOW)),
        ("2026", Period(NOVEMBER - 304 * DAY_MS, NOVEMBER + 61 * DAY_MS)),
        ("2026-11", Period(NOVEMBER, NOVEMBER + 30 * DAY_MS)),
        ("2026-12", Period(NOVEMBER + 30 * DAY_MS, NOVEMBER + 61 * DAY_MS)),
        ("2026-11-02", Period(NOVEMBER + DAY_MS, NOVEMBER + 2 * DAY_MS)),
        ("2026-11-01..2026-11-03", Period(NOVEMBER, NOVEMBER + 2 * DAY_MS)),
        ("2026-11-01T12:00Z..2026-11-01T13:30+01:00", Period(NOVEMBER + 12 * HOUR_MS, NOVEMBER + 25 * HOUR_MS // 2)),
        ("2026-11-01..", Period(NOVEMBER, NOW)),
        ("2027-01", Period(NOVEMBER + 61 * DAY_MS, NOVEMBER + 92 * DAY_MS)),
    ],
)
def test_periods(text: str, period: Period) -> None:
    if "+01:00" in text:
        period = Period(period.start_ms, NOVEMBER + 12 * HOUR_MS + HOUR_MS // 2)
    assert period_of(text, UTC, NOW) == period


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is not a period: write 7d"),
        ("7", "is not a period"),
        ("0d", "is empty: its end must be after its start"),
        ("2026-13", "'2026-13-01' is not a date"),
        ("2026-02-30", "'2026-02-30' is not a date"),
        ("9999-12", "at most 9000"),
        ("2026-11-03..2026-11-01", "is empty"),
        ("2026-11-03..2026-11-03", "is empty"),
        ("..2026-11-03", "'' is not a date or a time"),
        ("a..b", "'a' is not a date or a time"),
        ("99999d", "begins before 1970"),
        ("1960-01", "begins before 1970"),
    ],
)
def test_what_is_no_period(text: str, expected: str) -> None:
    with pytest.raises(PeriodError, match=expected.replace("'", ".")):
        period_of(text, UTC, NOW)


def test_the_last_days_are_those_of_the_zone_and_a_history_that_ends_at_midnight_has_the_day_before() -> None:
    berlin = zone_of("Europe/Berlin")
    assert period_of("2d", berlin, NOW) == Period(NOVEMBER + 4 * DAY_MS - HOUR_MS, NOW)
    assert period_of("9d", berlin, NOVEMBER - HOUR_MS).ms == 9 * DAY_MS + HOUR_MS  # clocks were set back
    assert period_of("3d", UTC, NOVEMBER) == Period(NOVEMBER - 3 * DAY_MS, NOVEMBER)
    assert period_of("3d", UTC, NOVEMBER + 1) == Period(NOVEMBER - 2 * DAY_MS, NOVEMBER + 1)


@pytest.mark.parametrize("text", ["Mars/Olympus", "+25:00", "+05:99", "../etc/passwd", ""])
def test_what_is_no_time_zone(text: str) -> None:
    with pytest.raises(PeriodError):
        zone_of(text)


def test_days_end_at_midnight_of_the_zone_also_when_clocks_change() -> None:
    zone = zone_of("America/New_York")
    found = list(days(period_of("2026-11", zone, NOW), zone))
    lengths = {day: part.ms // HOUR_MS for day, part in found}
    assert len(found) == 30 and lengths["2026-11-01"] == 25 and set(lengths.values()) == {24, 25}
    assert found[0][1].start_ms == NOVEMBER + 4 * HOUR_MS
    assert sum(part.ms for _, part in found) == period_of("2026-11", zone, NOW).ms
