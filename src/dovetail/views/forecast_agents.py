# SPDX-License-Identifier: Apache-2.0
"""The part of software agents in a look-ahead: their requests are jobs, and their leases end as pods do.

Rules: an agent accepts the first offer at once. None returns or renews a lease, and none is silent or idle later on. A
request is one job, however often its placeholders are made again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.bargaining.negotiation import Negotiation
from dovetail.core.bargaining.states import RequestState
from dovetail.core.bargaining.types import Answer, EndCause, Holding, LeaseAlternative, Offer
from dovetail.core.events import Event, LeaseRequestChanged, PlaneChanged
from dovetail.core.model import Pod
from dovetail.core.preemption.victims import lost_milli_ms
from dovetail.core.queues.types import GPU
from dovetail.core.reasons import Refusal, Sure
from dovetail.core.state import State
from dovetail.views.forecast_types import ForecastDrain, ForecastPlace, ForecastVictim
from dovetail.views.gpus import gpus_of
from dovetail.views.job_types import JobView
from dovetail.views.jobs import request_job, requests_of
from dovetail.views.leased import lease_key


class LeaseAhead(Struct, frozen=True):
    """A lease that is live: its nodes, its placeholders (uid), and how sure its start was."""

    nodes: tuple[str, ...] = ()
    uids: tuple[str, ...] = ()
    sure: Sure = Sure.KNOWN


class AgentsAhead:
    """`jobs` are the requests that wait at the beginning, by workload. `offers` are what each is offered first, and
    `granted` what it has then, by the same."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._workloads: dict[str, str] = {}
        self._requests: dict[str, str] = {}
        self._leases: dict[str, LeaseAhead] = {}
        self.jobs: dict[str, JobView] = {}
        self.offers: dict[str, tuple[Offer, ...]] = {}
        self.granted: dict[str, LeaseAlternative] = {}
        for one in requests_of(state):
            job = request_job(state, one)
            self.jobs[job.workload] = job
            self._workloads[one.request.id], self._requests[job.workload] = job.workload, one.request.id
        for lease_id, live in state.leases.live.items():
            self.begin(lease_id, live.lease.holdings, Sure.KNOWN)

    def outstanding(self) -> list[tuple[str, tuple[Offer, ...]]]:
        """The offers that wait for an answer at the beginning, by request."""
        waiting = [one for one in requests_of(self._state) if one.state is RequestState.OFFERED]
        return [(one.request.id, one.offers) for one in waiting]

    def quiet(self) -> Iterator[Event]:
        """From now on no heartbeat is expected, and no lease is idle."""
        requests = self._state.requests
        for plane in requests.planes.values():
            requests.heartbeats.drop(plane.id)
            if plane.id not in requests.silent and (plane.heartbeat_ms or plane.idle_ms):
                yield PlaneChanged(replace(plane, heartbeat_ms=0, idle_ms=0))

    def workload(self, request_id: str) -> str:
        """The job that a request was at the beginning; "" for none."""
        return self._workloads.get(request_id, "")

    def negotiation(self, workload: str) -> Negotiation | None:
        """That of a job that is a request; None for any other job."""
        return self._state.requests.negotiations.get(self._requests.get(workload, ""))

    def refusals(self) -> dict[str, Refusal]:
        """Why requests wait, by workload."""
        known = ((self.workload(one.request.id), one.reported) for one in requests_of(self._state))
        return {workload: refusal for workload, refusal in known if workload and refusal is not None}

    def accept(self, request_id: str, offers: tuple[Offer, ...]) -> Event:
        """The agent accepts the first offer."""
        one, first = self._state.requests.negotiations[request_id], offers[0]
        self.offers.setdefault(self.workload(request_id), offers)
        self.granted.setdefault(self.workload(request_id), first.alternative)
        return LeaseRequestChanged(replace(one.request, answer=Answer(first.id, "accept")))

    def places(self, holdings: Collection[Holding]) -> list[ForecastPlace]:
        """Where these devices are."""
        found, state = [], self._state
        for holding in holdings:
            pod = state.workloads.pods[holding.uid]
            held = gpus_of(state, pod)
            found.append(ForecastPlace(pod.key, holding.node, holding.devices, held.mbps or 0, held.ideal_mbps or 0))
        return found

    def begin(self, lease_id: str, holdings: Collection[Holding], sure: Sure) -> None:
        """A lease is live."""
        nodes = tuple(dict.fromkeys(holding.node for holding in holdings))
        self._leases[lease_id] = LeaseAhead(nodes, tuple([holding.uid for holding in holdings]), sure)

    def end(self, lease_id: str) -> LeaseAhead:
        """A lease is over."""
        return self._leases.pop(lease_id, LeaseAhead())

    def victim(self, lease_id: str, for_job: str, cause: EndCause, message: str, at_ms: int) -> ForecastVictim:
        """A lease that is revoked for a job."""
        state, pods = self._state, self._pods(lease_id)
        gpus = sum(dict(state.shares.amounts(pod.uid)).get(GPU, 0) for pod in pods)
        lost = sum(lost_milli_ms(state.shares, pod, at_ms) for pod in pods)
        nodes = dict.fromkeys(holding.node for holding in state.leases.live[lease_id].lease.holdings)
        return ForecastVictim(lease_key(lease_id), ",".join(nodes), gpus, for_job, cause.value, at_ms, lost, message)

    def drained(self, lease_id: str, at_ms: int) -> dict[str, ForecastDrain]:
        """What leaves with a lease that is revoked for a maintenance, by pod (uid)."""
        shares = self._state.shares
        return {pod.uid: ForecastDrain(False, lost_milli_ms(shares, pod, at_ms)) for pod in self._pods(lease_id)}

    def _pods(self, lease_id: str) -> list[Pod]:
        """The placeholders of a lease, and the pods inside."""
        live, pods = self._state.leases.live[lease_id], self._state.workloads.pods
        return [pods[uid] for uid in (*live.whole, *live.inside) if uid in pods]
