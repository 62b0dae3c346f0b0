# SPDX-License-Identifier: Apache-2.0
"""Costs of deletion are written where a scale-down can free a whole domain, sparsely, and never over a user's own."""

from __future__ import annotations

import random
from bisect import bisect_left
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dovetail.core import cycle
from dovetail.core.events import Event, NodeChanged, NodeRemoved, PodChanged, PodRemoved
from dovetail.core.model import GPU, PODS, Node, Pod, Request
from dovetail.core.state import State
from dovetail.kube.api.discovery import Served
from dovetail.kube.api.errors import ApiError, Conflict, KubeError
from dovetail.kube.informers import Informers
from dovetail.kube.objects.base import ObjectMeta
from dovetail.kube.objects.pods import Pod as PodObject
from dovetail.kube.translate.sources import outline
from dovetail.kube.translate.translator import Translator
from dovetail.scheduler import deletion_costs
from dovetail.scheduler.deletion_costs import DeletionCosts, costs_of

COST, WHY = "controller.kubernetes.io/pod-deletion-cost", "dovetail.dev/deletion-cost"
MINUTE_MS, HOUR_MS, WEEK_MS = 60_000, 3_600_000, 604_800_000


class Stage:
    """Nodes of eight GPUs, and an API server that takes patches of pods, or answers with `error`."""

    def __init__(self, nodes: int) -> None:
        client: Any = self
        self.mirror = Informers(client, Served(frozenset()), Translator())
        self.time_ms, self.leads, self.state = 1_795_269_600_000, True, State()
        self.annotations: dict[str, dict[str, str]] = {}
        self.written: list[tuple[int, str, str | None]] = []
        self.error: KubeError | None = None
        self.costs = self.restarted()
        self.apply(*(NodeChanged(Node(f"n{i}", ((GPU, 8), (PODS, 99)))) for i in range(nodes)))

    def restarted(self) -> DeletionCosts:
        clock: Any = self
        client: Any = self
        return DeletionCosts(client, clock, self.mirror, state=lambda: self.state, may_write=lambda: self.leads)

    def now_ms(self) -> int:
        """As `Clock`."""
        return self.time_ms

    def apply(self, *events: Event) -> None:
        cycle.apply_events(self.state, events, self.time_ms)

    def replica(self, name: str, node: str, gpus: int = 2, owner: str = "d/web", **marks: str) -> None:
        namespace = owner.partition("/")[0]
        pod = Pod(name, namespace, name, Request(((GPU, gpus),)), node=node, bound_ms=1, created_ms=self.time_ms)
        self.annotations[name] = marks
        self._mirrored(namespace, name)
        self.apply(PodChanged(replace(pod, owner=owner, made_for="Deployment/web")))

    def other(self, name: str, node: str) -> None:
        self.apply(PodChanged(Pod(name, "d", name, Request(((GPU, 1),)), node=node, bound_ms=1)))

    def end(self, *names: str) -> None:
        for name in names:
            self.annotations.pop(name, None)
            self.apply(PodRemoved(name))

    def _mirrored(self, namespace: str, name: str) -> None:
        version = str(len(self.written))
        meta = ObjectMeta(name, namespace, name, version, None, None, {}, dict(self.annotations[name]))
        self.mirror.pods.known[namespace, name] = outline(PodObject(meta))

    async def request(self, method: str, path: str, body: bytes, **_: object) -> None:
        _, _, _, _, namespace, _, name, status = path.split("/")
        assert (method, status) == ("PATCH", "status")
        document = msgspec.json.decode(body)["metadata"]
        assert document["uid"] == name
        known = self.mirror.pods.known[namespace, name].metadata.resource_version
        assert document["resourceVersion"] == known
        if self.error is not None:
            raise self.error
        self.written.append((self.time_ms, name, document["annotations"][COST]))
        for key, value in document["annotations"].items():
            if value is None:
                self.annotations[name].pop(key, None)
            else:
                self.annotations[name][key] = value
        self._mirrored(namespace, name)

    async def looks(self, ms: int, every_ms: int = 30_000) -> int:
        """The number of writes while so much time passes."""
        before = len(self.written)
        for _ in range(max(1, ms // every_ms)):
            self.time_ms += every_ms
            await self.costs.look()
        return len(self.written) - before

    def first(self, *names: str) -> list[str]:
        """In the order in which the ReplicaSet controller deletes them, as far as that is by cost."""
        costs = {name: int(self.annotations[name].get(COST, "0")) for name in names}
        return sorted((name for name in names if costs[name]), key=lambda name: costs[name])


@pytest.fixture
def stage() -> Stage:
    return Stage(3)


async def test_the_pod_that_frees_a_node_is_written_with_the_reason_and_the_others_are_not(stage: Stage) -> None:
    stage.replica("alone", "n0")
    stage.replica("beside", "n1")
    stage.other("x", "n1")
    assert await stage.looks(1) == 1
    (cost, why) = stage.annotations["alone"][COST], stage.annotations["alone"][WHY]
    assert int(cost) < 0
    assert why.startswith(f"{cost}: its end leaves node n0 with 8 GPUs to others; at 2026-")
    assert stage.annotations["beside"] == {}
    assert await stage.looks(WEEK_MS, HOUR_MS) == 0


async def test_what_was_written_goes_when_it_is_not_true_any_more(stage: Stage) -> None:
    stage.replica("a", "n0")
    await stage.looks(1)
    stage.other("x", "n0")
    assert await stage.looks(5 * MINUTE_MS) == 0
    assert await stage.looks(6 * MINUTE_MS) == 1
    assert stage.annotations["a"] == {}


async def test_the_next_pods_keep_their_costs_when_the_first_has_ended(stage: Stage) -> None:
    for i in range(3):
        stage.replica(f"p{i}", f"n{i}")
    await stage.looks(1)
    order = stage.first("p0", "p1", "p2")
    stage.end(order[0])
    assert await stage.looks(HOUR_MS) == 0
    stage.replica("new", order[0].replace("p", "n"))
    assert await stage.looks(HOUR_MS) == 1
    now = stage.first("new", *order[1:])
    assert "new" in now and [name for name in now if name != "new"] == order[1:]


async def test_a_cost_of_the_user_is_kept_and_those_of_ours_are_removed(stage: Stage) -> None:
    stage.replica("mine", "n0", **{COST: "-7"})
    stage.replica("other", "n1", **{COST: "-5", WHY: "-5: earlier"})
    assert await stage.looks(HOUR_MS) == 1
    assert stage.annotations == {"mine": {COST: "-7"}, "other": {}}


@pytest.mark.parametrize("note", ["", "-70: x", "7: x", "x"])
async def test_a_cost_with_another_note_is_the_users(stage: Stage, note: str) -> None:
    stage.replica("a", "n0", **{COST: "-7", WHY: note})
    assert await stage.looks(HOUR_MS) == 0


async def test_a_process_that_does_not_lead_writes_nothing(stage: Stage) -> None:
    stage.replica("a", "n0")
    stage.leads = False
    assert await stage.looks(1) == 0


@pytest.mark.parametrize("error", [Conflict(409, "Conflict", "x", "PATCH"), ApiError(403, "Forbidden", "x", "PATCH")])
async def test_a_write_that_fails_is_tried_again(stage: Stage, error: KubeError) -> None:
    stage.replica("a", "n0")
    stage.error = error
    assert await stage.looks(1) == 0
    stage.error = None
    assert await stage.looks(10 * MINUTE_MS) == 1


async def test_a_restart_writes_nothing_again(stage: Stage) -> None:
    for i in range(3):
        stage.replica(f"p{i}", f"n{i}")
    await stage.looks(1)
    stage.costs = stage.restarted()
    assert await stage.looks(HOUR_MS) == 0


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.slow
async def test_over_hours_of_churn_writes_are_bounded_and_stop_when_the_cluster_is_calm(seed: int) -> None:
    """Other pods come and go beside the replicas every half minute, and every tenth time the set is scaled."""
    dice, stage = random.Random(seed), Stage(6)
    names = [f"p{i}" for i in range(8)]
    for name in names:
        stage.replica(name, f"n{dice.randrange(6)}", 1)
    others: list[str] = []
    for step in range(720):
        if others and dice.random() < 0.5:
            stage.end(others.pop(dice.randrange(len(others))))
        elif len(others) < 5:
            others.append(f"o{step}")
            stage.other(others[-1], f"n{dice.randrange(6)}")
        if dice.random() < 0.1:
            (gone,) = stage.first(*names)[:1] or names[:1]
            names.remove(gone)
            stage.end(gone)
            names.append(f"r{step}")
            stage.replica(names[-1], f"n{dice.randrange(6)}", 1)
        await stage.looks(1)
    times = [at_ms for at_ms, _, _ in stage.written]
    for start, at_ms in enumerate(times):
        hour = times[start : bisect_left(times, at_ms + HOUR_MS)]
        # Four rewrites at most, after 0, 10 and 30 minutes, of which each removes and writes 8 pods at most.
        assert len(set(hour)) <= 4 and len(hour) <= 64
    stage.end(*others)
    await stage.looks(3 * HOUR_MS)
    assert await stage.looks(WEEK_MS, HOUR_MS) == 0
    held = {placement.slot for placement in stage.state.cluster.placements.values()}
    assert len(stage.first(*names)) == len(names) >= len(held)


async def test_a_namespace_with_many_replica_sets_does_not_keep_another_from_its_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deletion_costs, "MOST_AN_HOUR", 8)
    stage = Stage(12)
    for i in range(10):
        stage.replica(f"a{i}", f"n{i}", owner=f"a/s{i}")
    assert await stage.looks(1) == 4
    stage.replica("z", "n11", owner="z/only")
    assert await stage.looks(1) == 1
    assert stage.annotations["z"]
    assert await stage.looks(58 * MINUTE_MS) == 0
    assert await stage.looks(2 * MINUTE_MS) == 4


async def test_a_write_that_fails_neither_shortens_nor_lengthens_the_wait_after_it(stage: Stage) -> None:
    stage.replica("a", "n0")
    stage.error = Conflict(409, "Conflict", "x", "PATCH")
    await stage.looks(3 * MINUTE_MS)
    stage.error = None
    assert await stage.looks(2 * MINUTE_MS) == 1
    stage.other("x", "n0")
    assert await stage.looks(7 * MINUTE_MS) == 0
    assert await stage.looks(4 * MINUTE_MS) == 1


async def test_the_cluster_may_change_between_two_replica_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its domains are numbered anew then, and there are fewer of them."""
    stage, clique = Stage(0), "nvidia.com/gpu.clique"
    for i in range(3):
        stage.apply(NodeChanged(Node(f"n{i}", ((GPU, 8), (PODS, 99)), ((clique, f"c{i}"),))))
        stage.replica(f"p{i}", f"n{i}", owner=f"d/s{i}")

    async def others_run(_: float) -> None:
        for i in range(3):
            stage.apply(NodeRemoved(f"n{i}"))

    monkeypatch.setattr(deletion_costs.asyncio, "sleep", others_run)
    await stage.looks(1)
    assert [stage.annotations[f"p{i}"].get(WHY, "").partition(": ")[2][:44] for i in range(3)] == [
        "its end leaves node n0 with 8 GPUs to others",
        "",
        "",
    ]


@pytest.mark.parametrize("seed", range(20))
def test_costs_ascend_in_the_order_and_what_ascends_already_stays(seed: int) -> None:
    dice = random.Random(seed)
    written: dict[str, int] = {}
    for round_ in range(200):
        order = [f"p{dice.randrange(12)}" for _ in range(dice.randint(0, 8))]
        order = list(dict.fromkeys(order))
        found = costs_of(order, written)
        values = [found[name] for name in order]
        assert values == sorted(set(values)) and all(-(2**31) < value < 0 for value in values), round_
        assert costs_of(order, found) == found
        written = found


@pytest.mark.parametrize("bad", [{"a": 5}, {"a": -1, "b": -1}, {"b": -(2**31) + 1}, {"a": -(2**40)}])
def test_costs_without_room_between_them_are_all_written_again(bad: dict[str, int]) -> None:
    found = costs_of(["a", "b"], bad)
    assert -(2**31) < found["a"] < found["b"] < 0
