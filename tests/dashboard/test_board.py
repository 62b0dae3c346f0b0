# SPDX-License-Identifier: Apache-2.0
"""The board: one question per change, however many viewers there are; and what viewers hear of it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from dovetail.dashboard import board as boards
from dovetail.dashboard import fair_turns, pages
from dovetail.dashboard.board import Pace, PageBoard, TooManyPages, Topic, Viewer
from dovetail.dashboard.page_types import FleetPage
from dovetail.dashboard.sheets import Sheet
from dovetail.dashboard.sources import SourceAway
from dovetail.dashboard.streams import events_of
from dovetail.kube.api.reviews import Refusal
from dovetail.kube.objects.views import CAPACITIES, NODE_LISTS, ViewDocument
from dovetail.kube.reading.views import ViewRequest
from tests.dashboard.worlds import NOW_MS, FakeSource, node, pod

FLEET, QUEUE = Topic("fleet"), Topic("queue")


@asynccontextmanager
async def running(source: FakeSource) -> AsyncIterator[PageBoard]:
    board = PageBoard(source, (), lambda: NOW_MS)
    task = asyncio.create_task(board.run())
    try:
        yield board
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def allowed() -> Refusal | None:
    return None


class Stream:
    """The events of one viewer."""

    def __init__(self, board: PageBoard, *topics: Topic, last: str = "") -> None:
        self.events: Any = events_of(board, frozenset(topics), last, allowed)
        self.last = last

    async def until(self, done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(20):
            while True:
                event = await anext(self.events)
                self.last = event.id
                news: dict[str, Any] = msgspec.json.decode(event.data)
                if done(news):
                    return news


async def test_fifty_viewers_cost_no_more_than_one() -> None:
    counts = []
    for viewers in (1, 50):
        source = FakeSource(node("a"))
        async with running(source) as board:
            streams = [Stream(board, FLEET, QUEUE) for _ in range(viewers)]
            for stream in streams:
                await stream.until(
                    lambda news: set(news["changed"]) == {"fleet", "queue"} or "queue" in news["changed"]
                )
            source.put(node("a"), pod("p", on="a"))
            for stream in streams:
                await stream.until(lambda news: "fleet" in news["changed"])
            counts.append(len(source.asked))
            for stream in streams:
                await stream.events.aclose()
    # The queue is asked again as well, and has not changed.
    assert counts[0] == counts[1] <= 8


async def test_nothing_is_asked_while_nobody_looks() -> None:
    source = FakeSource(node("a"))
    async with running(source) as board:
        stream = Stream(board, FLEET)
        await stream.until(lambda news: "fleet" in news["changed"])
        await stream.events.aclose()
        asked = len(source.asked)
        source.put(node("a"), node("b"))
        await asyncio.sleep(2 * boards.PROBED_S)
        assert len(source.asked) == asked


async def test_a_viewer_that_comes_back_hears_what_it_missed_and_no_more() -> None:
    source = FakeSource(node("a"), pod("waits", 9))
    async with running(source) as board:
        first, other = Stream(board, FLEET, QUEUE), Stream(board, FLEET, QUEUE)
        seen: set[str] = set()
        while seen != {"fleet", "queue"}:
            seen |= (await first.until(lambda news: bool(news["changed"])))["changed"].keys()
        last = first.last
        await first.events.aclose()
        source.put(node("a"), node("b"), pod("waits", 9))
        await other.until(lambda news: news["changed"].get("fleet", 0) > int(last.rpartition("-")[2]))
        again = Stream(board, FLEET, QUEUE, last=last)
        assert "fleet" in (await again.until(lambda news: True))["changed"]
        unknown = Stream(board, FLEET, QUEUE, last="0000-99999")
        assert set((await unknown.until(lambda news: True))["changed"]) == {"fleet", "queue"}
        for stream in (other, again, unknown):
            await stream.events.aclose()


async def test_windows_that_nobody_has_before_him_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "MOST_WINDOWS", 3)
    windows = [Topic("jobs", f"first={number}") for number in range(1, 6)]
    source = FakeSource(node("a"), pod("waits", 9))
    board = PageBoard(source, (), lambda: NOW_MS)
    viewer = Viewer(frozenset({windows[0]}))
    board.add(viewer)
    sheets = [await board.sheet(one) for one in windows]
    asked = len(source.asked)
    # The last ones are kept, beside that of the viewer; what was forgotten is asked for again, for it alone.
    assert await board.sheet(windows[-1]) is sheets[-1] and len(source.asked) == asked
    assert await board.sheet(windows[1]) is not sheets[1] and len(source.asked) == asked + 1
    await board.sheet(Topic("jobs"))
    for one in windows[1:3]:
        board.add(Viewer(frozenset({one})))
    with pytest.raises(TooManyPages, match="3 pages are open"):
        await board.sheet(windows[4])
    assert (await board.sheet(FLEET)).status == 200


async def test_a_page_that_is_forgotten_while_others_are_asked_for_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(boards, "MOST_WINDOWS", 1)
    source, ask, asked, may = FakeSource(node("a")), FakeSource.ask, asyncio.Event(), asyncio.Event()
    first, second = Topic("jobs", "first=1"), Topic("jobs", "first=2")

    async def waits(self: FakeSource, request: ViewRequest) -> ViewDocument:
        if request.resource == NODE_LISTS:
            asked.set()
            await may.wait()
        return await ask(self, request)

    async with running(source) as board:
        stays, goes = Stream(board, FLEET), Stream(board, first)
        await stays.until(lambda news: "fleet" in news["changed"])
        await goes.until(lambda news: first.path in news["changed"])
        monkeypatch.setattr(FakeSource, "ask", waits)
        source.put(node("a"), node("b"))
        await asked.wait()
        await goes.events.aclose()
        await board.sheet(second)
        may.set()
        await stays.until(lambda news: "fleet" in news["changed"])
        source.put(node("a"), node("b"), node("c"))
        await stays.until(lambda news: "fleet" in news["changed"])
        await stays.events.aclose()


async def test_a_source_that_is_away_leaves_the_page_and_is_reported_with_its_time() -> None:
    source = FakeSource(node("a"))
    async with running(source) as board:
        stream = Stream(board, FLEET)
        await stream.until(lambda news: "fleet" in news["changed"])
        source.why = "no leader"
        source.changed.set()
        news = await stream.until(lambda news: bool(news["silent"]))
        assert news["silent"] == {"fleet": {"why": "no leader", "since_ms": NOW_MS}}
        assert (await board.sheet(FLEET)).page is not None
        with pytest.raises(SourceAway):
            await board.sheet(Topic("teams"))
        source.why = ""
        await stream.until(lambda news: not news["silent"])
        await stream.events.aclose()


async def test_a_question_about_the_past_that_fails_is_not_asked_again_and_again() -> None:
    class Past(FakeSource):
        moments = 0

        async def moment(self, namespace: str) -> str:
            self.moments += 1
            return await super().moment(namespace)

    past = Past(node("a"))
    past.why = "no history"
    board = PageBoard(FakeSource(node("a")), (), lambda: NOW_MS, past)
    running = asyncio.create_task(board.run())
    stream = Stream(board, Topic("idle"))
    assert (await stream.until(lambda news: bool(news["silent"])))["silent"]["idle"]["why"] == "no history"
    for _ in range(3):
        past.changed.set()
        await asyncio.sleep(0.02)
    assert past.moments == 1
    await stream.events.aclose()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_a_page_that_nobody_has_open_is_asked_for_where_it_is_read() -> None:
    source = FakeSource(node("a"))
    board = PageBoard(source, (), lambda: NOW_MS)
    first = await board.sheet(FLEET)
    asked = len(source.asked)
    assert await board.sheet(FLEET) is first and len(source.asked) == asked
    source.put(node("a"), node("b"))
    assert (await board.sheet(FLEET)).version > first.version


async def test_answers_of_one_moment_are_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.dashboard.board.MOST", 3)
    board = PageBoard(FakeSource(node("a"), *(node(f"n{number}") for number in range(8))), (), lambda: NOW_MS)
    for number in range(8):
        assert (await board.sheet(Topic("node", f"n{number}"))).status == 200
        assert (await board.sheet(Topic("fleet", namespace=f"team-{number}"))).status == 200
    assert max(map(len, board._answers.values())) <= 3 and len(board._answers) <= 3


async def test_one_page_that_is_not_answered_leaves_the_others_up_to_date() -> None:
    source = FakeSource(node("a"))
    async with running(source) as board:
        stream = Stream(board, FLEET, Topic("jobs"), QUEUE)
        seen: set[str] = set()
        while seen != {"fleet", "jobs", "queue"}:
            seen |= (await stream.until(lambda news: bool(news["changed"])))["changed"].keys()
        source.without = {"joblists", "capacities"}
        source.put(node("a"), pod("waits", 9))
        news = await stream.until(lambda news: "queue" in news["changed"] and len(news["silent"]) == 2)
        assert set(news["silent"]) == {"fleet", "jobs"}
        assert "the log" in news["silent"]["jobs"]["why"]
        await stream.events.aclose()


class SlowSource(FakeSource):
    """Takes a fifth of a second for what fits."""

    async def ask(self, request: ViewRequest) -> ViewDocument:
        if request.resource == CAPACITIES:
            await asyncio.sleep(0.2)
        return await super().ask(request)


def _fleet(sheet: Sheet) -> tuple[list[int], int, bool]:
    """The GPUs in use by node, the most that fit in one pod, and whether that is of now."""
    assert isinstance(sheet.page, FleetPage)
    largest = sheet.page.capacity[0].largest if sheet.page.capacity else 0
    return [one.used for one in sheet.page.nodes], largest, sheet.page.fits_now


async def test_what_takes_long_comes_after_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "SELDOM_PART", 0.5)
    monkeypatch.setattr(pages, "MANY_NODES", 0)
    source = SlowSource(node("a"))
    async with running(source) as board:
        stream = Stream(board, FLEET)
        await stream.until(lambda news: "fleet" in news["changed"])
        assert _fleet(await board.sheet(FLEET, soon=True)) == ([0], 0, False), "the first page is without it"
        await stream.until(lambda news: "fleet" in news["changed"])
        assert _fleet(await board.sheet(FLEET)) == ([0], 8, True)
        source.put(node("a"), pod("p", 3, on="a"))
        await stream.until(lambda news: "fleet" in news["changed"])
        assert _fleet(await board.sheet(FLEET)) == ([3], 8, False)
        await stream.until(lambda news: "fleet" in news["changed"])
        assert _fleet(await board.sheet(FLEET)) == ([3], 5, True)
        await stream.events.aclose()
    source.put(node("a"))
    assert _fleet(await board.sheet(FLEET)) == ([0], 8, True), "what is read once has no old part"
    board = PageBoard(source, (), lambda: NOW_MS)
    assert _fleet(await board.sheet(FLEET, soon=True)) == ([0], 0, False)
    assert _fleet(await board.sheet(FLEET)) == ([0], 8, True)


def test_after_a_pause_changes_are_shown_at_once_and_many_take_a_part_of_a_core() -> None:
    pace = Pace(0.0)
    assert [pace.rest_s(1.0, 1.0), pace.rest_s(1.0, 2.0)] == [0.0, 0.0], "what was not taken before"
    now_s = used_s = 0.0
    pace = Pace(0.0)
    while now_s < 1000:
        now_s, used_s = now_s + 1, used_s + 1
        now_s += pace.rest_s(1.0, now_s)
    assert used_s / now_s == pytest.approx(boards.PART, rel=0.05)
    assert pace.rest_s(0.5, now_s + 3600) == 0.0
    assert pace.rest_s(3.0, now_s + 3600) == pytest.approx(1.5 / boards.PART), "no pause counts for more than a bound"


async def test_pages_are_bounded_and_those_that_are_viewed_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "MOST", 2)
    source = FakeSource(node("a"))
    board = PageBoard(source, (), lambda: NOW_MS)
    viewer = Viewer(frozenset({FLEET}))
    board.add(viewer)
    fleet = await board.sheet(FLEET)
    for page in ("queue", "teams", "jobs"):
        await board.sheet(Topic(page))
    assert await board.sheet(FLEET) is fleet
    board.add(Viewer(frozenset({QUEUE})))
    with pytest.raises(TooManyPages):
        await board.sheet(Topic("teams"))
    board.remove(viewer)
    await board.sheet(Topic("teams"))


class EqualTurns(fair_turns.FairTurns[Topic]):
    """All pages take equally long, however busy the machine is."""

    def __init__(self) -> None:
        super().__init__(itertools.count().__next__)


async def test_many_windows_of_others_delay_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "FairTurns", {Topic: EqualTurns})
    monkeypatch.setattr(fair_turns, "TURN_S", 0.0)
    monkeypatch.setattr(boards, "PART", 1000.0)
    source = FakeSource(node("a"))
    async with running(source) as board:
        for number in range(48):
            board.add(Viewer(frozenset({Topic("jobs", f"first={number + 1}")}), "many"))
        stream = Stream(board, FLEET)
        await stream.until(lambda news: "fleet" in news["changed"])
        source.put(node("a"), node("b"))
        asked = len(source.asked)
        await stream.until(lambda news: "fleet" in news["changed"])
        assert len(source.asked) - asked < 10, "of the 48 windows few were asked for before"
        await stream.events.aclose()


async def test_a_right_that_ends_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.dashboard.streams.ALIVE_S", 0.01)

    async def refused() -> Refusal | None:
        return 401, "the API server does not know this token"

    board = PageBoard(FakeSource(node("a")), (), lambda: NOW_MS)
    async with aclosing(events_of(board, frozenset({FLEET}), "", refused)) as events:
        found = [(event.event, event.data) async for event in events]
    assert [kind for kind, _ in found] == ["news", "refused"]
    assert found[-1][1] == "the API server does not know this token"
