# SPDX-License-Identifier: Apache-2.0
"""Which pods are idle, against a moment-by-moment look at what they used."""

from __future__ import annotations

import random

import pytest

from dovetail.agent.exporter.idle_pods import COVERAGE, LEAST_MS, idle_pods
from dovetail.history.records import HOUR_MS, UseHour
from tests.breadth import seeds

NOW_MS = 100 * HOUR_MS + 40 * 60_000
MINUTE_MS = 60_000


def hour(ago: int, used_until_ms: int = 0, gpu: str = "g", pod: str = "p", measured_ms: int = HOUR_MS) -> UseHour:
    """The hour that began so many hours before the present one."""
    begin_ms = NOW_MS - NOW_MS % HOUR_MS - ago * HOUR_MS
    return UseHour(gpu, pod, begin_ms, measured_ms, 0, 0, used_until_ms=used_until_ms)


def test_a_pod_is_idle_since_the_last_use_of_any_of_its_gpus() -> None:
    used_ms = NOW_MS - 70 * MINUTE_MS
    hours = [hour(1, used_ms), hour(0, measured_ms=40 * MINUTE_MS)]
    assert idle_pods(hours, {"p": {"g"}}, NOW_MS) == {"p": used_ms}
    other = [hour(1, used_ms - MINUTE_MS, "h"), hour(0, NOW_MS - 20 * MINUTE_MS, "h", measured_ms=40 * MINUTE_MS)]
    assert idle_pods(hours + other, {"p": {"g", "h"}}, NOW_MS) == {"p": NOW_MS - 20 * MINUTE_MS}
    # A second GPU of which nothing is known, one that is used, and a pod of the hour that holds nothing any more.
    assert idle_pods(hours, {"p": {"g", "h"}}, NOW_MS) == {}
    assert idle_pods([*hours, hour(0, NOW_MS - MINUTE_MS, "h")], {"p": {"g", "h"}}, NOW_MS) == {}
    assert idle_pods(hours, {}, NOW_MS) == {} == idle_pods(hours, {"p": set()}, NOW_MS)


def test_one_that_never_used_a_gpu_is_idle_since_the_end_of_its_first_hour() -> None:
    present = hour(0, measured_ms=40 * MINUTE_MS)
    assert idle_pods([present], {"p": {"g"}}, NOW_MS) == {}
    assert idle_pods([hour(1), present], {"p": {"g"}}, NOW_MS) == {"p": present.hour_ms}


@pytest.mark.parametrize(("minutes", "idle"), [(LEAST_MS // MINUTE_MS, True), (LEAST_MS // MINUTE_MS - 1, False)])
def test_a_short_pause_is_not_idleness(minutes: int, idle: bool) -> None:
    hours = [hour(0, NOW_MS - minutes * MINUTE_MS, measured_ms=40 * MINUTE_MS)]
    assert bool(idle_pods(hours, {"p": {"g"}}, NOW_MS)) is idle


@pytest.mark.parametrize("seed", seeds(20))
def test_what_was_not_measured_is_not_idle(seed: int) -> None:
    """Minutes are used, idle or not measured; what is called idle had no use, and enough readings."""
    dice = random.Random(seed)
    part = dice.random()
    minutes = ["used" if dice.random() < 0.01 else "idle" if dice.random() < part else "" for _ in range(160)]
    hours: dict[int, UseHour] = {}
    first_ms = NOW_MS - len(minutes) * MINUTE_MS
    for number, what in enumerate(minutes):
        at_ms = first_ms + number * MINUTE_MS
        begin_ms = at_ms - at_ms % HOUR_MS
        if what:
            old = hours.get(begin_ms) or UseHour("g", "p", begin_ms, 0, 0, 0)
            until_ms = at_ms + MINUTE_MS if what == "used" else old.used_until_ms
            hours[begin_ms] = UseHour("g", "p", begin_ms, old.measured_ms + MINUTE_MS, 0, 0, used_until_ms=until_ms)
    for since_ms in idle_pods(hours.values(), {"p": {"g"}}, NOW_MS).values():
        since = minutes[(since_ms - first_ms) // MINUTE_MS :]
        assert "used" not in since and len(since) * MINUTE_MS >= LEAST_MS
        # In the hour of the last use the readings before it may stand for missing ones after it.
        measured = sum(bool(what) for what in minutes[max(0, len(minutes) - len(since) - 60) :])
        assert measured * 1000 >= len(since) * COVERAGE
    if part < 0.3 and "used" not in minutes[-100:]:
        assert not idle_pods(hours.values(), {"p": {"g"}}, NOW_MS)
