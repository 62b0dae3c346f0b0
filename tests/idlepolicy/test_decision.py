# SPDX-License-Identifier: Apache-2.0
"""Which workload is due for what: weeks of a virtual clock, in which workloads are used, rest, are noticed, stopped and
started again, while the process restarts. The rules are checked on what happened, apart from the code that decided."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from msgspec import Struct

from dovetail.idlepolicy.decision import IdlePolicy, IdleWorkload, act_ms, next_act, step_of

MINUTE = 60_000
HOUR = 60 * MINUTE
POLICY = IdlePolicy()


def workload(since_ms: int, noticed_ms: int = 0, *, consents: bool = True, tried_ms: int = 0) -> IdleWorkload:
    return IdleWorkload("u", since_ms, consents, noticed_ms, tried_ms)


@pytest.mark.parametrize(
    ("one", "now_ms", "step"),
    [
        (workload(0), 100 * HOUR, "leave"),
        (workload(HOUR), 2 * HOUR - 1, "leave"),
        (workload(HOUR), 2 * HOUR, "notify"),
        (workload(HOUR, 2 * HOUR), 3 * HOUR, "wait"),
        (workload(HOUR, 2 * HOUR), 5 * HOUR - 1, "wait"),
        (workload(HOUR, 2 * HOUR), 5 * HOUR, "act"),
        # The notice came late: the grace counts from it.
        (workload(HOUR, 6 * HOUR), 7 * HOUR - 1, "wait"),
        (workload(HOUR, 6 * HOUR), 7 * HOUR, "act"),
        # A notice of before it became idle, or of the future, is none.
        (workload(3 * HOUR, 2 * HOUR), 9 * HOUR, "notify"),
        (workload(HOUR, 9 * HOUR + 1), 9 * HOUR, "notify"),
        (workload(HOUR, consents=False), 9 * HOUR, "notify"),
        (workload(HOUR, 2 * HOUR, consents=False), 99 * HOUR, "leave"),
        # The clock went back.
        (workload(9 * HOUR, 9 * HOUR), HOUR, "leave"),
    ],
)
def test_the_steps(one: IdleWorkload, now_ms: int, step: str) -> None:
    assert step_of(one, POLICY, now_ms) == step


def test_the_next_is_the_one_tried_longest_ago_then_the_one_idle_for_longest() -> None:
    due = [
        IdleWorkload("refused", HOUR, True, 2 * HOUR, tried_ms=8 * HOUR),
        IdleWorkload("late", 3 * HOUR, True, 4 * HOUR),
        IdleWorkload("early", 2 * HOUR, True, 4 * HOUR),
    ]
    names = []
    while due:
        one = next_act(due, POLICY, 9 * HOUR, HOUR)
        assert one is not None
        names.append(one.uid)
        due.remove(one)
    assert names == ["early", "late", "refused"]


def test_acts_are_apart() -> None:
    due = [workload(HOUR, 2 * HOUR)]
    assert next_act(due, IdlePolicy(acts_per_hour=10), 9 * HOUR, 6 * MINUTE - 1) is None
    assert next_act(due, IdlePolicy(acts_per_hour=10), 9 * HOUR, 6 * MINUTE) is not None
    assert next_act(due, IdlePolicy(acts_per_hour=7), 9 * HOUR, HOUR // 7) is None
    assert next_act(due, IdlePolicy(acts_per_hour=7), 9 * HOUR, HOUR // 7 + 1) is not None


class Happened(Struct, frozen=True):
    what: str
    at_ms: int
    uid: str
    since_ms: int


class Owner(Struct):
    """A workload of the virtual cluster: what its pods do, and what is written on its object."""

    uid: str
    consents: bool
    used_ms: int
    busy_until_ms: int = 0
    noticed_ms: int = 0
    stopped_ms: int = 0


def weeks(seed: int, policy: IdlePolicy, count: int = 30, days: int = 14) -> Iterator[Happened]:
    """What happens in a cluster, step by step of a minute."""
    chance, started_ms = random.Random(seed), 0
    owners = [Owner(f"u{i}", chance.random() < 0.7, used_ms=1) for i in range(count)]
    acted_ms = started_ms
    for now_ms in range(0, days * 24 * HOUR, MINUTE):
        if chance.random() < 0.003:
            acted_ms = now_ms  # The process starts again: it knows nothing but what is on the objects.
        facts = []
        for one in owners:
            if one.stopped_ms:
                if chance.random() < 0.002:
                    one.stopped_ms, one.used_ms = 0, now_ms
                continue
            if now_ms < one.busy_until_ms:
                one.used_ms = now_ms
            elif chance.random() < 0.002:
                one.busy_until_ms = now_ms + chance.randrange(10 * HOUR)
            facts.append(IdleWorkload(one.uid, max(1, one.used_ms), one.consents, one.noticed_ms))
        by_uid = {one.uid: one for one in owners}
        for fact in facts:
            if step_of(fact, policy, now_ms) == "notify":
                by_uid[fact.uid].noticed_ms = now_ms
                yield Happened("notice", now_ms, fact.uid, fact.since_ms)
        chosen = next_act(facts, policy, now_ms, now_ms - acted_ms)
        if chosen is not None:
            acted_ms = by_uid[chosen.uid].stopped_ms = now_ms
            yield Happened("stop", now_ms, chosen.uid, chosen.since_ms)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "acts_per_hour"), [(1, 10), (2, 1), (3, 60)])
def test_weeks_of_it(seed: int, acts_per_hour: int) -> None:
    policy = IdlePolicy(HOUR, 4 * HOUR, HOUR, acts_per_hour)
    happened = list(weeks(seed, policy))
    stops = [one for one in happened if one.what == "stop"]
    assert len(stops) > 20
    notices: dict[tuple[str, int], list[int]] = {}
    for one in happened:
        if one.what == "notice":
            notices.setdefault((one.uid, one.since_ms), []).append(one.at_ms)
    # One notice for each time in which it is idle, whatever restarted.
    assert {len(times) for times in notices.values()} == {1}
    for one in stops:
        (noticed_ms,) = notices[one.uid, one.since_ms]
        assert one.at_ms - one.since_ms >= policy.act_after_ms and one.at_ms - noticed_ms >= policy.grace_ms
        assert noticed_ms - one.since_ms >= policy.notify_after_ms
        assert one.at_ms >= act_ms(one.since_ms, noticed_ms, policy)
        assert sum(one.at_ms - HOUR < other.at_ms <= one.at_ms for other in stops) <= acts_per_hour
    # Nothing is stopped twice without having been used in between.
    assert len({(one.uid, one.since_ms) for one in stops}) == len(stops)
