# SPDX-License-Identifier: Apache-2.0
"""Leader election: never two leaders at one instant, and always a next one."""

import asyncio
import heapq
import random
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.kube.api.client import Client
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.lease import (
    Action,
    Elector,
    Failed,
    Happening,
    Lead,
    LeaseLock,
    LeaseLook,
    LeaseRecord,
    LeaseState,
    LeaseWritten,
    ObservedLease,
    StepDown,
    Terms,
    Wait,
    Woke,
    Write,
    resign,
    step,
)
from tests.kube.api.fake_server import serve, status
from tests.patience import PATIENCE_S

TERMS = Terms(15_000, 10_000, 2_000)


def play(state: LeaseState, *happenings: tuple[int, Happening]) -> tuple[LeaseState, Action]:
    action: Action = LeaseLook()
    for now_ms, happening in happenings:
        state, action = step(state, happening, now_ms)
    return state, action


def record(holder: str, version: str = "1", transitions: int = 0) -> LeaseRecord:
    return LeaseRecord(holder, 15_000, transitions, version)


def test_the_first_candidate_creates_the_lease_and_leads_from_when_it_sent_it() -> None:
    state, action = play(LeaseState("me"), (0, Woke()))
    assert action == LeaseLook()
    state, action = step(state, ObservedLease(None), 10)
    assert action == Write(LeaseRecord("me", 15_000, 0, ""), acquire=True)
    state, action = step(state, LeaseWritten(record("me")), 900)
    assert action == Lead(2_900)
    assert (state.leads(10_009), state.leads(10_010)) == (True, False)


def test_a_leader_renews_without_reading() -> None:
    state, action = play(
        LeaseState("me"), (0, Woke()), (0, ObservedLease(None)), (0, LeaseWritten(record("me"))), (2_000, Woke())
    )
    assert action == Write(record("me"), acquire=False)
    state, action = step(state, LeaseWritten(record("me", "2")), 2_100)
    assert state.leads(11_999)


def test_a_candidate_waits_for_the_term_that_the_holder_wrote_from_when_it_saw_the_lease_change() -> None:
    state, action = play(LeaseState("me"), (50_000, Woke()), (50_000, ObservedLease(record("other"))))
    assert action == Wait(52_000)
    state, action = play(state, (52_000, Woke()), (52_000, ObservedLease(record("other", "2"))))
    state, action = play(state, (66_999, Woke()), (66_999, ObservedLease(record("other", "2"))))
    assert isinstance(action, Wait)
    state, action = play(state, (67_000, Woke()), (67_000, ObservedLease(record("other", "2"))))
    assert action == Write(LeaseRecord("me", 15_000, 1, "2"), acquire=True)


def test_a_released_lease_is_taken_at_once() -> None:
    write = resign(record("a"))
    assert write == Write(LeaseRecord("", 1_000, 0, "1"), acquire=False)
    _, action = play(LeaseState("b"), (5, Woke()), (5, ObservedLease(replace(write.record, version="2"))))
    assert action == Write(LeaseRecord("b", 15_000, 1, "2"), acquire=True)


def test_a_leader_steps_down_at_its_deadline_and_when_it_sees_another() -> None:
    leader, _ = play(LeaseState("me"), (0, Woke()), (0, ObservedLease(None)), (0, LeaseWritten(record("me"))))
    failing, action = play(leader, (2_000, Woke()), (4_000, Failed()), (6_000, Woke()))
    assert action == LeaseLook(), "after a failed write the lease is read, for the write may have worked"
    assert step(failing, Failed(), 10_000)[1] == StepDown()
    assert step(failing, ObservedLease(record("other", "9")), 7_000)[1] == StepDown()
    assert step(failing, ObservedLease(None), 7_000)[1] == StepDown()
    assert step(failing, ObservedLease(record("me", "9")), 7_000)[1] == Write(record("me", "9"), acquire=False)


def test_a_write_that_took_too_long_makes_no_leader() -> None:
    state, action = play(LeaseState("me"), (0, Woke()), (0, ObservedLease(None)), (10_000, LeaseWritten(record("me"))))
    assert action == Wait(12_000)
    assert not state.leads(10_000)


def test_terms_that_could_give_two_leaders_are_refused() -> None:
    with pytest.raises(ValueError, match="duration > renew deadline"):
        Terms(duration_ms=10_000, renew_deadline_ms=10_000)


class Candidate:
    """A state machine with a clock that has an offset and runs up to ten percent fast or slow."""

    def __init__(self, name: str, offset_ms: int, rate_percent: int) -> None:
        self.state = LeaseState(name, TERMS)
        self.offset_ms = offset_ms
        self.rate_percent = rate_percent
        self.turn = 0

    def clock_ms(self, now_ms: int) -> int:
        return self.offset_ms + now_ms * self.rate_percent // 100


class World:
    """Candidates over one store that compares and swaps. `delay_ms` holds up each message and each process."""

    def __init__(self, candidates: list[Candidate], delay_ms: Callable[[], int], timeout_ms: Callable[[], int]) -> None:
        self.candidates = candidates
        self.delay_ms = delay_ms
        self.timeout_ms = timeout_ms
        self.now_ms = 0
        self.leaders_seen: list[str] = []
        self._stored: LeaseRecord | None = None
        self._writes = 0
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._planned = 0
        for candidate in candidates:
            self._later(delay_ms(), partial(self._act, candidate, 0, Woke()))

    def run(self, events: int) -> None:
        for _ in range(events):
            self.now_ms, _, act = heapq.heappop(self._agenda)
            act()

    def leaders(self) -> list[str]:
        return [one.state.identity for one in self.candidates if one.state.leads(one.clock_ms(self.now_ms))]

    def _later(self, delay_ms: int, act: Callable[[], None]) -> None:
        self._planned += 1
        heapq.heappush(self._agenda, (self.now_ms + delay_ms, self._planned, act))

    def _act(self, candidate: Candidate, turn: int, happening: Happening) -> None:
        if turn != candidate.turn:
            return  # The answer came after the timeout, or the timeout after the answer.
        candidate.turn += 1
        candidate.state, action = step(candidate.state, happening, candidate.clock_ms(self.now_ms))
        leaders = self.leaders()
        assert len(leaders) <= 1
        self.leaders_seen += leaders
        resume = partial(self._act, candidate, candidate.turn)
        match action:
            case LeaseLook() | Write():
                self._later(self.delay_ms(), partial(self._reach_store, action, resume))
                self._later(self.timeout_ms(), partial(resume, Failed()))
            case StepDown():
                self._later(self.delay_ms(), partial(resume, Woke()))
            case Wait(until_ms) | Lead(until_ms):
                wait_ms = (until_ms - candidate.offset_ms) * 100 // candidate.rate_percent - self.now_ms
                self._later(max(0, wait_ms) + self.delay_ms(), partial(resume, Woke()))

    def _reach_store(self, action: LeaseLook | Write, resume: Callable[[Happening], None]) -> None:
        answer: Happening = ObservedLease(self._stored)
        if isinstance(action, Write):
            answer = Failed()
            if action.record.version == (self._stored.version if self._stored else ""):
                self._writes += 1
                self._stored = replace(action.record, version=str(self._writes))
                answer = LeaseWritten(self._stored)
        self._later(self.delay_ms(), partial(resume, answer))


# Milliseconds that a clock is off, and its rate in percent.
clocks = st.tuples(st.integers(-(10**9), 10**9), st.integers(90, 110))


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**64), clocks, clocks)
def test_never_two_leaders_at_one_instant(seed: int, a: tuple[int, int], b: tuple[int, int]) -> None:
    """However long messages and processes are held up, and however wrong the clocks are."""
    draw = random.Random(seed)
    long = draw.choice([0.01, 0.03, 0.1])

    def delay_ms() -> int:
        return draw.randrange(40_000) if draw.random() < long else draw.randrange(50)

    World([Candidate("a", *a), Candidate("b", *b)], delay_ms, lambda: draw.choice([5_000, 30_000])).run(300)


@pytest.mark.slow
@given(st.lists(st.sampled_from([0, 10, 200]), min_size=400, max_size=400))
def test_where_nothing_is_held_up_for_long_one_of_them_leads_all_the_time(delays_ms: list[int]) -> None:
    world = World([Candidate("a", 0, 100), Candidate("b", 5_000, 105)], delays_ms.pop, lambda: 5_000)
    world.run(20)
    (leader,) = world.leaders()
    for _ in range(80):
        world.run(1)
        assert world.leaders() == [leader]


class LeaseServer:
    """The two paths of one Lease, with its version check."""

    def __init__(self) -> None:
        self.lease: dict | None = None
        self.faults: list = []
        self.written = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.faults:
            return await self.faults.pop(0)(request)
        name = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/dovetail"
        if request.method == "POST" and request.path == name.rpartition("/")[0]:
            if self.lease:
                return await status(409, "AlreadyExists")(request)
            self.lease = await request.json()
            self.lease["metadata"] |= {"resourceVersion": "1", "labels": {"kept": "yes"}}
        elif request.path != name or self.lease is None:
            return await status(404, "NotFound")(request)
        elif request.method == "PATCH":
            patch = await request.json()
            if patch["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
                return await status(409, "Conflict")(request)
            self.lease["spec"] |= patch["spec"]
            self.lease["metadata"]["resourceVersion"] += "1"
        if request.method != "GET":
            self.written.set()
        return web.json_response(self.lease)

    @property
    def holder(self) -> str:
        return self.lease["spec"]["holderIdentity"]


QUICK = Terms(duration_ms=60_000, renew_deadline_ms=10_000, retry_period_ms=20)
SOON_GONE = Terms(duration_ms=60_000, renew_deadline_ms=300, retry_period_ms=20)


class Running:
    """A running elector, and what it reported."""

    def __init__(self, client: Client, **options: object) -> None:
        self.started, self.stopped = asyncio.Event(), asyncio.Event()
        self.elector = Elector(
            client,
            LeaseLock("kube-system", "dovetail"),
            "host",
            on_started_leading=self.started.set,
            on_stopped_leading=self.stopped.set,
            **{"terms": QUICK, **options},
        )
        self.task = asyncio.create_task(self.elector.run())

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


@pytest.fixture
async def lease_server() -> LeaseServer:
    return LeaseServer()


@pytest.fixture
async def client(lease_server: LeaseServer) -> AsyncIterator[Client]:
    async with serve(lease_server.handle) as url, Client(ClusterConfig(url), jitter=lambda: 0.0) as client:
        yield client


async def test_a_leader_hands_over_without_a_wait(client: Client, lease_server: LeaseServer) -> None:
    async with asyncio.timeout(PATIENCE_S):
        first = Running(client)
        await first.started.wait()
        assert first.elector.is_leader
        assert lease_server.holder == first.elector.leader == first.elector.identity != "host"
        second = Running(client)
        lease_server.written.clear()
        await lease_server.written.wait()
        assert not second.elector.is_leader
        await first.stop()
        assert first.stopped.is_set()
        assert not first.elector.is_leader
        await first.elector.release()
        await second.started.wait()
        assert lease_server.holder == second.elector.identity
        assert lease_server.lease["spec"]["leaseTransitions"] == 1
        assert lease_server.lease["metadata"]["labels"] == {"kept": "yes"}
        await second.stop()


async def test_a_leader_that_cannot_renew_stops_and_comes_back(client: Client, lease_server: LeaseServer) -> None:
    async with asyncio.timeout(PATIENCE_S):
        running = Running(client, terms=SOON_GONE)
        await running.started.wait()
        running.started.clear()
        lease_server.faults = [status(500, "InternalError")] * 100
        await running.stopped.wait()
        assert not running.elector.is_leader
        lease_server.faults = []
        await running.started.wait()
        assert running.elector.is_leader
        await running.stop()


async def test_a_stalled_process_is_not_leader_even_before_it_has_noticed(
    client: Client, lease_server: LeaseServer
) -> None:
    now_ms = 0
    running = Running(client, clock_ms=lambda: now_ms)
    await running.started.wait()
    now_ms += QUICK.renew_deadline_ms
    assert not running.elector.is_leader
    assert not running.stopped.is_set()
    await running.stop()


async def test_a_namespace_that_is_not_there_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async with serve(status(404, "NotFound")) as url, Client(ClusterConfig(url), jitter=lambda: 0.0) as client:
        running = Running(client)
        async with asyncio.timeout(PATIENCE_S):
            while not caplog.records:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await running.stop()
    assert "there is no namespace kube-system for the lease: kubectl create namespace kube-system" in caplog.text
