# SPDX-License-Identifier: Apache-2.0
"""The page about the scheduler, made of its own metrics: latency, age of its cache, refusals, decisions.

Rules
- The address may stand for several replicas; the one that leads is shown.
- The metrics are read while somebody looks, once in READ_S for all. Rates and latencies are those of the last WINDOW_S,
  or of the time since the first look.
- A latency is the upper bound of a histogram's bucket in proportion, as histogram_quantile of Prometheus computes it.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from urllib.parse import SplitResult, urlsplit

from aiohttp import ClientError, ClientSession, ClientTimeout
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from dovetail.dashboard.page_types import CacheAge, CountedDecisions, CountedRefusals, Latency, SchedulerPage
from dovetail.dashboard.sources import SourceAway

READ_S, WINDOW_S = 5.0, 300.0
_TIMEOUT_S = 5.0
_MOST_BYTES = 16 << 20
_Key = tuple[str, tuple[tuple[str, str], ...]]


class _Reading(Struct, frozen=True):
    """The samples of one moment, by name and labels."""

    at_s: float
    samples: Mapping[_Key, float]

    def of(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        return {labels: value for (one, labels), value in self.samples.items() if one == name}

    def value(self, name: str) -> float:
        return self.samples.get((name, ()), 0.0)


class SchedulerMetrics:
    """Of the scheduler whose metrics are at `url`."""

    def __init__(self, url: str, clock_ms: Callable[[], int]) -> None:
        self._url = url
        self._clock_ms = clock_ms
        self._readings: deque[_Reading] = deque()
        self._reading = asyncio.Lock()

    async def page(self) -> SchedulerPage:
        """The page. Raises SourceAway."""
        async with self._reading:
            now_s = time.monotonic()
            if not self._readings or now_s - self._readings[-1].at_s >= READ_S:
                reading = _Reading(now_s, await self._leaders())
                if self._readings and reading.value(_STEPS) < self._readings[-1].value(_STEPS):
                    self._readings.clear()  # Another process, which counts from its beginning.
                self._readings.append(reading)
                while now_s - self._readings[0].at_s > WINDOW_S:
                    self._readings.popleft()
        return page_of(self._readings[0], self._readings[-1], self._clock_ms())

    async def _leaders(self) -> Mapping[_Key, float]:
        """The samples of the replica that leads. Raises SourceAway."""
        parts = urlsplit(self._url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise SourceAway(f"{self._url}: {error.strerror or error}") from error
        why = ""
        async with ClientSession(timeout=ClientTimeout(total=_TIMEOUT_S)) as client:
            for address in dict.fromkeys(str(one[4][0]) for one in found):
                shown = f"[{address}]" if ":" in address else address
                try:
                    samples = await self._samples(client, f"{parts.scheme}://{shown}:{port}{parts.path}", parts)
                except (ClientError, OSError, TimeoutError, ValueError) as error:
                    why = f"{self._url}: {error or type(error).__name__}"
                    continue
                if samples.get(("dovetail_leader", ())) == 1.0:
                    return samples
                why = f"{self._url}: none of the replicas that answer leads"
        raise SourceAway(why)

    async def _samples(self, client: ClientSession, url: str, asked: SplitResult) -> Mapping[_Key, float]:
        """Of the replica at the address in `url`, which is asked, and has a certificate, by its name."""
        name = asked.hostname if asked.scheme == "https" else None
        async with client.get(url, headers={"Host": asked.netloc}, server_hostname=name) as reply:
            if reply.status != 200:
                raise ValueError(f"the scheduler answers {reply.status}")
            text = bytearray()
            async for part in reply.content.iter_any():
                text += part
                if len(text) > _MOST_BYTES:
                    raise ValueError(f"the metrics are longer than {_MOST_BYTES >> 20} MiB")
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
        }


_STEPS = "dovetail_step_seconds_count"


def page_of(first: _Reading, last: _Reading, now_ms: int) -> SchedulerPage:
    """What happened from the first reading to the last; since the start of the process where they are the same."""
    before = first if first is not last else _Reading(first.at_s, {})
    minutes = (last.at_s - before.at_s) / 60

    def counted(name: str) -> list[tuple[dict[str, str], int, float]]:
        earlier = before.of(name)
        rows = [
            (dict(labels), int(value), (value - earlier.get(labels, 0.0)) / minutes if minutes else 0.0)
            for labels, value in last.of(name).items()
        ]
        return sorted(rows, key=lambda row: (-row[2], -row[1], sorted(row[0].items())))

    refusals = [
        CountedRefusals(of.get("reason", ""), of.get("when", ""), count, rate)
        for of, count, rate in counted("dovetail_refusals_total")
    ]
    decisions = [
        CountedDecisions(of.get("kind", ""), count, rate) for of, count, rate in counted("dovetail_decisions_total")
    ]
    cache = [
        CacheAge(dict(labels).get("resource", ""), value)
        for labels, value in last.of("dovetail_watch_staleness_seconds").items()
    ]
    pending = sorted(
        (dict(one).get("state", ""), int(value)) for one, value in last.of("dovetail_pending_gangs").items()
    )
    return SchedulerPage(
        now_ms, last.at_s - before.at_s, int(last.value(_STEPS)),
        tuple(_latency(what, name, before, last) for what, name in _LATENCIES.items()),
        tuple(sorted(cache, key=lambda one: -one.age_s)), tuple(refusals), tuple(decisions), tuple(pending),
        int(last.value("dovetail_reports_queued")), int(last.value("dovetail_recording_errors_total")),
    )  # fmt: skip


_LATENCIES = {"a step of the core": "dovetail_step_seconds", "decision to bind": "dovetail_bind_seconds"}


def _latency(what: str, name: str, before: _Reading, last: _Reading) -> Latency:
    earlier = before.of(f"{name}_bucket")
    buckets = sorted(
        (float(dict(labels)["le"]), value - earlier.get(labels, 0.0))
        for labels, value in last.of(f"{name}_bucket").items()
    )
    count = int(buckets[-1][1]) if buckets else 0
    median_s, p99_s = quantile(buckets, 0.5), quantile(buckets, 0.99)
    return Latency(what, count, median_s, p99_s)


def quantile(buckets: list[tuple[float, float]], part: float) -> float | None:
    """A quantile of cumulative buckets (upper bound, count), the last of which is unbounded; None without values.
    Source: Prometheus, histogram_quantile."""
    if not buckets or not buckets[-1][1]:
        return None
    rank, below, bound = part * buckets[-1][1], 0.0, 0.0
    for upper, count in buckets:
        if count >= rank:
            return bound if upper == float("inf") else bound + (upper - bound) * (rank - below) / (count - below)
        below, bound = count, upper
    return bound
