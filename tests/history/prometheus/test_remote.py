# SPDX-License-Identifier: Apache-2.0
"""What Thanos, Mimir and the gateways before them do that Prometheus does not: tenants, answers in part, and limits.

Strict stand-ins: they refuse whatever the real ones do. Sources: Mimir, pkg/api (X-Scope-OrgID) and
pkg/util/globalerror (err-mimir-...); Thanos, docs/components/query.md (partial_response, max_source_resolution, dedup).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from dovetail.cli import cli
from dovetail.history.prometheus import reader as module
from dovetail.history.prometheus.publication import Publication
from dovetail.history.prometheus.reader import PrometheusReader
from dovetail.history.records import DAY_MS, HOUR_MS, GpuHold, GpuSpan, HistoryBatch, PodRecord
from dovetail.history.sqlite.reader import SqliteReader
from dovetail.history.sqlite.store import SqliteStore
from dovetail.history.store import StoreError
from dovetail.kube.reading.prometheus_api import PrometheusAccess
from tests.history.prometheus.served import Asked, Scraped, Series, asked, success
from tests.terminal import environment

DAYS, JOBS = 12, 40
QUERY = "/api/v1/query"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each day some jobs, one after the other on one GPU."""
    path = tmp_path_factory.mktemp("file") / "history.db"
    step_ms = DAYS * DAY_MS // JOBS
    pods = [
        PodRecord(
            f"uid-{i}", "ml", f"train-{i}-0", f"train-{i}", bound_ms=i * step_ms, submitted_ms=i * step_ms,
            started_ms=i * step_ms, ended_ms=(i + 1) * step_ms - HOUR_MS, gpu_milli=1000, outcome="Completed",
        )
        for i in range(JOBS)
    ]  # fmt: skip
    holds = [GpuHold(one.uid, "a", 1000, "whole", one.bound_ms, one.ended_ms) for one in pods]
    with closing(SqliteStore(path)) as file:
        file.write(HistoryBatch(DAYS * DAY_MS, [GpuSpan("a", "n1", 0, 1, "H100", "healthy", 0)], holds, pods))
    return path


@pytest.fixture(scope="module")
def scraped(store: Path) -> Scraped:
    publication = Publication(store, kept_ms=100 * DAY_MS)
    publication.publish()
    found = Scraped()
    found.scrape(publication.path.read_text())
    return found


def series_of(prometheus: Scraped, one: Asked) -> list[Series]:
    return prometheus.answer(one.form["query"])


def refused(status: int, kind: str, error: str) -> tuple[int, bytes]:
    return status, json.dumps({"status": "error", "errorType": kind, "error": error}).encode()


class Mimir:
    """At /prometheus, with tenants, and with a limit of series for a query."""

    def __init__(self, prometheus: Scraped, most_series: int, most_length: int = 1 << 20) -> None:
        self._prometheus, self._most_series, self._most_length = prometheus, most_series, most_length
        self.refusals = 0

    def __call__(self, one: Asked) -> tuple[int, bytes]:
        if one.headers.get("x-scope-orgid") != "team-a":
            return 401, b"no org id\n"
        if one.path != f"/prometheus{QUERY}":
            return 404, b"404 page not found"
        if one.length > self._most_length:
            self.refusals += 1
            return 413, b"<html><h1>413 Request Entity Too Large</h1></html>"
        found = series_of(self._prometheus, one)
        if len(found) > self._most_series:
            self.refusals += 1
            limit = f"the query exceeded the maximum number of series (limit: {self._most_series} series)"
            return refused(422, "execution", f"expanding series: {limit} (err-mimir-max-series-per-query)")
        return success(found)


def all_records(found: PrometheusReader | SqliteReader) -> tuple[object, ...]:
    known = found.known()
    return known, list(found.spans(known)), list(found.holds(known)), list(found.pods(known))


def at_mimir(access: PrometheusAccess) -> PrometheusAccess:
    return replace(access, url=f"{access.url}/prometheus", tenant="team-a")


@pytest.mark.parametrize(("series", "length"), [(1 << 20, 1 << 20), (16, 1 << 20), (1 << 20, 700)])
def test_within_the_limits_of_mimir_all_is_read(store: Path, scraped: Scraped, series: int, length: int) -> None:
    mimir = Mimir(scraped, series, length)
    with asked(mimir) as access, closing(SqliteReader(store)) as file:
        assert all_records(PrometheusReader(at_mimir(access))) == all_records(file)
    # It learns how much it may ask for, and does not ask for too much again and again.
    assert bool(mimir.refusals) == (series < 1 << 20 or length < 1 << 20) and mimir.refusals < 12


def test_a_limit_below_one_chunk_or_one_day_is_an_error_with_what_to_do(
    scraped: Scraped, monkeypatch: pytest.MonkeyPatch
) -> None:
    with asked(Mimir(scraped, 0)) as access, pytest.raises(StoreError) as error:
        PrometheusReader(at_mimir(access))
    assert "err-mimir-max-series-per-query" in error.value.rule
    assert error.value.fix == "let its limits permit the series of one day, if that is why"

    def no_parts(one: Asked) -> tuple[int, bytes]:
        if "dovetail_history_part" in one.form["query"]:
            return refused(422, "execution", "query processing would load too many samples into memory")
        return success(series_of(scraped, one))

    with asked(no_parts) as access, pytest.raises(StoreError, match=r"too many samples.*permit 1 series of 2 KB"):
        PrometheusReader(access)


def test_the_list_of_days_is_asked_for_by_parts_of_the_time(store: Path) -> None:
    """A year of publications is tens of thousands of series: the list of a day has a new one each time."""
    publication, prometheus = Publication(store, kept_ms=100 * DAY_MS), Scraped()
    publication.publish()
    text = publication.path.read_text()
    parts = [line for line in text.splitlines() if line.startswith("dovetail_history_part")]
    lists = [line for line in text.splitlines() if line.startswith("dovetail_history_day")]
    prometheus.scrape("\n".join(parts))
    for ago, line in enumerate(reversed(lists)):
        prometheus.scrape(line, ago_s=ago * 30 * 86_400)
    mimir = Mimir(prometheus, 4)
    with asked(mimir) as access, closing(SqliteReader(store)) as file:
        assert PrometheusReader(at_mimir(access)).known() == file.known()
    assert mimir.refusals


@pytest.mark.parametrize("tenant", ["", "team-b"])
def test_without_the_tenant_the_answer_of_the_server_is_shown(scraped: Scraped, tenant: str) -> None:
    with asked(Mimir(scraped, 1 << 20)) as access, pytest.raises(StoreError, match="answers 401, and not as"):
        PrometheusReader(replace(at_mimir(access), tenant=tenant))


def thanos(prometheus: Scraped, away: str, replicas: bool) -> Callable[[Asked], tuple[int, bytes]]:
    """A Thanos Query; of two stores one may be away. It answers in part unless that is refused."""

    def answer(one: Asked) -> tuple[int, bytes]:
        assert one.path == QUERY, "a range has a limit of 11,000 points"
        if one.form.get("max_source_resolution") != "0s":
            return success([])
        if away and one.form.get("partial_response") == "false":
            return refused(422, "execution", f"proxy Series(): fetch series for {away}: unavailable")
        found = series_of(prometheus, one)
        if away:
            return success(found[1:], warnings=[f"{away} is away"])
        labels = ({"replica": "a"}, {"replica": "b"}) if replicas else ({},)
        return success([{**each, "metric": {**each["metric"], **more}} for each in found for more in labels])

    return answer


def test_thanos_answers_in_whole_or_not_at_all(store: Path, scraped: Scraped) -> None:
    with closing(SqliteReader(store)) as file:
        for replicas in (False, True):
            with asked(thanos(scraped, "", replicas)) as access:
                assert all_records(PrometheusReader(access)) == all_records(file)
    with asked(thanos(scraped, "sidecar-2:10901", False)) as access, pytest.raises(StoreError, match="sidecar-2:10901"):
        PrometheusReader(access)


def test_one_job_is_read_without_the_pods_of_all_others(
    store: Path, scraped: Scraped, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(module.chunks, "content", _noting(read, module.chunks.content))
    with asked(lambda one: success(series_of(scraped, one))) as access, closing(SqliteReader(store)) as file:
        found = PrometheusReader(access)
        begun = len(read)
        for name, namespace in (("train-7", "ml"), ("train-7", ""), ("train-7", "other"), ("none", "")):
            assert list(found.job(name, namespace)) == list(file.job(name, namespace))
        one_job = len(read) - begun
        list(found.pods(found.known()))
    # Of each day the list and the index, and the hour in which it ended; a pod that ran over midnight is in two days.
    assert one_job <= 2 * DAYS + 3 and len(read) - begun - one_job >= JOBS - 3


def _noting(read: list[str], content: Callable[[str, str], bytes]) -> Callable[[str, str], bytes]:
    def noted(name: str, text: str) -> bytes:
        read.append(name)
        return content(name, text)

    return noted


@pytest.fixture
def mimir(scraped: Scraped) -> Iterator[str]:
    with asked(Mimir(scraped, 1 << 20)) as access:
        yield f"{access.url}/prometheus"


def test_the_commands_name_the_tenant(mimir: str) -> None:
    runner = CliRunner()
    command = ["history", "train-7", "--prometheus", mimir]
    named = runner.invoke(cli, [*command, "--prometheus-tenant", "team-a"], env=environment(200))
    assert named.exit_code == 0 and "ml/train-7" in named.output
    by_variable = environment(200) | {"DOVETAIL_PROMETHEUS_TENANT": "team-a"}
    assert runner.invoke(cli, command, env=by_variable).output == named.output
    for wrong in ("a\nHost: b", "ä", "a b", "x" * 1025):
        result = runner.invoke(cli, [*command, "--prometheus-tenant", wrong], env=environment(200))
        assert result.exit_code == 2 and "is no tenant" in result.output
