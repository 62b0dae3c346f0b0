# SPDX-License-Identifier: Apache-2.0
"""What is published, for how long, and that what does not change keeps its series."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from dovetail.history.prometheus.chunks import GAPS, USE
from dovetail.history.prometheus.publication import KEPT_MS, Publication
from dovetail.history.records import DAY_MS, HOUR_MS, Gap, GpuHold, GpuSpan, HistoryBatch, PodRecord, UseHour
from dovetail.history.sqlite.store import SqliteStore
from dovetail.history.store import StoreError

DAYS = 10
END_MS = DAYS * DAY_MS + 5 * HOUR_MS


def hours(first_ms: int, end_ms: int) -> list[UseHour]:
    return [UseHour("a", "p", at, HOUR_MS, 5 * HOUR_MS, 0, source="n1/1") for at in range(first_ms, end_ms, HOUR_MS)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "history.db"
    write(
        path,
        HistoryBatch(
            END_MS,
            [GpuSpan("a", "n1", 0, 1, "H100", "healthy", 0)],
            [GpuHold("p", "a", 1000, "whole", 0)],
            [PodRecord("p", "ns", "p", "j", bound_ms=1)],
            hours(0, END_MS),
        ),
    )
    return path


def write(path: Path, batch: HistoryBatch) -> None:
    with closing(SqliteStore(path)) as store:
        store.write(batch)


def series(publication: Publication, metric: str = "dovetail_history_") -> set[str]:
    lines = publication.path.read_text().splitlines()
    return {line.rpartition(" ")[0] for line in lines if line.startswith(metric)}


def days(publication: Publication) -> list[int]:
    return sorted(int(line.partition('day="1970-01-')[2][:2]) for line in series(publication, "dovetail_history_day"))


def test_the_days_that_may_change_are_published(path: Path) -> None:
    publication = Publication(path)
    made = publication.publish()
    assert days(publication) == [9, 10, 11]
    assert made.series == len(series(publication))
    assert made.bytes == publication.path.stat().st_size
    assert (made.days, made.until_ms) == (3, END_MS)


def test_what_is_over_keeps_its_series_when_the_day_goes_on(path: Path) -> None:
    publication = Publication(path)
    publication.publish()
    before = series(publication)
    publication.publish()
    assert series(publication) == before
    write(path, HistoryBatch(END_MS + HOUR_MS, use=hours(END_MS, END_MS + HOUR_MS)))
    publication.publish()
    # The use of an hour, and the list of today; the use by pod is that of the hours before.
    assert len(series(publication) - before) == 3
    assert len(before - series(publication)) == 2


def test_an_end_after_the_day_does_not_change_it(path: Path) -> None:
    publication = Publication(path)
    publication.publish()
    before = {line for line in series(publication, "dovetail_history_day") if "1970-01-11" not in line}
    end_ms = END_MS + HOUR_MS
    ended = PodRecord("p", "ns", "p", "j", bound_ms=1, ended_ms=end_ms, outcome="Failed", code="Error", message="no")
    write(path, HistoryBatch(end_ms, holds=[GpuHold("p", "a", 1000, "whole", 0, end_ms)], pods=[ended]))
    publication.publish()
    assert before <= series(publication, "dovetail_history_day")


def test_after_a_restart_it_has_the_same_name_and_all_days_since_the_last_publication(path: Path) -> None:
    first = Publication(path)
    first.publish()
    later_ms = END_MS + 5 * DAY_MS
    write(path, HistoryBatch(later_ms))
    again = Publication(path)
    assert again.name == first.name
    again.publish()
    assert days(again) == list(range(9, 17))
    write(path, HistoryBatch(later_ms + KEPT_MS))
    again.publish()
    assert days(again) == [16, 17, 18]


def test_a_history_without_records_is_not_published(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    SqliteStore(path).close()
    publication = Publication(path)
    assert publication.publish().days == 0
    assert not publication.path.exists()


def test_a_file_that_cannot_be_written_is_an_error_and_the_last_one_stays(path: Path) -> None:
    publication = Publication(path)
    publication.publish()
    before = publication.path.read_text()
    path.with_name("history.db.published.new").mkdir()
    with pytest.raises(StoreError, match="cannot be written"):
        publication.publish()
    assert publication.path.read_text() == before


@pytest.mark.parametrize("number", [1, 15, 16, 199, 200, 201, 1000, 1 << 16])
def test_records_that_come_one_by_one_are_the_columns_of_all(number: int) -> None:
    gaps = [Gap(one, one * one, "away" * (one % 3)) for one in range(number)]
    columns = [[gap.start_ms for gap in gaps], [gap.end_ms for gap in gaps], [gap.reason for gap in gaps]]
    blob = GAPS.encoded(iter(gaps))
    assert blob == msgspec.msgpack.encode(columns) and GAPS.decoded(blob) == gaps


def test_only_few_records_are_in_memory_at_a_time() -> None:
    def many() -> Iterator[UseHour]:
        for one in range(4000):
            histogram = tuple(range(one, one + 20))
            yield UseHour("GPU-a", f"pod-{one}", 0, HOUR_MS, 5, 0, histogram=histogram, activity={"sm": one})

    tracemalloc.start()
    try:
        blob = USE.encoded(many())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # As objects all of them have more than ten times the size of the bytes.
    assert peak < 4 * len(blob)
