# SPDX-License-Identifier: Apache-2.0
"""Sums of days in a file: they are always what would be made of the records now."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from dovetail.history.day_sums import DaySums
from dovetail.history.records import DAY_MS, HOUR_MS, GpuHold, GpuSpan, HistoryBatch, Period, PodRecord, UseHour
from dovetail.history.sqlite.retention import Retention
from dovetail.history.sqlite.store import SqliteStore
from tests.history.late_writes import DAYS, END_MS, histories

ALWAYS = Period(0, 1000 * DAY_MS)


def settled(store: SqliteStore, now_ms: int = END_MS) -> list[DaySums]:
    """The sums after all steps."""
    while store.retain(now_ms):
        pass
    return list(store.day_sums(ALWAYS))


def made_again(store: SqliteStore) -> list[DaySums]:
    store.run("DELETE FROM day_sums")
    return settled(store)


@pytest.mark.slow
@settings(max_examples=40)
@given(histories())
def test_sums_are_those_of_the_records(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[HistoryBatch, int]]
) -> None:
    with closing(SqliteStore(tmp_path_factory.mktemp("file") / "history.db")) as store:
        for batch, steps in batches:
            store.write(batch)
            for _ in range(steps):
                store.retain(END_MS)
        kept = {day.start_ms: day for day in store.day_sums(ALWAYS)}
        found = settled(store)
        again = made_again(store)
        assert found == again and len(found) == DAYS
        assert [day for day in found if day.start_ms in kept] == list(kept.values())


SPAN = GpuSpan("g", "n", 0, 1, "H100", "healthy", 0)
HOLD = GpuHold("u", "g", 1000, "whole", 2 * HOUR_MS)
POD = PodRecord("u", "ns", "x", "j", queue="vision", bound_ms=2 * HOUR_MS, started_ms=3 * HOUR_MS)
USE = UseHour("g", "u", 5 * HOUR_MS, HOUR_MS, 1000 * HOUR_MS, 0, source="n/1")
FIRST = HistoryBatch(END_MS, [SPAN], [HOLD], [POD], [USE])
NEW_MS = END_MS - HOUR_MS
CHANGES = {
    "nothing": (FIRST, {0, 1, 2}),
    "a hold that ends now": (HistoryBatch(END_MS, holds=[replace(HOLD, end_ms=NEW_MS)]), {0, 1, 2}),
    "a hold that ended yesterday": (HistoryBatch(END_MS, holds=[replace(HOLD, end_ms=30 * HOUR_MS)]), {0}),
    "a hold that is known better": (HistoryBatch(END_MS, holds=[replace(HOLD, named=False)]), set()),
    "a span that ends now": (HistoryBatch(END_MS, [replace(SPAN, end_ms=NEW_MS)]), {0, 1, 2}),
    "another GPU since yesterday": (HistoryBatch(END_MS, [replace(SPAN, gpu="h", start_ms=DAY_MS)]), {0}),
    "the same use once more": (HistoryBatch(END_MS, use=[USE]), {0, 1, 2}),
    "more use of a day": (HistoryBatch(END_MS, use=[replace(USE, hour_ms=26 * HOUR_MS)]), {0, 2}),
    "other use in the same time": (HistoryBatch(END_MS, use=[replace(USE, use=1)]), {1, 2}),
    "use by nobody": (HistoryBatch(END_MS, use=[replace(USE, pod_uid="")]), {0, 1, 2}),
    "a pod that ends now": (HistoryBatch(END_MS, pods=[replace(POD, ended_ms=NEW_MS)]), {0, 1, 2}),
    "a pod in another queue": (HistoryBatch(END_MS, pods=[replace(POD, queue="audio")]), set()),
    "a pod with other labels": (HistoryBatch(END_MS, pods=[replace(POD, labels={"a": "b"})]), {0, 1, 2}),
    "a pod that started later": (HistoryBatch(END_MS, pods=[replace(POD, started_ms=25 * HOUR_MS)]), {2}),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_batch_drops_the_sums_of_the_days_that_it_changes_and_no_others(tmp_path: Path, change: str) -> None:
    batch, kept = CHANGES[change]
    with closing(SqliteStore(tmp_path / "history.db")) as store:
        store.write(FIRST)
        assert len(settled(store)) == DAYS
        store.write(batch)
        assert {day.start_ms // DAY_MS for day in store.day_sums(ALWAYS)} == kept
        assert settled(store) == made_again(store)
        store.write(FIRST)
        assert settled(store) == made_again(store)


def test_a_day_is_added_up_when_it_has_been_over_for_an_hour(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "history.db")) as store:
        store.write(HistoryBatch(DAY_MS + HOUR_MS - 1, [SPAN]))
        assert settled(store) == []
        store.write(HistoryBatch(DAY_MS + HOUR_MS))
        (day,) = settled(store)
        assert (day.start_ms, sum(one.time for one in day.times)) == (0, 1000 * DAY_MS)


def test_a_day_before_the_first_record_is_whole_is_not_added_up(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "history.db")) as store:
        store.write(HistoryBatch(END_MS, [replace(SPAN, start_ms=1)]))
        assert [day.start_ms for day in settled(store)] == [DAY_MS, 2 * DAY_MS]


@pytest.mark.parametrize("retention", [Retention(1, 1, 400), Retention(1, 400, 1)])
def test_sums_are_dropped_with_the_first_record_of_their_day(tmp_path: Path, retention: Retention) -> None:
    with closing(SqliteStore(tmp_path / "history.db", retention)) as store:
        store.write(FIRST)
        assert [day.start_ms for day in settled(store, END_MS - 2 * HOUR_MS)] == [2 * DAY_MS]
        # What is kept begins in the third day.
        assert settled(store) == []


def test_the_steps_are_small(tmp_path: Path) -> None:
    spans = [replace(SPAN, gpu=f"g{number:03}", start_ms=2 * DAY_MS) for number in range(600)]
    with closing(SqliteStore(tmp_path / "history.db")) as store:
        store.write(HistoryBatch(END_MS, spans))
        steps = 1
        while not list(store.day_sums(ALWAYS)):
            store.retain(END_MS)
            steps += 1
        assert steps > 600 // 256
        ((day,),) = [list(store.day_sums(ALWAYS))]
        assert sum(one.time for one in day.times) == 600 * 1000 * DAY_MS
