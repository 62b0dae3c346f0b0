# SPDX-License-Identifier: Apache-2.0
"""Records of random clusters against what was true at each moment; restarts, clocks, and pods that end."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.cycle import apply_events
from dovetail.core.model import GPU, Pod, Request, Work
from dovetail.core.queues.node_gpus import ListedGpu
from dovetail.core.state import State
from dovetail.history.ledger import GpuTime, divide
from dovetail.history.pod_records import PodFact
from dovetail.history.records import Gap, HistoryBatch, Period
from dovetail.history.timeline import CLOCK_BACK, NOT_RUN, Seen, Timeline
from tests.history.kept import Kept
from tests.history.worlds import World, spans_of, whole_node

ALWAYS = Period(0, 2**50)
TICKS = 25


def at(kept: Kept, moment: int) -> tuple[Counter[tuple[str, str, str]], dict[str, int]]:
    """The spans, and what each pod holds, at a moment of the records."""

    def covers(start_ms: int, end_ms: int) -> bool:
        return start_ms <= moment and (not end_ms or moment < end_ms)

    spans = [one for one in kept.spans(ALWAYS) if covers(one.start_ms, one.end_ms)]
    held: Counter[str] = Counter()
    for one in kept.holds(ALWAYS):
        if covers(one.start_ms, one.end_ms):
            held[one.pod_uid] += one.milli
    return spans_of(spans), dict(held)


def check_division(kept: Kept, end_ms: int) -> None:
    """All of the time of the GPUs is divided, and each pod gets all that it held."""
    period = Period(0, end_ms)
    spans, holds = list(kept.spans(period)), list(kept.holds(period))
    parts = list(divide(spans, holds, period))
    times = [period.clipped(one.start_ms, one.end_ms).ms for one in spans]
    assert all(isinstance(part, GpuTime) for part in parts)
    assert sum(part.amount for part in parts if isinstance(part, GpuTime)) == 1000 * sum(times)
    got: Counter[str] = Counter()
    for part in parts:
        if isinstance(part, GpuTime) and part.hold:
            got[part.hold.pod_uid] += part.amount
    expected: Counter[str] = Counter()
    for hold in holds:
        expected[hold.pod_uid] += hold.milli * period.clipped(hold.start_ms, hold.end_ms).ms
    assert {uid: amount for uid, amount in got.items() if amount} == {
        uid: amount for uid, amount in expected.items() if amount
    }


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_the_records_are_what_was_true_at_each_moment(seed: int, by_touched: bool) -> None:
    world, state, timeline, kept = World(Random(seed)), State(), Timeline(), Kept()
    truth = {}
    for _ in range(TICKS):
        events = world.tick()
        apply_events(state, events, world.now_ms)
        touched = [
            event.pod.uid if isinstance(event, ev.PodChanged) else event.uid
            for event in events
            if isinstance(event, ev.PodChanged | ev.PodRemoved)
        ]
        kept.write(timeline.advance(state, world.now_ms, Seen(touched if by_touched else None)))
        truth[world.now_ms] = world.spans(), world.held()
    for moment, expected in truth.items():
        assert at(kept, moment) == expected
    check_division(kept, TICKS + 1)
    records = {one.uid: one for one in kept.pods(ALWAYS)}
    assert {uid for uid, one in records.items() if not one.ended_ms} == set(world.pods)
    assert all(one.gpu_milli == world.milli[uid] and one.bound_ms for uid, one in records.items())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(1, TICKS), st.integers(0, 4)), max_size=3))
@pytest.mark.slow
def test_restarts_change_nothing_but_what_happened_in_the_gaps(seed: int, restarts: list[tuple[int, int]]) -> None:
    """Each restart is at a time, and for so long nothing is recorded."""
    world, state, timeline, kept = World(Random(seed)), State(), Timeline(), Kept()
    down = {moment for start, length in restarts for moment in range(start, start + length)}
    starts = {start + length for start, length in restarts}
    truth, first, last = {}, 0, 0
    doubtful: set[int] = set()
    for _ in range(TICKS):
        events = world.tick()
        now_ms = world.now_ms
        truth[now_ms] = world.spans(), world.held()
        if now_ms in down:
            state = State()
            continue
        if now_ms in starts or (now_ms - 1 in down):
            state, timeline = State(), Timeline(kept.open_records())
            events = world.listed()
            # What is gone ended at the last time that is known.
            doubtful.update(range(last, now_ms))
        apply_events(state, events, now_ms)
        kept.write(timeline.advance(state, now_ms))
        first, last = first or now_ms, now_ms
    for moment, expected in truth.items():
        if first <= moment <= last and moment not in doubtful:
            assert at(kept, moment) == expected
    gaps = {moment for gap in kept.gaps(ALWAYS) for moment in range(gap.start_ms, gap.end_ms)}
    assert {moment for moment in doubtful if moment >= first} == gaps
    check_division_without_overlap(kept, last + 1)


def check_division_without_overlap(kept: Kept, end_ms: int) -> None:
    period = Period(0, end_ms)
    spans = list(kept.spans(period))
    parts = list(divide(spans, kept.holds(period), period))
    times = [period.clipped(one.start_ms, one.end_ms).ms for one in spans]
    assert sum(part.amount for part in parts if isinstance(part, GpuTime)) == 1000 * sum(times)


def bound(uid: str, at_ms: int, devices: tuple[int, ...] | None = None, gpus: int = 1) -> Pod:
    request = Request(resources=((GPU, gpus),))
    return Pod(uid, "team", uid, request, created_ms=at_ms, node="a", bound_ms=at_ms, devices=devices)


def holds(kept: Kept) -> list[tuple[str, str, int, int, bool]]:
    return [(one.pod_uid, one.gpu, one.start_ms, one.end_ms, one.named) for one in kept.holds(ALWAYS)]


class Run:
    """A state with one node of four GPUs, its timeline, and what was written."""

    def __init__(self) -> None:
        self.kept = Kept()
        self.state, self.timeline = State(), Timeline()
        self.put(1, ev.NodeChanged(whole_node("a", 4)))

    def put(self, now_ms: int, *events: ev.Event, seen: Seen | None = None) -> HistoryBatch:
        apply_events(self.state, events, now_ms)
        batch = self.timeline.advance(self.state, now_ms, seen or Seen())
        self.kept.write(batch)
        return batch

    def restart(self) -> None:
        self.state, self.timeline = State(), Timeline(self.kept.open_records())


def test_an_unchanged_cluster_writes_nothing() -> None:
    run = Run()
    run.put(5, ev.PodChanged(bound("p", 4)))
    assert run.put(6) == HistoryBatch(6, [], [], [], (), [])


def test_a_pod_holds_from_its_bind_although_it_is_seen_later() -> None:
    run = Run()
    run.put(9, ev.PodChanged(bound("p", 4)))
    run.put(20, ev.PodRemoved("p"))
    assert holds(run.kept) == [("p", "a/0", 4, 20, False)]


def test_a_pod_has_what_it_requests_of_its_node_and_how_often_it_saves() -> None:
    run = Run()
    request = Request((("cpu", 7500), ("memory", 6 << 30), (GPU, 1)))
    run.put(9, ev.PodChanged(replace(bound("p", 4), request=request, work=Work(checkpoint_interval_ms=900_000))))
    run.put(10, ev.PodChanged(bound("q", 5)))
    found = {one.uid: (one.cpu_milli, one.memory_mib, one.checkpoint_interval_ms) for one in run.kept.pods(ALWAYS)}
    assert found == {"p": (7500, 6144, 900_000), "q": (0, 0, 0)}


def test_a_pod_that_finished_holds_to_the_time_of_its_end() -> None:
    run = Run()
    run.put(9, ev.PodChanged(bound("p", 9)), seen=Seen(facts={"p": PodFact("Job", "dovetail", 10)}))
    run.put(20, ev.PodRemoved("p"), seen=Seen(facts={"p": PodFact("Job", "dovetail", 10, 17, 2, "Failed", "Error")}))
    assert holds(run.kept) == [("p", "a/0", 9, 17, False)]
    (record,) = run.kept.pods(ALWAYS)
    assert (record.kind, record.started_ms, record.ended_ms, record.restarts) == ("Job", 10, 17, 2)
    assert (record.outcome, record.code) == ("Failed", "Error")


def test_a_gpu_that_another_pod_got_is_not_held_twice() -> None:
    run = Run()
    run.put(2, ev.PodChanged(bound("p", 2, (0, 1, 2, 3), 4)))
    run.put(20, ev.PodRemoved("p"), ev.PodChanged(bound("q", 15, (2,))))
    assert [(one[0], one[1], one[3]) for one in holds(run.kept)] == [
        ("p", "a/0", 20), ("p", "a/1", 20), ("p", "a/2", 15), ("q", "a/2", 0), ("p", "a/3", 20),
    ]  # fmt: skip


def test_gpus_are_named_by_their_uuids_once_they_are_listed() -> None:
    run = Run()
    run.put(2, ev.PodChanged(bound("p", 2, (3,))))
    listed = [ListedGpu(i, f"GPU-{i}", "H100", i != 1) for i in range(4)]
    run.put(5, seen=Seen((), {"a": listed}))
    assert holds(run.kept) == [("p", "GPU-3", 5, 0, True), ("p", "a/3", 2, 5, True)]
    now = [one for one in run.kept.spans(ALWAYS) if not one.end_ms]
    assert [(one.gpu, one.model, one.health) for one in now] == [
        ("GPU-0", "H100", "healthy"), ("GPU-1", "H100", "unhealthy"), ("GPU-2", "H100", "healthy"),
        ("GPU-3", "H100", "healthy"),
    ]  # fmt: skip


def test_a_pod_keeps_its_gpus_while_the_plugin_of_its_node_is_away() -> None:
    run = Run()
    run.put(
        2, ev.PodChanged(bound("p", 2, None, 2)), seen=Seen((), {"a": [ListedGpu(i, f"GPU-{i}") for i in range(4)]})
    )
    before = holds(run.kept)
    run.put(5, ev.NodeChanged(replace(whole_node("a", 0), plugin_gone=True)))
    run.put(9, ev.NodeChanged(whole_node("a", 4)))
    assert holds(run.kept) == before
    health = [(one.start_ms, one.end_ms, one.health) for one in run.kept.spans(ALWAYS) if one.gpu == "GPU-0"]
    assert health == [(2, 5, "healthy"), (5, 9, "unhealthy"), (9, 0, "healthy")]


def test_assumed_gpus_stay_the_same_when_other_pods_go() -> None:
    run = Run()
    run.put(2, ev.PodChanged(bound("p", 2)), ev.PodChanged(bound("q", 2)))
    run.put(5, ev.PodRemoved("p"))
    run.put(6, ev.NodeChanged(replace(whole_node("a", 4), unschedulable=True)))
    assert holds(run.kept) == [("p", "a/0", 2, 5, False), ("q", "a/1", 2, 0, False)]


def test_a_restart_goes_on_and_what_is_gone_ended_at_the_last_known_time() -> None:
    run = Run()
    run.put(2, ev.PodChanged(bound("p", 2)), ev.PodChanged(bound("q", 2)), ev.PodChanged(bound("r", 2)))
    run.put(10)
    run.restart()
    events = [ev.NodeChanged(whole_node("a", 4)), ev.PodChanged(bound("q", 2)), ev.PodChanged(bound("s", 25))]
    run.put(30, *events, seen=Seen(facts={"r": PodFact(ended_ms=22, outcome="Completed")}))
    assert sorted(holds(run.kept)) == [
        ("p", "a/0", 2, 10, False), ("q", "a/1", 2, 0, False), ("r", "a/2", 2, 22, False), ("s", "a/0", 25, 0, False),
    ]  # fmt: skip
    assert list(run.kept.gaps(ALWAYS)) == [Gap(10, 30, NOT_RUN)]
    outcomes = {one.uid: (one.outcome, one.ended_ms) for one in run.kept.pods(ALWAYS)}
    assert outcomes == {"p": ("Lost", 10), "q": ("", 0), "r": ("Completed", 22), "s": ("", 0)}
    assert {(one.start_ms, one.end_ms) for one in run.kept.spans(ALWAYS)} == {(1, 0)}


def test_a_node_that_is_gone_after_a_restart_ended_at_the_last_known_time() -> None:
    run = Run()
    run.put(2, ev.PodChanged(bound("p", 2)))
    run.put(10)
    run.restart()
    run.put(30)
    assert {(one.start_ms, one.end_ms) for one in run.kept.spans(ALWAYS)} == {(1, 10)}
    assert holds(run.kept) == [("p", "a/0", 2, 10, False)]


def test_time_does_not_go_back_with_the_clock() -> None:
    run = Run()
    run.put(100, ev.PodChanged(bound("p", 50)))
    assert run.put(60, ev.PodRemoved("p")).until_ms == 100
    assert run.put(70).gaps == []
    assert holds(run.kept) == [("p", "a/0", 50, 100, False)]
    assert list(run.kept.gaps(ALWAYS)) == [Gap(60, 100, CLOCK_BACK)]
    run.restart()
    run.put(80, ev.NodeChanged(whole_node("a", 4)))
    assert run.kept.known().end_ms == 100
    assert list(run.kept.gaps(ALWAYS)) == [Gap(60, 100, CLOCK_BACK), Gap(80, 100, CLOCK_BACK)]


def test_a_renamed_node_takes_its_gpus_along() -> None:
    run = Run()
    listed = [ListedGpu(i, f"GPU-{i}") for i in range(4)]
    run.put(2, seen=Seen((), {"a": listed}))
    run.put(5, ev.NodeChanged(whole_node("b", 4)), seen=Seen((), {"b": listed}))
    run.put(6, ev.NodeChanged(replace(whole_node("a", 4), unschedulable=True)))
    run.put(9, ev.NodeRemoved("a"))
    found = [(one.node, one.start_ms, one.end_ms) for one in run.kept.spans(ALWAYS) if one.gpu == "GPU-2"]
    assert found == [("a", 2, 5), ("b", 5, 0)]


def test_a_node_that_is_removed_with_a_pod_on_it_ends_both() -> None:
    run = Run()
    run.put(2, ev.PodChanged(bound("p", 2)))
    run.put(5, ev.NodeRemoved("a"))
    run.put(9, ev.NodeChanged(whole_node("a", 4)))
    assert holds(run.kept) == [("p", "a/0", 2, 5, False), ("p", "a/0", 9, 0, False)]
