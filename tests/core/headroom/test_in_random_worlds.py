# SPDX-License-Identifier: Apache-2.0
"""Random worlds with headroom: there is as much of it as can be, what was remembered of refusals decides nothing, what
is promised is kept, and all comes to rest."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from dovetail.core import checkpoint
from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.headroom import rooms
from dovetail.core.model import GPU, Pod, Work
from dovetail.core.reasons import Reason
from tests.breadth import seeds
from tests.core.pipeline.test_known_refusals import MOMENTS, POLICY, Dice, Job, World
from tests.core.preemption.lives import HOUR_MS, MINUTE_MS, SECOND_MS, node, pod, queue
from tests.core.preemption.lives import World as Lived

WITHIN_MS = 5000


class HeadroomDice(Dice):
    """A third of the jobs state headroom, and two thirds of the others return their room within its promise."""

    def _job(self) -> Job:
        job, pick = super()._job(), self._random.choice
        changes = dict(job.changes)
        if pick([True, False, False]):
            changes |= {"queue": "b", "headroom": pick([1, 2]), "headroom_within_ms": pick([WITHIN_MS, 100_000])}
        changes["grace_ms"] = pick([0, 4000, 30_000])
        return replace(job, changes=tuple(changes.items()))


@pytest.mark.parametrize("seed", [2, 14, 26])
@pytest.mark.slow
def test_every_decision_is_the_same_without_remembered_refusals(seed: int) -> None:
    dice = HeadroomDice(seed, ranked=True)
    remembers, forgets = World(POLICY), World(replace(POLICY, remember_refusals=False))
    kept = 0
    for moment in (dice.moment() for _ in range(MOMENTS)):
        assert remembers.pass_by(moment) == forgets.pass_by(moment)
        assert remembers.state.headrooms.rooms == forgets.state.headrooms.rooms
        assert remembers.state.cluster.check() == []
        kept += sum(len(room.places) for room in remembers.state.headrooms.rooms.values())
    assert kept > 2


def _world(nodes: int, guaranteed: float) -> Lived:
    made = Lived(*(node(f"n{i}", 8) for i in range(nodes)), grace_ms=None)
    made.apply_events(queue("web", guaranteed), queue("lab"))
    return made


def _instance(name: str, gpus: int, stated: int) -> Pod:
    work = Work(headroom=stated, headroom_within_ms=WITHIN_MS)
    return pod(name, gpus, queue="web", made_for="Deployment/llama", owner="", work=work)


def _job(name: str, gpus: int, soon: bool) -> Pod:
    return pod(name, gpus, queue="lab", owner="", work=Work(grace_ms=1000 if soon else 30_000))


def _free(world: Lived, lent: bool) -> dict[str, int]:
    """The free GPUs of each node, with those gone that return their room if `lent`."""
    free = {record.name: dict(record.allocatable)[GPU] for record in world.state.cluster.nodes.records if record}
    for one in world.state.workloads.pods.values():
        if one.node and not (lent and one.work.grace_ms == 1000):
            free[one.node] -= dict(one.request.resources)[GPU]
    return free


@pytest.mark.parametrize("seed", seeds(20))
@pytest.mark.slow
def test_as_much_is_kept_as_can_be_and_nobody_is_refused_for_less(seed: int) -> None:
    """Compared with every way to place equal instances of one pod: on each node as many as fit."""
    dice = random.Random(seed)
    gpus, stated = dice.choice([2, 3, 4, 8]), dice.randint(1, 4)
    world = _world(dice.randint(1, 3), 100)
    world.submit(_instance("llama", gpus, stated))
    running = 0
    for number in range(12):
        if dice.random() < 0.3 and running:
            names = sorted(name for name in world.running if name != "llama")
            world.ends(*dice.sample(names, min(len(names), 2)))
        world.submit(_job(f"j{number}", dice.randint(1, 6), dice.random() < 0.5))
        world.live(MINUTE_MS)
        running = len(world.running) - 1
        if "llama" not in world.running:
            return
        (room,) = world.state.headrooms.rooms.values()
        with_lenders_gone = _free(world, lent=True)
        assert len(room.places) == min(room.due, sum(free // gpus for free in with_lenders_gone.values()))
        for waiting in world.state.workloads.pods.values():
            size = dict(waiting.request.resources)[GPU]
            if waiting.node or world.refusals[waiting.name].reason is not Reason.HEADROOM:
                continue
            for name, free in _free(world, lent=False).items():
                left = with_lenders_gone | {name: with_lenders_gone[name] - size}
                assert free < size or sum(one // gpus for one in left.values()) < len(room.places)


@pytest.mark.parametrize("seed", seeds(4))
@pytest.mark.slow
def test_hours_of_scaling_up_and_down_keep_each_promise_and_evict_no_more_than_they_need(seed: int) -> None:
    dice, world = random.Random(seed), _world(4, 20)
    world.submit(_instance("llama", 4, 2))
    world.live(SECOND_MS)
    for number in range(40):
        world.submit(pod(f"short{number}", 1, queue="lab", work=Work(grace_ms=1000)))
        world.submit(_job(f"long{number}", dice.choice([1, 2, 4]), soon=False))
    world.live(MINUTE_MS)
    serving, ups, promised = ["llama"], 0, 0
    for _ in range(30):
        before = len(world.gave_way)
        if len(serving) > 1 and dice.random() < 0.4:
            world.ends(serving.pop())
        elif len(serving) < 5:
            (room,) = world.state.headrooms.rooms.values()
            ups, name, asked_ms = ups + 1, f"up{ups}", world.now_ms
            world.submit(_instance(name, 4, 2))
            world.live(WITHIN_MS)
            if room.places:
                promised += 1
                assert name in world.running, "the promise"
            assert len(world.gave_way) - before <= 4
            serving.append(name)
            assert world.now_ms - asked_ms >= WITHIN_MS
        calm = len(world.gave_way)
        world.live(dice.choice([MINUTE_MS, 20 * MINUTE_MS, HOUR_MS]))
        assert len(world.gave_way) == calm, "without a scale-up nobody is evicted"
    # Jobs that end slowly take the rest: what is used of the headroom does not always come back.
    assert ups > 5
    assert promised > ups // 2


def test_two_states_of_one_checkpoint_have_the_same_headroom_and_decide_equally() -> None:
    world = _world(3, 24)
    world.submit(_instance("llama", 4, 2))
    world.submit(*(_job(f"j{i}", 2, soon=i % 2 == 0) for i in range(9)))
    world.live(MINUTE_MS)
    assert any(room.places for room in world.state.headrooms.rooms.values())
    taken = checkpoint.take(world.state)
    first, second = (checkpoint.restore(world.state.policy, taken) for _ in range(2))
    assert first.headrooms.rooms == world.state.headrooms.rooms
    coming = [ev.PodChanged(_instance("llama2", 4, 2))]
    decided = [step(state, coming, world.now_ms) for state in (first, second)]
    assert decided[0] == decided[1]
    assert decided[0]
    assert first.headrooms.rooms == second.headrooms.rooms


def test_headroom_is_found_again_after_a_restart() -> None:
    """Nothing of it is stored: it is worked out from the objects."""
    world = _world(2, 16)
    world.submit(_instance("llama", 4, 1))
    world.submit(*(_job(f"j{i}", 1, soon=True) for i in range(12)))
    world.live(MINUTE_MS)
    anew = _world(2, 16)
    anew.apply_events(*(ev.PodChanged(one) for one in world.state.workloads.pods.values()))
    rooms.settle(anew.state)
    (room,) = anew.state.headrooms.rooms.values()
    assert len(room.places) == 1
