# SPDX-License-Identifier: Apache-2.0
"""The scheduler's time as an agent knows it, from heartbeats that take their time, on clocks that run apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dovetail.plane.cluster_clock import ClusterClock

MOST_PPM = 500
"""Of each clock: what NTP slews."""
way_ms = st.integers(0, 20_000)
beats = st.lists(st.tuples(way_ms, way_ms, st.integers(0, 120_000)), min_size=1, max_size=6)
"""For each heartbeat how long it took to be acknowledged, how long its answer took, and the time until the next."""


class Machine:
    """A clock that runs too fast by some ppm, and shows something else than the true time."""

    def __init__(self, off_ms: int, ppm: int) -> None:
        self.off_ms = off_ms
        self.ppm = ppm

    def at_ms(self, true_ms: int) -> int:
        return true_ms + self.off_ms + true_ms * self.ppm // 1_000_000


@given(beats, *[st.integers(-(10**9), 10**9)] * 2, *[st.integers(-MOST_PPM, MOST_PPM)] * 2)
def test_the_time_is_never_behind_the_schedulers_and_least_never_ahead(
    beats: list[tuple[int, int, int]], our_off_ms: int, their_off_ms: int, our_ppm: int, their_ppm: int
) -> None:
    ours, theirs, true_ms = Machine(our_off_ms, our_ppm), Machine(their_off_ms, their_ppm), 0
    clock = ClusterClock(lambda: ours.at_ms(true_ms))
    for acknowledged_ms, seen_ms, next_ms in beats:
        sent_ms = clock.steady_ms()
        true_ms += acknowledged_ms
        at_ms = theirs.at_ms(true_ms)
        true_ms += seen_ms
        clock.answered(sent_ms, at_ms)
        for passed_ms in (0, next_ms // 2, next_ms - next_ms // 2):
            true_ms += passed_ms
            # Each clock rounds to a millisecond.
            assert clock.least_ms() - 2 <= theirs.at_ms(true_ms) <= clock.now_ms() + 2
            since_ms = acknowledged_ms + seen_ms + next_ms
            assert clock.now_ms() - theirs.at_ms(true_ms) <= acknowledged_ms + since_ms // 500 + 2


def test_another_scheduler_with_another_clock_is_followed_at_once() -> None:
    now_ms = 1000
    clock = ClusterClock(lambda: now_ms)
    assert not clock.known
    clock.answered(now_ms, 5_000_000)
    now_ms += 50
    assert clock.known and clock.now_ms() == 5_000_050
    clock.answered(now_ms, 1_400_000)
    assert clock.now_ms() == 1_400_000
