# SPDX-License-Identifier: Apache-2.0
"""Random days of small clusters, lived through a recorder, and the recordings that they leave."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from dovetail.core import events as ev
from dovetail.core.decisions import Bind, Decision
from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.recording.reader import find
from dovetail.recording.recorder import Recorder
from dovetail.recording.replay import Replay, replay
from tests.core.gang_oracle import FABRIC, gpu_node, random_tree
from tests.core.worlds import Dice, told

KIB = 2**10
POLICY = Policy(fabric=FABRIC, attempts_per_step=8, start_deadline_ms=2_000, tell_again_ms=1_000)


@dataclass
class Recorded:
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

    def _wrote(self, count: int) -> None:
        self.written_bytes += count

    def step(self, events: Iterable[ev.Event], now_ms: int) -> list[Decision]:
        self.state = self.recorder.renewed(self.state)
        return self.recorder.step(self.state, events, now_ms)

    def tell(self, events: Iterable[ev.Event], now_ms: int = 0) -> None:
        self.state = self.recorder.renewed(self.state)
        self.recorder.tell(self.state, events, now_ms)

    def settle(self) -> None:
        """Wait until everything is in the files."""
        deadline_s = time.monotonic() + 10
        while self.recorder.waiting and not self.stopped:
            assert time.monotonic() < deadline_s
            time.sleep(0.001)

    def close(self) -> None:
        self.recorder.close()


def live(recorded: Recorded, seed: int, steps: int = 40) -> None:
    """Nodes, pods, gangs, volumes and namespaces come, change and go; binds come true, fail, or are never heard of; at
    times another process leads."""
    dice, world = random.Random(seed), Dice(seed)
    known = world.world()
    leads, now_ms = dice.random() < 0.5, 1_000
    inbox: list[ev.Event] = list(told(known))
    for number in range(steps):
        recorded.settle()
        now_ms += dice.choice([0, 1, 50, 700])
        if not leads:
            recorded.tell(inbox, now_ms)
            inbox = []
            leads = dice.random() < 0.5
        else:
            decisions = recorded.step(inbox, now_ms)
            inbox = [
                event for d in decisions if isinstance(d, Bind) for event in _came_of(d, recorded.state, dice, now_ms)
            ]
            leads = dice.random() < 0.9
        inbox += _news(number, dice, world, recorded.state)
    recorded.settle()


def _came_of(bind: Bind, state: State, dice: random.Random, now_ms: int) -> list[ev.Event]:
    what = dice.random()
    if what < 0.6:
        return [ev.PodChanged(replace(state.roster.pods[bind.uid], node=bind.node, bound_ms=now_ms))]
    if what < 0.8:
        return [ev.BindFailed(bind.uid, dice.choice([bind.node, ""]), "no", now_ms + 500)]
    return []


def _news(number: int, dice: random.Random, world: Dice, state: State) -> list[ev.Event]:
    pods, records = list(state.roster.pods), [node for node in state.cluster.nodes.records if node is not None]
    match dice.randrange(8):
        case 0 if pods:
            return [ev.PodRemoved(dice.choice(pods))]
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
            return [_renamed(event, ids, number) for event in tree.events()]
        case 5 if state.roster.gangs:
            return [ev.GangRemoved(dice.choice(list(state.roster.gangs)))]
        case 6:
            return [ev.QueuesChanged(frozenset(dice.sample(["a", "b", "c"], 2)))]
    return [ev.PodChanged(replace(world.pod(), uid=f"p{number}", name=f"p{number}", queue=dice.choice(["", "", "a"])))]


def _renamed(event: ev.Event, ids: dict[str, str], number: int) -> ev.Event:
    """So that each gang of a day has an id of its own."""
    match event:
        case ev.GangChanged(gang):
            return ev.GangChanged(replace(gang, id=ids[gang.id], parent=ids.get(gang.parent, "")))
        case ev.PodChanged(pod):
            uid = f"{pod.uid}-{number}"
            return ev.PodChanged(replace(pod, uid=uid, name=uid, gang=ids[pod.gang]))
    return event


def replays(*paths: Path) -> list[Replay]:
    runs, wrong = find(paths)
    assert wrong == []
    return [replay(run) for run in runs]


def only_replay(*paths: Path) -> Replay:
    (done,) = replays(*paths)
    return done
