# SPDX-License-Identifier: Apache-2.0
"""Which GPUs to rent or to give back, on histories made by hand."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC

import pytest
from msgspec.structs import replace

from dovetail.cost.capacity import CapacityAdvice, CapacityAnswer, StrandedCost, capacity
from dovetail.cost.price_rules import PriceBook, PriceRule
from dovetail.history.records import DAY_MS, HOUR_MS, Gap, GpuHold, GpuSpan, Period, PodRecord
from tests.history.memory_reader import MemoryReader

DAYS, GPUS, MODEL = 10, 8, "NVIDIA-H100-80GB-HBM3"
WHOLE = Period(0, DAYS * DAY_MS)
BOOK = PriceBook(
    [[PriceRule(1_000_000, "EUR", "2026-11-01", "offer", per_gpu=True, node="n0"),
      PriceRule(3_000_000, "EUR", "2026-10-01", "contract", per_gpu=True)]]
)  # fmt: skip


def spans(nodes: int, model: str = MODEL) -> list[GpuSpan]:
    return [GpuSpan(f"{n}/{i}", f"n{n}", i, GPUS, model, "healthy", 0) for n in range(nodes) for i in range(GPUS)]


def job(name: str, node: int, gpus: int, submitted: int, bound: int, ended: int) -> tuple[PodRecord, list[GpuHold]]:
    """Times are in hours. A pod that is bound at 0 never was."""
    times = submitted * HOUR_MS, bound * HOUR_MS, ended * HOUR_MS
    pod = PodRecord(name, "ns", name, name, gpu_milli=1000 * gpus, node=f"n{node}" if bound else "",
                    submitted_ms=times[0], bound_ms=times[1], ended_ms=times[2])  # fmt: skip
    held = range(gpus) if bound else ()
    return pod, [GpuHold(name, f"{node}/{i}", 1000, "whole", times[1], times[2]) for i in held]


def asked(
    nodes: int, jobs: Iterable[tuple[PodRecord, list[GpuHold]]], gaps: Iterable[Gap] = (), known: Period = WHOLE
) -> CapacityAnswer:
    jobs = list(jobs)
    holds = sorted((one for _, held in jobs for one in held), key=lambda one: (one.gpu, one.start_ms))
    reader = MemoryReader(known, spans(nodes), holds, [pod for pod, _ in jobs], (), list(gaps))
    return capacity(reader, WHOLE, UTC, BOOK)


def advice(
    nodes: int, jobs: Iterable[tuple[PodRecord, list[GpuHold]]], gaps: Iterable[Gap] = (), known: Period = WHOLE
) -> CapacityAdvice:
    (found,) = asked(nodes, jobs, gaps, known).kinds
    return found


def test_what_was_never_needed_is_returned_at_the_lowest_price() -> None:
    found = advice(8, [job(f"j{n}", n, 8, 1, 1, 200) for n in range(6)])
    assert (found.verdict, found.change_nodes, found.needed_nodes) == ("give back", -2, 6)
    assert (found.gpus, found.peak_gpus, found.least_free_gpus, found.least_unused_gpus) == (64, 48, 16, 16)
    assert "at most 48 of 64 GPUs were held at once; no job waited for them" in found.evidence
    assert (found.per_hour_micro, found.price_source, found.price_date) == (-2 * 8_000_000, "offer", "2026-11-01")
    assert found.per_30d_micro == 720 * -16_000_000


def test_the_replay_counts_and_not_the_mean_nor_the_peak() -> None:
    """Five GPUs on each of four nodes: twenty of thirty-two, and no two pods fit on one node."""
    found = advice(4, [job(f"j{n}", n, 5, 1, 1, 2) for n in range(4)])
    assert found.mean_gpus_milli < 1000 and found.peak_gpus == 20
    assert (found.verdict, found.needed_nodes) == ("keep", 4)


HOSTED = PriceRule(8_000_000, "EUR", "2026-11-01", "offer", model="h100-sxm5", cpu_milli=100_000, memory_mib=1_000_000)


def test_nodes_whose_cpus_or_memory_are_needed_are_kept() -> None:
    """Eight pods of one GPU fit on one node, but not their CPUs: 90,000 m of a node are for pods."""
    spread = [job(f"j{n}", n, 1, 1, 1, 200) for n in range(8)]

    def found(**requests: int) -> CapacityAdvice:
        holds = sorted((one for _, held in spread for one in held), key=lambda one: (one.gpu, one.start_ms))
        pods = [replace(pod, **requests) for pod, _ in spread]
        reader = MemoryReader(WHOLE, spans(8), holds, pods, (), [])
        (one,) = capacity(reader, WHOLE, UTC, PriceBook([[HOSTED]])).kinds
        return one

    assert (found().needed_nodes, found().node_cpu_milli, found().node_memory_mib) == (1, 90_000, 900_000)
    assert found(cpu_milli=30_000).needed_nodes == 3
    assert found(memory_mib=450_000).needed_nodes == 4
    kept = found(cpu_milli=46_000)
    assert (kept.verdict, kept.needed_nodes) == ("keep", 8)
    one = found(cpu_milli=30_000)
    assert "replayed with the CPUs and the memory that pods request, all of it fits on 3 of 8" in one.evidence
    assert "beside GPUs the replay counts requests of CPUs and memory" in one.risk
    unknown = advice(8, spread)
    assert (unknown.node_cpu_milli, unknown.needed_nodes) == (0, 1)
    assert "no CPUs and no memory, as the nodes' are not known" in unknown.risk


def test_pods_one_after_another_need_one_node() -> None:
    found = advice(4, [job(f"j{n}", n, 8, 10 * n + 1, 10 * n + 1, 10 * n + 11) for n in range(4)])
    assert (found.change_nodes, found.p95_gpus, found.lacked_gpu_s) == (-3, 8, 0)


def test_what_waited_is_needed_too() -> None:
    """It waited for a quota, beside two free nodes: one of them would have been its."""
    found = advice(3, [job("a", 0, 8, 1, 1, 50), job("b", 0, 8, 20, 50, 90)])
    assert (found.verdict, found.change_nodes) == ("give back", -1)
    assert (found.waited_gpu_s, found.lacked_gpu_s) == (8 * 30 * 3600, 0)


def test_nodes_are_rented_for_what_jobs_lacked_at_the_highest_price() -> None:
    """Two jobs of a whole node each day on one node: the other one waits for half of the day."""
    jobs = [job(f"a{day}", 0, 8, 24 * day + 1, 24 * day + 1, 24 * day + 12) for day in range(DAYS)]
    jobs += [job(f"b{day}", 0, 8, 24 * day + 1, 24 * day + 12, 24 * day + 23) for day in range(DAYS)]
    found = advice(1, jobs)
    assert (found.verdict, found.change_nodes, found.lacked_days, found.days) == ("rent or buy", 1, DAYS, DAYS)
    assert found.lacked_gpu_s == found.waited_gpu_s == 8 * 11 * 3600 * DAYS
    assert found.per_hour_micro == 8_000_000
    assert advice(1, jobs[:DAYS] + jobs[DAYS : DAYS + 2]).verdict == "keep"


def test_of_a_backlog_only_what_would_run_is_rented() -> None:
    """A hundred jobs of an hour come at once: they lacked many GPUs for long, but would have been done in an hour."""
    jobs = [job(f"j{n}", 0, 8, 1, n + 1, n + 2) for n in range(100)]
    found = advice(1, jobs)
    assert found.lacked_gpu_s > 30_000 * 3600 // 2 and found.verdict == "keep"


@pytest.mark.parametrize(
    ("gaps", "known", "text"),
    [
        ([Gap(0, 2 * DAY_MS, "the collector did not run")], WHOLE, "nothing was recorded for 20 % of the period"),
        ([], Period(0, 6 * DAY_MS), "the history has 6.0 days of the period, and advice needs 7"),
    ],
)
def test_too_little_is_known(gaps: list[Gap], known: Period, text: str) -> None:
    found = advice(2, [], gaps, known)
    assert (found.verdict, found.change_nodes, found.evidence) == ("not enough data", 0, text)
    assert found.per_hour_micro is None


def test_without_a_price_the_advice_stays_and_the_reason_is_there() -> None:
    reader = MemoryReader(WHOLE, spans(2))
    (found,) = capacity(reader, WHOLE, UTC, PriceBook([])).kinds
    assert (found.change_nodes, found.per_hour_micro) == (-2, None) and MODEL in found.fix


def test_kinds_are_apart_and_nodes_that_are_gone_are_not_returned() -> None:
    some = [replace(one, end_ms=DAY_MS) if one.node == "n1" else one for one in spans(2)]
    reader = MemoryReader(WHOLE, [*some, GpuSpan("m/0", "m", 0, 1, "L4", "healthy", 0)])
    found = capacity(reader, WHOLE, UTC, BOOK).kinds
    assert [(one.model, one.node_gpus, one.nodes, one.change_nodes) for one in found] == [
        (MODEL, 8, 1, -1), ("L4", 1, 1, -1),
    ]  # fmt: skip


def test_a_history_of_nothing() -> None:
    assert capacity(MemoryReader(Period(0, 0)), WHOLE, UTC, BOOK).kinds == ()


def test_stranded_gpus_cost_what_they_cost_then() -> None:
    """From hour 24 to 72 a pod of 8 waits beside 3 free GPUs, and their price doubles after a day; then none waits, and
    the typical pod, of 8, cannot use the 3."""
    jobs = [job("a", 0, 5, -1, -1, 240), job("b", 1, 8, -1, -1, 72), job("c", 1, 8, 24, 72, 240)]
    holds = sorted((one for _, held in jobs for one in held), key=lambda one: (one.gpu, one.start_ms))
    reader = MemoryReader(
        WHOLE,
        spans(2),
        holds,
        [replace(pod, node=node) for (pod, _), node in zip(jobs, ("n0", "n1", "n1"), strict=True)],
        (),
        [],
    )
    rules = [
        PriceRule(price, "EUR", "", "bill", per_gpu=True, from_ms=from_ms)
        for price, from_ms in ((10**6, 0), (2 * 10**6, 2 * DAY_MS))
    ]
    (found,) = capacity(reader, WHOLE, UTC, PriceBook([rules])).kinds
    waiting, over = found.stranded
    assert waiting == StrandedCost(True, "fragmented", 3 * 48 * 3600, 3 * 24 * (1 + 2) * 10**6)
    assert (over.waited, over.gpu_s, over.cost_micro) == (False, 3 * 192 * 3600, 3 * (24 + 168 * 2) * 10**6)
    assert found.typical_gpus == 8
    (unpriced,) = capacity(reader, WHOLE, UTC, PriceBook([])).kinds
    assert [one.cost_micro for one in unpriced.stranded] == [None, None]
