# SPDX-License-Identifier: Apache-2.0
"""Headroom is worked out from what has changed: never with another result than from all of it, and for less."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.headroom import rooms
from dovetail.core.headroom.layout import HeadroomLayout, Statements
from dovetail.core.model import LabelSelector, Pod, Requirement, Work
from dovetail.core.queues.types import Budget, Queue
from dovetail.core.state import State
from tests.breadth import seeds
from tests.core.preemption.lives import MINUTE_MS, SECOND_MS, World, gang, node, pod, queue

WITHIN_MS = 5000


class Audit:
    """Works out all of it again whenever nothing has changed by what was found."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers = Counter[str]()
        self._as_before, self._nowhere = rooms.as_before, rooms.nowhere
        monkeypatch.setattr(rooms, "as_before", self.as_before)
        monkeypatch.setattr(rooms, "nowhere", self.nowhere)

    def as_before(self, state: State) -> bool:
        found, table = self._as_before(state), state.headrooms
        self.answers[f"as before: {found}"] += 1
        if found:
            statements = rooms.statements_of(state)
            with rooms.ahead(state):
                anew = HeadroomLayout(state, table.in_vain).of(statements, table.rooms, thorough=False)
            assert anew == table.rooms
        return found

    def nowhere(self, state: State, key: str, stated: Statements, reached: Collection[int]) -> bool:
        found, known = self._nowhere(state, key, stated, reached), state.headrooms.rooms
        self.answers[f"nowhere: {found}"] += 1
        if found:
            with rooms.ahead(state):
                anew = HeadroomLayout(state).of(stated, known, thorough=True)
            assert len(anew[key].places) < len(known[key].places)
        return found


def _instance(name: str, gpus: int, stated: int, workload: str = "llama", **more: object) -> Pod:
    work = Work(headroom=stated, headroom_within_ms=WITHIN_MS)
    return pod(name, gpus, work=work, **({"queue": "web", "made_for": f"Deployment/{workload}", "owner": ""} | more))


def _job(name: str, gpus: int, grace_ms: int, **more: object) -> Pod:
    return pod(name, gpus, work=Work(grace_ms=grace_ms), **({"queue": "lab", "owner": ""} | more))


class Chaos:
    """Things that happen to a cluster with headroom."""

    def __init__(self, seed: int) -> None:
        self.dice, self.made = random.Random(seed), 0
        self.world = World(*(node(f"n{i}", 8, {"rack": f"r{i % 2}"}) for i in range(6)), grace_ms=None)
        self.world.apply_events(queue("web", 40), queue("lab", 4))
        self.world.submit(_instance("llama", 4, 4), _instance("qwen", 2, 3, "qwen"))
        self.world.live(SECOND_MS)

    def happen(self) -> None:
        dice, world = self.dice, self.world
        kinds = (
            self._job, self._job, self._job, self._gang, self._scale_up, self._ends, self._ends, self._changes,
            self._node, self._queue, self._budget, self._grows,
        )  # fmt: skip
        dice.choice(kinds)()
        world.live(dice.choice([0, 0, SECOND_MS, MINUTE_MS]))

    def _name(self) -> str:
        self.made += 1
        return f"j{self.made}"

    def _pods(self, **fields: object) -> list[Pod]:
        pods = self.world.state.workloads.pods.values()
        return sorted(
            (one for one in pods if all(getattr(one, k) == v for k, v in fields.items())), key=lambda p: p.uid
        )

    def _job(self) -> None:
        queue = self.dice.choice(["lab", "lab", "web"])
        one = _job(self._name(), self.dice.randint(1, 6), self.dice.choice([1000, 30_000]), queue=queue)
        self.world.submit(replace(one, priority=self.dice.choice([0, 0, 5])))

    def _gang(self) -> None:
        name, count = self._name(), self.dice.randint(2, 4)
        self.world.apply_events(gang(name, self.dice.randint(1, count)))
        graces = [self.dice.choice([1000, 1000, 30_000]) for _ in range(count)]
        self.world.submit(*(_job(f"{name}-{i}", 1, graces[i], gang=name) for i in range(count)))

    def _grows(self) -> None:
        gangs = sorted({one.gang for one in self._pods(queue="lab") if one.gang})
        if gangs:
            grace_ms = self.dice.choice([1000, 30_000])
            self.world.submit(_job(self._name(), 1, grace_ms, gang=self.dice.choice(gangs)))

    def _scale_up(self) -> None:
        if self.dice.random() < 0.5:
            self.world.submit(_instance(self._name(), 4, self.dice.choice([3, 4])))
        else:
            self.world.submit(_instance(self._name(), 2, 3, "qwen"))

    def _ends(self) -> None:
        names = sorted(name for name in self.world.running if name not in ("llama", "qwen"))
        self.world.ends(*self.dice.sample(names, min(len(names), self.dice.randint(1, 3))))

    def _changes(self) -> None:
        if pods := [one for one in self._pods() if one.node]:
            one = self.dice.choice(pods)
            change: dict[str, object] = self.dice.choice(
                [
                    {"work": replace(one.work, grace_ms=self.dice.choice([1000, 30_000]))},
                    {"labels": (("covered", "yes"),)},
                    {"priority": self.dice.choice([0, 9])},
                    {"work": replace(one.work, preemptible=self.dice.choice([None, False]))},
                ]
            )
            self.world.apply_events(ev.PodChanged(replace(one, **change)))

    def _node(self) -> None:
        record = node(f"n{self.dice.randrange(7)}", self.dice.choice([8, 8, 8, 4]), {"rack": "r0"})
        self.world.apply_events(ev.NodeChanged(replace(record, unschedulable=self.dice.random() < 0.3)))

    def _queue(self) -> None:
        least_ms = self.dice.choice([None, None, MINUTE_MS])
        guarantee = ((GPU_CLASS, 1000 * self.dice.choice([20, 30, 40])),)
        one = Queue("web", guarantee=guarantee)
        if self.dice.random() < 0.5:
            one = Queue("lab", guarantee=((GPU_CLASS, 4000),), reclaim_min_runtime_ms=least_ms)
        self.world.apply_events(ev.QueueChanged(one))

    def _budget(self) -> None:
        if self.dice.random() < 0.5:
            self.world.apply_events(ev.BudgetRemoved("ns/budget"))
        else:
            selector = LabelSelector((Requirement("covered", "In", ("yes",)),))
            self.world.apply_events(ev.BudgetChanged(Budget("ns/budget", "ns", selector, self.dice.randint(0, 2))))


GPU_CLASS = "gpu"


@pytest.mark.parametrize("seed", seeds(4))
@pytest.mark.slow
def test_in_clusters_where_anything_changes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    audit, chaos = Audit(monkeypatch), Chaos(seed)
    kept = 0
    for _ in range(60):
        chaos.happen()
        kept += sum(len(room.places) for room in chaos.world.state.headrooms.rooms.values())
    assert kept > 60
    assert audit.answers["as before: True"] > 40


def test_the_audit_finds_what_is_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that no longer returns its room, which nobody reported."""
    Audit(monkeypatch)
    world = World(node("n0", 8), grace_ms=None)
    world.apply_events(queue("web", 8), queue("lab"))
    world.submit(_instance("llama", 4, 1), *(_job(f"j{i}", 1, 1000) for i in range(4)))
    world.live(MINUTE_MS)
    slow = [
        replace(one, work=Work(grace_ms=30_000)) for one in world.state.workloads.pods.values() if one.queue == "lab"
    ]
    world.apply_events(*map(ev.PodChanged, slow))
    world.state.headrooms.inputs.touched.clear()
    with pytest.raises(AssertionError):
        world.live(SECOND_MS)


def _lent(nodes: int) -> World:
    """Each node has room for two instances of 4 GPUs, on which 7 jobs of 1 GPU run that end soon."""
    world = World(*(node(f"n{i}", 8) for i in range(nodes + 1)), grace_ms=None)
    world.apply_events(queue("web", 8 * nodes + 8), queue("lab"))
    bound = [replace(_job(f"on{i}-{j}", 1, 1000), node=f"n{i}", bound_ms=1) for i in range(nodes) for j in range(7)]
    full = replace(_job("full", 4, 30_000), node=f"n{nodes}", bound_ms=1)
    first = replace(_instance("llama", 4, 2 * nodes), node=f"n{nodes}", bound_ms=1)
    world.submit(*bound, full, first)
    world.live(MINUTE_MS)
    (room,) = world.state.headrooms.rooms.values()
    assert len(room.places) == 2 * nodes
    return world


def test_a_step_places_no_more_than_the_instances_on_nodes_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    world, placed = _lent(10), Counter[str]()
    stands = HeadroomLayout._stands

    def counted(*asked: object) -> bool:
        placed["in all"] += 1
        return stands(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(HeadroomLayout, "_stands", counted)
    world.live(MINUTE_MS)
    assert placed["in all"] == 0
    world.ends("on3-0")
    world.live(0)
    assert 0 < placed.pop("in all") <= 4
    world.submit(_job("short", 1, 1000))
    world.live(0)
    assert "short" in world.running
    assert 0 < placed.pop("in all") <= 8
    # Whoever is refused first has it all searched, the next one only what its node has.
    world.submit(_job("slow", 1, 30_000))
    world.live(0)
    assert placed.pop("in all") >= 20
    world.submit(replace(_job("slow2", 1, 30_000), request=_job("", 1, 0).request), _job("slow3", 2, 30_000))
    world.live(0)
    assert {"slow", "slow2", "slow3"}.isdisjoint(world.running)
    assert placed["in all"] <= 12
    (room,) = world.state.headrooms.rooms.values()
    assert len(room.places) == 20
