# SPDX-License-Identifier: Apache-2.0
"""Reports of simulations: the metrics that papers and users compare.

Rules: times are seconds of the trace's clock, except `seconds`, the wall time of the simulation. A job waits from its
arrival until its last pod is placed, and again after each stop; its completion time is its waiting plus its running
time. Percentiles are over the jobs that started (waiting) or ended (completion), by nearest rank, so each is the value
of a job.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

from msgspec import Struct

from dovetail.core.bargaining.types import Holding, LeaseAlternative
from dovetail.core.events import NodeChanged, PodChanged
from dovetail.core.model import WHOLE_GPU_MILLI
from dovetail.core.queues.types import GPU_HOUR
from dovetail.core.reasons import When
from dovetail.sim.arrivals import unallocated_percent
from dovetail.sim.clock import Fate, Moment, RequestFate, Result
from dovetail.sim.fairness import due, jain_over_time
from dovetail.sim.traces.openb import unknown_models
from dovetail.sim.workload import PERMILLE, Workload, gpu_milli

_READ_OUT_PERCENT = 100
"""As in the paper, the value at 100 % of arrived demand is reported besides the last value."""


class SimulationReport(Struct, frozen=True, kw_only=True):
    """`placed_pods` counts the arrived pods that were ever placed. `refused` counts the pods that wait or were dropped,
    by the code of their reason. `unknown_models` counts, for each GPU model that no node has, the pods that select
    it."""

    workload: str
    policy: str
    seed: int
    nodes: int
    gpus: int
    arrived_pods: int
    placed_pods: int
    refused: dict[str, int]
    seconds: float
    unknown_models: dict[str, int]


class ArrivalReport(SimulationReport, frozen=True, kw_only=True):
    """`unallocated_gpu_percent` is keyed by arrived demand in % of all GPUs; None if no arrival rounds to that number.
    `first_refusal_percent` is the GPU demand that had arrived when the first pod with a GPU was refused, in % of all
    GPUs; None if none was refused."""

    unallocated_gpu_percent: dict[str, float | None]
    first_refusal_percent: float | None


class ValueSpread(Struct, frozen=True):
    """Statistics over jobs, in seconds; all None without jobs."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


class OfQueue(Struct, frozen=True):
    """One queue. `gpu_hours` is the GPU time that it held, `due_percent` the same in % of its fair share over time."""

    queue: str
    weight: int
    jobs: int
    wait_s: ValueSpread
    completion_s: ValueSpread
    gpu_hours: float
    due_percent: float | None


class QueueReport(SimulationReport, frozen=True, kw_only=True):
    """`makespan_s` is the time from the first arrival to the last event. `allocated_gpu_percent` is the mean over that
    time, in % of the GPUs of nodes that were up. `evictions` counts evictions of jobs, `failures` stops of jobs by node
    failures; `lost_gpu_hours` is the progress lost to both. `jain_index` is the mean index of the windows (`fairness`);
    None without such a window. `step_percent` is how long a step of the jobs that communicate took, in percent
    of one in the best place, weighted by their work; None where none did."""

    jobs: int
    started_jobs: int
    ended_jobs: int
    wait_s: ValueSpread
    completion_s: ValueSpread
    makespan_s: float
    allocated_gpu_percent: float | None
    evictions: int
    failures: int
    lost_gpu_hours: float
    jain_index: float | None
    step_percent: float | None
    queues: list[OfQueue]


class Placed(Struct, frozen=True):
    pod: str
    node: str


class WaitingTimes(Struct, frozen=True):
    """A pod that waits. `code` and `when` are those of the reason; `message` has the amounts."""

    pod: str
    code: str
    when: str
    message: str


class OfferReport(Struct, frozen=True):
    """What a request for a lease is offered or granted: `devices` of a `resource` for `duration_ms`, from `start_ms`
    (epoch) on at the latest. `nodes` are those of the devices that are held, with their indices. `why` is why nothing
    better is offered."""

    resource: str
    devices: int
    duration_ms: int
    start_ms: int
    nodes: dict[str, list[int]]
    why: str = ""


class RequestReport(Struct, frozen=True):
    """A request of a control plane for a lease. `state` is Granted, Offered, NotYet or Never; the last two have a
    `code` and a `message`. A granted request has one of `offers`."""

    request: str
    plane: str
    state: str
    offers: list[OfferReport]
    code: str = ""
    message: str = ""


class SnapshotReport(SimulationReport, frozen=True, kw_only=True):
    """`running_pods` counts the pods already on nodes. `problems` lists input that could not be used, and errors in
    objects that keep them pending."""

    running_pods: int
    placed: list[Placed]
    waiting: list[WaitingTimes]
    requests: list[RequestReport]
    problems: tuple[str, ...]


class SimulationRun(Struct, frozen=True):
    """One simulation, as input of the report. `seconds` is its wall time, without reading the input."""

    workload: Workload
    policy: str
    seed: int
    result: Result
    seconds: float


def of_arrivals(run: SimulationRun, until_percent: int) -> ArrivalReport:
    unallocated = unallocated_percent(run.result)
    columns = sorted({min(_READ_OUT_PERCENT, until_percent), until_percent})
    return ArrivalReport(
        **_common(run),
        unallocated_gpu_percent={str(column): _rounded(unallocated.get(column)) for column in columns},
        first_refusal_percent=_first_refusal(run.result),
    )


def of_queue(run: SimulationRun) -> QueueReport:
    result, moments = run.result, run.result.moments
    begin_ms, end_ms = (moments[0].at_ms, moments[-1].at_ms) if moments else (0, 0)
    spans = [(now, then.at_ms - now.at_ms) for now, then in pairwise(moments)]
    busy = sum(now.allocated_milli * span_ms for now, span_ms in spans)
    possible = sum(now.up_milli * span_ms for now, span_ms in spans)
    indices = [index for _, index in jain_over_time(result)]
    return QueueReport(
        **_common(run),
        jobs=len(result.fates),
        started_jobs=sum(fate.started_ms is not None for fate in result.fates),
        ended_jobs=sum(fate.ended_ms is not None for fate in result.fates),
        wait_s=_waits(result.fates),
        completion_s=_completions(result.fates),
        makespan_s=(end_ms - begin_ms) / 1000,
        allocated_gpu_percent=_rounded(100 * busy / possible) if possible else None,
        evictions=result.evicted,
        failures=result.failed,
        lost_gpu_hours=round(sum(fate.lost_ms * fate.milli for fate in result.fates) / GPU_HOUR, 3),
        jain_index=_rounded(sum(indices) / len(indices)) if indices else None,
        step_percent=_step_percent(result.fates),
        queues=_queues(result, spans),
    )


def _step_percent(fates: list[Fate]) -> float | None:
    ended = [fate for fate in fates if fate.job.communication_percent and fate.ended_ms is not None]
    work = sum((fate.job.duration_ms or 0) * fate.milli for fate in ended)
    took = sum((fate.job.duration_ms or 0) * fate.milli * fate.pace for fate in ended)
    return _rounded(100 * took / (work * PERMILLE)) if work else None


def _queues(result: Result, spans: list[tuple[Moment, int]]) -> list[OfQueue]:
    held, owed = [0] * len(result.queues), [0.0] * len(result.queues)
    for now, span_ms in spans:
        for i, part in enumerate(due(now.up_milli, now.wanted_milli, result.weights)):
            held[i] += now.held_milli[i] * span_ms
            owed[i] += part * span_ms
    queues = []
    for i, name in enumerate(result.queues):
        fates = [fate for fate in result.fates if fate.queue == i]
        percent = _rounded(100 * held[i] / owed[i]) if owed[i] else None
        waits, completions = _waits(fates), _completions(fates)
        hours = round(held[i] / GPU_HOUR, 3)
        queues.append(OfQueue(name, result.weights[i], len(fates), waits, completions, hours, percent))
    return queues


def of_snapshot(run: SimulationRun, problems: tuple[str, ...]) -> SnapshotReport:
    result = run.result
    pods = [(fate.job.pods[0], fate.refusal) for fate in result.fates]
    return SnapshotReport(
        **_common(run),
        running_pods=sum(isinstance(event, PodChanged) for event in run.workload.cluster),
        placed=[Placed(pod.key, result.placed[pod.uid]) for pod, _ in pods if pod.uid in result.placed],
        waiting=[WaitingTimes(pod.key, why.reason.code, why.when, str(why)) for pod, why in pods if why is not None],
        requests=[_request(one) for one in result.requests],
        problems=problems,
    )


def _request(fate: RequestFate) -> RequestReport:
    request, refusal = fate.request, fate.refusal
    if (lease := fate.lease) is not None:
        granted = _offer(lease.alternative, lease.start_ms, lease.holdings)
        return RequestReport(request.id, request.plane, "Granted", [granted])
    if fate.offers:
        offers = [_offer(one.alternative, one.start_ms, one.holdings, one.why) for one in fate.offers]
        return RequestReport(request.id, request.plane, "Offered", offers)
    if refusal is None:
        return RequestReport(request.id, request.plane, When.NOT_YET, [])
    return RequestReport(request.id, request.plane, refusal.when, [], refusal.reason.code, str(refusal))


def _offer(one: LeaseAlternative, start_ms: int, holdings: tuple[Holding, ...], why: str = "") -> OfferReport:
    nodes: dict[str, list[int]] = {}
    for holding in holdings:
        own = [instance.gpu for instance in holding.instances] or holding.devices
        nodes.setdefault(holding.node, []).extend(own)
    return OfferReport(one.resource, one.count, one.duration_ms, start_ms, nodes, why)


def _common(run: SimulationRun) -> dict[str, Any]:
    """The fields of `SimulationReport`."""
    result = run.result
    nodes = [event.node for event in run.workload.cluster if isinstance(event, NodeChanged)]
    refused: Counter[str] = Counter()
    for fate in result.fates:
        if fate.waiting and fate.refusal is not None:
            refused[fate.refusal.reason.code] += fate.waiting
    return {
        "workload": run.workload.name,
        "policy": run.policy,
        "seed": run.seed,
        "nodes": len(nodes),
        "gpus": result.capacity_milli // WHOLE_GPU_MILLI,
        "arrived_pods": sum(len(fate.job.pods) for fate in result.fates),
        "placed_pods": len(result.placed),
        "refused": dict(refused.most_common()),
        "seconds": round(run.seconds, 3),
        "unknown_models": unknown_models(nodes, run.workload.jobs),
    }


def _first_refusal(result: Result) -> float | None:
    arrived = 0
    for fate in result.fates:
        demand = sum(gpu_milli(pod.request) for pod in fate.job.pods)
        arrived += demand
        if demand and fate.dropped:
            return _rounded(100 * arrived / result.capacity_milli)
    return None


def _waits(fates: list[Fate]) -> ValueSpread:
    return _spread([fate.waited_ms for fate in fates if fate.started_ms is not None])


def _completions(fates: list[Fate]) -> ValueSpread:
    return _spread([fate.ended_ms - fate.job.at_ms for fate in fates if fate.ended_ms is not None])


def _spread(spans_ms: list[int]) -> ValueSpread:
    seconds = sorted(span_ms / 1000 for span_ms in spans_ms)
    if not seconds:
        return ValueSpread(None, None, None, None, None)
    rank = [seconds[math.ceil(percent * len(seconds) / 100) - 1] for percent in (50, 95, 99, 100)]
    return ValueSpread(_rounded(sum(seconds) / len(seconds)), *rank)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
