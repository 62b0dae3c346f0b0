# SPDX-License-Identifier: Apache-2.0
"""The shares of queues over time: what is kept of them, and where nothing was known."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest
from msgspec import Struct

from dovetail.core.json_text import decode_json
from dovetail.dashboard import share_samples
from dovetail.dashboard.app import SchedulerSources
from dovetail.dashboard.page_types import SharesPage
from dovetail.dashboard.share_samples import ShareSamples
from tests.dashboard.test_app import OnlyTeamA
from tests.dashboard.worlds import FakeSource, Object, node, pod, served

MINUTE_MS = 60_000
QUEUE: Object = {
    "apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "research"},
    "spec": {"namespaces": {"names": ["team-a"]}},
}  # fmt: skip
SPACE: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}}
WORLD = (SPACE, QUEUE, node("a"))


class Minutes:
    """A clock that is a minute later each time a sample is taken."""

    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


class _Sent(Struct):
    page: SharesPage


def page_of(samples: ShareSamples) -> SharesPage:
    """As a browser reads it."""
    return decode_json(gzip.decompress(samples.packed()[1]), _Sent).page


async def sampled(source: FakeSource, count: int, clock: Minutes, samples: ShareSamples) -> None:
    for _ in range(count):
        clock.now_ms += MINUTE_MS
        await samples.sample()


async def test_a_queue_has_its_values_at_each_time() -> None:
    source, clock = FakeSource(*WORLD), Minutes()
    samples = ShareSamples(source, clock)
    await sampled(source, 2, clock, samples)
    source.put(*WORLD, pod("runs", 3, on="a", queue="research"))
    await sampled(source, 1, clock, samples)
    page = page_of(samples)
    assert (page.since_ms, page.times_ms, page.gaps) == (0, (MINUTE_MS, 2 * MINUTE_MS, 3 * MINUTE_MS), ())
    (research,) = [one for one in page.queues if one.queue == "research"]
    assert research.allocated == (0.0, 0.0, 3.0) and research.due[2] == 3.0
    assert all(one is not None for one in research.credit)


async def test_a_time_without_an_answer_is_one_gap_with_its_reason_and_a_new_queue_has_no_past() -> None:
    source, clock = FakeSource(SPACE, node("a")), Minutes()
    samples = ShareSamples(source, clock)
    await sampled(source, 1, clock, samples)
    source.why = "no scheduler leads"
    await sampled(source, 3, clock, samples)
    source.why = ""
    source.put(*WORLD)
    await sampled(source, 1, clock, samples)
    page = page_of(samples)
    assert [(one.from_ms, one.to_ms, one.why) for one in page.gaps] == [
        (MINUTE_MS, 4 * MINUTE_MS, "no scheduler leads")
    ]
    assert page.times_ms == (MINUTE_MS, 5 * MINUTE_MS)
    (research,) = [one for one in page.queues if one.queue == "research"]
    assert research.due[0] is None and research.due[1] is not None


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_samples, "MOST_FINE", 10)
    monkeypatch.setattr(share_samples, "COARSE_EVERY", 5)
    source, clock = FakeSource(*WORLD), Minutes()
    samples = ShareSamples(source, clock)
    await sampled(source, 40, clock, samples)
    times = page_of(samples).times_ms
    assert times[-10:] == tuple(range(31 * MINUTE_MS, 41 * MINUTE_MS, MINUTE_MS))
    assert times[:-10] == tuple(range(MINUTE_MS, 31 * MINUTE_MS, 5 * MINUTE_MS))
    for number in range(2 * share_samples.MOST_GAPS):
        source.why = f"away {number}"
        await sampled(source, 1, clock, samples)
        source.why = ""
        await sampled(source, 1, clock, samples)
    assert len(page_of(samples).gaps) == share_samples.MOST_GAPS


async def test_only_users_of_all_namespaces_see_it() -> None:
    source, clock = FakeSource(*WORLD), Minutes()
    samples = ShareSamples(source, clock)
    await sampled(source, 2, clock, samples)
    async with served(source, OnlyTeamA(), scheduler=SchedulerSources(shares=samples)) as (client, _):
        for token, status in (("a", 403), ("admin", 200)):
            headers = {"Authorization": f"Bearer {token}"}
            async with client.get("/api/shares.json", headers=headers) as reply:
                assert reply.status == status
        async with client.get("/api/shares.csv", headers={"Authorization": "Bearer admin"}) as reply:
            assert "research" in await reply.text()
        async with client.get("/api/shares.json?namespace=team-a", headers={"Authorization": "Bearer a"}) as reply:
            assert (await reply.json())["page"]["queues"] == []
    async with served(source) as (client, _), client.get("/api/shares.json") as reply:
        assert (await reply.json())["page"]["times_ms"] == []


async def test_it_is_made_once_between_two_samples() -> None:
    source, now_ms = FakeSource(*WORLD), iter(range(MINUTE_MS, 100 * MINUTE_MS, 7))
    samples = ShareSamples(source, lambda: next(now_ms))
    await samples.sample()
    async with served(source, scheduler=SchedulerSources(shares=samples)) as (client, _):
        async with client.get("/api/shares.json") as reply:
            tag = reply.headers["ETag"]
        async with client.get("/api/shares.json", headers={"If-None-Match": tag}) as reply:
            assert reply.status == 304
        await samples.sample()
        async with client.get("/api/shares.json", headers={"If-None-Match": tag}) as reply:
            assert (reply.status, len((await reply.json())["page"]["times_ms"])) == (200, 2)


async def test_a_queue_that_went_keeps_its_past_until_others_need_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_samples, "MOST_QUEUES", 3)  # One is the default queue.
    source, clock = FakeSource(*WORLD), Minutes()
    samples = ShareSamples(source, clock)
    for names in (("a", "b"), ("a",), ("a", "c")):
        spaces = [SPACE | {"metadata": {"name": f"space-{name}"}} for name in names]
        queues = [
            QUEUE | {"metadata": {"name": name}, "spec": {"namespaces": {"names": [f"space-{name}"]}}} for name in names
        ]
        source.put(node("a"), *spaces, *queues)
        await sampled(source, 1, clock, samples)
        found = {one.queue: one.due for one in page_of(samples).queues}
        assert [known is not None for known in found["a"]] == [True] * len(found["a"])
        if names == ("a",):
            assert [known is not None for known in found["b"]] == [True, False]
    assert set(found) == {"default", "a", "c"} and [known is not None for known in found["c"]] == [False, False, True]


async def test_many_samples_of_many_queues_take_little_memory() -> None:
    samples = ShareSamples(FakeSource(*WORLD), Minutes())
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(100):
            samples._add(number, {f"queue-{one}": (one + 0.5, 0.25, number + 0.75) for one in range(200)})
        samples.packed()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 100 * 200 * 3 * 16
