# SPDX-License-Identifier: Apache-2.0
"""How long scale-ups of a served model wait for room with training beside, with headroom and without.

    python -m benchmarks.headroom [--trace FILE] [--hours 6] [--seed 1] [--headroom 8] [-o table|json]

Load: times of requests, from a trace or made: a rate that rises and falls with bursts of minutes. Replicas of 4 GPUs
follow it as the HorizontalPodAutoscaler does: each 15 s as many as the requests of the last minute need, and down only
to the most of the last 5 minutes. Beside them more jobs wait than ever fit: batch inference on 1 GPU for 10 minutes
that ends within 1 s, and training on 4 GPUs for 2 hours that takes its 30 s to save. A job that is evicted is lost, and
another takes its place. The first replica is there before the jobs come, and does not count.
FILE is a CSV file whose first column is a time (TIMESTAMP of Azure's LLM inference traces, gmt_create of Alibaba's
GenAI trace).

Contestants
- `headroom`: Dovetail's core; the queue of the model is guaranteed what its most replicas need, and its pods state
  headroom with a return within 2 s.
- `reclaim`: Dovetail's core with the same guarantee, without headroom.
- `kai`: the rules of KAI Scheduler as it documents them: a cycle each second; queues with a quota; training is over its
  quota, the model within its own, so it reclaims: victims are jobs of the queue over quota until the replica fits; none
  is protected (reclaim-min-runtime is 0 by default), and the replica is bound in a cycle after they have ended.
  Sources: docs/fairness/README.md and docs/developer/designs/min-runtime/README.md of NVIDIA/KAI-Scheduler. That the
  newest are taken first, and a cycle of 1 s, are assumptions.
- `priority`: a Deployment with a PriorityClass above that of the jobs, by kube-scheduler's preemption: of the nodes
  where the replica fits without the jobs, and as few of them as possible, oldest kept first, the one with the fewest
  victims. Source: "Pod Priority and Preemption" of Kubernetes' documentation.
- `plain`: a Deployment with the priority of the jobs: pods are tried in the order in which they came.

Time is virtual: a step takes none, an evicted job ends at a random time within its grace period and then within a
further 0.5 s, a bind is seen at once. What is measured is from the scale-up of the autoscaler to the bind of the pod.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import heapq
import json
import math
import random
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Evict
from dovetail.core.event_handlers import apply
from dovetail.core.headroom.status import headroom_statuses
from dovetail.core.model import CPU, GPU, MEMORY, PODS, Node, Pod, Request, Work
from dovetail.core.policy import Policy
from dovetail.core.queues.types import Queue
from dovetail.core.state import State

GPUS, GIB = 8, 2**30
REPLICA_GPUS = 4
WITHIN_MS = 2000
ENDING_MS = 500
BACKLOG = 24
SECOND_MS, MINUTE_MS, HOUR_MS = 1000, 60_000, 3_600_000
JOBS_MS = 5 * SECOND_MS
"""When the jobs come."""
_EACH_MS, _WINDOW_MS, _STABLE_MS = 15 * SECOND_MS, MINUTE_MS, 5 * MINUTE_MS


class Kind(Struct, frozen=True):
    """Jobs beside the model."""

    name: str
    gpus: int
    runs_ms: int
    grace_ms: int


KINDS = (Kind("batch", 1, 10 * MINUTE_MS, SECOND_MS), Kind("training", 4, 2 * HOUR_MS, 30 * SECOND_MS))


def made_requests(hours: float, dice: random.Random) -> list[int]:
    """Times (ms) of requests: about one in a second, more and less over an hour, with bursts of some minutes."""
    times, at_ms, burst_ms = list[int](), 0.0, 0.0
    while at_ms < hours * HOUR_MS:
        wave = 1.2 + math.sin(2 * math.pi * at_ms / HOUR_MS)
        if dice.random() < 0.0008:
            burst_ms = at_ms + dice.uniform(1, 6) * MINUTE_MS
        rate = wave * (2.5 if at_ms < burst_ms else 1)
        at_ms += dice.expovariate(rate) * SECOND_MS
        times.append(int(at_ms))
    return times


def read_requests(path: Path) -> list[int]:
    """Times (ms) of the requests of a trace, from its first one on. Raises ValueError where there is none."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        rows = csv.reader(lines)
        next(rows, None)
        found = sorted(datetime.fromisoformat(row[0].strip()[:26]).timestamp() * 1000 for row in rows if row)
    if not found:
        raise ValueError(f"{path} has no requests")
    return [int(at_ms - found[0]) for at_ms in found]


def replicas(times: list[int], most: int) -> list[tuple[int, int]]:
    """When the autoscaler wants how many replicas (ms, number), where that changes; `most` at the peak."""
    counts, first, last = list[int](), 0, 0
    for at_ms in range(0, times[-1], _EACH_MS):
        while last < len(times) and times[last] < at_ms:
            last += 1
        while first < last and times[first] < at_ms - _WINDOW_MS:
            first += 1
        counts.append(last - first)
    each = max(1, -(-max(counts, default=1) // most))
    wanted = [max(1, -(-count // each)) for count in counts]
    window, found = _STABLE_MS // _EACH_MS, [(0, 1)]
    for i, now in enumerate(wanted):
        stable = max(wanted[max(0, i - window) : i + 1])
        number = now if now > found[-1][1] else min(found[-1][1], stable)
        if number != found[-1][1]:
            found.append((i * _EACH_MS, number))
    return found


class Outcome(Struct):
    """`waits_ms` are the waits of scale-ups that were placed, `promised_ms` of those for which there was headroom;
    those that were not placed, or withdrawn before, are `unplaced`. `lost` is the work that evictions cost, in GPUs
    times ms; `lent` and `kept` are those in headroom, what others used and all."""

    waits_ms: list[int] = field(default_factory=list)
    promised_ms: list[int] = field(default_factory=list)
    unplaced: int = 0
    evicted: int = 0
    lost_gpu_ms: int = 0
    others_gpu_ms: int = 0
    lent_gpu_ms: int = 0
    kept_gpu_ms: int = 0

    def row(self) -> dict[str, float]:
        waits = sorted(self.waits_ms[1:] + [10**12] * self.unplaced)
        kept = sum(wait <= WITHIN_MS for wait in self.promised_ms)

        def at(part: float) -> float:
            found = waits[min(len(waits) - 1, math.ceil(part * len(waits)) - 1)] if waits else 0
            return math.inf if found == 10**12 else found / 1000

        return {
            "scale_ups": len(waits), "p50_s": at(0.5), "p99_s": at(0.99), "most_s": at(1), "unplaced": self.unplaced,
            "promised": len(self.promised_ms), "kept_percent": _percent(kept, len(self.promised_ms)),
            "lent_percent": _percent(self.lent_gpu_ms, self.kept_gpu_ms), "evicted": self.evicted,
            "lost_gpu_h": round(self.lost_gpu_ms / HOUR_MS, 2), "others_gpu_h": round(self.others_gpu_ms / HOUR_MS, 1),
        }  # fmt: skip


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 2) if whole else 0.0


class Agenda:
    """What is due, in order."""

    def __init__(self) -> None:
        self._due: list[tuple[int, int, object]] = []
        self._number = 0

    def at(self, when_ms: int, what: object) -> None:
        self._number += 1
        heapq.heappush(self._due, (when_ms, self._number, what))

    def next_ms(self) -> int | None:
        return self._due[0][0] if self._due else None

    def take(self, now_ms: int) -> Iterator[object]:
        while self._due and self._due[0][0] <= now_ms:
            yield heapq.heappop(self._due)[2]


def ends_within(grace_ms: int, dice: random.Random) -> int:
    """How long an evicted job takes to end (ms)."""
    return int(dice.uniform(0.3, 1) * grace_ms + dice.uniform(0, ENDING_MS))


class OwnCore:
    """Dovetail's core: with headroom for so many instances, or with none."""

    def __init__(self, nodes: int, most: int, headroom: int, seed: int) -> None:
        self.out, self._dice, self._agenda = Outcome(), random.Random(seed), Agenda()
        self._state, self._headroom, self._made = State(Policy(fabric=())), headroom, 0
        self._waiting: dict[str, tuple[int, bool]] = {}
        self._kinds: dict[str, Kind] = {}
        amounts = ((CPU, 128_000), (MEMORY, 1024 * GIB), (PODS, 110), (GPU, GPUS))
        for i in range(nodes):
            apply(self._state, ev.NodeChanged(Node(f"node-{i}", amounts)))
        guarantee = (("gpu", 1000 * REPLICA_GPUS * most),)
        apply(self._state, ev.QueueChanged(Queue("web", guarantee=guarantee)))
        apply(self._state, ev.QueueChanged(Queue("lab")))

    def run(self, wanted: list[tuple[int, int]], until_ms: int) -> Outcome:
        self._agenda.at(JOBS_MS, None)
        for when_ms, number in wanted:
            self._agenda.at(when_ms, number)
        now_ms, before_ms = 1, 1
        serving: list[str] = []
        while now_ms < until_ms:
            self._account(now_ms - before_ms)
            reported: list[ev.Event] = []
            for what in self._agenda.take(now_ms):
                if isinstance(what, int):
                    reported += self._scale(serving, what, now_ms)
                elif isinstance(what, ev.PodRemoved):
                    self._kinds.pop(what.uid, None)
                    reported.append(what)
            while True:
                reported += self._fill_backlog(now_ms)
                decided = step(self._state, reported, now_ms)
                reported = [event for one in decided for event in self._carry_out(one, now_ms)]
                if not reported and not self._state.busy:
                    break
            before_ms = now_ms
            times = [t for t in (self._agenda.next_ms(), self._state.next_wake_ms()) if t is not None]
            now_ms = max(now_ms + 1, min(times, default=until_ms))
        self.out.unplaced += len(self._waiting)
        return self.out

    def _pod(self, queue: str, gpus: int, now_ms: int, work: Work) -> Pod:
        self._made += 1
        asks = Request(((CPU, 8000 * gpus), (MEMORY, 64 * GIB * gpus), (GPU, gpus)))
        name = f"{queue}-{self._made}"
        return Pod(name, "ns", name, asks, queue=queue, created_ms=now_ms, work=work, owner=f"ns/{queue}")

    def _scale(self, serving: list[str], number: int, now_ms: int) -> list[ev.Event]:
        events: list[ev.Event] = []
        while len(serving) > number:
            uid = serving.pop()
            self.out.unplaced += self._waiting.pop(uid, None) is not None
            events.append(ev.PodRemoved(uid, now_ms, True))
        rooms = self._state.headrooms.rooms.values()
        there = sum(len(room.places) for room in rooms) - len(self._waiting)
        work = Work(headroom=self._headroom, headroom_within_ms=WITHIN_MS if self._headroom else 0)
        while len(serving) < number:
            pod = replace(self._pod("web", REPLICA_GPUS, now_ms, work), made_for="Deployment/model")
            serving.append(pod.uid)
            self._waiting[pod.uid] = now_ms, there > 0
            there -= 1
            events.append(ev.PodChanged(pod))
        return events

    def _fill_backlog(self, now_ms: int) -> list[ev.Event]:
        pods, events = self._state.workloads.pods, list[ev.Event]()
        if now_ms < JOBS_MS:
            return []
        for kind in KINDS:
            waits = sum(1 for uid, one in self._kinds.items() if one is kind and uid in pods and not pods[uid].node)
            for _ in range(BACKLOG - waits if waits < BACKLOG // 2 else 0):
                pod = self._pod("lab", kind.gpus, now_ms, Work(grace_ms=kind.grace_ms))
                self._kinds[pod.uid] = kind
                events.append(ev.PodChanged(pod))
        return events

    def _carry_out(self, decision: object, now_ms: int) -> list[ev.Event]:
        pods = self._state.workloads.pods
        if isinstance(decision, Bind):
            bound = replace(pods[decision.uid], node=decision.node, bound_ms=now_ms)
            if (asked := self._waiting.pop(decision.uid, None)) is not None:
                self.out.waits_ms.append(now_ms - asked[0])
                if asked[1]:
                    self.out.promised_ms.append(now_ms - asked[0])
            elif decision.uid in self._kinds:
                end_ms = now_ms + self._kinds[decision.uid].runs_ms
                self._agenda.at(end_ms, ev.PodRemoved(decision.uid, end_ms, True))
            return [ev.PodChanged(bound)]
        events: list[ev.Event] = []
        for uid in decision.uids if isinstance(decision, Evict) else ():
            kind = self._kinds[uid]
            end_ms = now_ms + ends_within(kind.grace_ms, self._dice)
            self.out.evicted += 1
            self.out.lost_gpu_ms += kind.gpus * (now_ms - pods[uid].bound_ms)
            self._agenda.at(end_ms, ev.PodRemoved(uid, end_ms))
            events.append(ev.PodChanged(replace(pods[uid], deleting=True)))
        return events

    def _account(self, ms: int) -> None:
        placements = self._state.cluster.placements
        self.out.others_gpu_ms += ms * sum(one.gpus for uid, one in self._kinds.items() if uid in placements)
        for one in headroom_statuses(self._state) if self._state.headrooms.rooms else ():
            kept = REPLICA_GPUS * len(one.room.places)
            self.out.kept_gpu_ms += ms * kept
            self.out.lent_gpu_ms += ms * min(kept, one.lent_milli // 1000)


class Running(Struct, eq=False):
    """A job on a node, since then."""

    kind: Kind
    node: int
    since_ms: int
    leaving: bool = False


class RuledByDocuments:
    """The documented rules of another scheduler; see the top of the file."""

    def __init__(self, rule: str, nodes: int, seed: int) -> None:
        self.out, self._rule, self._dice, self._agenda = Outcome(), rule, random.Random(seed), Agenda()
        self._free = [GPUS] * nodes
        self._jobs: list[Running] = []
        self._serving: list[int] = []
        self._asked: list[tuple[int, int]] = []
        """Replicas that wait: since when, and the node that is held for each (-1: none)."""
        self._cycle_ms = SECOND_MS if rule == "kai" else 0
        self._turn = 0

    def run(self, wanted: list[tuple[int, int]], until_ms: int) -> Outcome:
        self._agenda.at(JOBS_MS, None)
        for when_ms, number in wanted:
            self._agenda.at(when_ms, number)
        now_ms, before_ms = 0, 0
        while now_ms < until_ms:
            self.out.others_gpu_ms += (now_ms - before_ms) * sum(one.kind.gpus for one in self._jobs)
            for what in self._agenda.take(now_ms):
                if isinstance(what, int):
                    self._scale(what, now_ms)
                elif isinstance(what, Running) and what in self._jobs:
                    self._jobs.remove(what)
                    self._free[what.node] += what.kind.gpus
            self._schedule(now_ms)
            before_ms = now_ms
            next_ms = self._agenda.next_ms()
            now_ms = until_ms if next_ms is None else max(now_ms + 1, next_ms)
            if self._cycle_ms and now_ms % self._cycle_ms:
                now_ms += self._cycle_ms - now_ms % self._cycle_ms
        self.out.unplaced += len(self._asked)
        return self.out

    def _scale(self, number: int, now_ms: int) -> None:
        while len(self._serving) + len(self._asked) > number:
            if self._asked:
                self._asked.pop()
                self.out.unplaced += 1
            else:
                self._free[self._serving.pop()] += REPLICA_GPUS
        self._asked += [(now_ms, -1)] * (number - len(self._serving) - len(self._asked))

    def _held(self, node: int) -> int:
        return REPLICA_GPUS * sum(1 for _, held in self._asked if held == node)

    def _schedule(self, now_ms: int) -> None:
        if self._rule == "plain":
            self._start_jobs(now_ms)
        for i, (since_ms, held) in enumerate(list(self._asked)):
            fits = [node for node, free in enumerate(self._free) if free >= REPLICA_GPUS]
            node = (
                held if held in fits else next((n for n in fits if self._free[n] - self._held(n) >= REPLICA_GPUS), -1)
            )
            if node >= 0:
                self._free[node] -= REPLICA_GPUS
                self._serving.append(node)
                self._asked[i] = -1, -1
                self.out.waits_ms.append(now_ms - since_ms)
            elif held < 0 and self._rule != "plain" and (victims := self._victims()) is not None:
                self._asked[i] = since_ms, victims[0].node
                for one in victims:
                    one.leaving = True
                    self.out.evicted += 1
                    self.out.lost_gpu_ms += one.kind.gpus * (now_ms - one.since_ms)
                    self._agenda.at(now_ms + ends_within(one.kind.grace_ms, self._dice), one)
        self._asked = [one for one in self._asked if one[0] >= 0]
        if self._rule != "plain":
            self._start_jobs(now_ms)

    def _victims(self) -> list[Running] | None:
        """The jobs of one node that go for a replica; None where none can."""
        plans = []
        for node in range(len(self._free)):
            there = [one for one in self._jobs if one.node == node and not one.leaving]
            there.sort(key=lambda one: -one.since_ms)
            ending = sum(one.kind.gpus for one in self._jobs if one.node == node and one.leaving)
            room, taken = self._free[node] + ending - self._held(node), list[Running]()
            for one in there:
                if room >= REPLICA_GPUS:
                    break
                taken.append(one)
                room += one.kind.gpus
            if room >= REPLICA_GPUS and taken:
                plans.append(taken)
        if self._rule == "kai":
            return max(plans, key=lambda taken: taken[0].since_ms, default=None)
        return min(plans, key=len, default=None)

    def _start_jobs(self, now_ms: int) -> None:
        while now_ms >= JOBS_MS:
            kinds = KINDS if self._turn % 2 else KINDS[::-1]
            fits = [
                (kind, node) for kind in kinds for node, free in enumerate(self._free)
                if free - self._held(node) >= kind.gpus
            ]  # fmt: skip
            if not fits:
                return
            self._turn += 1
            kind, node = fits[0]
            self._free[node] -= kind.gpus
            one = Running(kind, node, now_ms)
            self._jobs.append(one)
            self._agenda.at(now_ms + kind.runs_ms, one)


def compare(times: list[int], nodes: int, most: int, headroom: int, seed: int) -> dict[str, dict[str, float]]:
    """The outcome of each contestant for these requests."""
    wanted, until_ms = replicas(times, most), times[-1] + _STABLE_MS
    found = {
        "headroom": OwnCore(nodes, most, headroom, seed).run(wanted, until_ms),
        "reclaim": OwnCore(nodes, most, 0, seed).run(wanted, until_ms),
    }
    for rule in ("kai", "priority", "plain"):
        found[rule] = RuledByDocuments(rule, nodes, seed).run(wanted, until_ms)
    return {name: outcome.row() for name, outcome in found.items()}


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="a CSV file of requests, may be gzipped")
    parser.add_argument("--hours", type=float, default=6, help="of requests, from the first on")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=16, help="of 8 GPUs each")
    parser.add_argument("--most", type=int, default=16, help="replicas at the peak")
    parser.add_argument("--headroom", type=int, default=15, help="instances that are stated")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args(None if arguments is None else list(arguments))
    dice = random.Random(options.seed)
    times = read_requests(options.trace) if options.trace else made_requests(options.hours, dice)
    times = [at_ms for at_ms in times if at_ms <= options.hours * HOUR_MS]
    rows = compare(times, options.nodes, options.most, options.headroom, options.seed)
    if options.output == "json":
        print(json.dumps(rows))
        return
    columns = list(rows["headroom"])
    print(f"{'':10}" + "".join(f"{name:>14}" for name in columns))
    for name, row in rows.items():
        print(f"{name:10}" + "".join(f"{row[column]:14g}" for column in columns))


if __name__ == "__main__":
    main()
