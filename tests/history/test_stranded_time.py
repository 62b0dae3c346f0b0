# SPDX-License-Identifier: Apache-2.0
"""What was stranded, against each moment examined by itself."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.history.occupancy import LEAST_WAIT_MS, occupancy
from dovetail.history.packing import NodeSize
from dovetail.history.records import GpuHold, GpuSpan, Period, PodRecord
from dovetail.history.stranded_time import StrandedTime, stranded
from tests.history.memory_reader import MemoryReader

UNIT, END, GPUS = LEAST_WAIT_MS, 10, 4
SIZE = NodeSize(GPUS, 4000, 400)
CUT = 5


def spans(unhealthy: set[tuple[int, int]]) -> list[GpuSpan]:
    return [
        GpuSpan(f"{n}/{i}", f"n{n}", i, GPUS, "H100", "unhealthy" if (n, i) in unhealthy else "healthy", 0)
        for n in range(2)
        for i in range(GPUS)
    ]


def pod(
    name: str, gpus: int, node: int | None, times: tuple[int, int, int], asked: tuple[int, int] = (0, 0)
) -> PodRecord:
    submitted, bound, ended = (time * UNIT for time in times)
    return PodRecord(
        name, "ns", name, name, gpu_milli=1000 * gpus, node=f"n{node}" if node is not None else "",
        submitted_ms=submitted, bound_ms=bound, ended_ms=ended, cpu_milli=asked[0], memory_mib=asked[1],
    )  # fmt: skip


def held(one: PodRecord, gpus: list[int], milli: int = 1000) -> list[GpuHold]:
    return [
        GpuHold(one.uid, f"{one.node[1:]}/{gpu}", milli, "whole", one.bound_ms, one.ended_ms) for gpu in sorted(gpus)
    ]


def found(
    pods: list[PodRecord], holds: list[GpuHold], size: NodeSize = SIZE, unhealthy: set[tuple[int, int]] | None = None
) -> list[StrandedTime]:
    period = Period(0, END * UNIT)
    reader = MemoryReader(
        period, spans(unhealthy or set()), sorted(holds, key=lambda one: (one.gpu, one.start_ms)), pods
    )
    (use,) = occupancy(reader, period).kinds.values()
    return list(stranded(use, size, period, [CUT * UNIT]))


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[PodRecord], list[GpuHold]]:
    pods, holds = [], []
    for number in range(draw(st.integers(0, 6))):
        times = sorted(draw(st.tuples(*[st.integers(0, END)] * 3)))
        submitted, bound, ended = times
        if ended == bound:
            continue
        gpus = draw(st.sets(st.integers(0, GPUS - 1), min_size=1))
        asked = draw(st.sampled_from(((0, 0), (1000, 0), (2500, 50), (500, 250))))
        started = bound > 0 and draw(st.booleans())
        one = pod(f"p{number}", len(gpus), draw(st.integers(0, 1)) if started else None,
                  (submitted, bound if started else 0, ended), asked)  # fmt: skip
        pods.append(one)
        holds += held(one, sorted(gpus)) if started else []
    return pods, holds


def at_moment(pods: list[PodRecord], holds: list[GpuHold], node: int, at_ms: int) -> tuple[bool, tuple[int, int, int]]:
    """Whether pods waited, and what of the node was stranded."""

    def now(start_ms: int, end_ms: int) -> bool:
        return start_ms <= at_ms < (end_ms or END * UNIT)

    taken = {hold.gpu for hold in holds if now(hold.start_ms, hold.end_ms)}
    free = sum(f"{node}/{i}" not in taken for i in range(GPUS))
    there = [one for one in pods if one.node == f"n{node}" and one.bound_ms and now(one.bound_ms, one.ended_ms)]
    cpu = SIZE.cpu_milli - sum(one.cpu_milli for one in there)
    memory = SIZE.memory_mib - sum(one.memory_mib for one in there)
    waiting = [
        one
        for one in pods
        if now(one.submitted_ms, one.bound_ms or one.ended_ms)
        and (one.bound_ms or one.ended_ms or END * UNIT) - one.submitted_ms >= LEAST_WAIT_MS
    ]
    shapes = [(one.gpu_milli // 1000, one.cpu_milli, one.memory_mib) for one in waiting]
    time_of: Counter[tuple[int, int, int]] = Counter()
    for one in pods:
        if one.bound_ms:
            key = one.gpu_milli // 1000, one.cpu_milli, one.memory_mib
            time_of[key] += key[0] * (one.ended_ms - one.bound_ms)
    if not shapes and time_of:
        shapes = [min(time_of, key=lambda key: (-time_of[key], key))]
    best: tuple[int, int, tuple[int, int, int]] | None = None
    for gpus, each_cpu, each_memory in shapes:
        pods_that_fit = 0
        while (
            (pods_that_fit + 1) * gpus <= free
            and (not each_cpu or (pods_that_fit + 1) * each_cpu <= max(0, cpu))
            and (not each_memory or (pods_that_fit + 1) * each_memory <= max(0, memory))
        ):
            pods_that_fit += 1
        rest = (free // gpus - pods_that_fit) * gpus
        short = bool(each_cpu) and (pods_that_fit + 1) * each_cpu > max(0, cpu)
        cause = (free % gpus, rest, 0) if short else (free % gpus, 0, rest)
        if best is None or (-pods_that_fit * gpus, gpus) < best[:2]:
            best = -pods_that_fit * gpus, gpus, cause
    return bool(waiting), best[2] if best is not None else (0, 0, 0)


@given(histories())
@pytest.mark.slow
def test_as_counted_at_each_moment(made: tuple[list[PodRecord], list[GpuHold]]) -> None:
    pods, holds = made
    expected: Counter[tuple[int, str, bool]] = Counter()
    for at in range(END):
        for node in range(2):
            waited, counts = at_moment(pods, holds, node, at * UNIT)
            expected[(at >= CUT) * CUT * UNIT, f"n{node}", waited] += sum(counts) * UNIT
    sums: Counter[tuple[int, str, bool]] = Counter()
    for one in found(pods, holds):
        assert one.gpu_ms > 0
        sums[one.start_ms, one.span.node, one.waited] += one.gpu_ms
    assert sums == +expected


def test_a_job_that_waits_for_more_than_is_free_on_a_node() -> None:
    """Both nodes have two free GPUs, and a pod of four waits from 2 to 6."""
    some = [pod("a", 2, 0, (-1, -1, 9)), pod("b", 2, 1, (-1, -1, 9)), pod("c", 4, 0, (2, 9, 10))]
    (one, *others) = sorted(
        found(some, [*held(some[0], [0, 1]), *held(some[1], [2, 3])]), key=lambda one: (not one.waited, one.start_ms)
    )
    assert (one.waited, one.cause, one.gpu_ms) == (True, "fragmented", 2 * 3 * UNIT)
    assert sum(other.gpu_ms for other in others if other.waited) == (2 * 3 + 4 * 4) * UNIT
    assert not any(other.gpu_ms for other in others if not other.waited)


def causes(asked: tuple[int, int], size: NodeSize) -> dict[str, int]:
    """A pod of one GPU with what is asked waits, beside one on each node that asks for 3500 m and 350 MiB."""
    some = [pod(f"p{n}", 1, n, (-1, -1, 10), (3500, 350)) for n in range(2)]
    some.append(pod("w", 1, None, (0, 0, 0), asked))
    sums: Counter[str] = Counter()
    for one in found(some, [*held(some[0], [0]), *held(some[1], [0])], size):
        sums[one.cause] += one.gpu_ms
    return {cause: gpu_ms // (END * UNIT) for cause, gpu_ms in sums.items()}


def test_gpus_without_cpus_or_memory_are_stranded_where_it_is_known_what_a_node_has() -> None:
    assert causes((600, 10), SIZE) == {"cpu": 6}
    assert causes((100, 30), SIZE) == {"memory": 4}
    assert causes((600, 10), NodeSize(GPUS)) == {}


def test_unhealthy_and_partly_held_gpus_are_not_free() -> None:
    """Of node 0 two GPUs are unhealthy and one is shared: one is free, of node 1 all are. A pod of two waits."""
    shared = pod("s", 1, 0, (-1, -1, 10))
    some = [shared, pod("w", 2, None, (0, 0, 0))]
    (one, *rest) = found(some, held(shared, [2], 500), unhealthy={(0, 0), (0, 1)})
    assert {other.span.node for other in (one, *rest)} == {"n0"}
    assert sum(other.gpu_ms for other in (one, *rest)) == END * UNIT


def test_shapes_beyond_the_bound_count_by_their_gpus() -> None:
    """40 shapes of one GPU wait: what those that are not counted with their CPUs could use is not stranded."""
    some = [pod(f"p{n}", 1, n, (-1, -1, 10), (4000, 0)) for n in range(2)]
    some += [pod(f"w{n}", 1, None, (0, 0, 0), (100 + n, 0)) for n in range(40)]
    assert found(some[:10], [*held(some[0], [0]), *held(some[1], [0])])
    assert not found(some, [*held(some[0], [0]), *held(some[1], [0])])
