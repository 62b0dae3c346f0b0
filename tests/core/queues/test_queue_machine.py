# SPDX-License-Identifier: Apache-2.0
"""Everything that can happen to queues, in any order, with all their books counted anew after every step.

`Model` is what the API server shows, and what was decided and is not shown yet. It counts what each queue holds, and
adds up what it used, from that alone: piecewise constant rates with decay, in floats.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from math import exp, expm1, log
from random import Random
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.checkpoint import Checkpoint, restore, take
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Decision, Evict, Release, Unnominate
from dovetail.core.model import (
    CPU,
    GPU,
    MEMORY,
    PODS,
    Gang,
    LabelSelector,
    Namespace,
    Node,
    Pod,
    Problem,
    Request,
    Requirement,
    Work,
)
from dovetail.core.policy import Policy
from dovetail.core.queues.status import QueueSnapshot
from dovetail.core.queues.types import MODEL_LABEL, QUEUE_LABEL, Budget, Queue, Usage
from dovetail.core.state import State
from tests.breadth import BREADTH

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
START_MS = 20_000 * DAY_MS + 7 * HOUR_MS
POLICY = Policy(fabric=(), start_deadline_ms=DAY_MS)
DIVIDED = ("cpu", "memory", "gpu")
TOO_MANY_STEPS = 60
Key = TypeVar("Key")
RELATIVE, ABSOLUTE = 1e-6, 5000.0
"""How far a ledger may be from the floats. The second is 5 ms of one GPU: half-lives that change enlarge what was
rounded."""


class Model(Struct):
    now_ms: int = START_MS
    nodes: dict[str, Node] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    gangs: dict[str, Gang] = field(default_factory=dict)
    budgets: dict[str, Budget] = field(default_factory=dict)
    namespace: Namespace = field(default_factory=lambda: Namespace("ns"))
    decided: dict[str, str] = field(default_factory=dict)
    """Nodes of pods (uid) whose bind is not seen yet."""
    used: dict[tuple[str, str | None], float] = field(default_factory=lambda: {("default", None): 0.0})
    """By queue and user; for None that of the queue."""
    recorded_until_ms: dict[str, int] = field(default_factory=dict)
    linked_ms: dict[str, int] = field(default_factory=dict)
    """Since when a queue counts for those above it."""

    # What there is.

    def record(self, name: str) -> Queue | None:
        return self.queues.get(name) or (Queue(name) if name == "default" else None)

    def queue_of(self, pod: Pod) -> str:
        """A bound pod counts for the queue that it was placed for, or may use, else for the default one."""
        name = pod.queue or dict(self.namespace.labels).get(QUEUE_LABEL, "default")
        if not pod.node or name == "default":
            return name
        if self.record(name) is None or not (pod.recorded or self.may_use(name)):
            return "default"
        return name

    def may_use(self, name: str) -> bool:
        """The pods are of the namespace `ns`, and admitted or not by its name alone."""
        above = any(queue.parent == name for queue in self.queues.values())
        records = [self.record(one) for one in self.path(name)]
        return not above and not any(queue is not None and queue.namespaces == ("other",) for queue in records)

    def path(self, name: str) -> list[str]:
        found: list[str] = []
        while (queue := self.record(name)) is not None and name not in found:
            found.append(name)
            name = queue.parent
        return found

    def placed(self) -> Iterator[tuple[Pod, str]]:
        for uid, pod in self.pods.items():
            if node := pod.node or self.decided.get(uid, ""):
                yield pod, node

    def ours(self) -> Iterator[tuple[Pod, str]]:
        return ((pod, node) for pod, node in self.placed() if pod.managed)

    def capacity(self) -> dict[str, int]:
        usable = [dict(node.allocatable) for node in self.nodes.values() if node.problem is None]
        whole = {name: sum(one.get(name, 0) for one in usable) for name in (CPU, MEMORY, GPU)}
        return {"cpu": whole[CPU], "memory": whole[MEMORY], "gpu": 1000 * whole[GPU]}

    def amounts(self, pod: Pod, node: str) -> dict[str, int]:
        """What a pod counts there, by class."""
        asked, record = dict(pod.request.resources), self.nodes.get(node)
        gpu = 1000 * asked.get(GPU, 0)
        found = {"cpu": asked.get(CPU, 0), "memory": asked.get(MEMORY, 0), "gpu": gpu}
        if record is not None:
            found["gpu-memory"] = record.gpu_memory_mib * asked.get(GPU, 0)
            found[f"gpu/{dict(record.labels).get(MODEL_LABEL, '')}"] = gpu
        return {name: amount for name, amount in found.items() if amount and name != "gpu/"}

    def held(self, queue: str, fixed: bool = False) -> Counter[str]:
        """What the queue holds with all below it, of pods that must not be preempted alone with `fixed`."""
        found: Counter[str] = Counter()
        for pod, node in self.ours():
            if queue in self.path(self.queue_of(pod)) and not (fixed and self.preemptible(pod)):
                found.update(self.amounts(pod, node))
        return found

    def preemptible(self, pod: Pod) -> bool:
        if pod.work.preemptible is not None:
            return pod.work.preemptible
        queue = self.record(self.queue_of(pod))
        return queue is None or queue.preemptible

    # What was used.

    def rate(self, pod: Pod) -> int:
        """The dominant share of the pod, in milli-GPU of the cluster (milli-CPU where there are none)."""
        capacity = self.capacity()
        whole = capacity["gpu"] or capacity["cpu"]
        asked = self.amounts(pod, "")
        return max(
            (-(-amount * whole // capacity[name]) for name, amount in asked.items() if capacity[name]), default=0
        )

    def rates(self) -> Counter[tuple[str, str | None]]:
        found: Counter[tuple[str, str | None]] = Counter()
        for pod, _ in self.ours():
            rate = self.rate(pod)
            for key in self.charged(pod):
                found[key] += rate
        return found

    def charged(self, pod: Pod) -> list[tuple[str, str | None]]:
        path = self.path(self.queue_of(pod))
        own = self.record(path[0]) if path else None
        return [*((name, None) for name in path), *([(own.name, pod.user)] if own is not None and own.by_user else [])]

    def half_life_ms(self, queue: str) -> int:
        record = self.record(queue)
        return max(1, record.half_life_ms) if record is not None else 1

    def charge(self, key: tuple[str, str | None], rate: int, from_ms: int) -> None:
        """What this rate comes to since then."""
        half_life_ms = self.half_life_ms(key[0])
        since = -expm1(-log(2) * max(0, self.now_ms - from_ms) / half_life_ms) * half_life_ms / log(2)
        self.used[key] = max(0.0, self.used.get(key, 0.0) + rate * since)

    def charge_since(self, pod: Pod, rate: int, since_ms: int, begun: str = "") -> None:
        """What the pod comes to since then, for its queue and those above it; from the queue that has begun on."""
        path = self.path(self.queue_of(pod))
        if begun and begun not in path:
            return
        for level, name in enumerate(path):
            since_ms = max(since_ms, self.recorded_until_ms.get(name, self.now_ms if rate > 0 else 0))
            if not begun or level >= path.index(begun):
                for key in self.charged(pod):
                    if key[0] == name:
                        self.charge(key, rate, since_ms)
            since_ms = max(since_ms, self.linked_ms.get(name, 0))

    def pass_time(self, now_ms: int) -> None:
        rates, before_ms = self.rates(), self.now_ms
        self.now_ms = max(self.now_ms, now_ms)
        for key in {*self.used, *rates}:
            kept = exp(-log(2) * (self.now_ms - before_ms) / self.half_life_ms(key[0]))
            self.used[key] = self.used.get(key, 0.0) * kept
            self.charge(key, rates[key], before_ms)

    def since_ms(self, pod: Pod) -> int:
        return pod.bound_ms if pod.node and pod.bound_ms else self.now_ms

    # What happens.

    def apply_events(self, event: ev.Event) -> None:
        match event:
            case ev.NodeChanged(node):
                self.nodes[node.name] = node
            case ev.NodeRemoved(name):
                del self.nodes[name]
            case ev.NamespaceChanged(namespace):
                self.namespace = namespace
            case ev.BudgetChanged(budget):
                self.budgets[budget.key] = budget
            case ev.GangChanged(gang):
                self.gangs[gang.id] = gang
            case ev.PodChanged(pod):
                self._put_pod(pod)
            case ev.PodRemoved(uid, ended_ms):
                pod = self.pods[uid]
                if pod.managed and (pod.node or uid in self.decided) and 0 < ended_ms < self.now_ms:
                    self.charge_since(pod, -self.rate(pod), max(ended_ms, self.since_ms(pod)))
                del self.pods[uid]
                self.decided.pop(uid, None)
            case ev.BindFailed(uid):
                del self.decided[uid]
            case ev.QueueChanged(queue):
                self._put_queue(queue)
            case ev.QueueRemoved(name):
                self._forget_queue(name)

    def _put_pod(self, pod: Pod) -> None:
        known = self.pods.get(pod.uid)
        late = pod.managed and pod.node and pod.uid not in self.decided and not (known and known.node)
        self.pods[pod.uid] = pod
        if pod.node:
            self.decided.pop(pod.uid, None)
        if late:
            self.charge_since(pod, self.rate(pod), pod.bound_ms or self.now_ms)

    def _put_queue(self, queue: Queue) -> None:
        name, old = queue.name, self.record(queue.name)
        if name in self.recorded_until_ms:
            assert old is not None
            for key in self.used:
                if key[0] == name:
                    self.used[key] *= max(1, queue.half_life_ms) / max(1, old.half_life_ms)
            self.queues[name] = queue
            if old.parent != queue.parent:
                self.linked_ms[name] = self.now_ms
            return
        self._forget_queue(name)
        self.queues[name] = queue
        if queue.usage is None:
            self.used[name, None] = self._mean_of_siblings(queue)
            self.recorded_until_ms[name] = min(queue.created_ms, self.now_ms)
        else:
            as_of_ms = self.recorded_until_ms[name] = min(queue.usage.as_of_ms, self.now_ms)
            faded = exp(-log(2) * (self.now_ms - as_of_ms) / self.half_life_ms(name))
            for user, used in ((None, queue.usage.used), *queue.usage.users):
                self.used[name, user] = max(0, used) * faded
        self.linked_ms[name] = self.recorded_until_ms[name]
        for pod, _ in self.ours():
            self.charge_since(pod, self.rate(pod), self.since_ms(pod), begun=name)

    def _mean_of_siblings(self, queue: Queue) -> float:
        others = [o for o in self.queues.values() if o.parent == queue.parent and o.name != queue.name]
        ratios = [
            self.used[o.name, None] / (self.worth_ms(o.name) * max(1, o.weight))
            for o in others
            if self.used[o.name, None] >= 1_000
        ]
        mean = sum(ratios) / len(ratios) if ratios else 0.0
        return mean * self.worth_ms(queue.name) * max(0, queue.weight)

    def worth_ms(self, queue: str) -> int:
        """What 1 milli-GPU for ever comes to, to the ms."""
        return round(self.half_life_ms(queue) / log(2))

    def _forget_queue(self, name: str) -> None:
        self.queues.pop(name, None)
        self.recorded_until_ms.pop(name, None)
        self.linked_ms.pop(name, None)
        self.used = {key: used for key, used in self.used.items() if key[0] != name}
        if name == "default":
            self.used[name, None] = 0.0

    # What is free.

    def room(self, request: Request, node: Node) -> int:
        """How many such pods fit there."""
        if node.problem is not None or node.unschedulable:
            return 0
        there = [pod for pod, where in self.placed() if where == node.name]
        free = Counter(dict(node.allocatable))
        for pod in there:
            free.subtract(dict(pod.request.resources))
            free.subtract({PODS: 1})
        asked = dict(request.resources) | {PODS: 1}
        return max(0, min(free[name] // amount for name, amount in asked.items() if amount))


KINDS = {
    "cpu": Request(((CPU, 1000),)),
    "memory": Request(((CPU, 3000), (MEMORY, 2))),
    "gpu": Request(((GPU, 1),)),
    "2 gpus": Request(((GPU, 2),)),
    "4 gpus": Request(((GPU, 4),)),
    "gpu and cpu": Request(((CPU, 500), (GPU, 1))),
}
kinds = st.sampled_from([*KINDS, "gpu"])
nodes = st.builds(
    lambda name, cpu, gpus, model, state: Node(
        name,
        ((CPU, cpu), (MEMORY, 16), (GPU, gpus), (PODS, 9)),
        ((MODEL_LABEL, model),) if model else (),
        unschedulable=state == "cordoned",
        problem=Problem("status", "", "is bad") if state == "bad" else None,
        gpu_memory_mib=40_960 if model else 0,
    ),
    st.sampled_from(["n0", "n1", "n2", "n3"]),
    st.sampled_from([4000, 8000]),
    st.sampled_from([1, 2, 4, 4, 4, 0]),
    st.sampled_from(["A", "A", ""]),
    st.sampled_from([""] * 9 + ["cordoned", "bad"]),
)
usages = st.builds(
    lambda ago_ms, used, users: Usage(START_MS - ago_ms, used, 0, (), users),
    st.sampled_from([0, HOUR_MS, DAY_MS, -10 * DAY_MS]),
    st.sampled_from([0, 4000 * HOUR_MS, 4_000_000 * HOUR_MS, -5000]),
    st.sampled_from([(), (("ann", 1000 * HOUR_MS), ("bob", -1))]),
)
terms = {
    "guarantee": st.sampled_from([(("gpu", 1000),), (("gpu", 2000),), (), (("cpu", 3000), ("gpu", 3000))]),
    "limit": st.sampled_from([(), (), (), (("gpu", 4000),), (("cpu", 6000), ("gpu", 5000)), (("gpu/A", 3000),)]),
    "weight": st.sampled_from([1, 1, 2, 5]),
    "priority": st.sampled_from([0, 0, 0, 3]),
    "half_life_ms": st.sampled_from([7 * DAY_MS, HOUR_MS, 10 * MINUTE_MS]),
    "reclaim_min_runtime_ms": st.sampled_from([0, 0, MINUTE_MS]),
    "preempt_min_runtime_ms": st.sampled_from([0, 0, MINUTE_MS]),
    "preemptible": st.sampled_from([True, True, True, False]),
    "by_user": st.booleans(),
    "least_served_first": st.sampled_from([False, False, True]),
    "created_ms": st.sampled_from([0, 1, 2]),
    "usage": st.none() | usages,
}
forests = st.tuples(
    *(st.builds(Queue, st.just(n), st.just(p), **terms) for n, p in zip("atbc", ("", "", "t", "t"), strict=True))
)
queues = st.builds(
    Queue,
    st.sampled_from(["a", "b", "c", "t", "default"]),
    st.sampled_from(["", "", "", "", "t", "t", "c", "ghost"]),
    **terms
    | {
        "weight": st.sampled_from([1, 1, 2, 5, 100, 0, -1]),
        "namespaces": st.sampled_from([None, None, None, None, ("ns",), ("other",)]),
    },
)
works = st.builds(
    Work,
    family=st.sampled_from(["", "train"]),
    max_runtime_ms=st.sampled_from([0, 0, MINUTE_MS, HOUR_MS]),
    checkpoint_interval_ms=st.sampled_from([0, 10_000]),
    startup_ms=st.sampled_from([0, 5000]),
    preemptible=st.sampled_from([None, None, None, True, False]),
    preempts=st.sampled_from([True, True, True, False]),
)
about = st.fixed_dictionaries(
    {
        "queue": st.sampled_from(["a"] * 5 + ["b"] * 5 + ["c"] * 3 + ["", "nowhere"]),
        "user": st.sampled_from(["", "ann", "bob"]),
        "priority": st.sampled_from([0, 0, 0, 5]),
        "labels": st.sampled_from([(), (), (("app", "web"),)]),
        "work": works,
    }
)
WEB = LabelSelector((Requirement("app", "In", ("web",)),))


class Machine(RuleBasedStateMachine):
    """`nominated` are pods (uid) for which others are evicted and that are neither bound nor dropped, `evicted_pods`
    those whose eviction was decided and is not carried out, `seen` what the API server shows as nominated
    node. `avoided_ms` is until when a pod is not tried."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.state = State(POLICY)
        self.nominated: dict[str, str] = {}
        self.evicted_pods: dict[str, None] = {}
        self.avoided_ms: dict[str, int] = {}
        self.changed_ms = START_MS
        self.count = 0
        self.last: list[Decision] = []

    @property
    def now_ms(self) -> int:
        return self.model.now_ms

    # A driver.

    def happen(self, *events: ev.Event, now_ms: int | None = None) -> None:
        """One step, and all that must hold after it."""
        self.model.pass_time(self.now_ms if now_ms is None else now_ms)
        for event in events:
            self.model.apply_events(event)
        self.last = step(self.state, events, self.now_ms if now_ms is None else now_ms)
        for decision in self.last:
            self.carry_out(decision)
        self.check()

    def carry_out(self, decision: Decision) -> None:
        match decision:
            case Bind(uid, node):
                assert not self.model.pods[uid].node
                assert uid not in self.model.decided
                self.model.decided[uid] = node
                self.nominated.pop(uid, None)
            case Evict(uids=uids, nominations=nominations):
                self.check_eviction(decision)
                self.evicted_pods |= dict.fromkeys(uids)
                self.nominated |= dict(nominations)
            case Unnominate(uids=uids):
                for uid in uids:
                    self.nominated.pop(uid, None)
            case Release(uids=uids):
                self.evicted_pods |= dict.fromkeys(uids)

    def one_of(self, uids: list[str], data: st.DataObject) -> Pod:
        return self.model.pods[data.draw(st.sampled_from(sorted(uids)))]

    def bound(self) -> list[str]:
        return [uid for uid, pod in self.model.pods.items() if pod.node]

    def remove(self, uid: str, ended_ms: int = 0, succeeded: bool = False) -> None:
        self.nominated.pop(uid, None)
        self.evicted_pods.pop(uid, None)
        self.happen(ev.PodRemoved(uid, ended_ms, succeeded))

    @initialize(
        first=st.lists(nodes, min_size=2, max_size=3, unique_by=lambda node: node.name),
        forest=forests,
        running=st.lists(st.tuples(kinds, about, st.sampled_from([HOUR_MS, HOUR_MS, 500])), min_size=3, max_size=8),
    )
    def start(
        self, first: list[Node], forest: tuple[Queue, ...], running: list[tuple[str, dict[str, object], int]]
    ) -> None:
        self.happen(*map(ev.NodeChanged, first))
        self.happen(*map(ev.QueueChanged, forest))
        for kind, about, ago_ms in running:
            self.a_pod_that_runs_already(kind, about, ago_ms)

    @rule(
        data=st.data(),
        what=st.sampled_from(["node", "node", "no node", "queue", "queue", "queue", "no queue", "namespace", "budget"]),
    )
    def administer(self, data: st.DataObject, what: str) -> None:
        event: ev.Event | None = None
        match what:
            case "node":
                event = ev.NodeChanged(data.draw(nodes))
            case "no node" if len(self.model.nodes) > 1:
                event = ev.NodeRemoved(data.draw(st.sampled_from(sorted(self.model.nodes))))
            case "queue":
                event = ev.QueueChanged(data.draw(queues))
            case "no queue" if self.model.queues:
                event = ev.QueueRemoved(data.draw(st.sampled_from(sorted(self.model.queues))))
            case "namespace":
                queue = data.draw(st.sampled_from(["", "a", "b"]))
                event = ev.NamespaceChanged(Namespace("ns", ((QUEUE_LABEL, queue),) if queue else ()))
            case "budget":
                selector = data.draw(st.sampled_from([WEB, LabelSelector(), None]))
                event = ev.BudgetChanged(Budget("ns", "pdb", selector, data.draw(st.sampled_from([0, 1, 5]))))
        if event is not None:
            self.changed_ms = self.now_ms
            self.happen(event)

    def new_pod(self, kind: str, **more: object) -> ev.PodChanged:
        self.count += 1
        return ev.PodChanged(replace(Pod(f"p{self.count}", "ns", f"p{self.count}", KINDS[kind]), **more))

    @rule(kind=kinds, about=about, count=st.integers(1, 3), checkpoint_ms=st.sampled_from([0, -5000, HOUR_MS]))
    def create_pods(self, kind: str, about: dict[str, object], count: int, checkpoint_ms: int) -> None:
        more = about | {"created_ms": self.now_ms, "checkpoint_ms": checkpoint_ms and self.now_ms + checkpoint_ms}
        self.happen(*(self.new_pod(kind, **more) for _ in range(count)))

    @rule(kind=kinds, about=about, ago_ms=st.sampled_from([0, 500, HOUR_MS]))
    def a_pod_that_runs_already(self, kind: str, about: dict[str, object], ago_ms: int) -> None:
        """As after a restart: it is reported only now."""
        node = next((node.name for node in self.model.nodes.values() if self.model.room(KINDS[kind], node)), "")
        if node:
            since_ms = self.now_ms - ago_ms
            self.happen(self.new_pod(kind, **about, node=node, created_ms=since_ms, bound_ms=since_ms))

    @rule(
        wanted=st.lists(kinds, min_size=1, max_size=4),
        uniform=st.booleans(),
        least=st.integers(1, 4),
        most=st.sampled_from([None, None, 3]),
        about=about,
    )
    def create_gang(
        self, wanted: list[str], uniform: bool, least: int, most: int | None, about: dict[str, object]
    ) -> None:
        gang_id = f"g{len(self.model.gangs)}"
        gang = Gang(gang_id, "ns", gang_id, min(least, len(wanted)), most)
        asked = wanted[:1] * len(wanted) if uniform else wanted
        pods = [self.new_pod(kind, **about, gang=gang_id, created_ms=self.now_ms) for kind in asked]
        self.happen(ev.GangChanged(gang), *pods)

    @precondition(lambda self: any(pod.gang for pod in self.model.pods.values()))
    @rule(kind=kinds, data=st.data())
    def create_member(self, kind: str, data: st.DataObject) -> None:
        """One that comes later, in place of another one."""
        other = self.one_of([uid for uid, pod in self.model.pods.items() if pod.gang], data)
        pod = self.new_pod(kind, gang=other.gang, queue=other.queue, user=other.user, created_ms=self.now_ms)
        self.happen(ev.PodChanged(replace(pod.pod, work=other.work, priority=other.priority)))

    @precondition(lambda self: self.model.gangs)
    @rule(data=st.data(), least=st.integers(1, 3))
    def change_gang(self, data: st.DataObject, least: int) -> None:
        gang = self.model.gangs[data.draw(st.sampled_from(sorted(self.model.gangs)))]
        self.happen(ev.GangChanged(replace(gang, min_count=least)))

    @precondition(lambda self: self.model.decided)
    @rule(data=st.data(), everybody=st.booleans())
    def confirm(self, data: st.DataObject, everybody: bool) -> None:
        uids = [*self.model.decided] if everybody else [self.one_of([*self.model.decided], data).uid]
        pods = [
            replace(self.model.pods[uid], node=self.model.decided[uid], bound_ms=self.now_ms, recorded=True)
            for uid in uids
        ]
        self.happen(*map(ev.PodChanged, pods))

    @precondition(lambda self: self.model.decided)
    @rule(data=st.data(), wait_ms=st.sampled_from([0, 5000]), everywhere=st.booleans())
    def fail(self, data: st.DataObject, wait_ms: int, everywhere: bool) -> None:
        uid = self.one_of([*self.model.decided], data).uid
        until_ms = self.avoided_ms[uid] = self.now_ms + wait_ms
        self.happen(ev.BindFailed(uid, "" if everywhere else self.model.decided[uid], "conflict", until_ms))

    @precondition(lambda self: self.bound())
    @rule(data=st.data(), what=st.sampled_from(["deleted", "resized", "of others"]))
    def something_odd(self, data: st.DataObject, what: str) -> None:
        pod = self.one_of(self.bound(), data)
        if what == "deleted":
            self.happen(ev.PodChanged(replace(pod, deleting=True)))
        elif what == "resized":
            asked = tuple(sorted({**dict(pod.request.resources), CPU: data.draw(st.sampled_from([250, 750]))}.items()))
            self.happen(ev.PodChanged(replace(pod, request=replace(pod.request, resources=asked))))
        else:
            self.happen(self.new_pod(data.draw(kinds), managed=False, node=pod.node, bound_ms=self.now_ms))

    @precondition(lambda self: self.model.pods)
    @rule(data=st.data(), ago=st.sampled_from([0.0, 0.3, 1.0]), succeeded=st.booleans())
    def finish(self, data: st.DataObject, ago: float, succeeded: bool) -> None:
        """What happened before the cluster or the tree changed is not known exactly: it ended after that."""
        pod = self.one_of([*self.model.pods], data)
        since_ms = max(self.changed_ms, pod.bound_ms)
        ended_ms = self.now_ms - int(ago * (self.now_ms - since_ms)) if pod.node and since_ms <= self.now_ms else 0
        self.remove(pod.uid, ended_ms, succeeded and bool(pod.node))

    @precondition(lambda self: self.evicted_pods)
    @rule(data=st.data(), how=st.sampled_from(["begins", "ends", "ends", "all end", "fails"]))
    def end_victims(self, data: st.DataObject, how: str) -> None:
        uid = data.draw(st.sampled_from(sorted(self.evicted_pods)))
        if how == "begins":
            self.happen(ev.PodChanged(replace(self.model.pods[uid], deleting=True)))
        elif how == "fails":
            del self.evicted_pods[uid]
            self.happen(ev.EvictionFailed(uid, "its budget is used up"))
        else:
            for one in [*self.evicted_pods] if how == "all end" else [uid]:
                self.remove(one)

    @rule()
    def show_nominations(self) -> None:
        """The API server shows the nodes that pods were nominated to, and none where that was dropped."""
        changed = [
            replace(pod, nominated_node=self.nominated.get(uid, ""))
            for uid, pod in self.model.pods.items()
            if pod.nominated_node != self.nominated.get(uid, "") and not pod.node and pod.managed
        ]
        self.happen(*map(ev.PodChanged, changed))

    @rule(passed_ms=st.sampled_from([1, 1000, 16_000, MINUTE_MS, 150_000, HOUR_MS, 26 * HOUR_MS]))
    def pass_time(self, passed_ms: int) -> None:
        self.happen(now_ms=self.now_ms + passed_ms)

    @rule(back_ms=st.sampled_from([1, HOUR_MS, START_MS]))
    def set_the_clock_back(self, back_ms: int) -> None:
        self.happen(now_ms=self.now_ms - back_ms)
        assert self.state.now_ms == self.now_ms

    @rule()
    def come_to_rest(self) -> None:
        """While nothing happens it ends, and then no job waits that there is room for."""
        for _ in range(TOO_MANY_STEPS):
            self.happen()
            if not self.state.busy and not any(isinstance(d, Bind | Evict | Unnominate) for d in self.last):
                break
        else:
            raise AssertionError("it never comes to rest")
        self.none_waits_that_fits()

    @rule()
    def go_on_from_a_checkpoint(self) -> None:
        before, checkpoint = self.state, take(self.state)
        self.state, twin = restore(before.policy, checkpoint), restore(before.policy, checkpoint)
        assert canonical(take(self.state)) == canonical(checkpoint)
        for now, old in zip(self.queue_snapshots(), before.queue_snapshots(self.now_ms), strict=True):
            assert nearly_equal(now.users, old.users)
            # It is divided anew, and among equals those come first now that were created first.
            assert replace(now, users=(), head="", due=()) == replace(old, users=(), head="", due=())
        self.happen()
        step(twin, (), self.now_ms)
        assert take(twin) == take(self.state)

    @rule(dice=st.randoms(use_true_random=False), later_ms=st.sampled_from([0, 1, HOUR_MS, 3 * DAY_MS]))
    def restart(self, dice: Random, later_ms: int) -> None:
        """What another scheduler makes of the API server's objects, with the queues' status. Nodes and queues
        are reported before pods."""
        model, now_ms = self.model, self.now_ms + (0 if self.model.decided else later_ms)
        queues: list[ev.Event] = []
        for one in self.queue_snapshots():
            usage = Usage(one.as_of_ms, one.used, one.rate_milli, one.days, one.users)
            if one.name in model.queues:
                queues.append(ev.QueueChanged(replace(model.queues[one.name], usage=usage)))
        pods: list[ev.Event] = [*map(ev.GangChanged, model.gangs.values()), *map(ev.PodChanged, model.pods.values())]
        for some in (queues, pods):
            dice.shuffle(some)
        after = State(POLICY)
        known = [*map(ev.NodeChanged, model.nodes.values()), ev.NamespaceChanged(model.namespace), *queues]
        step(after, [*known, *pods], now_ms)
        now = {one.name: one for one in after.queue_snapshots(now_ms)}
        for one in self.state.queue_snapshots(now_ms):
            if one.name in model.queues:
                assert near(now[one.name].used, one.used), one.name
                assert nearly_equal(now[one.name].users, one.users), one.name
                assert nearly_equal(now[one.name].days, one.days), one.name

    # What must hold.

    def queue_snapshots(self) -> list[QueueSnapshot]:
        return self.state.queue_snapshots(self.now_ms)

    def check(self) -> None:
        assert self.state.cluster.check() == []
        snapshots = self.queue_snapshots()
        self.queues_hold_what_their_pods_hold(snapshots)
        self.queues_are_charged_what_their_pods_use(snapshots)
        self.ledgers_are_the_integral(snapshots)
        self.no_limit_was_exceeded()
        self.what_must_not_be_preempted_is_within_guarantees()
        self.nominations_are_held_or_dropped()

    def queues_hold_what_their_pods_hold(self, snapshots: Iterable[QueueSnapshot]) -> None:
        for one in snapshots:
            assert dict(one.allocated) == +self.model.held(one.name), one.name

    def queues_are_charged_what_their_pods_use(self, snapshots: Iterable[QueueSnapshot]) -> None:
        rates = self.model.rates()
        for one in snapshots:
            assert one.rate_milli == rates[one.name, None], one.name

    def ledgers_are_the_integral(self, snapshots: Iterable[QueueSnapshot]) -> None:
        for one in snapshots:
            assert near(one.used, self.model.used[one.name, None]), (one.name, one.used, self.model.used)
            for user, used in one.users:
                assert near(used, self.model.used.get((one.name, user), 0.0)), (one.name, user)

    def no_limit_was_exceeded(self) -> None:
        """By what was decided; a limit may be set below what is held."""
        for bind in (d for d in self.last if isinstance(d, Bind)):
            pod = self.model.pods[bind.uid]
            own = self.model.amounts(pod, bind.node)
            for name in self.model.path(self.model.queue_of(pod)):
                limit, held = dict(self.queue(name).limit), self.model.held(name)
                assert all(held[r] <= most for r, most in limit.items() if own.get(r)), (bind, name)

    def what_must_not_be_preempted_is_within_guarantees(self) -> None:
        """A queue above the leaf that names nothing leaves it to those below; the default one guarantees whatever."""
        for bind in (d for d in self.last if isinstance(d, Bind)):
            pod = self.model.pods[bind.uid]
            if self.model.preemptible(pod):
                continue
            own, leaf = self.model.amounts(pod, bind.node), self.model.queue_of(pod)
            for name in self.model.path(leaf):
                guarantee, fixed = dict(self.queue(name).guarantee), self.model.held(name, fixed=True)
                named = guarantee or (dict.fromkeys(DIVIDED, 0) if name == leaf else {})
                if name in self.model.queues:
                    assert all(fixed[r] <= most for r, most in named.items() if own.get(r)), (bind, name)

    def nominations_are_held_or_dropped(self) -> None:
        held = {uid for one in self.state.reservations for uid, _ in one.nominated}
        gone = [uid for one in self.state.reservations for uid in one.evicting]
        assert len(set(gone)) == len(gone)
        waiting = {uid for uid, pod in self.model.pods.items() if not pod.node and uid not in self.model.decided}
        # A job that starts in what the eviction for another leaves over holds its room too, and no event reports it.
        assert self.nominated.keys() <= held & waiting
        evictors = {uid for one in self.state.reservations if one.evicting for uid, _ in one.nominated}
        assert evictors & waiting <= self.nominated.keys()
        for one in self.state.reservations:
            assert any(pod.uid in waiting for pod in self.state.workloads.members(one.workload)), one.workload

    def queue(self, name: str) -> Queue:
        found = self.model.record(name)
        assert found is not None
        return found

    def check_eviction(self, evict: Evict) -> None:
        """Victims may be evicted: bound, preemptible, long enough there, within budgets; of others only where they are
        not of the same queue, of a lower priority, or had more already where that counts."""
        model, allowed = self.model, {key: budget.allowed for key, budget in self.model.budgets.items()}
        winner = model.pods[evict.nominations[0][0]]
        priority = max(pod.priority for pod in self.state.workloads.members(evict.gang or f"pod/{winner.uid}"))
        assert len(set(evict.uids)) == len(evict.uids)
        levels = {uid: self.state.shares.level(model.pods[uid]) for uid in (winner.uid, *evict.uids)}
        for uid in evict.uids:
            pod = model.pods[uid]
            queue = self.queue(model.queue_of(pod))
            same = queue.name == model.queue_of(winner)
            least_ms = queue.preempt_min_runtime_ms if same else queue.reclaim_min_runtime_ms
            assert pod.node
            assert not pod.deleting
            assert model.preemptible(pod)
            oldest_ms = min(
                o.bound_ms for o in model.pods.values() if o.node and (o is pod or pod.gang == o.gang != "")
            )
            assert self.now_ms - oldest_ms >= (least_ms or 0)
            # How much jobs had has an oracle of its own.
            had_more = queue.least_served_first and levels[uid] > levels[winner.uid]
            assert not same or pod.priority < priority or (pod.priority == priority and had_more)
            for budget in model.budgets.values():
                selected = budget.selector is not None and (budget.selector is not WEB or ("app", "web") in pod.labels)
                allowed[budget.key] -= selected
        assert all(left >= 0 for left in allowed.values())

    def none_waits_that_fits(self) -> None:
        for root in self.state.queue.workloads():
            assert not self.surely_fits(root), root

    def surely_fits(self, root: str) -> bool:
        """Whether there is room for the root that is held for nobody else, and nothing that keeps it from it."""
        model, state = self.model, self.state
        members = state.workloads.members(root)
        waiting = [pod for pod in members if not pod.node and pod.uid not in model.decided]
        gang = model.gangs.get(root)
        if not waiting or any(pod.request != waiting[0].request for pod in waiting):
            return False
        if any(self.avoided_ms.get(pod.uid, 0) > self.now_ms for pod in waiting):
            return False
        name = model.queue_of(waiting[0])
        path = model.path(name)
        tree = state.shares.tree
        if not path or tree.problem(name) is not None or not tree.leaf(name):
            return False
        if any(self.queue(above).namespaces == ("other",) for above in path):
            return False
        if any(model.queue_of(pod) != name for pod in members):
            return False
        held = sum(1 for pod in members if pod not in waiting and not pod.deleting)
        needed = 1
        if gang is not None and not state.workloads.has_started(root):
            needed = max(1, gang.min_count - held)
        if gang is not None and gang.max_count is not None and gang.max_count - held < needed:
            return False
        if len(waiting) < needed:
            return False
        barred = {int(slot) for one in state.reservations.others(root) for slot in one.slots} | {
            state.cluster.nodes.slots[pod.nominated_node]
            for pod in model.pods.values()
            if pod.nominated_node in state.cluster.nodes.slots and not pod.node
        }
        fixed = any(not model.preemptible(pod) for pod in waiting)
        room = 0
        for node in model.nodes.values():
            if state.cluster.nodes.slots[node.name] in barred:
                continue
            wanted = Counter({r: needed * a for r, a in model.amounts(waiting[0], node.name).items()})
            if self.within(wanted, path, fixed):
                room += model.room(waiting[0].request, node)
        return room >= needed

    def within(self, wanted: Counter[str], path: list[str], fixed: bool) -> bool:
        """Whether so much more breaks no limit, and with `fixed` no guarantee."""
        for name in path:
            held = self.model.held(name)
            if any(wanted[r] and held[r] + wanted[r] > most for r, most in self.queue(name).limit):
                return False
            if fixed and name in self.model.queues:
                effective = self.state.shares.tree.queues[name].guarantee
                own = dict(effective) or (dict.fromkeys(DIVIDED, 0) if name == path[0] else {})
                held = self.model.held(name, fixed=True)
                if any(wanted[r] and held[r] + wanted[r] > most for r, most in own.items()):
                    return False
        return True


def canonical(checkpoint: Checkpoint) -> Checkpoint:
    """Nodes that are gone, but for their pods, are numbered last when a checkpoint is restored."""
    rooms = tuple(replace(room, nodes=tuple(sorted(room.nodes))) for room in checkpoint.rooms)
    return replace(checkpoint, held=(), reported=(), rooms=rooms)


def near(one: float, other: float) -> bool:
    return abs(one - other) <= ABSOLUTE + RELATIVE * max(abs(one), abs(other))


def nearly_equal(some: Iterable[tuple[Key, int]], others: Iterable[tuple[Key, int]]) -> bool:
    """Whether they are the same numbers, nearly; one that is not there is nothing."""
    one, other = dict(some), dict(others)
    return all(near(one.get(key, 0), other.get(key, 0)) for key in {*one, *other})


Machine.TestCase.settings = settings(max_examples=30 * BREADTH, stateful_step_count=40, deadline=None, derandomize=True)
TestQueueMachine = pytest.mark.slow(Machine.TestCase)


def test_a_job_beyond_the_effective_guarantee_of_its_queue_does_not_surely_fit() -> None:
    """b and c are guaranteed a GPU each, of the one that t provides: c gets none of it."""
    one = (("gpu", 1000),)
    forest = (Queue("t", "", one), Queue("b", "t", one), Queue("c", "t", one, preemptible=False))
    machine = Machine()
    machine.start([Node("n1", ((CPU, 4000), (GPU, 2), (PODS, 9)))], forest, [])
    machine.create_gang(["gpu"], False, 1, None, {"queue": "c"})
    machine.come_to_rest()
    assert machine.model.decided == {}
