# SPDX-License-Identifier: Apache-2.0
"""What a Prometheus answers wrongly, lacks, or has too much of is an error with what to do, or harmless."""

from __future__ import annotations

import re
import time
from base64 import b64encode
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from dovetail.history import pod_days
from dovetail.history.day_sums import Place
from dovetail.history.pod_days import PodDay
from dovetail.history.prometheus import chunks
from dovetail.history.prometheus.matchers import is_matchers
from dovetail.history.prometheus.publication import Publication
from dovetail.history.prometheus.reader import PrometheusReader
from dovetail.history.records import DAY_MS, HOUR_MS, GpuHold, GpuSpan, HistoryBatch, Period, PodRecord
from dovetail.history.sqlite.store import SqliteStore
from dovetail.history.store import StoreError
from dovetail.kube.reading.prometheus_api import PrometheusAccess
from tests.history.prometheus.served import Answer, Scraped, scraped, served, success

MARKUP = 'a"b\\c\nd} 7 # <b>{}'
BATCH = HistoryBatch(
    3 * DAY_MS + HOUR_MS,
    [GpuSpan("a", "n1", 0, 1, "H100", "healthy", 0)],
    [GpuHold("p", "a", 1000, "whole", HOUR_MS, 2 * DAY_MS)],
    [PodRecord("p", "ns", MARKUP, "j", queue=MARKUP, labels={MARKUP: MARKUP}, bound_ms=HOUR_MS, ended_ms=2 * DAY_MS)],
)


@pytest.fixture
def published(tmp_path: Path) -> str:
    path = tmp_path / "history.db"
    with closing(SqliteStore(path)) as store:
        store.write(BATCH)
    publication = Publication(path, kept_ms=10 * DAY_MS)
    publication.publish()
    return publication.path.read_text()


def reader(prometheus: Scraped, matchers: str = "") -> PrometheusReader:
    """One that has read all."""
    with scraped(prometheus) as access:
        found = PrometheusReader(access, matchers)
        all_records(found)
        return found


def all_records(found: PrometheusReader) -> tuple[Any, ...]:
    known = found.known()
    return known, list(found.spans(known)), list(found.holds(known)), list(found.pods(known))


def failure(answer: Answer, timeout_s: float = 30.0) -> str:
    with served(answer) as access, pytest.raises(StoreError) as error:
        all_records(PrometheusReader(access, timeout_s=timeout_s))
    assert error.value.where == f"Prometheus at {access.url}"
    return f"{error.value.rule}; {error.value.fix}"


def fault(prometheus: Scraped, matchers: str = "") -> str:
    with pytest.raises(StoreError) as error:
        reader(prometheus, matchers)
    return f"{error.value.rule}; {error.value.fix}"


def test_names_that_users_chose_are_in_no_label_and_come_back_as_they_were(published: str) -> None:
    prometheus = Scraped()
    prometheus.scrape(published)
    labels = set(re.findall(r'[{,](\w+)="', published))
    assert labels == {"chunk", "part", "data", "store", "day", "parts"}
    assert all_records_of(prometheus)[3] == list(BATCH.pods)


def all_records_of(prometheus: Scraped, matchers: str = "") -> tuple[Any, ...]:
    with scraped(prometheus) as access:
        return all_records(PrometheusReader(access, matchers))


def test_series_of_replicas_and_of_earlier_addresses_count_once(published: str) -> None:
    once, often = Scraped(), Scraped()
    once.scrape(published)
    for replica in ("a", "b"):
        for instance in ("10.0.0.1:10355", "10.0.0.2:10355"):
            often.scrape(published, replica=replica, instance=instance)
    assert all_records_of(once) == all_records_of(often)


def test_one_that_is_away() -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        PrometheusReader(PrometheusAccess("http://127.0.0.1:1"))


def test_one_that_is_slow() -> None:
    def slow(_: str) -> tuple[int, bytes]:
        time.sleep(0.5)
        return success([])

    assert failure(slow, 0.1).startswith("cannot be read: no answer within 0.1 s")


@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        (422, b'{"status": "error", "error": "too many samples"}', "refuses a query (422): too many samples"),
        (401, b"Unauthorized", "answers 401, and not as a Prometheus does"),
        (502, b"<html>Bad Gateway</html>", "answers 502, and not as a Prometheus does"),
        (200, b'{"status": "success", "data": {"result": [', "answers 200, and not as a Prometheus does"),
        (200, b'{"status": "success", "data": {"result": [{"metric": {}}]}}', "answers 200, and not as a Prometheus"),
        (302, b"", "answers 302, and not as a Prometheus does"),
    ],
)
def test_one_that_refuses_or_is_none(status: int, body: bytes, found: str) -> None:
    assert found in failure(lambda _: (status, body))


def test_an_answer_in_part_is_none(published: str) -> None:
    prometheus = Scraped()
    prometheus.scrape(published)
    warned = failure(lambda query: success(prometheus.answer(query), warnings=["store 2 is away"]))
    assert warned.startswith("answers only in part: store 2 is away")


def test_a_part_that_is_missing_or_changed_is_noticed(published: str) -> None:
    *parts, last = [line for line in published.splitlines() if line.startswith("dovetail_history_part")]
    assert parts
    for wrong in ("", last.replace('data="', 'data="AAAA'), last.replace('part="0"', 'part="x"')):
        prometheus = Scraped()
        prometheus.scrape(published.replace(last + "\n", wrong and wrong + "\n"))
        assert "a part is missing or was changed" in fault(prometheus)


def test_without_a_collector_it_names_what_to_scrape() -> None:
    assert "let it scrape /history of a collector" in fault(Scraped())
    assert 'with cluster="eu"' in fault(Scraped(), 'cluster="eu"')


def test_of_two_histories_one_has_to_be_chosen(published: str) -> None:
    prometheus = Scraped()
    prometheus.scrape(published, cluster="eu")
    other = re.sub(r'store="\w+"', 'store="0123456789abcdef"', published)
    prometheus.scrape(other, cluster="us")
    assert 'it has 2 histories; choose one with --prometheus-match: store="' in fault(prometheus)
    assert reader(prometheus, 'cluster="eu"').known() == reader(prometheus, 'store="0123456789abcdef"').known()


def test_series_that_another_scrape_job_has_are_not_trusted(published: str) -> None:
    prometheus = Scraped()
    prometheus.scrape(published, job="collector", namespace="dovetail-system")
    before = all_records_of(prometheus)
    prometheus.scrape(re.sub(r"\} \d{9}\n", "} 999999999\n", published), job="pods", namespace="tenant")
    assert "2 scrape jobs have the history" in fault(prometheus)
    assert all_records_of(prometheus, 'job="collector"') == before


@pytest.mark.parametrize(
    ("pattern", "wrong"),
    [
        (r'day="[\d-]+"', 'day="today"'),
        (r"(?m)^(dovetail_history_day.*) \d+$", r"\1 NaN"),
        (r"(?m)^(dovetail_history_day.*) \d+$", r"\1 1e300"),
        (r'(dovetail_history_day.*)chunk="\w+"', r'\1chunk="a|b"'),
        (r'(dovetail_history_day.*)parts="\d+"', r'\1parts="-1"'),
    ],
)
def test_series_that_no_collector_wrote(published: str, pattern: str, wrong: str) -> None:
    prometheus = Scraped()
    prometheus.scrape(re.sub(pattern, wrong, published))
    assert "is not that of a collector; choose the collector's" in fault(prometheus)


def test_a_day_that_is_missing_between_others_is_named_and_the_others_are_answered(published: str) -> None:
    prometheus = Scraped()
    prometheus.scrape("".join(line for line in published.splitlines(True) if 'day="1970-01-02"' not in line))
    assert "it has no history of 1970-01-02; ask for a period without" in fault(prometheus)
    with scraped(prometheus) as access:
        assert len(list(PrometheusReader(access).spans(Period(2 * DAY_MS, 3 * DAY_MS)))) == 1


def test_before_the_first_day_nothing_is_known(published: str) -> None:
    prometheus = Scraped()
    prometheus.scrape("".join(line for line in published.splitlines(True) if 'day="1970-01-01"' not in line))
    assert reader(prometheus).known() == Period(DAY_MS, 3 * DAY_MS + HOUR_MS)


def test_columns_that_an_older_program_did_not_write_have_their_defaults() -> None:
    pod = PodRecord("u", "ml", "p", "j", cpu_milli=8000, checkpoint_interval_ms=5)
    columns = msgspec.msgpack.decode(chunks.PODS.encoded([pod, pod]))
    older = msgspec.msgpack.encode(columns[:-3])
    assert chunks.PODS.decoded(older) == [replace(pod, cpu_milli=0, checkpoint_interval_ms=0)] * 2
    for wrong in (columns[:3], [*columns, [1, 1]], [*columns[:-1], [1]], [*columns[:-1], ["a", "b"]]):
        with pytest.raises(chunks.ChunkError, match="another version"):
            chunks.PODS.decoded(msgspec.msgpack.encode(wrong))


def test_a_chunk_of_another_version_or_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    good = chunks.chunk("span", 0, b"\0" * 1000)
    assert chunks.content(good.of.name, good.text) == b"\0" * 1000
    with pytest.raises(chunks.ChunkError, match="another version"):
        chunks.SPANS.decoded(b"\0" * 1000)
    with pytest.raises(chunks.ChunkError, match="no base64"):
        chunks.content(good.of.name, good.text + "é")
    not_packed = b64encode(b"text").decode()
    with pytest.raises(chunks.ChunkError, match="cannot be unpacked"):
        chunks.content(chunks._name(b"text"), not_packed)
    monkeypatch.setattr(chunks, "_MOST_BYTES", 999)
    with pytest.raises(chunks.ChunkError, match="more than 999 bytes"):
        chunks.content(good.of.name, good.text)


@pytest.mark.parametrize("text", ['job="a"', 'a=~"b|c" , d!="\\"}"', ' cluster="eu"'])
def test_matchers(text: str) -> None:
    assert is_matchers(text)


@pytest.mark.parametrize("text", ["job", "job=a", 'job="a"}', 'job="a"} or up{a="b"', 'job="a",', '9="a"', 'a="\n"'])
def test_no_matchers(text: str) -> None:
    assert not is_matchers(text)


def pod_day(row: tuple[int, ...]) -> PodDay:
    """One with a place, a node and a pod."""
    place = Place("H100", "", "", "", False, 1, 0)
    return PodDay(0, [place], ["n1"], ["u"], np.array([row], np.int64).T)


@pytest.mark.parametrize("column", range(4))
def test_sums_by_pod_that_name_what_is_not_listed_are_refused(column: int) -> None:
    good = (0, 0, 0, 0, 1, 0, 0, 0)
    assert chunks.decoded_pod_day(pod_days.encoded(pod_day(good))).columns[:, 0].tolist() == list(good)
    for wrong in (-2, 3):
        row = (*good[:column], wrong, *good[column + 1 :])
        with pytest.raises(chunks.ChunkError, match="another version"):
            chunks.decoded_pod_day(pod_days.encoded(pod_day(row)))


def test_sums_by_pod_that_unpack_to_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    blob = pod_days.encoded(pod_day((0, 0, 0, -1, 1, 0, 0, 0)))
    assert chunks.decoded_pod_day(blob).columns[3, 0] == -1
    monkeypatch.setattr(chunks, "_MOST_BYTES", 63)
    with pytest.raises(chunks.ChunkError, match="more than 63 bytes"):
        chunks.decoded_pod_day(blob)


def test_a_kind_of_a_newer_program_is_no_error() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(("newer", 0, "a" * 24, 1)), type=chunks.ChunkName).parts == 1
