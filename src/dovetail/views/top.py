# SPDX-License-Identifier: Apache-2.0
"""Which pod computes on which GPU now, and what bounds it: by node, job, team, or replica of an inference engine.

Rules: a team is a queue, or a namespace where no queue is known. A GPU that several jobs or teams share is in each of
them. Free GPUs are in no job and no team. A filter selects GPUs, and so what is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Literal

from msgspec import Struct

from dovetail.kube.reading.gpu_exporters import NodeSamples
from dovetail.monitoring.engine_load import EngineLoad
from dovetail.views.engines import sentences
from dovetail.views.top_rows import GpuHolder, GpuRow, TopReading

By = Literal["node", "job", "team", "replica"]
Order = Literal["name", "use", "memory", "power", "temperature", "class"]


class TopQuery(Struct, frozen=True):
    """What is shown: the groups, the order (names rise, numbers fall), and the words of the filter."""

    by: By = "node"
    order: Order = "name"
    words: str = ""


class TopGroup(Struct, frozen=True, rename="camel"):
    """The GPUs of a node, a job, a team or a pod (replica). `gpus` counts devices, weighted by the part that is held
    for jobs, teams and pods. Means are over its devices, the temperature is the highest. `classes` are the numbers of
    devices by class, the most frequent first. `fault` is why the node could not be read."""

    name: str
    gpus: float
    nodes: int
    allocated: float
    computing: int
    idle_allocated: int
    unhealthy: int
    used: float | None
    sm: float | None
    tensor: float | None
    dram: float | None
    memory_used_mib: float
    memory_total_mib: float
    power_w: float
    temperature_c: float | None
    classes: tuple[tuple[str, int], ...]
    queue: str = ""
    fault: str = ""


class TopSummary(Struct, frozen=True, rename="camel"):
    """Numbers of GPUs (physical) and of devices (a MIG instance is one) by state, and of nodes without an answer."""

    nodes: int
    gpus: int
    devices: int
    allocated: int
    computing: int
    idle_allocated: int
    unhealthy: int
    unread_nodes: int


class Top(Struct, frozen=True, rename="camel"):
    """The whole answer at `at_s` (epoch seconds). `groups` are by node, job, team or pod. `faults` are why nodes could
    not be read now, `notes` sentences about what else is missing, and what was found in `engines`, the replicas of
    inference engines; None where their metrics were not read."""

    source: str
    at_s: float
    window_s: float
    by: By
    summary: TopSummary
    groups: tuple[TopGroup, ...]
    gpus: tuple[GpuRow, ...]
    faults: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()
    engines: tuple[EngineLoad, ...] | None = None


def top(reading: TopReading, query: TopQuery) -> Top:
    """The answer of a reading."""
    rows = [row for row in reading.rows if matches(row, query.words)]
    faults = {node.node: node.fault for node in reading.nodes if node.fault}
    engines = reading.engines
    if engines is not None:
        engines = tuple(one for one in engines if _has_words((one.name, one.engine, one.model), query.words))
    groups = groups_of(rows, query.by, faults)
    if query.order != "name":
        rows.sort(key=_ROW_KEYS[query.order])
        groups = tuple(sorted(groups, key=_GROUP_KEYS[query.order]))
    return Top(
        reading.source, reading.at_s, reading.window_s, query.by, summary_of(rows, reading.nodes), groups, tuple(rows),
        faults, reading.notes + sentences(engines or ()), engines,
    )  # fmt: skip


def _falling(value: float | None) -> float:
    return 1.0 if value is None else -value


_ROW_KEYS: dict[Order, Callable[[GpuRow], tuple[float, str]]] = {
    "use": lambda row: (_falling(row.used), ""),
    "memory": lambda row: (_falling(row.memory_used_mib), ""),
    "power": lambda row: (_falling(row.power_w), ""),
    "temperature": lambda row: (_falling(row.temperature_c), ""),
    "class": lambda row: (not row.allocated, row.bottleneck),
}
_GROUP_KEYS: dict[Order, Callable[[TopGroup], tuple[float, str]]] = {
    "use": lambda one: (_falling(one.used), ""),
    "memory": lambda one: (-one.memory_used_mib, ""),
    "power": lambda one: (-one.power_w, ""),
    "temperature": lambda one: (_falling(one.temperature_c), ""),
    "class": lambda one: (not one.classes, one.classes[0][0] if one.classes else ""),
}


def summary_of(rows: Sequence[GpuRow], nodes: Sequence[NodeSamples]) -> TopSummary:
    """The numbers of these GPUs."""
    return TopSummary(
        len(nodes), len({(row.node, row.uuid) for row in rows}), len(rows), sum(row.allocated for row in rows),
        sum(not row.idle for row in rows), sum(row.idle_allocated for row in rows),
        sum(not row.healthy for row in rows), sum(bool(node.fault) for node in nodes),
    )  # fmt: skip


def groups_of(rows: Sequence[GpuRow], by: By, faults: Mapping[str, str] = {}) -> tuple[TopGroup, ...]:
    """The groups in the order of their names. A node that was never read is one without GPUs; free GPUs are in no job
    and no team."""
    groups: dict[str, list[GpuRow]] = {name: [] for name in faults} if by == "node" else {}
    for row in rows:
        for name in members_of(row, by):
            groups.setdefault(name, []).append(row)
    return tuple(_group(name, groups[name], by, faults.get(name, "")) for name in sorted(groups))


def members_of(row: GpuRow, by: By) -> tuple[str, ...]:
    """The groups that the GPU is in."""
    if by == "node":
        return (row.node,)
    if by == "replica":
        return tuple(dict.fromkeys(holder.pod for holder in row.holders))
    name_of = _job if by == "job" else _team
    return tuple(dict.fromkeys(name_of(holder) for holder in row.holders))


def _job(holder: GpuHolder) -> str:
    return holder.job


def _pod(holder: GpuHolder) -> str:
    return holder.pod


def _team(holder: GpuHolder) -> str:
    return holder.queue or holder.pod.partition("/")[0]


def _group(name: str, rows: Sequence[GpuRow], by: By, fault: str) -> TopGroup:
    name_of = {"job": _job, "replica": _pod}.get(by, _team)
    if by == "node":
        held = float(sum(row.allocated for row in rows))
        weights = [1.0] * len(rows)
    else:
        weights = [sum(holder.share for holder in row.holders if name_of(holder) == name) for row in rows]
        held = sum(weights)
    queues = {holder.queue for row in rows for holder in row.holders if by == "job" and holder.job == name}
    return TopGroup(
        name, round(sum(weights), 3), len({row.node for row in rows}), round(held, 3),
        sum(not row.idle for row in rows), sum(row.idle_allocated for row in rows),
        sum(not row.healthy for row in rows), _mean(rows, lambda row: row.used), _mean(rows, lambda row: row.sm),
        _mean(rows, lambda row: row.tensor), _mean(rows, lambda row: row.dram),
        _sum(rows, lambda row: row.memory_used_mib), _sum(rows, lambda row: row.memory_total_mib),
        _power(rows), max((row.temperature_c for row in rows if row.temperature_c is not None), default=None),
        tuple(Counter(row.bottleneck for row in rows).most_common()),
        queues.pop() if len(queues) == 1 else "", fault,
    )  # fmt: skip


def _mean(rows: Iterable[GpuRow], value: Callable[[GpuRow], float | None]) -> float | None:
    known = [one for one in map(value, rows) if one is not None]
    return fmean(known) if known else None


def _sum(rows: Iterable[GpuRow], value: Callable[[GpuRow], float | None]) -> float:
    return sum(one for one in map(value, rows) if one is not None)


def _power(rows: Iterable[GpuRow]) -> float:
    """Of each GPU once, however many instances it has."""
    return sum({(row.node, row.uuid): row.power_w or 0.0 for row in rows}.values())


def matches(row: GpuRow, text: str) -> bool:
    """Whether each word of the filter is in a name of the row: of node, GPU, pod, job, queue, user, class or health."""
    return not text or _has_words(_names(row), text)


def _has_words(names: Iterable[str], text: str) -> bool:
    every = "\n".join(names).casefold()
    return all(word in every for word in text.casefold().split())


def _names(row: GpuRow) -> Iterator[str]:
    yield from (row.node, row.uuid, row.product, row.profile, row.bottleneck, row.health)
    for holder in row.holders:
        yield from (holder.pod, holder.job, holder.queue, holder.user)
    if not row.holders:
        yield "free"
