# SPDX-License-Identifier: Apache-2.0
"""Why a pod or job runs where it does, or why it waits: the core's own answer for the present cluster.

Rules
- The scheduler's own step runs on a copy of the cluster, and then the pod is read from the copy. So Placed means that
  the next step of the scheduler places it.
- For a job with several waiting pods the answer is about one of them, one that is placed if there is one.
- The expected start is that of `forecast`.
- If a job can never start, the rules of all nodes are Never, and no pods are listed as holders.
- A request for a lease is explained by its placeholders: those of its first alternative that may start now.
- Not known are decisions of the running scheduler that are not written yet, and for how long it avoids a kubelet that
  rejected pods: a rejected pod that still exists counts as rejected now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from dovetail.core.bargaining.negotiation import Negotiation
from dovetail.core.model import Pod
from dovetail.core.placing import refusals
from dovetail.core.queues.types import Amounts
from dovetail.core.reasons import Reason, Refusal, When
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE
from dovetail.views.all_reduce import all_reduce_of
from dovetail.views.forecast_types import Start, Watch
from dovetail.views.gpus import gpus_of
from dovetail.views.holders import holders, parts_of
from dovetail.views.job_types import JobView
from dovetail.views.jobs import find_jobs, job_of, name_of, request_job, waiting_jobs
from dovetail.views.lease_texts import alternative_text
from dovetail.views.leased import is_placeholder, key_of
from dovetail.views.misspelt import of_refusal, of_scheduler
from dovetail.views.names import ANY, JOB
from dovetail.views.outlook import Outlook
from dovetail.views.rank_types import SHARE_CLASSES
from dovetail.views.refused import refused
from dovetail.views.why_types import GangView, PodLease, QueueTerm, Reserved, RuleView, Why

_NO_SCHEDULERS: Mapping[str, str] = {}
_MOST_BOUND = 256
_NOT_OURS = "its spec.schedulerName names another scheduler"


def why(
    state: State,
    key: str,
    now_ms: int,
    watch: Watch = lambda started, waiting: None,
    schedulers: Mapping[str, str] = _NO_SCHEDULERS,
    ours: str = "",
) -> Why:
    """Explain the pod or job "namespace/name". `watch` gets the progress of the look-ahead. `schedulers` has the
    schedulerName of pods of other schedulers, `ours` is Dovetail's. Raises JobNotFound."""
    return explain(Outlook(state, now_ms, watch), key, schedulers, ours)


def explain(
    outlook: Outlook, key: str, schedulers: Mapping[str, str] = _NO_SCHEDULERS, ours: str = "", kind: str = ANY
) -> Why:
    """The same, for the state of an outlook. A `kind` is one of those of `find_jobs`."""
    state = outlook.state
    jobs = find_jobs(state, key, kind)
    job, workload = jobs[0], jobs[0].workload
    named = [one for one in job.pods if one.key == key and kind != JOB]
    pod = (*named, *job.waiting, *job.pods)[0]
    queue = state.shares.pod_queues.of(pod) if pod.managed else ""
    bound = tuple(islice((one for each in jobs for one in each.pods if one.node), _MOST_BOUND))
    answer = Why(
        pod.key, "", gang=_gang(state, pod), job=job.name, others=len(jobs) - 1, queue=queue, lease=_lease(state, pod),
        bound=tuple(one.key for one in bound), bound_uids=tuple(one.uid for one in bound),
    )  # fmt: skip
    if pod.node:
        return _with_gpus(state, pod, replace(answer, state="Bound", node=pod.node))
    if not pod.managed:
        hints = of_scheduler(state, pod, schedulers, ours)
        return replace(answer, state=When.NOT_YET, code="NotOurs", message=_NOT_OURS, head=_NOT_OURS, hints=hints)
    wanted, ahead = state.shares.wanted_next(workload), state.queue.before(workload)
    answer = replace(answer, ahead=ahead, wanted=_amounts(wanted), terms=tuple(_terms(state, queue, wanted)))
    state, binds = outlook.next.state, outlook.next.binds
    if not named:
        pod = next((one for one in job.waiting if one.uid in binds), pod)
        answer = replace(answer, pod=pod.key)
    if pod.uid in binds:
        return _with_gpus(state, pod, replace(answer, state="Placed", node=binds[pod.uid]))
    return _refused(outlook, job, pod, refusal_of(state, workload), answer)


def why_request(state: State, one: Negotiation, now_ms: int, watch: Watch = lambda started, waiting: None) -> Why:
    """Explain a request for a lease that was not granted. It is Placed where the next step grants or offers it
    something."""
    return explain_request(Outlook(state, now_ms, watch), one)


def explain_request(outlook: Outlook, one: Negotiation) -> Why:
    """The same, for the state of an outlook."""
    state = outlook.state
    job, request_id = request_job(state, one), one.request.id
    answer = Why(request_id, "", job=job.name, queue=job.queue)
    if job.pods:
        wanted = state.shares.wanted_next(job.workload)
        answer = replace(
            answer, ahead=state.queue.before(job.workload), wanted=_amounts(wanted),
            terms=tuple(_terms(state, job.queue, wanted)),
        )  # fmt: skip
    after = outlook.next
    now = after.state.requests.negotiations[request_id]
    lease, offers = after.grants.get(request_id), after.offers.get(request_id, now.offers)
    if lease is not None or offers:
        holdings = lease.holdings if lease is not None else offers[0].holdings if offers else ()
        return replace(answer, state="Placed", node=",".join(dict.fromkeys(holding.node for holding in holdings)))
    refusal = now.reported or Refusal(Reason.NO_NODES, When.NOT_YET)
    if now.waiting:
        current = replace(job_of(after.state, now.waiting), workload=job.workload)
        answer = _refused(outlook, current, current.pods[0], refusal, answer)
        if refusal.when is not When.NEVER or len(now.alternatives) == 1:
            return answer
    start = outlook.start(job.workload)
    # That its first alternative never fits does not keep it from another one.
    never = refusal.when is When.NEVER and (start is None or start.granted is None)
    return replace(
        answer, state=When.NEVER if never else When.NOT_YET, code=refusal.reason.code, message=str(refusal),
        head=refusal.head, expected=start.expected if start is not None and not never else None,
        granted=_granted(start),
    )  # fmt: skip


def _refused(outlook: Outlook, job: JobView, pod: Pod, refusal: Refusal, answer: Why) -> Why:
    """The answer for a job that the next step does not place."""
    state, workload, ahead = outlook.next.state, job.workload, answer.ahead
    never = refusal.when is When.NEVER
    found = refusals.verdicts(state.cluster, pod) if refusal.nodes else []
    if never:
        # A node may refuse the pod only for now, but its gang or its queue is refused for ever.
        found = [replace(verdict, when=When.NEVER) for verdict in found]
    rules = tuple(sorted(_rules(state, pod, found), key=lambda rule: -len(rule.nodes)))
    asked, devices = [name for name, _ in pod.request.resources], refused(state.cluster, pod, found)
    start = None if never else outlook.start(workload)
    return replace(
        answer, state=refusal.when, code=refusal.reason.code, message=str(refusal), head=refusal.head, rules=rules,
        holders=holders(state.cluster, asked, found, devices), devices=devices, repartition=refusal.repartition,
        ahead=0 if never else ahead, reclaim=refusal.reclaim, granted=_granted(start),
        expected=start.expected if start is not None else None,
        reserved=tuple(_reserved(state, workload, refusal)), hints=of_refusal(state, pod, refusal),
    )  # fmt: skip


def _granted(start: Start | None) -> str:
    return alternative_text(start.granted) if start is not None and start.granted is not None else ""


def _lease(state: State, pod: Pod) -> PodLease | None:
    if not pod.lease:
        return None
    live = state.leases.live.get(pod.lease)
    if live is None:
        return PodLease(pod.lease, "", "", 0, 0, pod.fence)
    end_ms = state.leases.end_ms(pod.lease)
    return PodLease(pod.lease, live.lease.plane, live.state.value, end_ms, live.lease.fence, pod.fence)


def refused_pods(state: State, now_ms: int) -> dict[str, Refusal]:
    """The refusals of the next step, by "namespace/name", of the pods of ours that it does not place."""
    state = Outlook(state, now_ms).next.state
    pods = ((pod, job.workload) for job in waiting_jobs(state) for pod in job.waiting)
    return {pod.key: refusal_of(state, workload) for pod, workload in pods if not is_placeholder(pod)}


def refusal_of(state: State, workload: str) -> Refusal:
    """The refusal of a workload that the step has not placed."""
    one = state.requests.by_workload.get(workload)
    if one is not None and one.reported is not None:
        return one.reported
    return state.queue.refusal(workload) or Refusal(Reason.NO_NODES, When.NOT_YET)


def _terms(state: State, queue: str, wanted: Mapping[str, int]) -> Iterator[QueueTerm]:
    shares, tree = state.shares, state.shares.tree
    for name in reversed(tree.path(queue)) if queue in tree.queues else ():
        record, held, problem = tree.queues[name], shares.allocated(name), tree.problem(name)
        over = {resource: held.get(resource, 0) + wanted.get(resource, 0) - most for resource, most in record.limit}
        yield QueueTerm(
            name, _amounts(held), record.guarantee, record.limit, _amounts(shares.due(name)),
            SHARE_CLASSES[shares.quota.share_class(name, wanted)] if problem is None else "",
            _amounts({resource: amount for resource, amount in over.items() if wanted.get(resource, 0) and amount > 0}),
            str(problem) if problem is not None else "",
        )  # fmt: skip


def _amounts(amounts: Mapping[str, int]) -> Amounts:
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))


def _reserved(state: State, workload: str, refusal: Refusal) -> Iterator[Reserved]:
    """The reservations for the workload, or for others if these are why it waits."""
    names, placements = state.cluster.nodes.names, state.cluster.placements
    for one in state.reservations:
        if one.workload == workload or refusal.reason is Reason.RESERVED:
            yield Reserved(
                name_of(state, one.workload), one.queue, tuple(names[slot] for slot in one.slots.tolist()),
                one.made_ms, one.expected,
                tuple(sorted({key_of(placements[uid].pod) for uid in one.evicting if uid in placements})),
            )  # fmt: skip


def _with_gpus(state: State, pod: Pod, answer: Why) -> Why:
    held = gpus_of(state, pod)
    parts = parts_of(state.cluster, state.cluster.placements[pod.uid])
    return replace(
        answer, gpus=held.gpus or (), mbps=held.mbps, ideal_mbps=held.ideal_mbps, parts=parts,
        all_reduce=all_reduce_of(state, state.workloads.workload_of(pod)),
    )  # fmt: skip


def _rules(state: State, pod: Pod, found: list[refusals.Verdict]) -> Iterator[RuleView]:
    """The nodes that each rule refuses. Rejections by kubelets are divided by the reason of the kubelet."""
    names, rejections = state.cluster.nodes.names, state.cluster.rejections.nodes(pod.owner, state.now_ms)
    for verdict in found:
        nodes: dict[str, list[str]] = {}
        for slot in verdict.slots:
            name = names[slot]
            detail = f"({rejections[name]})" if verdict.reason is Reason.REJECTED else verdict.detail
            nodes.setdefault(detail, []).append(name)
        for detail, refusing in nodes.items():
            text = f"{verdict.reason.text} {detail}".rstrip()
            yield RuleView(verdict.reason.code, verdict.when, text, verdict.nearest, tuple(refusing))


def _gang(state: State, pod: Pod) -> GangView | None:
    workload = state.workloads.workload_of(pod)
    gang = state.workloads.gangs.get(workload)
    if workload.startswith(LONE):
        return None
    members = state.workloads.members(workload)
    bound = sum(1 for member in members if member.node)
    if gang is None:
        return GangView(workload, None, len(members), bound, (), ())
    return GangView(workload, _needs(state, workload, members), len(members), bound, gang.required, gang.preferred)


def _needs(state: State, workload: str, members: Sequence[Pod]) -> int:
    """With how few pods a gang starts, its sub-gangs included."""
    gangs, below = state.workloads.gangs, dict[str, list[str]]()
    for gang_id in state.workloads.tree(workload)[1:]:
        if gang_id in gangs:
            below.setdefault(gangs[gang_id].parent, []).append(gang_id)
    held = {member.gang for member in members}

    def fewest(gang_id: str) -> int:
        gang, children = gangs[gang_id], sorted(map(fewest, below.get(gang_id, ())))
        own = gang.min_count if not children or gang_id in held else 0
        return own + sum(children[: gang.min_groups or len(children)])

    return fewest(workload)
