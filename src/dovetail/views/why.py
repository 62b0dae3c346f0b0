# SPDX-License-Identifier: Apache-2.0
"""Why a pod or a job is where it is, or is not: the core's own answer on the cluster as it stands.

The question is put to the scheduler's own step: everything that waits is decided in its order on a copy of the cluster,
without a write, and then the pod is looked at. So "placed" means that the next step of a scheduler places it.
Of a job with several pods one of those that wait is looked at, one that is placed if there is one. When it starts is
the answer of `forecast`. What never starts is refused for ever by every rule, and nobody holds what it lacks.
Not known: what the running scheduler has in hand at this moment and is not written yet, and how long it keeps pods away
from a kubelet that rejected some: whoever failed there and still exists counts as if it had failed now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import step
from dovetail.core.decisions import Bind
from dovetail.core.model import Pod
from dovetail.core.placing import refusals
from dovetail.core.policy import unhurried
from dovetail.core.queues.types import Amounts
from dovetail.core.reasons import Expected, Reason, Refusal, Repartition, When
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE
from dovetail.views.forecast import Watch, forecast
from dovetail.views.gpus import gpus_of
from dovetail.views.holders import DeviceHolder, HeldPart, HolderRefused, holders, parts_of
from dovetail.views.jobs import find_jobs, name_of, waiting_jobs
from dovetail.views.misspelt import of_refusal, of_scheduler
from dovetail.views.rank import STANDINGS
from dovetail.views.refused import refused

_NOBODY: Mapping[str, str] = {}
_NOT_OURS = "another scheduler is named in spec.schedulerName"


class RuleView(Struct, frozen=True):
    """Nodes that one rule refuses. `code` is the reason's, `when` Never or NotYet."""

    code: str
    when: When
    text: str
    nearest: str
    nodes: tuple[str, ...]


class GangView(Struct, frozen=True):
    """`needs` is None while it is not known: the object that says so does not exist or was not read."""

    id: str
    needs: int | None
    exist: int
    bound: int
    required: tuple[str, ...]
    preferred: tuple[str, ...]


class QueueTerm(Struct, frozen=True):
    """A queue on the way up from the job's. Amounts are by class. `standing` says how it would stand with the job, ""
    where it cannot be used (`problem`), and `beyond` by how much the job would break its limits."""

    queue: str
    allocated: Amounts
    guarantee: Amounts
    limit: Amounts
    due: Amounts
    standing: str
    beyond: Amounts
    problem: str


class Reserved(Struct, frozen=True):
    """Room that is held for `job`, of a `queue`, on `nodes` since `since_ms` until it starts: `expected`. `evicting`
    are the pods that give way to it and are not gone yet."""

    job: str
    queue: str
    nodes: tuple[str, ...]
    since_ms: int
    expected: Expected
    evicting: tuple[str, ...]


class Why(Struct, frozen=True):
    """`state` is Bound (it is on `node`), Placed (it fits and goes to `node` next), Never or NotYet (refused: `code`,
    `message`, and `head`, the message without the count of nodes that `rules` tells better). `ahead` counts the gangs
    and lone pods that are tried before it. `gpus` are the indices of the GPUs that were written down for it, or will
    be; of several whose wiring is known, `mbps` is the bandwidth between them and `ideal_mbps` the most that as many
    GPUs of such a node can have, else None. `parts` are its MIG instances, shares and claimed devices. Of a refused one
    `devices` are the cards and devices that come nearest, and `repartition` how idle cards could be divided for it.

    `job` is the gang or pod that is decided as one, `others` how many more are called as what was asked for. `terms`
    say how its `queue` and those above it stand, the top first; `wanted` is what its pods that wait will be counted
    with. `expected` is when it starts, `reclaim` what became of the search for jobs that could give way to it.
    `reserved` is the room that is held for it, or, where that is what keeps it waiting, for others. `hints` name what
    comes nearest to a name that nothing has."""

    pod: str
    state: str
    node: str = ""
    code: str = ""
    message: str = ""
    head: str = ""
    rules: tuple[RuleView, ...] = ()
    holders: tuple[DeviceHolder, ...] = ()
    gang: GangView | None = None
    ahead: int = 0
    gpus: tuple[int, ...] = ()
    mbps: int | None = None
    ideal_mbps: int | None = None
    parts: tuple[HeldPart, ...] = ()
    devices: tuple[HolderRefused, ...] = ()
    repartition: Repartition | None = None
    job: str = ""
    others: int = 0
    queue: str = ""
    terms: tuple[QueueTerm, ...] = ()
    wanted: Amounts = ()
    expected: Expected | None = None
    reclaim: str = ""
    reserved: tuple[Reserved, ...] = ()
    hints: tuple[str, ...] = ()


def why(
    state: State,
    key: str,
    now_ms: int,
    watch: Watch = lambda started, waiting: None,
    schedulers: Mapping[str, str] = _NOBODY,
    ours: str = "",
) -> Why:
    """Explain the pod or job "namespace/name". `watch` is told how far a look ahead has come. `schedulers` are those
    that pods name which are not ours, `ours` is what they should. Raises NotFound."""
    jobs = find_jobs(state, key)
    job, workload = jobs[0], jobs[0].workload
    pod = next((one for one in job.pods if one.key == key), (*job.waiting, *job.pods)[0])
    queue = state.shares.queue_of(pod) if pod.managed else ""
    answer = Why(pod.key, "", gang=_gang(state, pod), job=job.name, others=len(jobs) - 1, queue=queue)
    if pod.node:
        return _with_gpus(state, pod, replace(answer, state="Bound", node=pod.node))
    if not pod.managed:
        hints = of_scheduler(state, pod, schedulers, ours)
        return replace(answer, state=When.NOT_YET, code="NotOurs", message=_NOT_OURS, head=_NOT_OURS, hints=hints)
    before, wanted, ahead = take(state), state.shares.wanted_next(workload), state.queue.before(workload)
    answer = replace(answer, ahead=ahead, wanted=_amounts(wanted), terms=tuple(_terms(state, queue, wanted)))
    state = restore(unhurried(state.policy), before)
    binds = {d.uid: d.node for d in step(state, (), now_ms) if isinstance(d, Bind)}
    if pod.key != key:
        pod = next((one for one in job.waiting if one.uid in binds), pod)
        answer = replace(answer, pod=pod.key)
    if pod.uid in binds:
        return _with_gpus(state, pod, replace(answer, state="Placed", node=binds[pod.uid]))
    refusal = refusal_of(state, workload)
    never = refusal.when is When.NEVER
    found = refusals.verdicts(state.cluster, pod) if refusal.nodes else []
    if never:
        # Nodes may refuse the pod for now alone: what keeps its gang or its queue from it for ever keeps it, too.
        found = [replace(verdict, when=When.NEVER) for verdict in found]
    rules = tuple(sorted(_rules(state, pod, found), key=lambda rule: -len(rule.nodes)))
    asked, devices = [name for name, _ in pod.request.resources], refused(state.cluster, pod, found)
    start = None if never else forecast(before, state.policy, now_ms, {workload}, watch).starts.get(workload)
    return replace(
        answer, state=refusal.when, code=refusal.reason.code, message=str(refusal), head=refusal.head, rules=rules,
        holders=holders(state.cluster, asked, found, devices), devices=devices, repartition=refusal.repartition,
        ahead=0 if never else ahead, reclaim=refusal.reclaim, expected=start.expected if start is not None else None,
        reserved=tuple(_reserved(state, workload, refusal)), hints=of_refusal(state, pod, refusal),
    )  # fmt: skip


def refused_pods(state: State, now_ms: int) -> dict[str, Refusal]:
    """By "namespace/name", what the next step tells each pod of ours that it does not place."""
    state = restore(unhurried(state.policy), take(state))
    step(state, (), now_ms)
    return {pod.key: refusal_of(state, job.workload) for job in waiting_jobs(state) for pod in job.waiting}


def refusal_of(state: State, workload: str) -> Refusal:
    """What the step has told a workload that waits on."""
    return state.queue.refusal(workload) or Refusal(Reason.NO_NODES, When.NOT_YET)


def _terms(state: State, queue: str, wanted: Mapping[str, int]) -> Iterator[QueueTerm]:
    shares, tree = state.shares, state.shares.tree
    for name in reversed(tree.path(queue)) if queue in tree.queues else ():
        record, held, problem = tree.queues[name], shares.allocated(name), tree.problem(name)
        over = {resource: held.get(resource, 0) + wanted.get(resource, 0) - most for resource, most in record.limit}
        yield QueueTerm(
            name, _amounts(held), record.guarantee, record.limit, _amounts(shares.due(name)),
            STANDINGS[shares.quota.standing_class(name, wanted)] if problem is None else "",
            _amounts({resource: amount for resource, amount in over.items() if wanted.get(resource, 0) and amount > 0}),
            str(problem) if problem is not None else "",
        )  # fmt: skip


def _amounts(amounts: Mapping[str, int]) -> Amounts:
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))


def _reserved(state: State, workload: str, refusal: Refusal) -> Iterator[Reserved]:
    """What is held for the workload, or, of one that must not use it, for others."""
    names, placements = state.cluster.nodes.names, state.cluster.placements
    for one in state.reservations:
        if one.workload == workload or refusal.reason is Reason.RESERVED:
            yield Reserved(
                name_of(state, one.workload), one.queue, tuple(names[slot] for slot in one.slots.tolist()),
                one.made_ms, one.expected,
                tuple(sorted(placements[uid].pod.key for uid in one.evicting if uid in placements)),
            )  # fmt: skip


def _with_gpus(state: State, pod: Pod, answer: Why) -> Why:
    held = gpus_of(state, pod)
    parts = parts_of(state.cluster, state.cluster.placements[pod.uid])
    return replace(answer, gpus=held.gpus or (), mbps=held.mbps, ideal_mbps=held.ideal_mbps, parts=parts)


def _rules(state: State, pod: Pod, found: list[refusals.Verdict]) -> Iterator[RuleView]:
    """What each rule refuses. Kubelets that rejected pods are told apart by their reason."""
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
    needs = sum(
        state.workloads.gangs[gang_id].min_count
        for gang_id in state.workloads.tree(workload)
        if gang_id in state.workloads.gangs and any(member.gang == gang_id for member in members)
    )
    return GangView(workload, needs, len(members), bound, gang.required, gang.preferred)
