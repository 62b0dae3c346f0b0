# SPDX-License-Identifier: Apache-2.0
"""Random days of small clusters, lived through a recorder, and the recordings that they leave."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.decisions import Bind, Decision, Evict
from dovetail.core.model import LabelSelector, Namespace, Pod, Problem, Requirement, Work
from dovetail.core.policy import Policy
from dovetail.core.queues.types import CPU, GPU, QUEUE_LABEL, Amounts, Budget, Queue, Usage
from dovetail.core.state import State
from dovetail.recording.calls import CoreCalls
from dovetail.recording.reader import find
from dovetail.recording.recorder import Recorder
from dovetail.recording.replay import Replay, replay
from tests.core.gang_oracle import FABRIC, gpu_node, random_tree
from tests.core.worlds import Dice, reported
from tests.patience import PATIENCE_S

KIB = 2**10
POLICY = Policy(
    fabric=FABRIC, attempts_per_step=8, start_deadline_ms=2_000, tell_again_ms=1_000, eviction_deadline_ms=1_500
)
QUEUES = ["default", "a", "b", "c", "d"]


class Recorded(Struct, dict=True):
    """A recorder on a directory, and the state that it records."""

    path: Path
    bound_bytes: int = 64 * 2**20
    run: str = "run"
    policy: Policy = POLICY
    written_bytes: int = 0
    stopped: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = State(self.policy)
        self.recorder = Recorder(
            self.path, self.bound_bytes, self.run, self.policy, wrote=self._wrote, stopped=self.stopped.append
        )
        self.calls = CoreCalls([self.recorder])

    def _wrote(self, count: int) -> None:
        self.written_bytes += count

    def step(self, events: Iterable[ev.Event], now_ms: int) -> list[Decision]:
        self.state = self.calls.renewed(self.state)
        return self.calls.step(self.state, events, now_ms)

    def apply_events(self, events: Iterable[ev.Event], now_ms: int = 0) -> None:
        self.state = self.calls.renewed(self.state)
        self.calls.apply_events(self.state, events, now_ms)

    def settle(self) -> None:
        """Wait until everything is in the files."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.recorder.waiting and not self.stopped:
            assert time.monotonic() < deadline_s
            time.sleep(0.001)

    def close(self) -> None:
        self.recorder.close()


def live(recorded: Recorded, seed: int, steps: int = 40) -> list[Decision]:
    """Nodes, pods, gangs, volumes, namespaces, queues and budgets come, change and go; binds and evictions come true,
    fail, or are never heard of; at times another process leads. Gives all that was decided."""
    dice, world = random.Random(seed), Dice(seed)
    known = world.world()
    leads, now_ms = dice.random() < 0.5, 1_000
    inbox: list[ev.Event] = list(reported(known))
    if dice.random() < 0.8:
        inbox += [ev.QueueChanged(_queue(name, dice, now_ms)) for name in dice.sample(QUEUES, 5)]
    all_decided: list[Decision] = []
    for number in range(steps):
        recorded.settle()
        now_ms += dice.choice([0, 1, 50, 700])
        if not leads:
            recorded.apply_events(inbox, now_ms)
            inbox = []
            leads = dice.random() < 0.5
        else:
            decisions = recorded.step(inbox, now_ms)
            inbox = [event for d in decisions for event in _came_of(d, recorded.state, dice, now_ms)]
            all_decided += decisions
            if dice.random() < 0.3:
                # As the status of queues and the answers of views ask it: that must move nothing.
                recorded.state.queue_snapshots(now_ms + dice.choice([0, 40]))
                recorded.state.queue.ordered()
            leads = dice.random() < 0.9
        inbox += _news(number, dice, world, recorded.state, now_ms)
    recorded.settle()
    return all_decided


def _came_of(decision: Decision, state: State, dice: random.Random, now_ms: int) -> list[ev.Event]:
    match decision:
        case Bind():
            return _came_of_bind(decision, state, dice, now_ms)
        case Evict():
            return [event for uid in decision.uids for event in _came_of_eviction(uid, state, dice, now_ms)]
    return []


def _came_of_bind(bind: Bind, state: State, dice: random.Random, now_ms: int) -> list[ev.Event]:
    what = dice.random()
    if what < 0.6:
        return [ev.PodChanged(replace(state.workloads.pods[bind.uid], node=bind.node, bound_ms=now_ms))]
    if what < 0.8:
        return [ev.BindFailed(bind.uid, dice.choice([bind.node, ""]), "no", now_ms + 500)]
    return []


def _came_of_eviction(uid: str, state: State, dice: random.Random, now_ms: int) -> list[ev.Event]:
    match dice.randrange(5):
        case 0:
            return [ev.EvictionFailed(uid, "a budget")]
        case 1:
            return [ev.PodChanged(replace(state.workloads.pods[uid], deleting=True))]
        case 2 | 3:
            return [ev.PodRemoved(uid, now_ms)]
    return []


def _news(number: int, dice: random.Random, world: Dice, state: State, now_ms: int) -> list[ev.Event]:
    pods, records = list(state.workloads.pods), [node for node in state.cluster.nodes.records if node is not None]
    match dice.randrange(10):
        case 0 if pods:
            return [ev.PodRemoved(dice.choice(pods), dice.choice([0, now_ms]), dice.random() < 0.5)]
        case 1 if records:
            node = dice.choice(records)
            return [ev.NodeChanged(replace(node, unschedulable=not node.unschedulable))]
        case 2 if len(records) > 2:
            return [ev.NodeRemoved(dice.choice(records).name)]
        case 3:
            return [ev.NodeChanged(gpu_node(f"more{number}", dice.randint(0, 4), "a", "r"))]
        case 4:
            tree = random_tree(dice, [0, 1, 1, 2])
            ids = {e.gang.id: f"{e.gang.id}{number}" for e in tree.events() if isinstance(e, ev.GangChanged)}
            queue = dice.choice(["", *QUEUES])
            return [_renamed(event, ids, number, queue) for event in tree.events()]
        case 5 if state.workloads.gangs:
            return [ev.GangRemoved(dice.choice(list(state.workloads.gangs)))]
        case 6:
            name = dice.choice(QUEUES)
            gone = name in state.shares.tree.queues and dice.random() < 0.2
            return [ev.QueueRemoved(name) if gone else ev.QueueChanged(_queue(name, dice, now_ms))]
        case 7:
            return [_more_of_queues(dice, state)]
    pod = world.pod()
    return [ev.PodChanged(_working(replace(pod, uid=f"p{number}", name=f"p{number}"), dice, now_ms))]


def _more_of_queues(dice: random.Random, state: State) -> ev.Event:
    """A budget, or the queue of a namespace."""
    namespace = dice.choice(["one", "two", "ns"])
    if dice.random() < 0.4:
        return ev.NamespaceChanged(Namespace(namespace, ((QUEUE_LABEL, dice.choice(QUEUES)), ("team", "x"))))
    if state.budgets and dice.random() < 0.3:
        return ev.BudgetRemoved(dice.choice(list(state.budgets)))
    selector = dice.choice([None, LabelSelector(), LabelSelector((Requirement("app", "In", ("1",)),))])
    return ev.BudgetChanged(Budget(namespace, f"b{dice.randint(0, 1)}", selector, dice.randint(0, 3)))


def _queue(name: str, dice: random.Random, now_ms: int) -> Queue:
    """With every field at times; now and then parents are missing or go round in circles, and more is guaranteed than
    the limit or the parent allows."""
    usage = Usage(
        dice.choice([0, now_ms, now_ms + 5_000]), dice.randint(0, 10**10), dice.randint(0, 4_000),
        ((0, dice.randint(0, 10**9)),), (("u", dice.randint(0, 10**9)),),
    )  # fmt: skip
    return Queue(
        name,
        parent=dice.choice([*[""] * 8, "a", "b", dice.choice([*QUEUES, "nowhere"])]),
        guarantee=_amounts(dice, 3),
        limit=_amounts(dice, 9) if dice.random() < 0.2 else (),
        weight=dice.choice([1, 1, 2, 7]),
        priority=dice.choice([0, 0, 1]),
        half_life_ms=dice.choice([1_000, 5_000, 10**9]),
        reclaim_min_runtime_ms=dice.choice([0, 0, 700]),
        preempt_min_runtime_ms=dice.choice([0, 0, 700]),
        preemptible=dice.random() < 0.9,
        namespaces=dice.choice([*[None] * 6, ("one", "ns")]),
        namespace_selector=dice.choice([*[None] * 6, LabelSelector((Requirement("team", "In", ("x",)),))]),
        by_user=dice.random() < 0.3,
        created_ms=dice.randint(0, 5),
        problem=Problem("spec.weight", "0", "is less than 1") if dice.random() < 0.03 else None,
        usage=usage if dice.random() < 0.3 else None,
    )


def _amounts(dice: random.Random, most: int) -> Amounts:
    classes = [CPU, GPU, GPU, "gpu/H100"]
    return tuple(
        sorted({name: 1_000 * dice.randint(0, most) for name in dice.sample(classes, dice.choice([0, 1, 2]))}.items())
    )


def _working(pod: Pod, dice: random.Random, now_ms: int) -> Pod:
    """With a queue, a user and something known of its work."""
    work = Work(
        family=dice.choice(["", "train", "eval"]),
        max_runtime_ms=dice.choice([0, 0, 500, 3_000]),
        checkpoint_interval_ms=dice.choice([0, 200]),
        startup_ms=dice.choice([0, 100]),
        preemptible=dice.choice([None, None, None, True, False]),
        preempts=dice.random() < 0.9,
        grace_ms=dice.choice([0, 300]),
    )
    return replace(
        pod, queue=dice.choice(["", "", *QUEUES]), user=dice.choice(["", "u", "v"]), work=work, created_ms=now_ms,
        checkpoint_ms=dice.choice([0, 0, now_ms, now_ms + 9_000]), idle_since_ms=dice.choice([0, 0, now_ms]),
    )  # fmt: skip


def _renamed(event: ev.Event, ids: dict[str, str], number: int, queue: str) -> ev.Event:
    """So that each gang of a day has an id of its own."""
    match event:
        case ev.GangChanged(gang):
            return ev.GangChanged(replace(gang, id=ids[gang.id], parent=ids.get(gang.parent, "")))
        case ev.PodChanged(pod):
            uid = f"{pod.uid}-{number}"
            return ev.PodChanged(replace(pod, uid=uid, name=uid, gang=ids[pod.gang], queue=queue))
    return event


def replays(*paths: Path) -> list[Replay]:
    runs, wrong = find(paths)
    assert wrong == []
    return [replay(run) for run in runs]


def only_replay(*paths: Path) -> Replay:
    (done,) = replays(*paths)
    return done
