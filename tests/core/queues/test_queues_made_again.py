# SPDX-License-Identifier: Apache-2.0
"""Queues come, go, come back under their names and move in the tree: a scheduler that lived through it, and one that
reads their records afterwards, know the same of what each has used."""

from __future__ import annotations

import random

import pytest
from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.checkpoint import restore, take
from dovetail.core.queues.status import QueueSnapshot
from dovetail.core.queues.types import DAY_MS, Queue, Usage
from tests.breadth import seeds
from tests.core.driven import Driven, lone
from tests.core.gang_oracle import gpu_node

HOUR_MS = 3_600_000
SECOND_MS = 1000
MINUTE_MS = 60_000
NOW_MS = 20_000 * DAY_MS
NAMES = "abcdef"


class Written(Struct):
    """The status of an object, as it is written: at once when the queue's own rate changed, else each minute."""

    usage: Usage
    rate: int


class Live(Struct):
    """A scheduler that never ends, and the objects that another one would read."""

    driven: Driven
    objects: dict[str, Queue] = field(default_factory=dict)
    statuses: dict[str, Written] = field(default_factory=dict)
    made: int = 0

    @property
    def now_ms(self) -> int:
        return self.driven.now_ms

    def put(self, queue: Queue) -> None:
        """`uid` "": it is made now."""
        if not queue.uid:
            self.made += 1
            queue = replace(queue, uid=f"uid-{self.made}", created_ms=self.now_ms)
            self.statuses.pop(queue.name, None)
        self.objects[queue.name] = queue
        self.driven.at(self.now_ms, ev.QueueChanged(queue))
        self.write()

    def remove(self, name: str) -> None:
        del self.objects[name]
        self.statuses.pop(name, None)
        self.driven.at(self.now_ms, ev.QueueRemoved(name))
        self.write()

    def advance(self, ms: int) -> None:
        """Statuses are written on the way, the last one up to a minute ago."""
        until_ms = self.now_ms + ms
        if ms > 2 * MINUTE_MS:
            self.driven.at(until_ms - ms % (40 * SECOND_MS))
            self.write()
        self.driven.at(until_ms)
        self.write()

    def write(self, all_of_them: bool = False) -> None:
        for one in queue_snapshots(self.driven):
            before = self.statuses.get(one.name)
            known = before is not None and before.rate == one.rate_milli
            old = before is not None and one.rate_milli and one.as_of_ms - before.usage.as_of_ms >= MINUTE_MS
            if one.name in self.objects and (all_of_them or old or not known):
                usage = Usage(one.as_of_ms, one.used, one.rate_milli, one.days, one.users)
                self.statuses[one.name] = Written(usage, one.rate_milli)

    def restarted(self, dice: random.Random) -> Driven:
        queues = [
            replace(queue, usage=self.statuses[name].usage if name in self.statuses else None)
            for name, queue in self.objects.items()
        ]
        reported: list[ev.Event] = [*map(ev.QueueChanged, queues)]
        reported += map(ev.PodChanged, self.driven.state.workloads.pods.values())
        dice.shuffle(reported)
        after = Driven(gpu_node("n", 16))
        after.at(self.now_ms, *reported)
        return after


def queue_snapshots(driven: Driven) -> list[QueueSnapshot]:
    return driven.state.queue_snapshots(driven.now_ms)


def used(driven: Driven) -> dict[str, tuple[int, int]]:
    return {one.name: (one.used, one.rate_milli) for one in queue_snapshots(driven) if one.name != "default"}


def live_through(seed: int) -> Live:
    dice = random.Random(seed)
    live = Live(Driven(gpu_node("n", 16)))
    live.driven.at(NOW_MS)
    for number in range(dice.randint(20, 50)):
        live.advance(dice.choice([0, SECOND_MS, 30 * SECOND_MS, 5 * MINUTE_MS, HOUR_MS, 3 * HOUR_MS, 3 * DAY_MS]))
        name, parent = dice.choice(NAMES), dice.choice(["", *NAMES])
        known, pods = live.objects.get(name), sorted(live.driven.state.workloads.pods)
        what = dice.random()
        if what < 0.35:
            live.driven.at(live.now_ms, lone(f"p{number}", queue=name, user=dice.choice("uv"), recorded=True))
            live.write()
        elif what < 0.45 and pods:
            live.driven.at(live.now_ms, ev.PodRemoved(dice.choice(pods)))
            live.write()
        elif known is None:
            live.put(
                Queue(name, parent=parent, half_life_ms=dice.choice([HOUR_MS, DAY_MS]), by_user=dice.random() < 0.3)
            )
        elif what < 0.6:
            live.remove(name)
        elif what < 0.7:
            # It was deleted and made again between two looks.
            live.put(replace(known, uid="", parent=parent))
        else:
            live.put(replace(known, parent=parent))
    live.advance(dice.choice([0, 20 * SECOND_MS, HOUR_MS, 2 * DAY_MS]))
    return live


@pytest.mark.slow
@pytest.mark.parametrize("chunk", seeds(2))
def test_what_was_lived_through_is_what_is_read_at_every_level(chunk: int) -> None:
    compared = 0
    for seed in range(50 * chunk, 50 * (chunk + 1)):
        live = live_through(seed)
        before = used(live.driven)
        stale = used(live.restarted(random.Random(seed)))
        live.write(all_of_them=True)
        fresh = used(live.restarted(random.Random(seed)))
        assert used(live.driven) == before
        assert fresh.keys() == before.keys() == stale.keys()
        for name, (milli_ms, rate) in before.items():
            assert fresh[name] == (pytest.approx(milli_ms, rel=1e-6, abs=100), rate), (seed, name)
            # Whoever was put below another one in the last minute before a status counts for it a minute longer.
            assert stale[name] == (pytest.approx(milli_ms, rel=1e-6, abs=16_000 * 2 * MINUTE_MS), rate), (seed, name)
            compared += milli_ms > 0
    assert compared > 40


@pytest.mark.slow
def test_a_checkpoint_continues_equally() -> None:
    """A checkpoint has all that late charges go by."""
    for seed in range(10):
        state = live_through(seed).driven.state
        assert restore(state.policy, take(state)).shares.histories() == state.shares.histories()


GPU_HOUR = 1000 * HOUR_MS
"""In milli-GPU times ms."""
FOR_EVER_MS = 10**9 * DAY_MS


def made_again(*, unseen: bool) -> Live:
    """A pod runs for 75 hours; its queue is gone after 90 minutes, and is made again an hour before the end."""
    live = Live(Driven(gpu_node("n", 16)))
    live.driven.at(NOW_MS)
    for queue in (Queue("t", half_life_ms=FOR_EVER_MS), Queue("x", parent="t", half_life_ms=FOR_EVER_MS)):
        live.put(queue)
    child = live.objects["x"]
    live.driven.at(live.now_ms, lone("p", queue="x"))
    live.write()
    live.driven.at(NOW_MS + 90 * MINUTE_MS)
    live.write(all_of_them=True)
    if not unseen:
        live.remove("x")
    live.driven.at(NOW_MS + 74 * HOUR_MS)
    live.put(replace(child, uid=""))
    return live


@pytest.mark.parametrize("written", [True, False])
def test_a_queue_made_again_is_charged_from_then_on_and_so_is_the_one_above(written: bool) -> None:
    """Whether its own status was written in between or not."""
    live = made_again(unseen=False)
    statuses = dict(live.statuses)
    live.driven.at(NOW_MS + 75 * HOUR_MS)
    if written:
        live.write(all_of_them=True)
    else:
        live.statuses = {"t": statuses["t"]}
    after = live.restarted(random.Random(1))
    for driven in (live.driven, after):
        found = {name: milli_ms / GPU_HOUR for name, (milli_ms, _) in used(driven).items()}
        assert found == pytest.approx({"t": 2.5, "x": 1.0}, rel=1e-4)


def test_a_queue_that_was_deleted_and_made_again_between_two_looks_begins_anew_too() -> None:
    live = made_again(unseen=True)
    live.driven.at(NOW_MS + 75 * HOUR_MS)
    found = {name: milli_ms / GPU_HOUR for name, (milli_ms, _) in used(live.driven).items()}
    assert found == pytest.approx({"t": 75.0, "x": 1.0}, rel=1e-4)


def test_a_queue_that_moves_is_charged_where_it_is_and_what_was_before_stays() -> None:
    live = Live(Driven(gpu_node("n", 16)))
    live.driven.at(NOW_MS)
    for queue in (Queue("s"), Queue("t"), Queue("x", parent="s")):
        live.put(replace(queue, half_life_ms=FOR_EVER_MS))
    live.driven.at(live.now_ms, lone("p", queue="x"))
    live.advance(2 * HOUR_MS)
    live.put(replace(live.objects["x"], parent="t"))
    live.advance(3 * HOUR_MS)
    for driven in (live.driven, live.restarted(random.Random(1))):
        found = {name: milli_ms / GPU_HOUR for name, (milli_ms, _) in used(driven).items()}
        assert found == pytest.approx({"s": 2.0, "t": 3.0, "x": 5.0}, rel=1e-4)
    # It had ended before it moved, and nobody had heard of it.
    live.driven.at(live.now_ms, ev.PodRemoved("p", NOW_MS + HOUR_MS))
    found = {name: milli_ms / GPU_HOUR for name, (milli_ms, _) in used(live.driven).items()}
    assert found["t"] == pytest.approx(0, abs=1e-3)


def test_no_more_is_taken_back_above_than_was_charged_there() -> None:
    """The pod ended before its queue moved; what a sibling used in the new parent stays."""
    live = Live(Driven(gpu_node("n", 16)))
    live.driven.at(NOW_MS)
    for queue in (Queue("s"), Queue("t"), Queue("x", parent="s"), Queue("y", parent="t")):
        live.put(replace(queue, half_life_ms=FOR_EVER_MS))
    live.driven.at(live.now_ms, lone("p", queue="x"), lone("q", queue="y"))
    live.advance(2 * HOUR_MS)
    live.put(replace(live.objects["x"], parent="t"))
    live.advance(3 * HOUR_MS)
    live.driven.at(live.now_ms, ev.PodRemoved("p", NOW_MS + HOUR_MS))
    found = {name: milli_ms / GPU_HOUR for name, (milli_ms, _) in used(live.driven).items()}
    assert found == pytest.approx({"s": 2.0, "t": 5.0, "x": 1.0, "y": 5.0}, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", seeds(1))
def test_what_began_since_statuses_were_last_written_is_charged_equally(chunk: int) -> None:
    """Nothing can be written for days, while queues are made and pods start."""
    for seed in range(60 * chunk, 60 * (chunk + 1)):
        dice = random.Random(seed)
        live = Live(Driven(gpu_node("n", 16)))
        live.driven.at(NOW_MS)
        for name in NAMES[:3]:
            live.put(Queue(name, parent=dice.choice(["", *[n for n in live.objects if n < name]]), half_life_ms=DAY_MS))
        live.advance(HOUR_MS)
        live.write(all_of_them=True)
        statuses = dict(live.statuses)
        for number in range(12):
            live.driven.at(live.now_ms + dice.choice([SECOND_MS, HOUR_MS, DAY_MS]))
            live.driven.at(live.now_ms, lone(f"p{number}", queue=dice.choice(NAMES), recorded=True))
            missing = [name for name in NAMES if name not in live.objects]
            if missing and dice.random() < 0.5:
                # With a parent of its own: a queue without a past begins with the mean of its siblings.
                own = Queue(f"top-{missing[0]}", half_life_ms=DAY_MS)
                live.put(own)
                live.put(Queue(missing[0], parent=own.name, half_life_ms=DAY_MS))
        live.driven.at(live.now_ms + HOUR_MS)
        live.statuses = statuses
        before, after = used(live.driven), used(live.restarted(dice))
        for name in NAMES[:3]:
            assert after[name] == (pytest.approx(before[name][0], rel=1e-6, abs=100), before[name][1]), (seed, name)
