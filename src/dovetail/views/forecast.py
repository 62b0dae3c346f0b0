# SPDX-License-Identifier: Apache-2.0
"""The look-ahead: when each waiting job starts. The scheduler's own steps run on a copy of the cluster with a virtual
clock.

Rules
- A pod ends when the core expects it (`reservations.expected_ends`): by its declared run time, else by the run times of
  similar pods. Up to a minute past its run time it is expected to end at any moment. After that, or without a run time,
  its end is unknown, and here it never ends. So an expected start is the latest start, as far as run times are true.
- A pod that is being deleted ends after its grace period.
- A pod that is evicted in the next steps ends after its grace period; if it has a controller, a new pod waits in its
  place. Later evictions are not predicted.
- No job is submitted, no node is added or removed, and no queue changes.
- A lease ends at its end, or at the deadline of its revocation: it is not renewed, not returned before, and not idle.
  The pods inside end with it. Heartbeats neither come nor go missing: agents that are silent stay so.
- An agent accepts the first offer at once. That offer is the start of its request.
- Ends that are close together count as one moment, the last of them: up to a minute apart, or a 16th of the time until
  then. So the number of steps is small for any number of pods, and a start is reported late by at most that much.
- A start is as sure as the ends on its nodes, and as the starts of the pods that end there.
- The reservation of the next step also expects a start, without regard to other waiting jobs. It is not used here.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.bargaining.types import EndCause, Offer
from dovetail.core.checkpoint import Checkpoint, restore
from dovetail.core.cycle import enter, step
from dovetail.core.decisions import Bind, Decision, Drain, EndLease, Evict, GrantLease, MakeOffers, Release, RevokeLease
from dovetail.core.events import Event, PodChanged, PodRemoved
from dovetail.core.model import Pod
from dovetail.core.policy import Policy, unhurried
from dovetail.core.preemption.victims import lost_milli_ms
from dovetail.core.queues.types import DAY_MS, GPU
from dovetail.core.reasons import Expected, Refusal, Sure
from dovetail.core.state import State
from dovetail.views.all_reduce import all_reduce_of
from dovetail.views.forecast_agents import AgentsAhead
from dovetail.views.forecast_reasons import NoStart
from dovetail.views.forecast_types import Forecast, ForecastDrain, ForecastPlace, ForecastVictim, Start, Watch
from dovetail.views.gpus import gpus_of
from dovetail.views.job_types import JobView
from dovetail.views.jobs import job_of, name_of, restarted, waiting_jobs
from dovetail.views.leased import is_placeholder, lease_key

MOST_MOMENTS = 512
_CLOSE_MS = 60_000
_CLOSE_PART = 16
_EVICTING_STEPS = 4
_CALENDARS_MS = 8 * DAY_MS
_SEARCHES_PER_STEP = 16
_ORDER = (Sure.KNOWN, Sure.LEARNED, Sure.UNKNOWN)
_NOW = "it fits now"
_AFTER_EVICTIONS = "when the pods that are evicted for it have ended"
_LEASE_OVER_MS = 30_000
"""The longest grace period of a pod that is deleted as its lease is over."""
_EVICTED, _IS_ENDING = "it is evicted", "it is being deleted"


class _End(Struct, frozen=True):
    """The end of a pod. `sure` is the less sure of its `basis` and of the start of the pod."""

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
    pods: Collection[str] = (),
) -> Forecast:
    """Look ahead from a checkpoint until no job waits, no pod ends any more, or all `wanted` workloads have started and
    all `pods` (uid) have left their nodes; for at most `most` moments. `watch` gets the number of jobs that have
    started, and of all that waited."""
    return _Ahead(restore(unhurried(policy), checkpoint), now_ms, most, pods).run(wanted, watch)


class _Ahead:
    def __init__(self, state: State, now_ms: int, most: int, pods: Collection[str] = ()) -> None:
        self._state = state
        self._most = most
        self._now_ms = self._at_ms = max(now_ms, state.now_ms)
        self._found = Forecast(self._now_ms)
        enter(state, (), self._at_ms)
        self._agents = AgentsAhead(state)
        self._waiting = {job.workload: job for job in waiting_jobs(state)} | self._agents.jobs
        self._preemptor, self._preempt = "", state.policy.preempt
        self._ends: list[tuple[int, str, Sure, str]] = []
        self._ended_on: dict[str, list[_End]] = {}
        self._lately: list[_End] = []
        self._evicting: set[str] = set()
        self._followed = frozenset(pods)
        self._preempting: set[str] = set()
        self._events: list[Event] = []
        self._placed: dict[str, list[ForecastPlace]] = {}
        self._endless: dict[str, None] = {}
        self._refusals: dict[str, Refusal] = {}
        self._no_start = NoStart(state, self._endless)
        self._events += self._agents.quiet()
        for request_id, offers in self._agents.outstanding():
            self._accept(request_id, offers)
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
            started = not left or (wanted is not None and not left & set(wanted))
            if started and self._followed <= self._found.ends.keys():
                break
            due_ms = self._next_ms()
            if due_ms is None or moments >= self._most:
                self._found.whole = due_ms is None
                break
            self._pass_time(due_ms)
        self._found.until_ms = self._at_ms
        # Beyond the bound a pod that is followed runs to its own end.
        for ended_ms, uid, sure, basis in sorted(self._ends):
            if uid in self._followed:
                self._found.ends.setdefault(uid, Expected(sure, ended_ms, basis))
        if wanted is None or left & set(wanted):
            for workload in sorted(left, key=lambda workload: (self._waiting[workload].since_ms, workload)):
                if wanted is None or workload in wanted:
                    self._found.starts[workload] = self._without_start(self._waiting[workload])
        return self._found

    def _next_step(self) -> None:
        """The next step of the scheduler, which is the same for all commands."""
        state = self._state
        for decision in step(state, (), self._at_ms):
            self._carry_out(decision)
        self._start_placed(at_once=True)
        self._refusals = {
            workload: refusal for workload in self._waiting if (refusal := state.queue.refusal(workload)) is not None
        }
        self._refusals |= self._agents.refusals()
        for name in state.shares.tree.in_order():
            self._found.held_milli[name] = state.shares.allocated(name).get(GPU, 0)
        # Refusals are not computed again to bring their numbers up to date: that would cost all jobs at every moment.
        state.policy = replace(state.policy, tell_again_ms=2**60, searches_per_step=_SEARCHES_PER_STEP)

    def _decide(self) -> None:
        """Run steps at this moment, until another one would do nothing."""
        state, steps = self._state, 0
        turns = self._calendar_turns()
        while self._events or state.busy or self._drains() or self._bargains() or self._calendar_turns():
            preempt = self._preempt and (turns or self._at_ms == self._now_ms) and steps < _EVICTING_STEPS
            if state.policy.preempt != preempt:
                state.policy = replace(state.policy, preempt=preempt)
            events, self._events = self._events, []
            for decision in step(state, events, self._at_ms):
                self._carry_out(decision)
            steps += 1
        self._start_placed(at_once=False)

    def _drains(self) -> bool:
        """Whether pods may have to leave nodes in maintenance, or drained queues, at this moment, although nothing has
        happened."""
        due_ms = self._state.drains.next_ms()
        return due_ms is not None and due_ms <= self._at_ms

    def _calendar_turns(self) -> bool:
        """Whether the guarantee of a queue changes at this moment, or a budget has a new period: jobs may start, or be
        evicted, although nothing has happened."""
        due_ms = (self._state.shares.calendars.next_ms, self._state.shares.budgets.next_ms)
        return any(at_ms is not None and at_ms <= self._at_ms for at_ms in due_ms)

    def _bargains(self) -> bool:
        """Whether something about leases or requests is due at this moment, although nothing has happened."""
        due_ms = (self._state.leases.next_ms(), self._state.requests.next_ms())
        return any(at_ms is not None and at_ms <= self._at_ms for at_ms in due_ms)

    def _start_placed(self, *, at_once: bool) -> None:
        for workload, places in self._placed.items():
            if workload in self._waiting and workload not in self._found.starts:
                refusal = None if at_once else self._refusals.get(workload)
                expected, offers = self._expected(workload, places), self._agents.offers.get(workload, ())
                self._found.starts[workload] = Start(
                    self._waiting[workload], expected, at_once, tuple(places), refusal, offers,
                    self._agents.granted.get(workload), all_reduce_of(self._state, workload),
                )  # fmt: skip
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
                self._events.append(PodChanged(bound))
                self._expect_end(bound, self._sure_of(node))
            case Evict(gang, uids):
                workload = gang or state.workloads.workload_of(state.workloads.pods[decision.nominations[0][0]])
                self._preempting.add(workload)
                self._preemptor = name_of(state, workload)
                pods = [state.workloads.pods[uid] for uid in uids]
                self._found.victims += [self._victim(pod, decision, name_of(state, workload)) for pod in pods]
                self._end_early(pods)
            case Release(_, uids):
                self._end_early([state.workloads.pods[uid] for uid in uids])
            case Drain(_, uids, targets=targets):
                pods = [state.workloads.pods[uid] for uid in uids]
                if decision.queue:
                    self._found.victims += [self._victim(pod, decision, "") for pod in pods]
                for pod in pods:
                    lost = lost_milli_ms(state.shares, pod, now_ms)
                    self._found.drained[pod.uid] = ForecastDrain(bool(targets), lost)
                self._end_early(pods)
            case MakeOffers(request, offers):
                self._accept(request, offers)
            case GrantLease(lease):
                places, workload = self._agents.places(lease.holdings), self._agents.workload(lease.id)
                self._agents.granted.setdefault(workload, lease.alternative)
                self._placed.setdefault(workload, places)
                sure = max((self._sure_of(place.node) for place in places), key=_ORDER.index)
                self._agents.begin(lease.id, lease.holdings, sure)
            case RevokeLease(lease_id, revocation):
                self._revoked(lease_id, revocation.cause, revocation.message)
            case EndLease(lease_id, cause, uids):
                self._ended(lease_id, cause, uids)

    def _victim(self, pod: Pod, decision: Evict | Drain, for_job: str) -> ForecastVictim:
        cause = decision.cause if isinstance(decision, Evict) else "drain"
        return ForecastVictim(
            pod.key, pod.node, dict(self._state.shares.amounts(pod.uid)).get(GPU, 0), for_job, cause, self._at_ms,
            decision.lost_milli_ms, decision.message,
        )  # fmt: skip

    def _accept(self, request_id: str, offers: tuple[Offer, ...]) -> None:
        """What is offered is the start of a request."""
        self._events.append(self._agents.accept(request_id, offers))
        self._placed.setdefault(self._agents.workload(request_id), self._agents.places(offers[0].holdings))

    def _revoked(self, lease_id: str, cause: EndCause, message: str) -> None:
        if cause is EndCause.MAINTENANCE:
            self._found.drained |= self._agents.drained(lease_id, self._at_ms)
        else:
            victim = self._agents.victim(lease_id, self._preemptor, cause, message, self._at_ms)
            self._found.victims.append(victim)

    def _ended(self, lease_id: str, cause: EndCause, uids: tuple[str, ...]) -> None:
        """A lease is over. The pods that still run inside are deleted."""
        state, leased = self._state, self._agents.end(lease_id)
        basis = "its lease ends" if cause is EndCause.EXPIRED else f"its lease ends: {cause.value}"
        end = _End(lease_key(lease_id), self._at_ms, leased.sure, basis)
        for node in leased.nodes:
            self._ended_on.setdefault(node, []).append(end)
        self._lately.append(end)
        for uid in leased.uids:
            if uid in self._followed or uid in self._found.drained:
                self._found.ends.setdefault(uid, Expected(leased.sure, self._at_ms, basis))
        for pod in [state.workloads.pods[uid] for uid in uids if uid in state.workloads.pods]:
            grace_ms = min(pod.work.grace_ms, _LEASE_OVER_MS)
            self._events.append(PodChanged(replace(pod, deleting=True)))
            heapq.heappush(self._ends, (self._at_ms + grace_ms, pod.uid, Sure.KNOWN, _IS_ENDING))

    def _end_early(self, pods: list[Pod]) -> None:
        """Delete the pods; they end after their grace periods."""
        for pod in pods:
            self._evicting.add(pod.uid)
            self._events.append(PodChanged(replace(pod, deleting=True)))
            heapq.heappush(self._ends, (self._at_ms + pod.work.grace_ms, pod.uid, Sure.KNOWN, _EVICTED))

    def _expect_end(self, pod: Pod, sure: Sure) -> None:
        """Schedule the end of a pod. `sure` is how sure its start was."""
        state = self._state
        if is_placeholder(pod):
            # Its lease ends by the broker's own timers.
            return
        end = state.expected_ends.expected(state.cluster.placements[pod.uid])
        if pod.deleting:
            end = Expected(Sure.KNOWN, self._at_ms + max(1, pod.work.grace_ms), _IS_ENDING)
        if end.sure is Sure.UNKNOWN:
            self._endless[pod.uid] = None
            return
        sure = max(end.sure, sure, key=_ORDER.index)
        heapq.heappush(self._ends, (end.start_ms, pod.uid, sure, end.basis))

    def _next_ms(self) -> int | None:
        """The next moment at which something can change; None if there is none."""
        state, times = self._state, [end[0] for end in self._ends]
        # What is overdue hides what is due later: leases end in their time all the same, and periods begin.
        shares = state.shares
        due_ms = [state.next_wake_ms(), state.leases.next_ms(), state.requests.next_ms()]
        for wake_ms in (*due_ms, shares.calendars.next_ms, shares.budgets.next_ms):
            times += [wake_ms] if wake_ms is not None and wake_ms > self._at_ms and not self._too_late(wake_ms) else []
        first_ms = min(times, default=None)
        if first_ms is None:
            return None
        window_ms = first_ms + max(_CLOSE_MS, (first_ms - self._now_ms) // _CLOSE_PART)
        return max(time_ms for time_ms in times if time_ms <= window_ms)

    def _too_late(self, wake_ms: int) -> bool:
        """Whether only a calendar has something then, and it has been followed for a week: the next one is equal."""
        return wake_ms == self._state.shares.calendars.next_ms and wake_ms > self._now_ms + _CALENDARS_MS

    def _pass_time(self, due_ms: int) -> None:
        self._at_ms = due_ms
        self._lately = []
        while self._ends and self._ends[0][0] <= due_ms:
            ended_ms, uid, sure, basis = heapq.heappop(self._ends)
            pod = self._state.workloads.pods.get(uid)
            if pod is None or not pod.node:
                continue
            end = _End(pod.key, ended_ms, sure, basis)
            if uid in self._followed or uid in self._found.drained:
                self._found.ends.setdefault(uid, Expected(sure, ended_ms, basis))
            self._ended_on.setdefault(pod.node, []).append(end)
            self._lately.append(end)
            self._events.append(PodRemoved(uid, ended_ms))
            if uid in self._evicting and pod.owner:
                self._evicting.discard(uid)
                self._events.append(PodChanged(restarted(pod, due_ms)))

    def _sure_of(self, node: str) -> Sure:
        return max((end.sure for end in self._ended_on.get(node, ())), key=_ORDER.index, default=Sure.KNOWN)

    def _expected(self, workload: str, places: list[ForecastPlace]) -> Expected:
        """The expected start of a job that starts at this moment."""
        if self._at_ms == self._now_ms:
            return Expected(Sure.KNOWN, self._at_ms, _NOW)
        if workload in self._preempting:
            return Expected(Sure.LEARNED, self._at_ms, _AFTER_EVICTIONS)
        nodes = dict.fromkeys(place.node for place in places)
        # No pod ended on its nodes: it waited for its queue, or for an end elsewhere.
        ends = [end for node in nodes for end in self._ended_on.get(node, ())] or self._lately
        sure = max((end.sure for end in ends), key=_ORDER.index, default=Sure.KNOWN)
        if not ends:
            return Expected(sure, self._at_ms, "when time has passed")
        last, others = max(ends, key=lambda end: (end.at_ms, end.pod)), len(ends) - 1
        more = f", after {others} other pod{'s' if others > 1 else ''} on these nodes" if others else ""
        return Expected(sure, self._at_ms, f"when {last.pod} ends ({last.basis}){more}")

    def _without_start(self, job: JobView) -> Start:
        """The answer for a job that still waits at the end of the look-ahead."""
        if (one := self._agents.negotiation(job.workload)) is not None:
            now, last = (job_of(self._state, one.waiting) if one.waiting else job), one.reported
        else:
            now, last = job_of(self._state, job.workload), self._state.queue.refusal(job.workload)
        why = f"it is after the end of the look-ahead ({self._most} moments)"
        if self._found.whole:
            why = self._no_start.why(now, last, self._refusals.get(now.workload))
        expected = Expected(Sure.UNKNOWN, 0, why)
        return Start(job, expected, refusal=self._refusals.get(job.workload, last))
