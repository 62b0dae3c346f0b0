# SPDX-License-Identifier: Apache-2.0
"""The core over virtual time."""

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Decision, Evict
from dovetail.core.preemption.victims import lost_milli_ms
from dovetail.core.reasons import Sure
from dovetail.core.state import State

STEP_MS = 1000


class Life(Struct):
    """A cluster over time: binds are seen at once, pods end when they have run for `runs_ms` (by name, else they
    run on), and pods that are evicted end after `grace_ms` and are created again. No two steps at rest are within
    `least_ms` of each other. `started_ms` is by the name of the pod, `evicted` are pods with how long they, or the
    first of their gang, had run, and `losses` the time and the work that each eviction cost, `used_milli_ms` the work
    that was done, in milli-GPU times ms."""

    state: State
    now_ms: int = 0
    grace_ms: int = 0
    least_ms: int = STEP_MS
    runs_ms: dict[str, int] = field(default_factory=dict)
    agenda: list[tuple[int, list[ev.Event]]] = field(default_factory=list)
    started_ms: dict[str, int] = field(default_factory=dict)
    evicted: list[tuple[str, int]] = field(default_factory=list)
    promised_ms: dict[str, int] = field(default_factory=dict)
    losses: list[tuple[int, int]] = field(default_factory=list)
    used_milli_ms: int = 0

    def at(self, when_ms: int, *events: ev.Event) -> None:
        self.agenda.append((when_ms, list(events)))

    def live(self, until_ms: int) -> None:
        reported: list[ev.Event] = []
        while self.now_ms <= until_ms:
            due = [one for one in self.agenda if one[0] <= self.now_ms]
            self.agenda = [one for one in self.agenda if one[0] > self.now_ms]
            reported += [event for _, events in sorted(due, key=lambda one: one[0]) for event in events]
            decided = step(self.state, reported, self.now_ms)
            reported = [event for decision in decided for event in self.carry_out(decision)]
            self.note_promises()
            if reported or self.state.busy:
                continue
            times = [when_ms for when_ms, _ in self.agenda]
            wake_ms = self.state.next_wake_ms()
            times += [wake_ms] if wake_ms is not None else []
            then_ms = max(self.now_ms + self.least_ms, min(times, default=until_ms))
            shares, placements = self.state.shares, self.state.cluster.placements
            self.used_milli_ms += sum(map(shares.rate, placements)) * (min(then_ms, until_ms) - self.now_ms)
            self.now_ms = then_ms

    def carry_out(self, decision: Decision) -> list[ev.Event]:
        pods = self.state.workloads.pods
        if isinstance(decision, Bind):
            pod = replace(pods[decision.uid], node=decision.node, bound_ms=self.now_ms)
            self.started_ms[pod.name] = self.now_ms
            if pod.name in self.runs_ms:
                end_ms = self.now_ms + self.runs_ms[pod.name]
                self.at(end_ms, ev.PodRemoved(pod.uid, end_ms, True))
            return [ev.PodChanged(pod)]
        for uid in decision.uids if isinstance(decision, Evict) else ():
            pod = pods[uid]
            self.losses.append((self.now_ms, lost_milli_ms(self.state.shares, pod, self.now_ms)))
            members = self.state.workloads.members(self.state.workloads.workload_of(pod))
            self.evicted.append((pod.name, self.now_ms - min(other.bound_ms for other in members if other.node)))
            end_ms = self.now_ms + self.grace_ms
            anew = replace(pod, uid=f"{uid}+", node="", bound_ms=0, created_ms=end_ms)
            self.at(end_ms, ev.PodRemoved(uid, end_ms), ev.PodChanged(anew))
        return []

    def note_promises(self) -> None:
        """The first start that is known of each."""
        for one in self.state.reservations:
            if one.expected.sure is Sure.KNOWN and not one.evicting:
                for pod in self.state.workloads.members(one.workload):
                    self.promised_ms.setdefault(pod.name, one.expected.start_ms)
