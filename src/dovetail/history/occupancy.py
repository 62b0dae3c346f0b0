# SPDX-License-Identifier: Apache-2.0
"""The GPUs of each kind of node over a period: how many were held at once, and how many jobs waited for.

Rules
- A kind is the model of a node and the most GPUs that it had: one that lost a GPU is of the kind that it was. A GPU is
  held while a pod holds any part of it.
- A pod waits from the time when it was submitted to its bind, or to its end. Waits below `LEAST_WAIT_MS` do not count:
  they are the time that the scheduler and image pulls need, and no want of GPUs. It waits for the kind of the node that
  it then got. Of a pod that never got one the kind is not known, unless there is only one.
- At a moment the jobs that wait lack the GPUs that they want beyond those that are healthy and free then: what waits
  beside enough free GPUs waits for a quota or for a better place, and more GPUs would not help.
- A GPU is free while it is healthy and no pod holds a part of it; where it is in two spans, as after a move that was
  seen late, the one that started last counts.
- The demand at a moment is what would be held if nothing had to wait: a pod that waited counts from when it was
  submitted, for as long as it then ran. So a backlog is no demand for all of its GPUs at once. How long a pod would run
  that never started is not known: it counts in no demand.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby, pairwise
from operator import attrgetter

from msgspec import Struct, field

from dovetail.history.packing import Piece
from dovetail.history.records import HOUR_MS, GpuHold, GpuSpan, Period, PodRecord, UseHour
from dovetail.history.store import HistoryReader

LEAST_WAIT_MS = 600_000
_WHOLE_MILLI = 1000
NodeKindKey = tuple[str, int]
"""The model, and the GPUs of a node."""


class OccupiedTime(Struct, frozen=True):
    """A time in which nothing changed: GPUs that are `there` and healthy, that are `held`, and that are `wanted` by
    waiting pods, and those that would be held if nothing had to wait (`demand`)."""

    start_ms: int
    end_ms: int
    there: int
    held: int
    wanted: int
    demand: int

    @property
    def ms(self) -> int:
        return self.end_ms - self.start_ms

    @property
    def lacked(self) -> int:
        return max(0, self.wanted - max(0, self.there - self.held))

    @property
    def beyond(self) -> int:
        """The demand beyond what is there."""
        return max(0, self.demand - self.there)


class PodShape(Struct, frozen=True):
    """What a pod wants of one node; CPUs and memory are 0 where it requests none."""

    gpus: int
    cpu_milli: int = 0
    memory_mib: int = 0


class KindUse(Struct):
    """The use of one kind of node. `spans` are those that are there at the end of the period. `pieces` are what pods
    held, from when they were submitted where they waited, and what waiting pods want."""

    node_gpus: int
    spans: list[GpuSpan] = field(default_factory=list)
    moments: list[OccupiedTime] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    demand: list[Piece] = field(default_factory=list)
    used_by_hour: dict[int, int] = field(default_factory=dict)
    """The GPUs that a pod held in an hour and did not leave idle for all of it."""
    free: list[tuple[GpuSpan, Period]] = field(default_factory=list)
    requests: list[tuple[str, Period, int, int]] = field(default_factory=list)
    """By node what pods with GPUs requested of its CPUs (thousandths) and memory (MiB), and when."""
    waiting: list[tuple[Period, PodShape]] = field(default_factory=list)
    typical: PodShape | None = None
    """The shape of pods that held the most GPU time; None if none held any."""


class Occupancy(Struct, frozen=True):
    """By kind. `unknown_wait` is the GPU time (ms) for which pods waited of which the kind is not known."""

    period: Period
    kinds: dict[NodeKindKey, KindUse]
    unknown_wait: int


class _Wait(Struct, frozen=True):
    """When, within the period, a pod waited for how many GPUs. `starts_later`: it held none in the period. `runs_ms` is
    how long it ran then, 0 if it is not known."""

    period: Period
    gpus: int
    submitted_ms: int
    starts_later: bool
    runs_ms: int
    pod: PodRecord


def occupancy(reader: HistoryReader, period: Period) -> Occupancy:
    """Raises StoreError."""
    spans = {gpu: list(some) for gpu, some in groupby(reader.spans(period), attrgetter("gpu"))}
    nodes = _kinds(span for some in spans.values() for span in some)
    kinds = {key: KindUse(key[1]) for key in dict.fromkeys(nodes.values())}
    there: dict[NodeKindKey, list[tuple[int, int]]] = {}
    for span in (span for some in spans.values() for span in some):
        key = nodes[span.node]
        if span.health == "healthy":
            _add(there.setdefault(key, []), period.clipped(span.start_ms, span.end_ms), 1)
        if not span.end_ms or span.end_ms >= period.end_ms:
            kinds[key].spans.append(span)
    # The node that each GPU was in last.
    last = {gpu: some[-1].node for gpu, some in spans.items()}
    pods = {pod.uid: pod for pod in reader.pods(period)}
    waits, unknown = _waits(pods.values(), nodes, kinds, period)
    held: dict[NodeKindKey, list[tuple[int, int]]] = {}
    busy: dict[str, list[Period]] = {}
    on_nodes: dict[tuple[str, str], tuple[Period, set[str]]] = {}
    """When a pod held GPUs of a node, and which."""
    whole: dict[tuple[str, str], list[GpuHold]] = {}
    for gpu, holds in groupby(reader.holds(period), attrgetter("gpu")):
        own = list(holds)
        if gpu not in last:
            continue
        key = nodes[last[gpu]]
        busy[gpu] = _union(period.clipped(one.start_ms, one.end_ms) for one in own)
        for part in busy[gpu]:
            _add(held.setdefault(key, []), part, 1)
        for one in own:
            _note(on_nodes, (one.pod_uid, last[gpu]), period.clipped(one.start_ms, one.end_ms), gpu)
            if one.milli >= _WHOLE_MILLI:
                whole.setdefault((one.pod_uid, last[gpu]), []).append(one)
        parts = list(_shared(pods, [one for one in own if one.milli < _WHOLE_MILLI], period))
        kinds[key].pieces += parts
        kinds[key].demand += parts
    for (uid, node), some_holds in whole.items():
        _hold(kinds[nodes[node]], pods.get(uid), some_holds, period)
    for gpu, some in spans.items():
        for span, part in _free(some, busy.get(gpu, ()), period):
            kinds[nodes[span.node]].free.append((span, part))
    _request(kinds, nodes, pods, on_nodes)
    _count_used(reader.use(period), busy, {gpu: kinds[nodes[node]] for gpu, node in last.items()}, kinds, period)
    for key, use in kinds.items():
        wanted: list[tuple[int, int]] = []
        for wait in waits[key]:
            _add(wanted, wait.period, wait.gpus)
            shape = PodShape(min(wait.gpus, use.node_gpus), wait.pod.cpu_milli, wait.pod.memory_mib)
            use.waiting.append((wait.period, shape))
            if wait.starts_later:
                part, gpus = wait.period, min(wait.gpus, use.node_gpus)
                asked = wait.pod.cpu_milli, wait.pod.memory_mib
                use.pieces.append(Piece(part.start_ms, part.end_ms, gpus, *asked))
            if wait.starts_later and wait.runs_ms:
                use.demand.append(Piece(wait.submitted_ms, wait.submitted_ms + wait.runs_ms, wait.gpus))
        demand: list[tuple[int, int]] = []
        for piece in use.demand:
            _add(demand, period.clipped(piece.start_ms, piece.end_ms), piece.gpus)
        use.moments = list(_moments(period, there.get(key, []), held.get(key, []), wanted, demand))
    return Occupancy(period, kinds, unknown)


def _kinds(spans: Iterable[GpuSpan]) -> dict[str, NodeKindKey]:
    """The kind of each node."""
    found: dict[str, tuple[int, str, int]] = {}
    for span in spans:
        start_ms, model, gpus = found.get(span.node, (-1, "", 0))
        start_ms, model = max((start_ms, model), (span.start_ms, span.model))
        found[span.node] = start_ms, model, max(gpus, span.gpus)
    return {node: (model, gpus) for node, (_, model, gpus) in found.items()}


def _note(
    on_nodes: dict[tuple[str, str], tuple[Period, set[str]]], key: tuple[str, str], part: Period, gpu: str
) -> None:
    known, gpus = on_nodes.setdefault(key, (part, set()))
    gpus.add(gpu)
    on_nodes[key] = Period(min(known.start_ms, part.start_ms), max(known.end_ms, part.end_ms)), gpus


def _free(spans: Sequence[GpuSpan], busy: Sequence[Period], period: Period) -> Iterator[tuple[GpuSpan, Period]]:
    """When one GPU was free, and as what; `busy` is when pods held it, in the order of time."""
    some = sorted(spans, key=attrgetter("start_ms"))
    for span, following in zip(some, (*some[1:], None), strict=True):
        part = period.clipped(span.start_ms, span.end_ms)
        if following is not None and following.start_ms < part.end_ms:
            part = Period(part.start_ms, following.start_ms)
        at_ms = part.start_ms
        for held in busy if span.health == "healthy" and part.ms else ():
            if held.end_ms > at_ms and held.start_ms < part.end_ms:
                if held.start_ms > at_ms:
                    yield span, Period(at_ms, held.start_ms)
                at_ms = held.end_ms
        if span.health == "healthy" and at_ms < part.end_ms:
            yield span, Period(at_ms, part.end_ms)


def _request(
    kinds: Mapping[NodeKindKey, KindUse],
    nodes: Mapping[str, NodeKindKey],
    pods: Mapping[str, PodRecord],
    on_nodes: Mapping[tuple[str, str], tuple[Period, set[str]]],
) -> None:
    """Add what pods requested of the nodes on which they held GPUs, and the shape that held most."""
    held: dict[NodeKindKey, Counter[PodShape]] = {key: Counter() for key in kinds}
    for (uid, node), (part, gpus) in on_nodes.items():
        key, pod = nodes[node], pods.get(uid)
        asked = (pod.cpu_milli, pod.memory_mib) if pod is not None else (0, 0)
        if any(asked):
            kinds[key].requests.append((node, part, *asked))
        held[key][PodShape(min(len(gpus), key[1]), *asked)] += len(gpus) * part.ms
    for key, use in kinds.items():
        # Of equals the smallest.
        times = sorted(held[key].items(), key=lambda one: (-one[1], one[0].gpus, one[0].cpu_milli, one[0].memory_mib))
        use.typical = times[0][0] if times and times[0][0].gpus else None


def _hold(use: KindUse, pod: PodRecord | None, holds: Sequence[GpuHold], period: Period) -> None:
    """Add what a pod holds of whole GPUs of one node."""
    gpus = min(len({one.gpu for one in holds}), use.node_gpus)
    start_ms = min(one.start_ms for one in holds)
    end_ms = max(one.end_ms or period.end_ms for one in holds)
    waited_ms = pod.bound_ms - pod.submitted_ms if pod is not None and pod.bound_ms else 0
    if waited_ms < LEAST_WAIT_MS:
        waited_ms = 0
    part = period.clipped(start_ms - waited_ms, end_ms)
    asked = (pod.cpu_milli, pod.memory_mib) if pod is not None else (0, 0)
    use.pieces.append(Piece(part.start_ms, part.end_ms, gpus, *asked))
    use.demand.append(Piece(start_ms - waited_ms, end_ms - waited_ms, gpus))


def _shared(pods: Mapping[str, PodRecord], holds: Sequence[GpuHold], period: Period) -> Iterator[Piece]:
    """The times in which a GPU was held by parts, with the most that its pods requested at once."""
    times: dict[str, Period] = {}
    parts = [(one.pod_uid, period.clipped(one.start_ms, one.end_ms)) for one in holds]
    for uid, part in parts:
        known = times.get(uid, part)
        times[uid] = Period(min(known.start_ms, part.start_ms), max(known.end_ms, part.end_ms))
    for whole in _union(part for _, part in parts):
        inside = [
            (part, pods[uid])
            for uid, part in times.items()
            if uid in pods and part.start_ms < whole.end_ms and part.end_ms > whole.start_ms
        ]
        cpu_milli = _most_at_once((part, pod.cpu_milli) for part, pod in inside)
        memory_mib = _most_at_once((part, pod.memory_mib) for part, pod in inside)
        yield Piece(whole.start_ms, whole.end_ms, 1, cpu_milli, memory_mib)


def _most_at_once(amounts: Iterable[tuple[Period, int]]) -> int:
    changes: list[tuple[int, int]] = []
    for part, amount in amounts:
        changes += ((part.start_ms, amount), (part.end_ms, -amount))
    # At one time ends come first.
    return max(accumulate((amount for _, amount in sorted(changes)), initial=0))


def _waits(
    pods: Iterable[PodRecord], nodes: Mapping[str, NodeKindKey], kinds: Iterable[NodeKindKey], period: Period
) -> tuple[dict[NodeKindKey, list[_Wait]], int]:
    """The waits by kind, and the unknown GPU time."""
    every = list(kinds)
    found: dict[NodeKindKey, list[_Wait]] = {key: [] for key in every}
    unknown = 0
    for pod in pods:
        until_ms = pod.bound_ms or pod.ended_ms
        if (until_ms or period.end_ms) - pod.submitted_ms < LEAST_WAIT_MS or not pod.gpu_milli:
            continue
        part, gpus = period.clipped(pod.submitted_ms, until_ms), -(-pod.gpu_milli // _WHOLE_MILLI)
        if not part.ms:
            continue
        key = nodes.get(pod.node) if pod.bound_ms else None
        if key is None and len(every) == 1:
            key = every[0]
        if key is None:
            unknown += gpus * part.ms
        else:
            later = not pod.bound_ms or pod.bound_ms >= period.end_ms
            runs_ms = max(0, (pod.ended_ms or period.end_ms) - pod.bound_ms) if pod.bound_ms else 0
            found[key].append(_Wait(part, gpus, pod.submitted_ms, later, runs_ms, pod))
    return found, unknown


def _count_used(
    use: Iterable[UseHour],
    busy: Mapping[str, Sequence[Period]],
    kind_of: Mapping[str, KindUse],
    kinds: Mapping[NodeKindKey, KindUse],
    period: Period,
) -> None:
    """Count the GPUs that were used in each hour."""
    idle: dict[tuple[str, int], bool] = {}
    for one in use:
        if one.pod_uid:
            key = one.gpu, one.hour_ms // HOUR_MS
            idle[key] = idle.get(key, True) and 0 < one.measured_ms <= one.idle_ms
    hours = range(period.start_ms // HOUR_MS, -(-period.end_ms // HOUR_MS))
    for kind in kinds.values():
        kind.used_by_hour = dict.fromkeys(hours, 0)
    for gpu, parts in busy.items():
        used, last = kind_of[gpu].used_by_hour, -1
        for part in parts:
            for hour in range(max(part.start_ms // HOUR_MS, last + 1), -(-part.end_ms // HOUR_MS)):
                used[hour] += not idle.get((gpu, hour), False)
                last = hour


def _union(parts: Iterable[Period]) -> list[Period]:
    found: list[Period] = []
    for part in sorted((one for one in parts if one.ms), key=attrgetter("start_ms")):
        if found and part.start_ms <= found[-1].end_ms:
            found[-1] = Period(found[-1].start_ms, max(found[-1].end_ms, part.end_ms))
        else:
            found.append(part)
    return found


def _add(changes: list[tuple[int, int]], part: Period, gpus: int) -> None:
    if part.ms:
        changes += ((part.start_ms, gpus), (part.end_ms, -gpus))


def _moments(period: Period, *changes: Iterable[tuple[int, int]]) -> Iterator[OccupiedTime]:
    """From the changes of what is there, held, wanted and demanded."""
    by_time: dict[int, list[int]] = {period.start_ms: [0] * 4, period.end_ms: [0] * 4}
    for which, some in enumerate(changes):
        for at_ms, gpus in some:
            by_time.setdefault(at_ms, [0] * 4)[which] += gpus
    times = sorted(by_time)
    now = [0] * 4
    for at_ms, next_ms in pairwise(times):
        now = [count + more for count, more in zip(now, by_time[at_ms], strict=True)]
        yield OccupiedTime(at_ms, next_ms, *now)


def quantile(amounts: Iterable[tuple[int, int]], ppm: int) -> int:
    """The least amount that is not exceeded for so much of the time; `amounts` are with their time."""
    some = sorted(amounts)
    sums: list[int] = []
    for _, ms in some:
        sums.append((sums[-1] if sums else 0) + ms)
    if not sums:
        return 0
    return some[min(bisect_right(sums, (sums[-1] * ppm - 1) // 10**6), len(some) - 1)][0]
