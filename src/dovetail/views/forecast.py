# SPDX-License-Identifier: Apache-2.0
"""When everybody who waits will start: the scheduler's own steps on a copy of the cluster, while time runs ahead.

Rules
- The end of a running pod is worked out as for reservations (`reservations.expected_ends`): by the limit of its run
  time, or else by what was learned from equal pods. Up to a minute past its limit it ends any moment. Later its end is
  unknown, as is that of a pod without a limit or a history: such pods stay for ever here. So an expected start is one
  at the latest, as far as estimates hold.
- Who is being deleted ends after its grace.
- Who gives way to others in the next steps ends after its grace, and waits again if something makes it anew. Who would
  have to give way later is not foreseen.
- Nobody else comes, no node comes or goes, and queues stay as they are.
- Ends that lie close together are one moment, that of the last of them: up to a minute apart, or a 16th of how far they
  are ahead. So the steps are few however many pods there are, and a start is told late by that much at most.
- How sure a start is, is how sure the ends are on the nodes where it happens, and the starts of those who end there.
- What the next step itself says of the start of one for whom it holds room knows of nobody else who waits for the same,
  so it is not told here: the look ahead is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.core.checkpoint import Checkpoint, restore
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind, Decision, Evict, Release
from dovetail.core.events import Event, PodChanged, PodRemoved
from dovetail.core.model import Pod
from dovetail.core.placing import refusals
from dovetail.core.policy import Policy, unhurried
from dovetail.core.queues.types import GPU
from dovetail.core.reasons import Expected, Reason, Refusal, Sure, When
from dovetail.core.state import State
from dovetail.views.gpus import gpus_of
from dovetail.views.jobs import JobView, job_of, name_of, restarted, some, waiting_jobs

MOST_MOMENTS = 512
_CLOSE_MS = 60_000
_CLOSE_PART = 16
_EVICTING_STEPS = 4
_SEARCHES_PER_STEP = 16
_ENDLESS_SHOWN = 2
PLACED = "Placed"
_ORDER = (Sure.KNOWN, Sure.LEARNED, Sure.UNKNOWN)
_NOW = "it fits now"
_AFTER_EVICTIONS = "when those that give way to it have ended"
_GIVES_WAY, _IS_ENDING = "it gives way", "it is being deleted"
Watch = Callable[[int, int], None]


class ForecastPlace(Struct, frozen=True):
    """Where a pod goes. `gpus` are the indices of its GPUs, none where they are only counted. `mbps` is the bandwidth
    between them, 0 where it has fewer than two or nobody knows."""

    pod: str
    node: str
    gpus: tuple[int, ...] = ()
    mbps: int = 0
    ideal_mbps: int = 0


class Start(Struct, frozen=True):
    """What becomes of a job that waits. `at_once` is true where the next step starts it; `places` are where its first
    pods go, `refusal` is what the next step tells it, if it tells it anything."""

    job: JobView
    expected: Expected
    at_once: bool = False
    places: tuple[ForecastPlace, ...] = ()
    refusal: Refusal | None = None

    @property
    def state(self) -> str:
        """Placed where the next step starts it, else NotYet or Never."""
        if self.at_once:
            return PLACED
        return self.refusal.when if self.refusal is not None else When.NOT_YET


class ForecastVictim(Struct, frozen=True):
    """A pod that gives way to the job `for_job` at `at_ms`. `lost_milli_ms` is the work that is lost with it and those
    that give way together with it, in milli-GPU times ms."""

    pod: str
    node: str
    gpus_milli: int
    for_job: str
    cause: str
    at_ms: int
    lost_milli_ms: int
    message: str


class Forecast(Struct):
    """`starts` by workload, in the order in which they start, then those of which none can be given. `held_milli` are
    the GPUs that each queue holds after the next step. `whole` is false where it was looked no further."""

    now_ms: int
    starts: dict[str, Start] = field(default_factory=dict)
    victims: list[ForecastVictim] = field(default_factory=list)
    held_milli: dict[str, int] = field(default_factory=dict)
    until_ms: int = 0
    whole: bool = True


class _End(Struct, frozen=True):
    """`sure` is that of what it comes from (`basis`) and of the start of the pod."""

    pod: str
    at_ms: int
    sure: Sure
    basis: str


def forecast(
    checkpoint: Checkpoint,
    policy: Policy,
    now_ms: int,
    wanted: Collection[str] | None = None,
    watch: Watch = lambda started, waiting: None,
    most: int = MOST_MOMENTS,
) -> Forecast:
    """Look ahead from a checkpoint until nobody waits, nothing ends any more, or all of the `wanted` workloads have
    started; at `most` so many moments. `watch` is told how many jobs have started, and of how many."""
    return _Ahead(restore(unhurried(policy), checkpoint), now_ms, most).run(wanted, watch)


class _Ahead:
    def __init__(self, state: State, now_ms: int, most: int) -> None:
        self._state = state
        self._most = most
        self._now_ms = self._at_ms = max(now_ms, state.now_ms)
        self._found = Forecast(self._now_ms)
        self._waiting = {job.workload: job for job in waiting_jobs(state)}
        self._ends: list[tuple[int, str, Sure, str]] = []
        self._ended_on: dict[str, list[_End]] = {}
        self._lately: list[_End] = []
        self._evicting: set[str] = set()
        self._given_way_to: set[str] = set()
        self._told: list[Event] = []
        self._placed: dict[str, list[ForecastPlace]] = {}
        self._endless: dict[str, None] = {}
        self._refusals: dict[str, Refusal] = {}
        self._holders: dict[tuple[object, ...], list[str]] = {}
        state.advance(self._at_ms)
        for placement in list(state.cluster.placements.values()):
            self._expect_end(placement.pod, Sure.KNOWN)

    def run(self, wanted: Collection[str] | None, watch: Watch) -> Forecast:
        total = len(self._waiting)
        moments = 0
        self._next_step()
        while True:
            self._decide()
            moments += 1
            left = self._waiting.keys() - self._found.starts.keys()
            watch(total - len(left), total)
            if not left or (wanted is not None and not left & set(wanted)):
                break
            due_ms = self._next_ms()
            if due_ms is None or moments >= self._most:
                self._found.whole = due_ms is None
                break
            self._pass_time(due_ms)
        self._found.until_ms = self._at_ms
        if wanted is None or left & set(wanted):
            for workload in sorted(left, key=lambda workload: (self._waiting[workload].since_ms, workload)):
                if wanted is None or workload in wanted:
                    self._found.starts[workload] = self._without_start(self._waiting[workload])
        return self._found

    def _next_step(self) -> None:
        """The next step of the scheduler, which all ways of looking share."""
        state = self._state
        for decision in step(state, (), self._at_ms):
            self._carry_out(decision)
        self._start_placed(at_once=True)
        self._refusals = {
            workload: told for workload in self._waiting if (told := state.queue.refusal(workload)) is not None
        }
        for name in state.shares.tree.in_order():
            self._found.held_milli[name] = state.shares.allocated(name).get(GPU, 0)
        # Numbers in refusals need not be of the last moment: they would be worked out for everybody at every moment.
        state.policy = replace(state.policy, tell_again_ms=2**60, searches_per_step=_SEARCHES_PER_STEP)

    def _decide(self) -> None:
        """The steps of this moment, until a further one would do nothing."""
        state, steps = self._state, 0
        while self._told or state.busy:
            if self._at_ms > self._now_ms or steps == _EVICTING_STEPS:
                state.policy = replace(state.policy, preempt=False)
            events, self._told = self._told, []
            for decision in step(state, events, self._at_ms):
                self._carry_out(decision)
            steps += 1
        self._start_placed(at_once=False)

    def _start_placed(self, *, at_once: bool) -> None:
        for workload, places in self._placed.items():
            if workload in self._waiting and workload not in self._found.starts:
                refusal = None if at_once else self._refusals.get(workload)
                expected = self._expected(workload, places)
                self._found.starts[workload] = Start(self._waiting[workload], expected, at_once, tuple(places), refusal)
        self._placed.clear()

    def _carry_out(self, decision: Decision) -> None:
        state, now_ms = self._state, self._at_ms
        match decision:
            case Bind(uid, node, made=made):
                pod = state.workloads.pods[uid]
                held = gpus_of(state, pod)
                place = ForecastPlace(pod.key, node, held.gpus or (), held.mbps or 0, held.ideal_mbps or 0)
                self._placed.setdefault(state.workloads.workload_of(pod), []).append(place)
                by_claim = made.resources if made is not None else ()
                bound = replace(pod, node=node, bound_ms=now_ms, by_claim=by_claim)
                self._told.append(PodChanged(bound))
                self._expect_end(bound, self._sure_of(node))
            case Evict(gang, uids):
                workload = gang or state.workloads.workload_of(state.workloads.pods[decision.nominations[0][0]])
                self._given_way_to.add(workload)
                pods = [state.workloads.pods[uid] for uid in uids]
                self._found.victims += [
                    ForecastVictim(
                        pod.key, pod.node, dict(state.shares.amounts(pod.uid)).get(GPU, 0), name_of(state, workload),
                        decision.cause, now_ms, decision.lost_milli_ms, decision.message,
                    )
                    for pod in pods
                ]  # fmt: skip
                self._end_early(pods)
            case Release(_, uids):
                self._end_early([state.workloads.pods[uid] for uid in uids])

    def _end_early(self, pods: list[Pod]) -> None:
        """The pods are told to end, and have their grace for it."""
        for pod in pods:
            self._evicting.add(pod.uid)
            self._told.append(PodChanged(replace(pod, deleting=True)))
            heapq.heappush(self._ends, (self._at_ms + pod.work.grace_ms, pod.uid, Sure.KNOWN, _GIVES_WAY))

    def _expect_end(self, pod: Pod, sure: Sure) -> None:
        """`sure` is how sure the start of the pod was."""
        state = self._state
        end = state.expected_ends.expected(state.cluster.placements[pod.uid])
        if pod.deleting:
            end = Expected(Sure.KNOWN, self._at_ms + max(1, pod.work.grace_ms), _IS_ENDING)
        if end.sure is Sure.UNKNOWN:
            self._endless[pod.uid] = None
            return
        sure = max(end.sure, sure, key=_ORDER.index)
        heapq.heappush(self._ends, (end.start_ms, pod.uid, sure, end.basis))

    def _next_ms(self) -> int | None:
        """The next moment when anything can change."""
        wake_ms = self._state.next_wake_ms()
        times = [end[0] for end in self._ends]
        times += [wake_ms] if wake_ms is not None and wake_ms > self._at_ms else []
        first_ms = min(times, default=None)
        if first_ms is None:
            return None
        window_ms = first_ms + max(_CLOSE_MS, (first_ms - self._now_ms) // _CLOSE_PART)
        return max(time_ms for time_ms in times if time_ms <= window_ms)

    def _pass_time(self, due_ms: int) -> None:
        self._at_ms = due_ms
        self._lately = []
        while self._ends and self._ends[0][0] <= due_ms:
            ended_ms, uid, sure, basis = heapq.heappop(self._ends)
            pod = self._state.workloads.pods.get(uid)
            if pod is None or not pod.node:
                continue
            end = _End(pod.key, ended_ms, sure, basis)
            self._ended_on.setdefault(pod.node, []).append(end)
            self._lately.append(end)
            self._told.append(PodRemoved(uid, ended_ms))
            if uid in self._evicting and pod.owner:
                self._evicting.discard(uid)
                self._told.append(PodChanged(restarted(pod, due_ms)))

    def _sure_of(self, node: str) -> Sure:
        return max((end.sure for end in self._ended_on.get(node, ())), key=_ORDER.index, default=Sure.KNOWN)

    def _expected(self, workload: str, places: list[ForecastPlace]) -> Expected:
        """Of a job that starts at this moment."""
        if self._at_ms == self._now_ms:
            return Expected(Sure.KNOWN, self._at_ms, _NOW)
        if workload in self._given_way_to:
            return Expected(Sure.LEARNED, self._at_ms, _AFTER_EVICTIONS)
        nodes = dict.fromkeys(place.node for place in places)
        # Whoever starts where nobody ended waited for its queue, or for another kind of end.
        ends = [end for node in nodes for end in self._ended_on.get(node, ())] or self._lately
        sure = max((end.sure for end in ends), key=_ORDER.index, default=Sure.KNOWN)
        if not ends:
            return Expected(sure, self._at_ms, "when time has passed")
        last, others = max(ends, key=lambda end: (end.at_ms, end.pod)), len(ends) - 1
        more = f", after {others} other{'s' if others > 1 else ''} on these nodes" if others else ""
        return Expected(sure, self._at_ms, f"when {last.pod} ends ({last.basis}){more}")

    def _without_start(self, job: JobView) -> Start:
        """Why no start can be given to a job that still waits at the end."""
        now, last = job_of(self._state, job.workload), self._state.queue.refusal(job.workload)
        expected = Expected(Sure.UNKNOWN, 0, self._why_none(now, last))
        return Start(job, expected, refusal=self._refusals.get(job.workload, last))

    def _why_none(self, job: JobView, refusal: Refusal | None) -> str:
        if not self._found.whole:
            return f"it waits longer than was looked ahead: {self._most} moments"
        if refusal is None:
            return "the scheduler was not asked about it"
        if refusal.when is When.NEVER:
            return f"it never starts as things are ({refusal.reason.code})"
        endless = self._endless_holders(job, refusal)
        if not endless:
            return f"it waits for what no end of a pod brings ({refusal.reason.code})"
        if len(endless) == 1:
            return f"{endless[0]} says nothing of when it ends: give it dovetail.dev/max-runtime"
        return f"{some(endless, _ENDLESS_SHOWN)} say nothing of when they end: give them dovetail.dev/max-runtime"

    def _endless_holders(self, job: JobView, refusal: Refusal) -> list[str]:
        """Pods without a known end on nodes that could have served the job, those with most GPUs first."""
        if not job.waiting or not (refusal.nodes or refusal.reason in _OF_ROOM):
            return []
        cluster, pod = self._state.cluster, job.waiting[0]
        alike = (pod.request, pod.claims, pod.device_claims)
        if alike in self._holders:
            return self._holders[alike]
        found = refusals.verdicts(cluster, pod)
        slots = {int(slot) for verdict in found if verdict.when is When.NOT_YET for slot in verdict.slots}
        placed = [
            cluster.placements[uid].pod
            for slot in sorted(slots)
            for uid in cluster.on_slot.get(slot, ())
            if uid in self._endless
        ]
        shares = self._state.shares
        placed.sort(key=lambda pod: (-dict(shares.amounts(pod.uid)).get(GPU, 0), pod.key))
        self._holders[alike] = [pod.key for pod in placed]
        return self._holders[alike]


_OF_ROOM = {Reason.QUEUE_LIMIT, Reason.RESERVED, Reason.BEYOND_GUARANTEE, Reason.GANG_DOES_NOT_FIT}
