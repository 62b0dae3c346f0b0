# SPDX-License-Identifier: Apache-2.0
"""A file against a store in memory; and what is in it after its process was killed."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.history.records import (
    DAY_MS,
    HOUR_MS,
    USE_BINS,
    Gap,
    GpuHold,
    GpuSpan,
    HistoryBatch,
    Period,
    PodRecord,
    UseHour,
    UseSum,
)
from dovetail.history.sqlite.reader import SqliteReader
from dovetail.history.sqlite.retention import Retention
from dovetail.history.sqlite.store import SqliteStore
from dovetail.history.store import HistoryStore, StoreError
from tests.history.kept import Kept, added
from tests.history.sqlite import killed

ALWAYS = Period(0, 2**50)
TIMES = st.integers(0, 12)
ENDS = st.integers(0, 12)
GPUS = st.sampled_from(["b", "a", "GPU-1"])
UIDS = st.sampled_from(["p1", "p2", "p3"])
SPANS = st.builds(
    GpuSpan,
    gpu=GPUS,
    node=st.sampled_from(["n1", "n2"]),
    index=st.integers(0, 7),
    gpus=st.just(8),
    model=st.sampled_from(["", "H100"]),
    health=st.sampled_from(["healthy", "unhealthy"]),
    start_ms=TIMES,
    end_ms=ENDS,
    region=st.sampled_from(["", "eu"]),
    spot=st.booleans(),
)
HOLDS = st.builds(
    GpuHold,
    pod_uid=UIDS,
    gpu=GPUS,
    milli=st.integers(1, 1000),
    kind=st.sampled_from(["whole", "instance", "share", "claimed"]),
    start_ms=TIMES,
    end_ms=ENDS,
    device=st.sampled_from(["", "1g.10gb@0"]),
    named=st.booleans(),
)
PODS = st.builds(
    PodRecord,
    uid=UIDS,
    namespace=st.sampled_from(["a", "b"]),
    name=st.sampled_from(["x", "y"]),
    job=st.sampled_from(["j", "k"]),
    labels=st.dictionaries(st.sampled_from(["team", "<b>"]), st.sampled_from(["", "'\"\x00", "ü"])),
    submitted_ms=TIMES,
    ended_ms=ENDS,
    outcome=st.sampled_from(["", "Completed", "Lost"]),
    message=st.sampled_from(["", "out of memory"]),
)
HISTOGRAMS = st.just(()) | st.lists(st.integers(0, 9), min_size=USE_BINS, max_size=USE_BINS).map(tuple)
USES = st.builds(
    UseHour,
    gpu=GPUS,
    pod_uid=UIDS | st.just(""),
    hour_ms=st.integers(0, 72).map(lambda hour: hour * HOUR_MS),
    measured_ms=st.integers(0, HOUR_MS),
    use=st.integers(0, 1000 * HOUR_MS),
    idle_ms=st.integers(0, HOUR_MS),
    memory_peak_mib=st.integers(0, 80_000),
    histogram=HISTOGRAMS,
    activity=st.dictionaries(st.sampled_from(["sm", "pcie"]), st.integers(1, 2**60)),
    used_until_ms=st.integers(0, 72 * HOUR_MS),
    source=st.sampled_from(["", "n1@5", "n1@9"]),
)
GAPS = st.builds(Gap, start_ms=TIMES, end_ms=st.integers(1, 12), reason=st.just("restart"))
BATCHES = st.builds(
    HistoryBatch,
    until_ms=TIMES,
    spans=st.lists(SPANS, max_size=3),
    holds=st.lists(HOLDS, max_size=3),
    pods=st.lists(PODS, max_size=3),
    use=st.lists(USES, max_size=4),
    gaps=st.lists(GAPS, max_size=1),
)
PERIODS = st.tuples(TIMES, TIMES).map(lambda ends: Period(*sorted(ends))) | st.just(ALWAYS)


def shown(reader: SqliteReader | Kept, period: Period) -> dict[str, object]:
    return {
        "known": reader.known(),
        "spans": list(reader.spans(period)),
        "holds": list(reader.holds(period)),
        "holds_of": list(reader.holds_of(["p1", "p3", "p9"])),
        "pods": list(reader.pods(period)),
        "pods_of": list(reader.pods_of(["p1", "p3", "p9"])),
        "job": list(reader.job("j", "a")),
        "use": [plain(one) for one in reader.use(period)],
        "gaps": list(reader.gaps(period)),
    }


def plain(one: UseHour) -> UseHour:
    """Without a histogram that is all zeros, which is not kept."""
    histogram = one.histogram if any(one.histogram) else ()
    return replace(one, histogram=histogram)


def test_a_file_is_a_store(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "history.db")) as store:
        kept: HistoryStore = store
        assert kept.known() == Period(0, 0)
        assert kept.open_records() == HistoryBatch(0, [], [], [])


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(BATCHES, max_size=5), PERIODS)
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, batches: list[HistoryBatch], period: Period
) -> None:
    kept = Kept()
    path = tmp_path_factory.mktemp("file") / "history.db"
    with closing(SqliteStore(path)) as store:
        for batch in batches:
            store.write(batch)
            kept.write(batch)
        assert shown(store, period) == shown(kept, period)
        with closing(SqliteReader(path)) as reader:
            assert shown(reader, period) == shown(kept, period)
    with closing(SqliteStore(path)) as store:
        assert store.open_records() == kept.open_records()
        assert shown(store, ALWAYS) == shown(kept, ALWAYS)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(USES, max_size=30), st.integers(0, 80), st.integers(0, 80))
def test_use_is_summed_by_pod(
    tmp_path_factory: pytest.TempPathFactory, hours: list[UseHour], start: int, length: int
) -> None:
    period = Period(start * HOUR_MS, (start + length) * HOUR_MS)
    expected: dict[str, UseSum] = {}
    for one in {(one.hour_ms, one.gpu, one.pod_uid, one.source): one for one in hours}.values():
        if period.start_ms <= one.hour_ms < period.end_ms:
            sums = expected.get(one.pod_uid, UseSum(one.pod_uid, 0, 0, 0))
            expected[one.pod_uid] = UseSum(
                one.pod_uid, sums.measured_ms + one.measured_ms, sums.use + one.use, sums.idle_ms + one.idle_ms
            )
    with closing(SqliteStore(tmp_path_factory.mktemp("file") / "history.db")) as store:
        for number in range(0, len(hours), 7):
            store.write(HistoryBatch(1, use=hours[number : number + 7]))
        assert list(store.use_by_pod(period)) == [expected[uid] for uid in sorted(expected)]


@settings(max_examples=40)
@given(st.lists(USES, max_size=30), st.integers(0, 5), st.integers(0, 5))
@pytest.mark.slow
def test_old_hours_are_added_up_to_days_and_old_days_dropped(
    tmp_path_factory: pytest.TempPathFactory, hours: list[UseHour], hours_days: int, more: int
) -> None:
    now_ms = 4 * DAY_MS
    retention = Retention(hours_days=hours_days, days_days=hours_days + more)
    expected: dict[tuple[int, str, str, str], UseHour] = {}
    for one in {(one.hour_ms, one.gpu, one.pod_uid, one.source): one for one in hours}.values():
        start_ms, source = one.hour_ms, one.source
        if start_ms // DAY_MS < 4 - hours_days:
            start_ms, source = start_ms // DAY_MS * DAY_MS, ""
        if start_ms >= now_ms - retention.days_days * DAY_MS:
            key = start_ms, one.gpu, one.pod_uid, source
            moved = replace(one, hour_ms=start_ms, source=source)
            expected[key] = added(expected[key], moved) if key in expected else moved
    path = tmp_path_factory.mktemp("file") / "history.db"
    with closing(SqliteStore(path, retention)) as store:
        store.write(HistoryBatch(1, use=hours))
        while store.retain(now_ms):
            # A day that is half added up has all of its use.
            assert sum(one.use for one in store.use(ALWAYS)) >= sum(one.use for one in expected.values())
        assert [plain(one) for one in store.use(ALWAYS)] == [plain(one) for _, one in sorted(expected.items())]
        summed = {one.pod_uid: one.use for one in store.use_by_pod(ALWAYS)}
        assert sum(summed.values()) == sum(one.use for one in expected.values())


def test_what_ended_long_ago_is_dropped_and_what_has_not_ended_is_kept(tmp_path: Path) -> None:
    now_ms = 1000 * DAY_MS
    old_ms, new_ms = 900 * DAY_MS, 998 * DAY_MS
    spans = [
        GpuSpan(f"g{n}", "node", 0, 1, "", "healthy", start, end)
        for n in range(600)
        for start, end in ((old_ms, old_ms + 1), (old_ms + 1, 0))
    ]
    holds = [
        GpuHold("old", "g0", 1000, "whole", old_ms, old_ms + 1),
        GpuHold("new", "g0", 1000, "whole", new_ms, new_ms + 1),
        GpuHold("still", "g1", 1000, "whole", old_ms),
    ]
    pods = [
        PodRecord("old", "a", "x", "j", submitted_ms=old_ms, ended_ms=old_ms + 1),
        PodRecord("new", "a", "y", "j", submitted_ms=new_ms, ended_ms=new_ms + 1),
        PodRecord("open", "a", "z", "j", submitted_ms=old_ms),
        PodRecord("still", "a", "z", "j", submitted_ms=old_ms, ended_ms=old_ms + 1),
    ]
    with closing(SqliteStore(tmp_path / "history.db", Retention(5, 5, 5))) as store:
        store.write(HistoryBatch(now_ms, spans, holds, pods))
        assert store.known().start_ms == old_ms
        while store.retain(now_ms):
            pass
        assert {one.start_ms for one in store.spans(ALWAYS)} == {old_ms + 1}
        assert [one.pod_uid for one in store.holds(ALWAYS)] == ["new", "still"]
        assert {one.uid for one in store.job("j", "a")} == {"new", "open", "still"}
        assert store.known() == Period(995 * DAY_MS, now_ms)
        assert not store.retain(now_ms)
        # An id is never used for another pod.
        store.write(HistoryBatch(now_ms, holds=[GpuHold("third", "g1", 1000, "whole", now_ms)]))
        assert {one.pod_uid for one in store.holds(ALWAYS)} == {"new", "still", "third"}


def test_a_batch_that_fails_is_not_written_and_the_next_one_is(tmp_path: Path) -> None:
    fail = False

    def at_step(step: str) -> None:
        if fail and step == "gaps":
            raise KeyboardInterrupt

    with closing(SqliteStore(tmp_path / "history.db", at_step=at_step)) as store:
        store.write(killed.batch(1))
        before = shown(store, ALWAYS)
        fail = True
        with pytest.raises(KeyboardInterrupt):
            store.write(killed.batch(2))
        assert shown(store, ALWAYS) == before
        fail = False
        kept = Kept()
        kept.write(killed.batch(1))
        for number in (2, 3):
            store.write(killed.batch(number))
            kept.write(killed.batch(number))
        assert shown(store, ALWAYS) == shown(kept, ALWAYS)


def test_a_reader_sees_the_file_as_it_was_when_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with closing(SqliteStore(path)) as store:
        store.write(killed.batch(1))
        with closing(SqliteReader(path)) as reader:
            before = shown(reader, ALWAYS)
            store.write(killed.batch(2))
            assert shown(reader, ALWAYS) == before
        with closing(SqliteReader(path)) as reader:
            assert shown(reader, ALWAYS) == shown(store, ALWAYS)


@pytest.mark.slow
def test_a_process_that_is_killed_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    steps = 200
    subprocess.run([sys.executable, killed.__file__, tmp_path, str(steps)], check=True)
    acknowledgements = summed = 0
    for step in range(1, steps + 1):
        acknowledged = len((tmp_path / f"{step}.acknowledged").read_text().splitlines())
        acknowledgements += acknowledged
        with closing(SqliteStore(tmp_path / f"{step}.db", killed.RETENTION)) as store:
            written = store.open_records().until_ms // killed.APART_MS
            assert written in (acknowledged, acknowledged + 1)
            kept = Kept()
            for number in range(1, written + 1):
                kept.write(killed.batch(number))
            assert shown(store, ALWAYS) == shown(kept, ALWAYS)
            sums = list(store.day_sums(ALWAYS))
            summed += len(sums)
            store.run("DELETE FROM day_sums")
            while store.retain(written * killed.APART_MS):
                pass
            assert [day for day in store.day_sums(ALWAYS) if day in sums] == sums
            store.write(killed.batch(written + 1))
    assert acknowledgements > steps and summed > steps // 2


def test_errors_have_the_file_what_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as found:
        SqliteReader(tmp_path / "none.db")
    assert str(found.value) == f"{tmp_path}/none.db: there is no such file; pass the file that the collector writes"
