# SPDX-License-Identifier: Apache-2.0
"""What a queue takes back from others, against all sets that these would have to give up."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, permutations

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.event_handlers import apply
from dovetail.core.placing.gangs import Group
from dovetail.core.preemption import search
from dovetail.core.preemption.search import NoPreemption, PreemptionPlan
from dovetail.core.preemption.smallest_part import smallest_part
from dovetail.core.preemption.units import Unit, uncovered, weight
from dovetail.core.preemption.victims import Victims, reclaims
from dovetail.core.queues.types import Queue
from dovetail.core.state import State
from tests.core.preemption.contests import NOW_MS, POLICY, Contest, random_contest

MOST_UNITS = 4


def contest_of_queues(seed: int) -> Contest:
    """All that runs belongs to three queues; the job that wants in to a fourth."""
    dice = random.Random(seed)
    contest = random_contest(dice)
    for name in ("a", "b", "c", "big"):
        guarantee = (("gpu", dice.randint(0, 4) * 1000),) if dice.random() < 0.7 else ()
        contest.queues.append(Queue(name, guarantee=guarantee, weight=dice.randint(1, 3)))
    running = contest.running
    contest.running = []
    for gang, pods in running:
        queue = dice.choice("abc")
        contest.running.append((gang, [replace(pod, queue=queue) for pod in pods]))
    return contest


def state_of(contest: Contest) -> State:
    state = contest.state(POLICY)
    for pod in list(state.workloads.pods.values()):
        if not pod.node:
            apply(state, ev.PodChanged(replace(pod, queue="big")))
    state.advance(NOW_MS)
    return state


def may_take(state: State, group: Group, units: Sequence[Unit]) -> bool:
    """Whether the queue may take them one after another, in some order."""
    shares = state.shares
    wanted = shares.wanted(smallest_part(state.cluster, group).all_pods())
    for order in permutations(units):
        claim = shares.quota.claim_back("big", wanted, {})
        if claim is None:
            return False
        if all(reclaims(claim, unit, held_by(state, unit)) for unit in order):
            return True
    return False


def held_by(state: State, unit: Unit) -> Counter[str]:
    held: Counter[str] = Counter()
    for uid in unit.uids:
        held.update(dict(state.shares.amounts(uid)))
    return held


def spared(victims: Victims, units: Sequence[Unit]) -> bool:
    """Whether there are so many to spare, and nobody is taken twice."""
    pools = Counter(unit.pool for unit in units if unit.elastic)
    return len(uncovered(units)) == len(units) and all(count <= victims.spare[pool] for pool, count in pools.items())


def least_weight(state: State, group: Group, contest: Contest) -> int | None:
    shares = state.shares
    wanted = shares.wanted(smallest_part(state.cluster, group).all_pods())
    victims = Victims(state, "big", "big", of=[*shares.quota.reclaimable_queues("big", wanted, {}), "big"])
    best: int | None = None
    for count in range(1, min(MOST_UNITS, len(victims.units)) + 1):
        for units in combinations(victims.units, count):
            if best is not None and weight(units) >= best:
                continue
            gone = {uid for unit in units for uid in unit.uids}
            if spared(victims, units) and contest.fits_without(gone) and may_take(state, group, units):
                best = weight(units)
    return best


@pytest.mark.slow
def test_a_queue_takes_back_only_what_it_may_and_the_least_there_is_but_for_one_in_forty() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(1200):
        contest = contest_of_queues(seed)
        if contest.fits_without(set()):
            continue
        state = state_of(contest)
        group = state.workloads.groups("big")[0]
        found = search.find(state, "big", group)
        assert state.cluster.check() == []
        least = least_weight(state, group, contest)
        if isinstance(found, PreemptionPlan):
            assert found.cause == "reclaim"
            assert contest.fits_without(set(found.uids)), seed
            assert len(found.victims) > MOST_UNITS or may_take(state, group, found.victims), seed
            kinds["least" if least is not None and weight(found.victims) == least else "more"] += 1
        elif isinstance(found, NoPreemption):
            assert least is None, (seed, found)
            kinds["impossible"] += 1
        elif least is not None:
            kinds["missed"] += 1
    assert kinds["least"] > 100
    assert kinds["impossible"] > 100
    assert 40 * (kinds["more"] + kinds["missed"]) <= kinds["least"]
