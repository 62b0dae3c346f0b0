# SPDX-License-Identifier: Apache-2.0
"""What the scheduler sends to the process that answers views: all calls, or a cut, and never a wait."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dovetail.core import events as ev
from dovetail.core.checkpoint import take
from dovetail.core.policy import Policy, unhurried
from dovetail.core.state import State
from dovetail.recording.calls import CoreCalls
from dovetail.recording.format import CHECKPOINT
from dovetail.recording.stream import HEAD_BYTES, StreamedCopy
from dovetail.scheduler import view_feed
from dovetail.scheduler.view_feed import ViewFeed
from tests.patience import PATIENCE_S
from tests.views.queued import NOW, node, pod

POLICY = unhurried(Policy())


class _Scheduler:
    """A state, and the calls for it."""

    def __init__(self) -> None:
        self.feed = ViewFeed(POLICY)
        self.calls = CoreCalls([self.feed])
        self.state = State(POLICY)
        self.cut: list[str] = []

    def step(self, *events: ev.Event) -> None:
        self.state = self.calls.renewed(self.state)
        self.calls.step(self.state, events, NOW + self.state.steps)

    @contextmanager
    def process(self) -> Iterator[socket.socket]:
        ours, theirs = socket.socketpair()
        theirs.settimeout(PATIENCE_S)
        with theirs:
            self.feed.connect(ours, self.cut.append)
            self.feed.want_checkpoint()
            yield theirs
            self.feed.disconnect()


def _followed(process: socket.socket, copy: StreamedCopy, steps: int) -> None:
    """Follow until after so many steps."""
    stream = process.makefile("rb")
    while copy.state.steps < steps:
        head = stream.read(HEAD_BYTES)
        copy.take(head + stream.read(int.from_bytes(head[1:], "big")))


def _until(wanted: object) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not wanted():  # type: ignore[operator]
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_a_process_gets_a_checkpoint_and_then_the_calls_and_so_does_the_next() -> None:
    scheduler = _Scheduler()
    scheduler.step(ev.NodeChanged(node("n0")), ev.PodChanged(pod("a", 3)))
    for number in range(2):
        with scheduler.process() as process:
            assert scheduler.feed.due
            scheduler.step(ev.PodChanged(pod(f"b{number}", 2)))
            scheduler.step(ev.PodChanged(pod(f"c{number}", 8)))
            assert not scheduler.feed.due
            copy = StreamedCopy()
            _followed(process, copy, scheduler.state.steps)
            assert CHECKPOINT.encode(take(copy.state)) == CHECKPOINT.encode(take(scheduler.state))
    scheduler.step(ev.PodRemoved("ns/a"))
    assert scheduler.cut == []


def test_a_process_that_does_not_read_is_cut_off_and_no_step_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_feed, "MOST_CALLS", 200)
    scheduler = _Scheduler()
    with scheduler.process() as process:
        longest_s, number = 0.0, 0
        labels = (("x", "y" * 4000),)
        while not scheduler.cut:
            began_s = time.monotonic()
            scheduler.step(ev.NodeChanged(node("n0")), ev.PodChanged(pod(f"p{number % 50}", 8, labels=labels)))
            longest_s, number = max(longest_s, time.monotonic() - began_s), number + 1
            assert number < 20_000
        assert "does not keep up" in scheduler.cut[0] and longest_s < view_feed.STALLED_S / 2
        # It reads the end of its stream, and ends.
        while process.recv(1 << 20):
            pass
    scheduler.step()
    assert len(scheduler.cut) == 1


def test_many_events_in_few_calls_are_bounded_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_feed, "MOST_EVENTS", 10)
    encoding = threading.Event()
    monkeypatch.setattr(view_feed, "begun", lambda *_: encoding.wait(PATIENCE_S) and b"")
    scheduler = _Scheduler()
    with scheduler.process():
        scheduler.step(*(ev.NodeChanged(node(f"n{i}")) for i in range(11)))
        assert "does not keep up" in scheduler.cut[0]
        encoding.set()


def test_a_process_that_ends_and_a_fault_of_ours_cut_it_off_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = _Scheduler()
    with scheduler.process() as process:
        process.close()
        _until(lambda: scheduler.step() or scheduler.cut)
    assert "cannot be written to" in scheduler.cut.pop()

    def fails(_: object) -> bytes:
        raise RuntimeError("a bug")

    monkeypatch.setattr(view_feed, "called", fails)
    with scheduler.process():
        scheduler.step()
        _until(lambda: scheduler.cut)
    assert scheduler.cut == ["RuntimeError: a bug"]
    scheduler.step()
